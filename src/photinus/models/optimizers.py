"""Inner optimizers: one worker's step from a gradient, in place on the flat buffer.

Learning rate and momentum are functions of the phase's agreed progress 0..1, so that all workers
follow one schedule, whenever they join.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from photinus.core.errors import CheckpointError, UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.parameters import TRAINED, Layout, Vector
from photinus.core.settings import unknown_name
from photinus.models.eager import eager
from photinus.models.schedules import Schedule
from photinus.models.tables import BY_ROWS, check_optimizer, nonzero_rows, sparse_adam
from photinus.models.tensors import tensor_of

if TYPE_CHECKING:
    from photinus.models.base import BatchLike, Model


OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    name.lower(): cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls)
    and issubclass(cls, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")  # need a closure, or sparse gradients
}
"""torch's optimizers by name."""

RATES: Mapping[str, float] = {
    "adadelta": 1.0,
    "adafactor": 0.01,
    "adagrad": 0.01,
    "adam": 0.001,
    "adamax": 0.002,
    "adamw": 0.001,
    "asgd": 0.01,
    "nadam": 0.001,
    "radam": 0.001,
    "rmsprop": 0.001,
    "rprop": 0.01,
    "sgd": 0.1,
}
"""The highest learning rate of an optimizer where the user gives none; the others need one."""
_MOMENTUM_FACTOR = 0.5
"""Of sgd's rate, with momentum."""

_SMALLEST_RATE = 1e-9
"""Of lr and momentum: torch drops the velocity at 0, and it is kept as velocity / lr."""

_WITH_CLOSURE = ("lbfgs", "torch.optim:lbfgs", "torch.optim.lbfgs:lbfgs")
LARGE = 1 << 16
"""How many numbers of a parameter: their copy takes longer than one more turn of the optimizer."""
_FUSED = ("adam", "adamw", "sgd", "adagrad")


def check_optimizer_named(name: str) -> None:
    """Refuses a name that is none of `OPTIMIZERS`, nor "package.module:Class"; imports nothing.

    Raises:
        UsageError: names the nearest one.
    """
    if name.lower() in _WITH_CLOSURE:
        raise _closure_error(name)
    if ":" not in name and name.lower() not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)


def _closure_error(name: str) -> UsageError:
    wrong = "an optimizer whose step needs a closure is not taken"
    do = "name one that steps by a gradient, such as adamw or sgd"
    return UsageError(wrong, got=repr(name), do=do)


def usual_rate(optimizer: str, settings: Mapping[str, Any]) -> float:
    """Returns the highest learning rate of an optimizer where the user gives none.

    Example:
        >>> usual_rate("adamw", {}), usual_rate("sgd", {"momentum": 0.9})
        (0.001, 0.05)

    Raises:
        UsageError: this optimizer has no usual rate.
    """
    name = optimizer.lower()
    if name not in RATES:
        do = "set lr, such as Schedule.cosine(0.01); learningRate in an estimator"
        raise UsageError(f"the optimizer {optimizer} needs a learning rate", do=do)
    has_momentum = name == "sgd" and float(settings.get("momentum", 0)) > 0
    return RATES[name] * (_MOMENTUM_FACTOR if has_momentum else 1.0)


class InnerOptimizer(ABC):
    """Takes one step on the trained parameters, in place."""

    @abstractmethod
    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        """Moves `trained` downhill.

        Args:
            trained: the parameters [n], changed in place.
            gradient: [n], left as it is.
            progress: the phase's agreed progress 0..1.
        """

    def take(self, start: int, gradient: Tensor) -> bool:  # noqa: ARG002 - some take it
        """Takes a part of the next step's gradient as it is, which spares a copy.

        Args:
            start: where in the gradient [n].
            gradient: of one parameter, in its shape.

        Returns:
            Whether it is taken: `step` then does not read that part of its own gradient.
        """
        return False

    def move(self, device: torch.device) -> None:
        """Keeps its state on a device from now on, and steps there, on the device's tensors.

        Raises:
            UsageError: it steps on the processor only.
        """
        name = type(self).__name__
        raise UsageError(f"{name} steps on the processor only", got=device, do='device="cpu"')

    def state(self) -> dict[str, Vector]:
        """Returns its state as flat vectors by name; empty before the first step."""
        return {}

    def load(self, state: Mapping[str, Vector]) -> None:  # noqa: B027 - to remember nothing is usual
        """Takes up a `state()`: what follows has the same bits as if it had never stopped."""


