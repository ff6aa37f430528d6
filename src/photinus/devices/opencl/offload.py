"""Has every product, convolution and max-pool of PyTorch computed by an OpenCL device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from photinus.core.errors import UsageError
from photinus.devices.opencl import convolutions, matmul, pools
from photinus.devices.opencl.engine import NoKernelError, OpenCLEngine

_HEAVY = re.compile(
    r"mm(_|$)|mv(_|$)|matmul|(^|_)linear(_|$)|conv(?!ert)|max_pool|attention"
    r"|(?<!fused_)(lstm|gru)|rnn|^_trilinear|matrix_exp"
)
"""Names of operators that multiply matrices, convolve or take maxima of windows."""
_ON_HOST = "cpu"


class Offload(TorchDispatchMode):
    """While it is entered, products, convolutions and max-pools run on a device, or are refused.

    None of them ever runs on the host. All else does: it is cheap.

    Args:
        engine: the device.

    Raises:
        UsageError: one of them cannot be computed there.
    """

    def __init__(self, engine: OpenCLEngine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._engine = engine
        self.counts: Counter[str] = Counter()
        """How often each operator ran on the device."""

    def __enter__(self) -> Self:
        self._plain_attention = sdpa_kernel(SDPBackend.MATH)  # products, not one operator
        self._plain_attention.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401 - as of any context
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._plain_attention.__exit__(*error)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator of PyTorch
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what the operator returns
        name = str(func)
        compute = _IMPLEMENTATIONS.get(name)
        if compute is None:
            namespace, _, operator = func.name().partition("::")
            if _HEAVY.search(operator.partition(".")[0]) or namespace == "mkldnn":
                raise self._unsupported_error(name, "it has no kernel for it", args)
            return func(*args, **(kwargs or {}))
        tensors = [tensor for tensor in args if isinstance(tensor, Tensor)]
        if compute is pools.pool_back:
            tensors.pop()  # the indices
        if any(
            tensor.dtype != torch.float32 or tensor.device.type != _ON_HOST for tensor in tensors
        ):
            raise self._unsupported_error(name, "OpenCL devices compute in float32", args)
        try:
            result = compute(self._engine, *args, **(kwargs or {}))
        except NoKernelError as error:
            raise self._unsupported_error(name, str(error), args) from None
        self.counts[name] += 1
        return result

    def _unsupported_error(self, name: str, reason: str, args: Sequence[Any]) -> UsageError:
        shapes = [
            f"{tensor.dtype}{list(tensor.shape)}" for tensor in args if isinstance(tensor, Tensor)
        ]
        wrong = f"{self._engine.device.name} does not compute {name}: {reason}"
        do = 'change the layer, or set device="cpu"'
        return UsageError(wrong, got=", ".join(shapes).replace("torch.", "") or "nothing", do=do)


_IMPLEMENTATIONS: Mapping[str, Callable[..., Any]] = {
    "aten.mm.default": matmul.multiply,
    "aten.mm.out": matmul.into(matmul.multiply),
    "aten.bmm.default": matmul.multiply,
    "aten.bmm.out": matmul.into(matmul.multiply),
    "aten.mv.default": matmul.multiply_vector,
    "aten.addmv.default": matmul.add_vector_product,
    "aten.addmm.default": matmul.add_product,
    "aten.addmm.out": matmul.into(matmul.add_product),
    "aten.baddbmm.default": matmul.add_product,
    "mkldnn._linear_pointwise.default": matmul.onednn_linear,
    "aten.convolution.default": convolutions.convolve,
    "aten.convolution_backward.default": convolutions.convolve_back,
    "aten.max_pool2d_with_indices.default": pools.pool,
    "aten.max_pool2d_with_indices_backward.default": pools.pool_back,
}
