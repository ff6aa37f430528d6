"""A phase that trains any torch module, made by a function of the user's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from photinus.core.errors import UsageError
from photinus.core.factories import check_name, resolve_user_code
from photinus.core.parameters import Layout, Vector
from photinus.core.settings import (
    Limit,
    above,
    at_least,
    between,
    named_settings,
    one_of,
    unknown_name,
    validate,
    whole,
)
from photinus.models.activations import ACTIVATIONS, AUTO
from photinus.models.autotune import MEMORIES, PRECISIONS, fastest_settings
from photinus.models.base import Model, ModelConfig
from photinus.models.losses import FAR_LOSSES, LOSSES, UNSCALED_LOSSES
from photinus.models.low_precision import LOW_PRECISION_DTYPES
from photinus.models.metrics import check_metrics, finished
from photinus.models.module_model import Learning, ModuleModel
from photinus.models.optimizers import (
    Clipped,
    InnerOptimizer,
    TorchOptimizer,
    check_optimizer_named,
    optimizer_class,
    usual_rate,
)
from photinus.models.row_steps import RowSteps
from photinus.models.schedules import (
    LR_SCALES,
    SCHEDULE,
    Schedule,
    as_schedule,
    follow_batch,
    keep_schedules,
)
from photinus.models.sharded import ShardedModel, dense_layout, tables_of
from photinus.models.tables import check_optimizer, check_tables, sparse_tables
from photinus.nn import tables_left_empty

USUAL_BATCH = 32
_TRIAL_ROWS = 32
_WRITE_ERROR = "refers to a single memory location"
_WRITE_ERROR_HINT = "draw no ShardedEmbedding: set its std"
"""Torch's error at a write to a table whose rows are not there, and what to do about it."""


def _signature(factory: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(factory)).partition(" ->")[0]
    except (ValueError, TypeError):  # of code that is not Python's
        return "other arguments"


def numbers_of(parameter: Tensor) -> Vector:
    """Returns a parameter's numbers: as a view, or of a type that numpy lacks in float32."""
    parameter = parameter.detach()
    return (parameter.float() if parameter.dtype == torch.bfloat16 else parameter).numpy()


def _freeze(module: nn.Module, patterns: tuple[str, ...], tables: set[str]) -> dict[str, Vector]:
    """Has a module's parameters of these names or patterns not trained; returns them."""
    parameters, frozen = dict(module.named_parameters()), dict[str, Vector]()
    parameters = {name: p for name, p in parameters.items() if name not in tables}
    for pattern in patterns:
        matches = {name: p for name, p in parameters.items() if fnmatchcase(name, pattern)}
        if not matches:
            raise unknown_name("parameter in frozen", pattern, parameters)
        for name, parameter in matches.items():
            parameter.requires_grad = False
            frozen[name] = numbers_of(parameter)
    if patterns and not tables and not any(p.requires_grad for p in module.parameters()):
        wrong, do = "frozen leaves nothing to train", "name fewer parameters in it"
        raise UsageError(wrong, got=", ".join(patterns), do=do)
    return frozen


def _check_sizes(name: str, module: nn.Module) -> None:
    """Refuses lazy layers: all workers must hold equally many numbers before they see a row."""
    unsized = [n for n, tensor in module.state_dict(keep_vars=True).items() if is_lazy(tensor)]
    if unsized:
        wrong = f"{name} has layers that do not know their sizes yet"
        do = "give their inputs a number, or run two rows through the module in its factory"
        raise UsageError(wrong, got=", ".join(unsized), do=do)


def _check_scripted(name: str, module: nn.Module) -> None:
    """Refuses what torch.jit made: no vector can take its buffers, and no hook its outputs.

    A part of a module may be such code where it has no buffers: its parameters train as any others.
    """
    scripted = {n: m for n, m in module.named_modules() if isinstance(m, torch.jit.ScriptModule)}
    refused = [
        n or type(m).__name__ for n, m in scripted.items() if not n or [*m.buffers(recurse=False)]
    ]
    if refused:
        wrong = f"{name} returns code of torch.jit, which cannot be trained here"
        do = "return the Python module, before torch.jit.script or trace, and load its state_dict"
        raise UsageError(wrong, got=", ".join(refused), do=do)