class InPlaceOptimizer(InnerOptimizer):
    """Takes all steps of a batch itself: for tables of which a batch touches few rows."""

    @abstractmethod
    def descend(
        self, model: Model, batch: BatchLike, seed: int, progress: float
    ) -> Mapping[str, float]:
        """Learns a batch, changing the model's parameters; returns what was measured on the way.

        Args:
            model: of the same config.
            batch: features [B, ...].
            seed: decides all chance.
            progress: the phase's agreed progress 0..1.
        """


@dataclass(frozen=True, slots=True)
class _Span:
    """A run of the flat buffer that the optimizer sees as one tensor."""

    start: int
    stop: int
    shape: tuple[int, ...]
    is_weight: bool
    is_table: bool = False
    """Of which a step changes few rows."""
    is_large: bool = False
    """One parameter, of which a copy takes time."""


def _spans(layout: Layout, *, per_tensor: bool, separate_weights: bool) -> list[_Span]:
    spans: list[_Span] = []
    for e in (e for e in layout.entries if e.section == TRAINED):
        is_weight, is_large = len(e.shape) > 1 or not separate_weights, e.size >= LARGE
        last, stop = spans[-1] if spans else None, e.offset + e.size
        is_alone = per_tensor or is_large or not last or last.is_table or last.is_large
        if e.name in layout.sparse:
            spans.append(_Span(e.offset, stop, e.shape, is_weight=False, is_table=True))
        elif last and not is_alone and last.is_weight == is_weight:
            spans[-1] = _Span(last.start, stop, (-1,), is_weight)
        else:
            shape = e.shape if per_tensor else (-1,)
            spans.append(_Span(e.offset, stop, shape, is_weight, is_large=is_large))
    return spans


