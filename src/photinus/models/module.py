"""Any torch module with a loss, its parameters moved into the flat buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from photinus.core.errors import DataError, UsageError
from photinus.core.parameters import FLOATS, INTEGERS, TRAINED, Layout, Parameters, Vector
from photinus.core.settings import Limit, above, between, one_of, unknown_name, validate, whole
from photinus.models.base import Batch, Model, Stage
from photinus.models.factories import imported
from photinus.models.inner import OPTIMIZERS, Inner, TorchInner
from photinus.models.losses import LOSSES, count_errors, loss_named, target_for
from photinus.models.schedules import Schedule
from photinus.models.tensors import tensor_of

__all__ = ["ModuleModel", "ModuleStage"]


class ModuleModel(Model):
    """A module whose tensors are views of the flat buffer, and whose `.grad` are views of another.

    Trainable parameters lie in the trained section, floating buffers (BatchNorm's statistics) in
    floats, int64 ones (its counter) in integers. Frozen parameters and buffers of other kinds stay
    in the module: they are constants, the same on every worker. A tied parameter is one entry.

    Example:
        >>> model = ModuleModel(nn.Linear(3, 2), "mse")
        >>> model.parameters.layout.names(), model.parameters.trained.shape
        (('weight', 'bias'), (8,))
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str,
        label_smoothing: float = 0.0,
        precision: str = "float32",
    ) -> None:
        """Moves the module's tensors; their numbers are kept.

        Args:
            module: maps features [B, ...] to outputs [B, ...].
            loss: one of `LOSSES`, or "package.module:function".
            label_smoothing: of cross_entropy.
            precision: "bfloat16" computes products and convolutions in it, by torch's autocast;
                parameters, gradients and the loss stay as they are.

        Raises:
            UsageError: nothing to train, types are mixed, or parameters overlap in memory.
        """
        self.module = module
        self._is_low = precision == "bfloat16"
        self._name, self._loss = loss, loss_named(loss, label_smoothing)
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        dtype = _common_type(trained)
        kept = {n: b for n, b in module.named_buffers() if b.dtype in _SECTIONS}
        tensors = [(n, p.shape, TRAINED) for n, p in trained.items()]
        tensors += [(n, b.shape, _SECTIONS[b.dtype]) for n, b in kept.items()]
        self.parameters = Parameters(Layout.of(tensors, dtype))
        gradients = Parameters(self.parameters.layout)
        self._gradient = gradients.trained
        self._flat_gradient = torch.from_numpy(self._gradient)
        for name, parameter in trained.items():
            parameter.data = self._moved(name, parameter.data)
            parameter.grad = torch.from_numpy(gradients.view(name))
        for name, buffer in kept.items():
            path, _, last = name.rpartition(".")
            module.get_submodule(path)._buffers[last] = self._moved(name, buffer)

    def _moved(self, name: str, tensor: Tensor) -> Tensor:
        view: Tensor = torch.from_numpy(self.parameters.view(name))
        return view.copy_(tensor.detach())

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient by automatic differentiation, and the loss."""
        self.module.train()
        self._flat_gradient.zero_()
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed looks at every accelerator, and at the call stack: 1 ms a step
            torch.default_generator.manual_seed(seed)
            loss, _, _ = self._forward(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return self._gradient, {"loss": float(loss.detach())}

    def measure(self, batch: Batch) -> Mapping[str, float]:
        """Returns examples, the summed loss and, with classes, the errors."""
        self.module.eval()
        with torch.no_grad():
            loss, outputs, labels = self._forward(batch)
        size = len(batch.features)
        sums = {"examples": float(size), "loss": float(loss) * size}
        return {**sums, **count_errors(self._name, outputs, labels)}

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        features = tensor_of(batch.features)  # [B, ...]
        if features.is_floating_point():
            features = features.to(self._flat_gradient.dtype)
        labels = features if batch.labels is None else tensor_of(batch.labels)
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=self._is_low):
                outputs: Tensor = self.module(features)  # [B, ...]
            outputs = outputs.to(self._flat_gradient.dtype)
            weights = getattr(batch, "weights", None)
            loss = self._loss(outputs, target_for(self._name, outputs, labels), weights)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise DataError(
                f"{type(self.module).__name__} with loss {self._name} does not take this batch",
                got=f"features {_shape(features)}, labels {_shape(labels)}: {error}",
                do="compare the columns with what the module reads",
            ) from error
        return loss, outputs, labels


_SECTIONS = {torch.float32: FLOATS, torch.int64: INTEGERS}


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _common_type(trained: Mapping[str, nn.Parameter]) -> str:
    types = {p.dtype for p in trained.values()}
    if types not in ({torch.float32}, {torch.float64}):
        raise UsageError(
            "a module must have trainable parameters, all float32 or all float64",
            got=", ".join(sorted(str(t) for t in types)) or "none",
            do="make it in float32; lower precision belongs inside its forward pass",
        )
    owners: dict[int, str] = {}
    for name, parameter in trained.items():
        if not parameter.numel():
            continue
        first = owners.setdefault(parameter.untyped_storage().data_ptr(), name)
        if first != name:
            raise UsageError(
                "two parameters share memory",
                got=f"{first} and {name}",
                do="tie them by assigning the same nn.Parameter to both",
            )
    return str(types.pop()).removeprefix("torch.")


@dataclass(frozen=True, kw_only=True)
class ModuleStage(Stage):
    """One phase that trains a module made by an importable function.

    Example:
        >>> stage = ModuleStage(
        ...     module="torch.nn:Linear", arguments={"in_features": 3, "out_features": 2}
        ... )
        >>> stage.build((), seed=1).parameters.trained.size
        8
    """

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "epochs": above(0),
        "batch_size": whole(1),
        "decays": one_of("all", "weights"),
        "label_smoothing": between(0, 1),
        "precision": one_of("float32", "bfloat16"),
    }

    module: str
    """ "package.module:factory", importable on every worker; called with `arguments`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The factory's keyword arguments, plain values."""
    name: str = "train"
    epochs: float = 1.0
    batch_size: int = 32
    loss: str = "cross_entropy"
    """One of `LOSSES`, or "package.module:function"."""
    label_smoothing: float = 0.0
    precision: str = "float32"
    """"bfloat16": products and convolutions in it, all else as it is."""
    optimizer: str = "adamw"
    """One of torch's by name in lower case, or "package.module:Class"."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The optimizer's keyword arguments, plain values."""
    lr: Schedule = field(default_factory=lambda: Schedule.cosine(1e-3))
    decays: str = "weights"
    """What weight decay acts on: "weights" (of two dimensions and more), or "all"."""
    per_tensor: bool = False
    """Show the optimizer each tensor in its shape: for those that are not elementwise."""

    def __post_init__(self) -> None:
        validate(self)
        if ":" not in self.loss and self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        if ":" not in self.optimizer and self.optimizer.lower() not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)

    def build(self, history: tuple[Vector, ...], seed: int) -> ModuleModel:  # noqa: ARG002
        """Calls the factory under the seed.

        Raises:
            UsageError: it cannot be imported or called, or returns no module.
        """
        factory = imported(self.module, "module")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                made = factory(**self.arguments)
            except Exception as error:  # whatever the user's factory raises
                raise UsageError(
                    f"the module {self.module!r} cannot be made from its arguments",
                    got=f"{dict(self.arguments)}: {type(error).__name__}: {error}",
                ) from error
        if not isinstance(made, nn.Module):
            raise UsageError(
                f"{self.module} must return a torch.nn.Module", got=type(made).__name__
            )
        return ModuleModel(made, self.loss, self.label_smoothing, self.precision)

    def inner(self) -> Inner:
        """Returns the optimizer on the layout that `build` gives."""
        layout = self.build((), 0).parameters.layout
        return TorchInner(
            layout,
            self.optimizer,
            self.settings,
            self.lr,
            decays=self.decays,
            per_tensor=self.per_tensor,
        )