@named_settings
@dataclass(frozen=True, kw_only=True)
class ModuleConfig(ModelConfig):
    """One phase that trains a module made by an importable function.

    Example:
        >>> config = ModuleConfig(
        ...     module="torch.nn:Linear", arguments={"in_features": 3, "out_features": 2}
        ... )
        >>> config.build((), seed=1).parameters.trained.size
        8
    """

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "module": Limit('the name "package.module:factory"', lambda v: isinstance(v, str)),
        "epochs": Limit.optional(above(0)),
        "batch_size": whole(1),
        "lr": Limit.optional(SCHEDULE),
        "lr_scale": one_of(*LR_SCALES),
        "decays": one_of("all", "weights"),
        "label_smoothing": between(0, 1),
        "precision": one_of("float32", *LOW_PRECISION_DTYPES, "auto"),
        "memory": one_of(*MEMORIES, "auto"),
        "average": Limit("a number from 0 to below 1", lambda v: 0 <= v < 1),
        "activation_memory": one_of(*ACTIVATIONS, AUTO),
        "activation_bytes": Limit.optional(whole(1)),
        "device": Limit("a device's name, or nothing", lambda v: isinstance(v, str)),
        "accumulate": whole(1),
        "clip": at_least(0),
        "max_steps": whole(0),
        "sharded": whole(0),
    }

    module: str
    """ "package.module:factory", importable on every worker; called with `arguments`. It returns a
    `torch.nn.Module`, or a `photinus.Model` of one's own, which has its own loss."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The factory's keyword arguments, plain values."""
    name: str = "train"
    """Of the phase."""
    metrics: tuple[str, ...] = ()
    """What is measured beside loss and error: some of `METRICS`, or "package.module:function"."""
    epochs: float | None = None
    """Passes over the rows. Left out, as many as make 2,000 steps, from 1 to 200; with a start, or
    a module that transformers has loaded, 3."""
    max_steps: int = 0
    """Steps of all workers together, however many passes these are; 0: as `epochs` says."""
    batch_size: int = USUAL_BATCH
    """Examples of one step of all workers together."""
    accumulate: int = 1
    """A worker computes its rows of a step in so many parts, one after the other: less memory."""
    loss: str = "cross_entropy"
    """One of `LOSSES`, or "package.module:function"."""
    label_smoothing: float = 0.0
    """Of the cross entropies: the share of a label that is given to all classes alike."""
    precision: str = "float32"
    """"bfloat16", "float16": products and convolutions in it, by torch's autocast; parameters,
    gradients and the loss stay as they are. float16 is for GPUs without bfloat16: the loss is
    scaled. "auto": bfloat16 where that is 1.5 times as fast, as `example` measures."""
    memory: str = "contiguous"
    """Of images [B, C, H, W]: "contiguous", "channels_last", or "auto": the faster one."""
    example: tuple[int, ...] = ()
    """The shape of one example as the module reads it; "auto" needs it."""
    reads: str = ""
    """"package.module:function" of features [B, ...] as they are stored, and draws: uint64 [B],
    other ones for every epoch and row, or None for no chance. It returns what the module reads. On
    a device its attribute `tensors`, where it has one, is called instead: the same function of
    tensors that lie there, with draws as int64."""
    l2: Mapping[str, float] = field(default_factory=dict)
    """Parameters' name or pattern ("fc*.weight") -> λ: λ/2 ‖w‖² is added to the loss, whatever the
    optimizer. Its own weight decay, in `settings`, is another one."""
    average: float = 0.0
    """How slowly a moving average follows the weights, 0.9999 say; the model is then measured and
    used with it. 0: none."""
    activation_memory: str = "keep"
    """"recompute": each block's forward pass is run again in the backward pass; "offload": what it
    saves goes to the host, from there to a file; "auto": the first that stays under the budget."""
    activation_bytes: int | None = None
    """What a worker's step may need beside parameters and optimizer; more is refused."""
    cuda_graph: bool = False
    """On a CUDA device, record a step once for each shape of a batch, and repeat it: for modules
    whose forward pass does the same work for every batch. Small ones learn several times faster."""
    device: str = ""
    """What this phase is trained on, as of a job; left out, the job's. It is used and measured on
    the processor."""
    clip: float = 0.0
    """The largest Euclidean norm of a step's gradient: a longer one is scaled down. 0: none."""
    frozen: tuple[str, ...] = ()
    """Parameters' names or patterns ("encoder.*") that are not trained, nor sent."""
    optimizer: str = "adamw"
    """One of torch's by name in lower case, or "package.module:Class"."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The optimizer's keyword arguments, plain values."""
    lr: Schedule | float | None = None
    """Left out: the optimizer's usual rate, as `Schedule.usual` has it; a job of what transformers
    has loaded takes a twentieth. A number stays as it is."""
    lr_scale: str = "none"
    """Where batch_size is not 32: "linear" multiplies lr by batch_size/32, "sqrt" by its root."""
    decays: str = "all"
    """What the optimizer's weight decay acts on: "all", as in torch, or "weights": tensors of two
    dimensions and more, so no biases and norms."""
    per_tensor: bool = False
    """Show the optimizer each tensor in its shape: for those that are not elementwise."""
    sharded: int = 0
    """Numbers in a row of its `ShardedEmbedding` tables; a job finds it out."""

    def __post_init__(self) -> None:
        keep_schedules(self, "lr")
        validate(self)
        if self.module:  # an estimator has none before it is set
            check_name(self.module, "module")
        if ":" not in self.loss and self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        check_metrics(self.metrics)
        check_optimizer_named(self.optimizer)
        if self.activation_memory == AUTO and self.activation_bytes is None:
            wrong = 'activation_memory="auto" needs a budget'
            raise UsageError(wrong, got="none", do="set activation_bytes")
        self._check_graph()
        self.rate()

    def _check_graph(self) -> None:
        """Refuses what a recorded step cannot do: what depends on numbers, or leaves the card."""
        excluded = {
            "accumulate": self.accumulate > 1,
            "activation_memory": self.activation_memory != "keep",
            "activation_bytes": self.activation_bytes is not None,
            "precision": self.precision == "float16",
        }
        conflicting = [
            f"{name}={getattr(self, name)!r}" for name, is_set in excluded.items() if is_set
        ]
        conflicting += ["ShardedEmbedding"] if self.sharded else []
        if self.cuda_graph and conflicting:
            wrong = "a step with these settings cannot be recorded as a CUDA graph"
            raise UsageError(wrong, got=", ".join(conflicting), do="leave cuda_graph out")

    def rate(self) -> Schedule:
        """Returns the learning rate over progress."""
        return follow_batch(self.configured_rate(), self.lr_scale, self.batch_size, USUAL_BATCH)

    @property
    def far_loss(self) -> float:
        """That of labels some 100 from the outputs, in a loss of numbers; or of large features."""
        return (FAR_LOSSES | UNSCALED_LOSSES).get(self.loss, math.inf)

    @property
    def is_far_by_features(self) -> bool:
        """True in a loss of classes: its labels have no size."""
        return self.loss in UNSCALED_LOSSES

    def agreed_until(self, share: float) -> ModuleConfig:
        """Returns the config with a rate for workers that agree on every step until then."""
        settings = {name: value for name, value in self.settings.items() if name != "lr"}
        return replace(self, lr=self.configured_rate().until(share), settings=settings)

    @property
    def has_own_rate(self) -> bool:
        """True where a learning rate is set."""
        return self.lr is not None or "lr" in self.settings

    def configured_rate(self) -> Schedule:
        """Returns the learning rate as it was set, or the optimizer's usual one."""
        lr: Schedule | None = as_schedule(self.lr)
        if lr is None and "lr" in self.settings:
            return Schedule.constant(float(self.settings["lr"]))
        return lr or Schedule.usual(usual_rate(self.optimizer, self.settings))

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Calls the factory under the seed.

        Args:
            history: the frozen parameters, one after the other [m], where a saved model gave them.
            seed: decides the first parameters.

        Raises:
            UsageError: it cannot be imported or called, returns no module, `frozen` names none of
                its parameters, or rows of its sparse tables would move that no batch reads.
        """
        model = self.blank(history, seed)
        if isinstance(model, ShardedModel):
            model.draw(seed)
        return model

    def blank(self, history: tuple[Vector, ...], seed: int) -> Model:
        """As `build`, with tables of zeros that are not there before they are used."""
        module = self.made(seed)
        if isinstance(module, Model):
            self._check_own()
            return module
        tables = tables_of(module)
        frozen = _freeze(module, self.frozen, set(tables))
        check_tables(module, self.l2, self.average)
        sparse = sparse_tables(module)
        check_optimizer(sparse, self.optimizer, self.settings)
        if self.cuda_graph and sparse:
            wrong = "a step with sparse tables cannot be recorded as a CUDA graph"
            raise UsageError(wrong, got=", ".join(sorted(sparse)), do="leave cuda_graph out")
        model_class = ShardedModel if tables else ModuleModel
        model, offset = model_class(module, self.loss, self._learning()), 0
        if self.sharded and self.sharded != getattr(model, "row_size", 0):
            wrong = "sharded is set by the job itself"
            raise UsageError(wrong, got=self.sharded, do="leave it out")
        model.frozen = frozen
        for name, array in frozen.items() if history else ():
            values = history[0][offset : offset + array.size].reshape(array.shape)
            offset += array.size
            values = values.astype(array.dtype, copy=not values.flags.writeable)
            # a view of the vector: the workers of an executor map one file
            parameter = module.get_parameter(name)
            parameter.data = torch.from_numpy(values).to(parameter.dtype)
            frozen[name] = values
        return model

    def around(self, module: nn.Module) -> ModuleModel:
        """Returns a model of a trained module, whose tables it holds itself: to measure with."""
        for table in tables_of(module).values():
            table.weight.requires_grad = False
        return ModuleModel(module, self.loss, self._learning())

    def _learning(self) -> Learning:
        resolved = self.resolved()
        return Learning(**{f.name: getattr(resolved, f.name) for f in fields(Learning)})

    @property
    def row_size(self) -> int:
        """Numbers in a row of its sharded tables, with those of its optimizer."""
        return self.sharded

    def _check_own(self) -> None:
        """Refuses what a Model of the user's own has in its `learn`, and would not be looked at."""
        learning_names = {*(f.name for f in fields(Learning)), "loss", "frozen"}
        config_fields = {f.name: f for f in fields(self) if f.name in learning_names}
        for name, config_field in config_fields.items():
            default = config_field.default if config_field.default is not MISSING else {}
            allowed = (default, "mse") if name == "loss" else (default,)  # or an estimator's
            if getattr(self, name) not in allowed:
                wrong = f"{self.module} makes a photinus.Model, which has a {name} of its own"
                raise UsageError(wrong, got=f"{name}={getattr(self, name)!r}", do="leave it out")

    def made(self, seed: int) -> nn.Module | Model:
        """Calls the factory under the seed; raises as `build` does."""
        factory = resolve_user_code(self.module, "module", nn.Module, Model)
        with torch.random.fork_rng(devices=[]), tables_left_empty():
            torch.manual_seed(seed % 2**64)  # it takes no larger one
            try:
                instance = factory(**self.arguments)
            except Exception as error:  # whatever the user's factory raises
                raise UsageError(
                    f"the module {self.module!r} cannot be made from its arguments",
                    got=f"{dict(self.arguments)}: {type(error).__name__}: {error}",
                    do=_WRITE_ERROR_HINT
                    if _WRITE_ERROR in str(error)
                    else f"it takes {_signature(factory)}",
                ) from error
        if not isinstance(instance, (nn.Module, Model)):
            wrong = f"{self.module} must return a torch.nn.Module or a photinus.Model"
            raise UsageError(wrong, got=type(instance).__name__)
        if isinstance(instance, nn.Module):
            _check_sizes(self.module, instance)
            _check_scripted(self.module, instance)
        return instance

    def resolved(self) -> ModuleConfig:
        """Returns the same without "auto", measured here: once a run, by the driver.

        Raises:
            UsageError: `example` is missing, or is not what the module reads.
        """
        if "auto" not in (self.precision, self.memory):
            return self
        if not self.example:
            wrong = '"auto" needs example, the shape of one row as the module reads it'
            raise UsageError(wrong, got="none", do="set example, as (3, 32, 32)")
        precisions = PRECISIONS if self.precision == "auto" else (self.precision,)
        memories = MEMORIES if self.memory == "auto" else (self.memory,)
        shape = (min(self.batch_size, _TRIAL_ROWS), *self.example)
        try:
            precision, memory = fastest_settings(
                self._make_trial_module, shape, precisions, memories
            )
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise UsageError(
                f"the module {self.module} does not read examples of shape {list(self.example)}",
                got=str(error).partition("\n")[0],
            ) from error
        return replace(self, precision=precision, memory=memory)

    def _make_trial_module(self) -> nn.Module:
        module = self.made(0)
        if isinstance(module, Model):
            self._check_own()
        assert isinstance(module, nn.Module)
        if tables_of(module):
            wrong, do = "a module with sharded tables is not measured", "name both"
            raise UsageError(wrong, got='precision or memory "auto"', do=do)
        return module

    def finished(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns loss, error and the named metrics."""
        return finished(self.metrics, sums)

    def preload(self) -> None:
        """Imports the factory and what it is trained with; the factory is not called."""
        resolve_user_code(self.module, "module", nn.Module, Model)
        optimizer_class(self.optimizer)

    def inner(self, layout: Layout) -> InnerOptimizer:
        if self.sharded:
            dense = dense_layout(layout)
            return RowSteps(dense, self._torch_optimizer, self.rate(), self.clip)
        inner = self._torch_optimizer(layout)
        return Clipped(inner, self.clip) if self.clip else inner

    def _torch_optimizer(self, layout: Layout) -> TorchOptimizer:
        return TorchOptimizer(
            layout,
            self.optimizer,
            self.settings,
            self.rate(),
            decays=self.decays,
            per_tensor=self.per_tensor,
        )