class TorchOptimizer(InnerOptimizer):
    """Any of torch's optimizers, on views of the flat buffer; fused where torch has it.

    Neighbouring tensors are one long tensor to it, unless `per_tensor` asks for their shapes, as
    optimizers that are not elementwise need (Adafactor, Muon). Biases and scales are then,
    and with `decays="weights"`, a group of their own without weight decay.

    Example:
        >>> layout = Layout.of([("w", (2, 2), "trained"), ("b", (2,), "trained")])
        >>> inner = TorchOptimizer(layout, "adamw", {"weight_decay": 0.01}, Schedule.constant(0.1))
        >>> trained = np.ones(6, np.float32)
        >>> inner.step(trained, np.ones(6, np.float32), progress=0.0)
        >>> bool((trained < 1).all()), sorted(inner.state())
        (True, ['exp_avg', 'exp_avg_sq', 'step'])
    """

    def __init__(
        self,
        layout: Layout,
        optimizer: str = "adam",
        settings: Mapping[str, Any] | None = None,
        lr: Schedule | None = None,
        *,
        decays: str = "all",
        per_tensor: bool = False,
    ) -> None:
        """Stores what to build; the optimizer is made at the first step.

        Args:
            layout: of the parameters.
            optimizer: one of `OPTIMIZERS`, or "package.module:Class".
            settings: its keyword arguments, plain values.
            lr: the learning rate over progress; without it, as in `settings`.
            decays: "all", or "weights": no decay for tensors of one dimension.
            per_tensor: show the optimizer each tensor in its shape.

        Raises:
            UsageError: the optimizer is unknown, does not take the settings, or moves rows of
                sparse tables that have no gradient.
        """
        if decays not in ("all", "weights"):
            raise unknown_name("decays", decays, ("all", "weights"))
        check_optimizer(layout.sparse, optimizer, settings or {})
        self._size = layout.size()
        self._lr = lr
        self._spans = _spans(layout, per_tensor=per_tensor, separate_weights=decays == "weights")
        dtype = getattr(torch, layout.dtype)
        self._tensors = [
            torch.nn.Parameter(torch.zeros(p.stop - p.start, dtype=dtype).view(p.shape))
            for p in self._spans
        ]
        self._optimizers = self._make(optimizer, settings or {})
        """Of all tensors, and of those that are stepped by rows, where there are any."""
        self._bound: Vector | Tensor | None = None
        self._bound_gradient: Vector | Tensor | None = None
        self._gradients: list[Tensor] = []
        self._large = {span.start: n for n, span in enumerate(self._spans) if span.is_large}
        self._taken: dict[int, Tensor] = {}
        self._taken_memory = set[int]()

    def _make(self, name: str, given: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
        cls, settings = optimizer_class(name), dict(given)
        _check_arguments(cls, name, settings)
        pairs = list(zip(self._spans, self._tensors, strict=True))
        self._by_rows = [p.is_table and name.lower() in BY_ROWS for p in self._spans]
        dense = [pair for pair, by_rows in zip(pairs, self._by_rows, strict=True) if not by_rows]
        tables = [t for t, by_rows in zip(self._tensors, self._by_rows, strict=True) if by_rows]
        optimizers: list[torch.optim.Optimizer] = []
        groups: list[dict[str, Any]] = [{"params": [t for p, t in dense if p.is_weight]}]
        if undecayed := [t for p, t in dense if not p.is_weight]:
            groups.append({"params": undecayed, "weight_decay": 0.0})
        try:
            if tables:
                optimizers.append(sparse_adam(tables, settings))
            if name.lower() in _FUSED:
                settings.setdefault("fused", True)
            if dense or not tables:
                optimizers.append(cls([g for g in groups if g["params"]], **settings))
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"the optimizer {name!r} does not take these settings",
                got=dict(given),
                do=str(error),
            ) from error
        if not isinstance(optimizers[-1], torch.optim.Optimizer):
            raise UsageError(f"{name} makes no torch optimizer", got=type(optimizers[-1]).__name__)
        return optimizers

    def move(self, device: torch.device) -> None:
        for tensor in self._tensors:
            tensor.data = tensor.data.to(device)

    def step(self, trained: Vector | Tensor, gradient: Vector | Tensor, progress: float) -> None:
        """Moves `trained` downhill by the optimizer's rule."""
        if self._bound is not trained:
            self._bind(trained)
        if self._bound_gradient is not gradient:
            self._gradients, self._bound_gradient = self._views(gradient), gradient
        for n, (tensor, by_rows) in enumerate(zip(self._tensors, self._by_rows, strict=True)):
            grad = self._taken.pop(n, self._gradients[n])
            tensor.grad = nonzero_rows(grad) if by_rows else grad
        for optimizer in self._optimizers:
            if self._lr is not None:
                rate = self._lr.at(progress)
                for group in optimizer.param_groups:
                    group["lr"] = rate
            optimizer.step()
        for n in self._large.values():
            self._tensors[n].grad = None  # it may be the last that holds it
        self._taken_memory.clear()

    def take(self, start: int, gradient: Tensor) -> bool:
        """Takes a large parameter's gradient on the processor."""
        n = self._large.get(start)
        if n is None or gradient.device.type != "cpu" or gradient.layout is not torch.strided:
            return False
        tensor = self._tensors[n]
        if gradient.dtype != tensor.dtype or not gradient.is_contiguous():
            return False
        memory = gradient.untyped_storage().data_ptr()
        if memory in self._taken_memory:  # of a sum both terms may have one gradient
            return False
        self._taken[n] = gradient.view(tensor.shape)
        self._taken_memory.add(memory)
        return True

    def _bind(self, trained: Vector | Tensor) -> None:
        if trained.shape != (self._size,):
            raise UsageError("the layout has another size", got=list(trained.shape))
        for view, tensor in zip(self._views(trained), self._tensors, strict=True):
            tensor.data = view
        self._bound = trained

    def _views(self, vector: Vector | Tensor) -> list[Tensor]:
        """Returns each parameter's part of a vector [n], in its shape."""
        flat = tensor_of(vector)
        return [flat[span.start : span.stop].view(span.shape) for span in self._spans]

    def state(self) -> dict[str, Vector]:
        """Returns the optimizer's vectors, each [n] in the layout's order, and its numbers."""
        states = [self._state_of(t) for t in self._tensors]
        names = sorted({n for k in states for n, v in k.items() if v is not None})
        return {name: _concatenate([k.get(name) for k in states]) for name in names}

    def _state_of(self, tensor: Tensor) -> dict[str, Any]:
        state_maps = (optimizer.state for optimizer in self._optimizers)
        return next((states[tensor] for states in state_maps if tensor in states), {})

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def load(self, state: Mapping[str, Vector]) -> None:
        """Takes up a `state()`.

        Raises:
            CheckpointError: its names or lengths are another optimizer's.
        """
        if not state:
            self._clear()
            return
        self._allocate()
        own = self.state()
        state = {name: self._for_each_tensor(name, numbers) for name, numbers in state.items()}
        for name in sorted({*own, *state}):
            if name not in own or name not in state or own[name].shape != state[name].shape:
                raise CheckpointError(
                    f"the optimizer's state {name!r} does not fit",
                    got=f"{sorted(state)} where {sorted(own)} is due",
                    do="resume with the optimizer that wrote it",
                )
            self._write_state(name, torch.from_numpy(np.ascontiguousarray(state[name])))

    def _for_each_tensor(self, name: str, numbers: Vector) -> Vector:
        """Returns a number for each tensor where fewer tensors had it: large ones were not apart.

        It follows from the steps, which all of them have taken together.
        """
        values = [self._state_of(tensor).get(name) for tensor in self._tensors]
        sizes = [v.numel() if isinstance(v, Tensor) else 1 for v in values if v is not None]
        if len(numbers) < len(sizes) == sum(sizes) and len(set(numbers.tolist())) == 1:
            return np.full(len(sizes), numbers[0], numbers.dtype)
        return numbers

    def _allocate(self) -> None:
        """Lets the optimizer make its tensors, by a step on zeros that changes nothing."""
        self._clear()
        dtype, device = self._tensors[0].dtype, self._tensors[0].device
        zeros = torch.zeros(self._size, dtype=dtype, device=device)
        self.step(zeros.clone(), zeros, 0.0)
        self._bound = self._bound_gradient = None

    def _write_state(self, name: str, flat: torch.Tensor) -> None:
        offset = 0
        for tensor in self._tensors:
            state = self._state_of(tensor)
            if state.get(name) is None:
                continue
            if not isinstance(state[name], torch.Tensor):
                state[name] = type(state[name])(flat[offset].item())
                offset += 1
                continue
            part = flat[offset : offset + state[name].numel()]
            state[name].copy_(part.view(state[name].shape))
            offset += state[name].numel()


