"""The work of a step on a card, recorded once for each shape of its inputs, and then repeated.

A small network's step has hundreds of operations, each of which takes the processor longer to start
than the card to compute. A CUDA graph starts them all at once.

Reference: Ng, Gottbrath et al., Accelerating PyTorch with CUDA graphs (2021).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from photinus.core.errors import PhotinusError, UsageError
from photinus.core.parameters import FLOATS, INTEGERS
from photinus.models.placement import DeviceParameters

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
        records: whether a step may be recorded, on a device that has CUDA graphs.
    """

    def __init__(self, at: DeviceParameters, name: str, *, records: bool = True) -> None:
        self._at, self._name = at, name
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
            held = self._held[shape] = self._record(step, sent, seed)
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

        with _NoDropout():  # some kinds of it draw other numbers when they are recorded
            self._plain(step, inputs, seed)
            plain = self._at.tensor(self._at.gradient).clone()
            undo()
            graph, _ = self._captured(step, inputs)
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
        return UsageError(wrong, got=got, do=do)


class _NoDropout(TorchFunctionMode):
    """Has dropout leave out nothing."""

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
        elif "dropout" in name:
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)
