"""The work of a step on a card, recorded once for each shape of its inputs, and then repeated.

A small network's step has hundreds of operations, each of which takes the processor longer to start
than the card to compute. A CUDA graph starts them all at once.

Reference: Ng, Gottbrath et al., Accelerating PyTorch with CUDA graphs (2021).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from photinus.core.errors import PhotinusError, UsageError
from photinus.core.parameters import FLOATS, INTEGERS
from photinus.models.placement import DeviceParameters

_log = logging.getLogger("photinus")

Inputs = Mapping[str, Tensor]
Step = Callable[[Inputs, int | None], Tensor]
"""(inputs on the device, seed) → what is measured []. It writes the gradient, in device work alone.
Without a seed, the device's chance is already seeded."""

_PLAIN = 2
"""So many steps of a shape are plain: libraries choose their algorithms in them."""
_MOST = 16
"""Shapes that are recorded; each keeps its inputs on the card."""
_FAR = 0.05
"""A recorded gradient may be this share of its length away from the plain one, at most: low
precision and another order of sums are nearer, another branch of the program is not."""


class _Recording(NamedTuple):
    graph: Any
    """Has `replay`."""
    inputs: Inputs
    """Where it reads them."""
    measured: Tensor
    """Where it writes what the step returned."""


class Recorder:
    """Takes steps as a function does, from the third of a shape on by a CUDA graph.

    Args:
        at: where parameters and gradient lie.
        name: of the model, for errors.
        still: has dropout leave out nothing meanwhile: some kinds of it draw other numbers when
            they are recorded.
        is_asked: whether a step that cannot be recorded is an error; else it is told, and stays
            plain.
        records: whether a step may be recorded, on a device that has CUDA graphs.
    """

    def __init__(
        self,
        at: DeviceParameters,
        name: str,
        still: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        is_asked: bool = True,
        records: bool = True,
    ) -> None:
        self._at, self._name, self._still, self._is_asked = at, name, still, is_asked
        self._records = records and at.device.type == "cuda"
        self._seen = Counter[tuple[Any, ...]]()
        self._held: dict[tuple[Any, ...], _Recording] = {}
        self._pool: Any = None

    def take(self, step: Step, inputs: Inputs, seed: int) -> Tensor:
        """Takes a step; returns what it measured, which the next step may overwrite.

        Args:
            step: is called, or recorded: always the same one. What it reads beside its inputs must
                stay where it is.
            inputs: on the host, or on the device.
            seed: decides all chance of the step.

        Raises:
            UsageError: the step cannot be recorded, or does something else when it is repeated.
        """
        shape = tuple((name, tuple(x.shape), x.dtype) for name, x in inputs.items())
        held = self._held.get(shape)
        if held is None:
            self._seen[shape] += 1
            sent = {name: self._at.sent(x) for name, x in inputs.items()}
            is_new = self._seen[shape] <= _PLAIN or len(self._held) == _MOST
            if is_new or not self._records:
                return self._plain(step, sent, seed)
            try:
                held = self._held[shape] = self._record(step, sent, seed)
            except UsageError as error:
                if self._is_asked:
                    raise
                _log.warning("%s; its steps stay plain", error)
                self._records = False
                return self._plain(step, sent, seed)
        else:
            for name, x in inputs.items():
                self._at.send_into(held.inputs[name], x)
        self._at.seed(seed)
        held.graph.replay()
        return held.measured

    def _plain(self, step: Step, sent: Inputs, seed: int) -> Tensor:
        self._at.seed(seed)
        return step(sent, seed)

    def _record(self, step: Step, inputs: Inputs, seed: int) -> _Recording:
        """Records a step, and compares it with the plain one; buffers are left as they were."""
        sections = [self._at.parameters.section(name) for name in (FLOATS, INTEGERS)]
        buffers = [self._at.tensor(section) for section in sections]
        before = [buffer.clone() for buffer in buffers]

        def undo() -> None:
            for buffer, kept in zip(buffers, before, strict=True):
                buffer.copy_(kept)

        gradient = self._at.tensor(self._at.gradient)
        with self._still():
            self._plain(step, inputs, seed)
            plain = gradient.clone()
            undo()
            graph, _ = self._captured(step, inputs)
            gradient.zero_()  # what a graph does not write is no gradient
            self._at.seed(seed)
            graph.replay()
            undo()
        self._compare(plain)
        graph, measured = self._captured(step, inputs)
        return _Recording(graph, inputs, measured)

    def _captured(self, step: Step, inputs: Inputs) -> tuple[Any, Tensor]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                measured = step(inputs, None)
        except (RuntimeError, PhotinusError) as error:
            raise self._refusal(str(error).partition("\n")[0]) from error
        self._pool = graph.pool()
        return graph, measured

    def _compare(self, plain: Tensor) -> None:
        far = float(torch.linalg.vector_norm(self._at.tensor(self._at.gradient) - plain))
        length = float(torch.linalg.vector_norm(plain))
        if isfinite(length) and not far <= _FAR * length:
            got = f"a gradient that is {far:.3g} away from the plain one, of length {length:.3g}"
            raise self._refusal(got)

    def _refusal(self, got: str) -> UsageError:
        wrong = f"a step of {self._name} cannot be recorded as a CUDA graph"
        do = "leave cuda_graph out, or let the forward pass do the same work for every batch"
        return UsageError(wrong, got=got, do=do if self._is_asked else "")


@contextmanager
def no_dropout(module: nn.Module) -> Iterator[None]:
    """Has the dropout of a module, and of the functions that it calls, leave out nothing."""
    rates = [
        (part, name)
        for part in module.modules()
        for name in ("p", "dropout")
        if isinstance(part, _WITH_RATE) and isinstance(getattr(part, name, None), float)
    ]
    before = [getattr(part, name) for part, name in rates]
    try:
        for part, name in rates:
            setattr(part, name, 0.0)
        with _NoDropout():
            yield
    finally:
        for (part, name), rate in zip(rates, before, strict=True):
            setattr(part, name, rate)


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_WITH_RATE = (*_DROPOUTS, nn.FeatureAlphaDropout, nn.MultiheadAttention, nn.RNNBase)


class _NoDropout(TorchFunctionMode):
    """Has functions leave out nothing; it does not see into those that call others."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401 - torch's
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "scaled_dot_product_attention":  # (query, key, value, mask, rate, is_causal)
            rest = {"is_causal": args[5]} if len(args) > 5 else {}
            args, kwargs = args[:4], {**kwargs, **rest, "dropout_p": 0.0}
        elif "dropout" in name and name != "native_dropout":
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)