class Clipped(InnerOptimizer):
    """Scales a gradient that is too long down, g ← g · min(1, c/‖g‖), before another's step.

    Args:
        inner: takes the step.
        norm: c, the largest Euclidean norm.

    Reference: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks
    (2013).
    """

    def __init__(self, inner: InnerOptimizer, norm: float) -> None:
        self._inner, self._norm = inner, norm

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        """Steps by the gradient, or by a shorter one."""
        flat = tensor_of(gradient)
        clipped: Any = flat
        if flat.device.type != "cpu":  # to look at the norm is to wait for the device
            clipped = flat * (self._norm / torch.linalg.vector_norm(flat)).clamp(max=1.0)
        elif (norm := float(torch.linalg.vector_norm(flat))) > self._norm:
            clipped = flat * (self._norm / norm)
        self._inner.step(trained, clipped, progress)

    def move(self, device: torch.device) -> None:
        self._inner.move(device)

    def state(self) -> dict[str, Vector]:
        return self._inner.state()

    def load(self, state: Mapping[str, Vector]) -> None:
        self._inner.load(state)


def optimizer_class(name: str) -> Any:  # noqa: ANN401 - whatever a name leads to
    """Returns the class of an optimizer.

    Args:
        name: as of `TorchOptimizer`.

    Raises:
        UsageError: it is unknown, cannot be imported, or needs a closure.
    """
    cls: Any = OPTIMIZERS.get(name.lower())
    if ":" not in name:
        if cls is None:
            raise unknown_name("optimizer", name, OPTIMIZERS)
        return eager(cls)
    cls = resolve_user_code(name, "optimizer", torch.optim.Optimizer)
    step = inspect.signature(cls.step).parameters if hasattr(cls, "step") else {}
    if "closure" in step and step["closure"].default is inspect.Parameter.empty:
        raise _closure_error(name)
    return cls


