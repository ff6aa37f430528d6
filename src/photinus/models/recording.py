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

_PLAIN_STEPS = 2
"""So many steps of a shape are plain: libraries choose their algorithms in them."""
_MAX_SHAPES = 16
"""Shapes that are recorded; each keeps its inputs on the card."""
_MAX_DEVIATION = 0.05
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
        storage: where parameters and gradient lie.
        name: of the model, for errors.
        dropout_off: turns dropout off meanwhile: some kinds of it draw other numbers when they
            are recorded.
        is_required: whether a step that cannot be recorded is an error; else a warning says so, and
            its steps stay plain.
        can_record: whether a step may be recorded, on a device that has CUDA graphs.
    """

    def __init__(
        self,
        storage: DeviceParameters,
        name: str,
        dropout_off: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        is_required: bool = True,
        can_record: bool = True,
    ) -> None:
        self._storage, self._name = storage, name
        self._dropout_off, self._is_required = dropout_off, is_required
        self._can_record = can_record and storage.device.type == "cuda"
        self._steps_by_shape = Counter[tuple[Any, ...]]()
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
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
        signature = tuple((name, tuple(x.shape), x.dtype) for name, x in inputs.items())
        recording = self._recordings.get(signature)
        if recording is None:
            self._steps_by_shape[signature] += 1
            device_inputs = {name: self._storage.on_device(x) for name, x in inputs.items()}
            is_plain = (
                self._steps_by_shape[signature] <= _PLAIN_STEPS
                or len(self._recordings) == _MAX_SHAPES
            )
            if is_plain or not self._can_record:
                return self._run_plain(step, device_inputs, seed)
            try:
                recording = self._recordings[signature] = self._record(step, device_inputs, seed)
            except UsageError as error:
                if self._is_required:
                    raise
                _log.warning("%s; its steps stay plain", error)
                self._can_record = False
                return self._run_plain(step, device_inputs, seed)
        else:
            for name, x in inputs.items():
                self._storage.copy_into(recording.inputs[name], x)
        self._storage.seed(seed)
        recording.graph.replay()
        return recording.measured

    def _run_plain(self, step: Step, inputs: Inputs, seed: int) -> Tensor:
        self._storage.seed(seed)
        return step(inputs, seed)

    def _record(self, step: Step, inputs: Inputs, seed: int) -> _Recording:
        """Records a step, and compares it with the plain one; buffers are left as they were."""
        sections = [self._storage.parameters.section(name) for name in (FLOATS, INTEGERS)]
        buffers = [self._storage.tensor(section) for section in sections]
        originals = [buffer.clone() for buffer in buffers]

        def restore() -> None:
            for buffer, original in zip(buffers, originals, strict=True):
                buffer.copy_(original)

        gradient = self._storage.tensor(self._storage.gradient)
        with self._dropout_off():
            self._run_plain(step, inputs, seed)
            plain_gradient = gradient.clone()
            restore()
            graph, _ = self._capture(step, inputs)
            gradient.zero_()  # what a graph does not write is no gradient
            self._storage.seed(seed)
            graph.replay()
            restore()
        self._compare(plain_gradient)
        graph, measured = self._capture(step, inputs)
        return _Recording(graph, inputs, measured)

    def _capture(self, step: Step, inputs: Inputs) -> tuple[Any, Tensor]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                measured = step(inputs, None)
        except (RuntimeError, PhotinusError) as error:
            raise self._recording_error(str(error).partition("\n")[0]) from error
        self._pool = graph.pool()
        return graph, measured

    def _compare(self, plain_gradient: Tensor) -> None:
        distance = float(
            torch.linalg.vector_norm(self._storage.tensor(self._storage.gradient) - plain_gradient)
        )
        norm = float(torch.linalg.vector_norm(plain_gradient))
        if isfinite(norm) and not distance <= _MAX_DEVIATION * norm:
            got = f"a gradient that is {distance:.3g} away from the plain one, of length {norm:.3g}"
            raise self._recording_error(got)

    def _recording_error(self, got: str) -> UsageError:
        wrong = f"a step of {self._name} cannot be recorded as a CUDA graph"
        do = "leave cuda_graph out, or let the forward pass do the same work for every batch"
        return UsageError(wrong, got=got, do=do if self._is_required else "")


@contextmanager
def no_dropout(module: nn.Module) -> Iterator[None]:
    """Has the dropout of a module, and of the functions that it calls, leave out nothing."""
    rates = [
        (layer, name)
        for layer in module.modules()
        for name in ("p", "dropout")
        if isinstance(layer, _WITH_RATE) and isinstance(getattr(layer, name, None), float)
    ]
    originals = [getattr(layer, name) for layer, name in rates]
    try:
        for layer, name in rates:
            setattr(layer, name, 0.0)
        with _NoDropout():
            yield
    finally:
        for (layer, name), rate in zip(rates, originals, strict=True):
            setattr(layer, name, rate)


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