def _check_arguments(cls: Any, name: str, settings: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Refuses an argument that the optimizer does not have, with the nearest one."""
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [argument for argument in parameters if argument != "params"]
    for argument in settings:
        if argument not in known:
            raise unknown_name(f"argument of the optimizer {name!r}", argument, known)


def _concatenate(values: list[Any]) -> Vector:
    return np.concatenate(
        [torch.as_tensor(v).detach().reshape(-1).cpu().numpy() for v in values if v is not None]
    )


class Momentum(InnerOptimizer):
    """Descent with a velocity: m ← μ m − lr (g + λ w), w ← w + m; λ acts on weights only.

    Unlike torch's SGD the velocity is in units of the parameters: when the learning rate falls,
    what is under way is kept (Hinton, A practical guide to training RBMs, 2010).

    Example:
        >>> layout = Layout.of([("b", (1,), "trained")])
        >>> inner = Momentum(layout, Schedule.constant(0.1), Schedule.constant(0.5))
        >>> trained = np.zeros(1, np.float32)
        >>> for _ in range(2):
        ...     inner.step(trained, np.ones(1, np.float32), progress=0.0)
        >>> round(float(trained[0]), 6)  # -0.1, then -0.05 - 0.1
        -0.25
    """

    def __init__(
        self, layout: Layout, lr: Schedule, momentum: Schedule, weight_decay: float = 0.0
    ) -> None:
        """Stores the schedules.

        Args:
            layout: of the parameters; those of at least two dimensions are weights.
            lr: the learning rate over progress.
            momentum: μ over progress.
            weight_decay: λ.
        """
        self._lr, self._momentum = lr, momentum
        spans = _spans(layout, per_tensor=False, separate_weights=weight_decay > 0)
        self._spans = [(p, weight_decay if p.is_weight else 0.0) for p in spans]
        self._size, self._dtype = layout.size(), getattr(torch, layout.dtype)
        self._momentum_buffer = torch.zeros(self._size, dtype=self._dtype)  # −velocity / lr [n]
        self._rate = 0.0
        """The lr that it is divided by; 0 before the first step."""

    def move(self, device: torch.device) -> None:
        self._momentum_buffer = self._momentum_buffer.to(device)

    def step(self, trained: Vector | Tensor, gradient: Vector | Tensor, progress: float) -> None:
        """Moves `trained` by the new velocity."""
        if trained.shape != (self._size,):
            raise UsageError("the layout has another size", got=list(trained.shape))
        rate = max(self._lr.at(progress), _SMALLEST_RATE)
        if self._rate and rate != self._rate:
            self._momentum_buffer.mul_(self._rate / rate)
        self._rate = rate
        w, g = tensor_of(trained), tensor_of(gradient)
        momentum = max(self._momentum.at(progress), _SMALLEST_RATE)
        for span, decay in self._spans:
            part = slice(span.start, span.stop)
            # torch's own function without its Optimizer, whose bookkeeping takes as long as this
            sgd(
                [w[part]],
                [g[part]],
                [self._momentum_buffer[part]],
                fused=True,
                weight_decay=decay,
                momentum=momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def state(self) -> dict[str, Vector]:
        """Returns −velocity / lr [n], and the lr that it was divided by [1]."""
        if not self._rate:
            return {}
        buffer: Vector = self._momentum_buffer.cpu().numpy().copy()
        return {"momentum_buffer": buffer, "lr": np.array([self._rate])}

    def load(self, state: Mapping[str, Vector]) -> None:
        """Takes up a `state()`.

        Raises:
            CheckpointError: it is another optimizer's.
        """
        self._momentum_buffer.zero_()
        self._rate = 0.0
        if not state:
            return
        buffer = state.get("momentum_buffer")
        if "lr" not in state or buffer is None or buffer.shape != (self._size,):
            raise CheckpointError(
                "the state is not that of descent with momentum",
                got=sorted(state),
                do="resume with the optimizer that wrote it",
            )
        self._momentum_buffer.copy_(torch.from_numpy(np.ascontiguousarray(buffer)))
        self._rate = float(state["lr"][0])
