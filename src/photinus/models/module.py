"""Any torch module with a loss; its parameters live in the flat buffer."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import photinus
from photinus.core.errors import DataError, UsageError
from photinus.core.factories import check_name, code_named
from photinus.core.parameters import FLOATS, INTEGERS, TRAINED, Layout, Vector
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
from photinus.models.activations import ACTIVATIONS, AUTO, Activations, PeakBytes, fitting
from photinus.models.autotune import MEMORIES, PRECISIONS, fastest
from photinus.models.average import Average, average_layout
from photinus.models.base import Batch, Model, Stage
from photinus.models.losses import LOSSES, count_errors, loss_named, predicted, target_for
from photinus.models.metrics import check_metrics, counted, finished
from photinus.models.optimizers import OPTIMIZERS, Clipped, Inner, TorchInner, preload, usual_rate
from photinus.models.placement import CPU, DeviceInner, DeviceParameters
from photinus.models.reading import (
    FeatureReading,
    Features,
    Read,
    chunks,
    examples,
    layer_of,
    output_of,
    parts,
    some_of,
)
from photinus.models.schedules import (
    LR_SCALES,
    SCHEDULE,
    Schedule,
    as_schedule,
    follow_batch,
    keep_schedules,
)
from photinus.models.tables import check_optimizer, check_tables, sparse_tables, write_rows
from photinus.models.tensors import tensor_of

USUAL_BATCH = 32
_MEASURED_EVERY = 8
"""On a device, the loss of one step in so many is read."""
_TRIED_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """How a module learns and is measured, beside its loss: the like fields of `ModuleStage`."""

    label_smoothing: float = 0.0
    precision: str = "float32"
    memory: str = "contiguous"
    reads: str = ""
    l2: Mapping[str, float] = field(default_factory=dict)
    average: float = 0.0
    activation_memory: str = "keep"
    activation_bytes: int | None = None
    accumulate: int = 1
    metrics: tuple[str, ...] = ()


class ModuleModel(Model):
    """A module whose tensors are views of the flat buffer.

    Trainable parameters lie in the trained section, floating buffers (BatchNorm's statistics) in
    floats, int64 ones (its counter) in integers. Frozen parameters and buffers of other kinds stay
    in the module: they are constants, the same on every worker; `frozen` has the parameters among
    them that a stage froze as arrays by name. A tied parameter is one entry.

    Example:
        >>> model = ModuleModel(nn.Linear(3, 2), "mse")
        >>> model.parameters.layout.names(), model.parameters.trained.shape
        (('weight', 'bias'), (8,))
    """

    def __init__(self, module: nn.Module, loss: str, how: Learning | None = None) -> None:
        """Moves the module's tensors; their numbers are kept.

        Args:
            module: maps features [B, ...] to outputs [B, ...].
            loss: one of `LOSSES`, or "package.module:function".
            how: all else; without it, the defaults of `Learning`.

        Raises:
            UsageError: nothing to train, types are mixed, parameters overlap in memory, or `l2`
                names none of them.
        """
        self.module, self._how = module, how or Learning()
        self._budget, self._fits = self._how.activation_bytes, ("keep", 0)
        """How activations are kept, for batches of up to so many rows."""
        self._name, self._loss = loss, loss_named(loss, self._how.label_smoothing)
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        dtype = _common_type(trained)
        kept = {n: b for n, b in module.named_buffers() if b.dtype in _SECTIONS}
        self._names, self._kept = list(trained), list(kept)
        entries = [(n, tuple(p.shape), TRAINED) for n, p in trained.items()]
        tensors = entries + [(n, tuple(b.shape), _SECTIONS[b.dtype]) for n, b in kept.items()]
        tensors += average_layout(entries) if self._how.average else []
        self._dtype = getattr(torch, dtype)
        self._trained = list(trained.values())
        tables = sparse_tables(module)
        self._tables = frozenset(tables)
        self._norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d)]
        self.frozen: dict[str, Vector] = {}
        self._lie(DeviceParameters(Layout.of(tensors, dtype, tables)))

    def _lie(self, at: DeviceParameters) -> None:
        """Makes the module's tensors views of flat vectors; their numbers are kept."""
        self._at, self.parameters, self._gradient = at, at.parameters, at.gradient
        self._slopes = [at.slope(name) for name in self._names]
        for name, parameter in zip(self._names, self._trained, strict=True):
            parameter.data = at.view(name).copy_(parameter.detach())
        for name in self._kept:
            path, _, last = name.rpartition(".")
            buffers = self.module.get_submodule(path)._buffers
            old = buffers[last]
            assert old is not None
            buffers[last] = at.view(name).copy_(old)
        trained, slope = at.tensor(self.parameters.trained), at.tensor(self._gradient)
        self._decayed = _decayed(self.parameters.layout, trained, slope, self._how.l2)
        decay, p = self._how.average, self.parameters
        rest = at.tensor(p.floats), at.tensor(p.integers)
        self._average = Average(trained, *rest, decay) if decay else None
        self._activations = Activations(self.module)
        how = self._how
        self._reading = FeatureReading.of(self.module, self._dtype, how.reads, how.memory, at.sent)
        at.touched(p.trained, p.floats, p.integers)
        at.to_host((p.trained, p.floats, p.integers))

    def place(self, device: str, inner: Inner) -> Inner:
        """Moves the module, its gradient and the inner optimizer to a device."""
        at = DeviceParameters(self.parameters.layout, device)
        self.module.to(at.device)
        self._lie(at)
        return DeviceInner(inner, at)

    def to_host(self, *vectors: Vector) -> None:
        """Brings parameters, buffers or the gradient from the device."""
        self._at.to_host(vectors)

    def to_device(self, *vectors: Vector) -> None:
        """Sends parameters, buffers or the gradient to the device."""
        self._at.to_device(vectors)

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient by automatic differentiation, and the loss with its penalty."""
        self._at.sync()
        self.module.train()
        if self._average is not None:
            self._average.step()
        total: Tensor | float = 0.0
        for number, (part, share) in enumerate(parts(batch, self._how.accumulate)):
            for norm in self._norms if examples(part) == 1 else ():
                norm.eval()  # one row has no variance, and torch refuses it
            loss = self._lost(part, seed ^ number, self._kept_for(part))
            self._differentiate(loss if share == 1.0 else loss * share, is_first=not number)
            total = total + share * loss.detach().double()
        for weights, slope, factor in self._decayed:
            slope.add_(weights, alpha=factor)
            total = total + factor / 2 * torch.dot(weights, weights).double()
        self._at.touched(self._gradient, self.parameters.floats, self.parameters.integers)
        if self._at.is_apart and seed % _MEASURED_EVERY:
            return self._gradient, {}  # to read the loss is to wait for the device
        return self._gradient, {"loss": float(total)}

    def _lost(self, batch: Batch, seed: int, how: str) -> Tensor:
        """Returns the loss of a forward pass under a seed, its activations left in a way."""
        with torch.random.fork_rng(devices=[]), self._activations.left(how):
            # torch.manual_seed looks at every accelerator, and at the call stack: 1 ms a step
            torch.default_generator.manual_seed(seed)
            self._at.seed(seed)
            return self._forward(batch, getattr(batch, "draws", None))[0]

    def _kept_for(self, batch: Batch) -> str:
        """Returns how a batch's activations are kept; a budget is held to the first batch."""
        asked, rows, budget = self._how.activation_memory, examples(batch), self._budget
        if budget is None:
            return asked
        if rows > self._fits[1]:
            vectors = self.parameters.floats, self.parameters.integers
            buffers = [self._at.tensor(vector) for vector in vectors]
            before = [buffer.clone() for buffer in buffers]

            def peak(how: str, rows: int) -> int:
                with PeakBytes() as bytes_:
                    self._differentiate(self._lost(some_of(batch, slice(rows)), 0, how))
                most: int = bytes_.most
                return most

            ways = ACTIVATIONS if asked == AUTO else (asked,)
            self._fits = fitting(peak, rows, budget, ways)[0], rows
            for buffer, kept in zip(buffers, before, strict=True):
                buffer.copy_(kept)
        return self._fits[0]

    def _differentiate(self, loss: Tensor, *, is_first: bool = True) -> None:
        # `backward` into views would zero them, read and add: three more passes over the memory
        slopes = torch.autograd.grad(loss, self._trained, allow_unused=True)
        write = Tensor.copy_ if is_first else Tensor.add_
        for name, mine, slope in zip(self._names, self._slopes, slopes, strict=True):
            if slope is not None and name in self._tables:
                write_rows(mine, slope, name, is_first=is_first)
            elif slope is not None:
                write(mine, slope.to_dense() if slope.is_sparse else slope)
            elif is_first:
                mine.zero_()

    def measure(self, batch: Batch) -> Mapping[str, float]:
        """Returns examples, the summed loss without a penalty and, with classes, the errors.

        Where there is a moving average, it is what is measured.
        """
        self.module.eval()
        with torch.no_grad(), self.shown():
            loss, outputs, labels = self._forward(batch)
        size = examples(batch)
        sums = {"examples": float(size), "loss": float(loss) * size}
        errors = count_errors(self._name, outputs, labels)
        return {
            **sums,
            **errors,
            **counted(self._how.metrics, predicted(self._name, outputs), labels),
        }

    def shown(self) -> AbstractContextManager[None]:
        """Has the moving average, if there is one, in the trained parameters' place."""
        return nullcontext() if self._average is None else self._average.shown()

    def outputs(self, features: Features, layer: str = "") -> Vector:
        """Returns what the module, or a layer of it, makes of features, [B, ...].

        Args:
            features: [B, ...] as they are stored, or a dict of such arrays by input.
            layer: a submodule's name, as in `state_dict`; the whole module without one.

        Raises:
            UsageError: there is no such layer, or it returns no tensor.
        """
        found = layer_of(self.module, layer)
        made: list[Tensor] = []

        def keep(_: nn.Module, __: tuple[Any, ...], out: object) -> None:
            made.append(output_of(layer, out).to(CPU, self._dtype))

        self.module.eval()
        hook = found.register_forward_hook(keep)
        try:
            with torch.no_grad(), self.shown():
                for some in chunks(features):
                    self._pass(self._read(some))
        finally:
            hook.remove()
        result: Vector = torch.cat(made).numpy()
        return result

    def _read(self, features: Features, draws: Vector | None = None) -> Read:
        """Returns features [B, ...] as the module reads them, where it lies."""
        self._at.sync()
        return self._reading(features, draws)

    def _pass(self, x: Read) -> Tensor:
        is_low = self._how.precision == "bfloat16"
        with torch.autocast(self._at.device.type, torch.bfloat16, enabled=is_low):
            outputs: Tensor = self.module(**x) if isinstance(x, dict) else self.module(x)
        return outputs.to(self._dtype)  # [B, ...]

    def _forward(self, batch: Batch, draws: Vector | None = None) -> tuple[Tensor, Tensor, Tensor]:
        features = self._read(batch.features, draws)  # [B, ...]
        labels = features if batch.labels is None else self._at.sent(tensor_of(batch.labels))
        if isinstance(labels, dict):
            raise DataError("several inputs cannot be the target", do="name a column of labels")
        try:
            outputs = self._pass(features)
            weights = getattr(batch, "weights", None)
            weights = None if weights is None else self._at.tensor(weights)
            loss = self._loss(outputs, target_for(self._name, outputs, labels), weights)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            if _is_users_own(error):
                raise
            raise DataError(
                f"{type(self.module).__name__} with loss {self._name} does not take this batch",
                got=f"features {_shape(features)}, labels {_shape(labels)}: {error}{_place(error)}",
                do="compare the columns with what the module reads",
            ) from error
        return loss, outputs, labels


_HOMES = (*torch.__path__, *photinus.__path__)


def _is_users_own(error: Exception) -> bool:
    """Tells whether the user's code raised an error by itself: its words and traceback say more."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return not last.filename.startswith(_HOMES) and (last.line or "").startswith("raise")


def _place(error: Exception) -> str:
    """Returns the user's line at which an error was raised; nothing where no line is theirs."""
    found = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in found if not frame.filename.startswith(_HOMES)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _signature(factory: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(factory)).partition(" ->")[0]
    except (ValueError, TypeError):  # of code that is not Python's
        return "other arguments"


def _freeze(module: nn.Module, patterns: tuple[str, ...]) -> dict[str, Vector]:
    """Has a module's parameters of these names or patterns not trained; returns them."""
    named, frozen = dict(module.named_parameters()), dict[str, Vector]()
    for pattern in patterns:
        found = {name: p for name, p in named.items() if fnmatchcase(name, pattern)}
        if not found:
            raise unknown_name("parameter in frozen", pattern, named)
        for name, parameter in found.items():
            parameter.requires_grad = False
            frozen[name] = parameter.detach().numpy()
    return frozen


_SECTIONS = {torch.float32: FLOATS, torch.int64: INTEGERS}


def _decayed(
    layout: Layout, trained: Tensor, gradient: Tensor, l2: Mapping[str, float]
) -> list[tuple[Tensor, Tensor, float]]:
    """Returns (weights [m], their part of the gradient [m], factor) for all that `l2` names."""
    found = []
    for pattern, factor in l2.items():
        names = [e for e in layout.entries if e.section == TRAINED]
        named = [e for e in names if fnmatchcase(e.name, pattern)]
        if not named:
            raise unknown_name("parameter in l2", pattern, [e.name for e in names])
        for entry in named:
            part = slice(entry.offset, entry.offset + entry.size)
            found.append((trained[part], gradient[part], float(factor)))
    return found


def _shape(tensor: Read) -> str:
    if isinstance(tensor, dict):
        return ", ".join(f"{name} {_shape(x)}" for name, x in tensor.items())
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


@named_settings
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
        "module": Limit('the name "package.module:factory"', lambda v: isinstance(v, str)),
        "epochs": above(0),
        "batch_size": whole(1),
        "lr": Limit.optional(SCHEDULE),
        "lr_scale": one_of(*LR_SCALES),
        "decays": one_of("all", "weights"),
        "label_smoothing": between(0, 1),
        "precision": one_of(*PRECISIONS, "auto"),
        "memory": one_of(*MEMORIES, "auto"),
        "average": Limit("a number from 0 to below 1", lambda v: 0 <= v < 1),
        "activation_memory": one_of(*ACTIVATIONS, AUTO),
        "activation_bytes": Limit.optional(whole(1)),
        "device": Limit("a device's name, or nothing", lambda v: isinstance(v, str)),
        "accumulate": whole(1),
        "clip": at_least(0),
        "max_steps": whole(0),
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
    epochs: float = 1.0
    """Passes over the rows."""
    max_steps: int = 0
    """Steps of all workers together, however many passes these are; 0: as `epochs` says."""
    batch_size: int = USUAL_BATCH
    """Examples of one step of all workers together."""
    accumulate: int = 1
    """A worker computes its rows of a step in so many parts, one after the other: less memory."""
    loss: str = "cross_entropy"
    """One of `LOSSES`, or "package.module:function"."""
    label_smoothing: float = 0.0
    """Of cross_entropy: the share of a label that is given to all classes alike."""
    precision: str = "float32"
    """"bfloat16": products and convolutions in it, by torch's autocast; parameters, gradients and
    the loss stay as they are. "auto": where that is 1.5 times as fast, as `example` measures."""
    memory: str = "contiguous"
    """Of images [B, C, H, W]: "contiguous", "channels_last", or "auto": the faster one."""
    example: tuple[int, ...] = ()
    """The shape of one example as the module reads it; "auto" needs it."""
    reads: str = ""
    """"package.module:function" of features [B, ...] as they are stored, and draws: uint64 [B],
    other ones for every epoch and row, or None for no chance. It returns what the module reads."""
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
    """Left out: the optimizer's usual rate, falling to 0 by a cosine."""
    lr_scale: str = "none"
    """Where batch_size is not 32: "linear" multiplies lr by batch_size/32, "sqrt" by its root."""
    decays: str = "weights"
    """What weight decay acts on: "weights" (of two dimensions and more), or "all"."""
    per_tensor: bool = False
    """Show the optimizer each tensor in its shape: for those that are not elementwise."""

    def __post_init__(self) -> None:
        keep_schedules(self, "lr")
        validate(self)
        if self.module:  # an estimator has none before it is set
            check_name(self.module, "module")
        if ":" not in self.loss and self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        check_metrics(self.metrics)
        if ":" not in self.optimizer and self.optimizer.lower() not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        if self.activation_memory == AUTO and self.activation_bytes is None:
            wrong = 'activation_memory="auto" needs a budget'
            raise UsageError(wrong, got="none", do="set activation_bytes")
        self.rate()

    def rate(self) -> Schedule:
        """Returns the learning rate over progress."""
        lr: Schedule | None = as_schedule(self.lr)
        if lr is None and "lr" in self.settings:
            lr = Schedule.constant(float(self.settings["lr"]))
        lr = lr or Schedule.cosine(usual_rate(self.optimizer, self.settings))
        return follow_batch(lr, self.lr_scale, self.batch_size, USUAL_BATCH)

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Calls the factory under the seed.

        Args:
            history: the frozen parameters, one after the other [m], where a saved model gave them.
            seed: decides the first parameters.

        Raises:
            UsageError: it cannot be imported or called, returns no module, `frozen` names none of
                its parameters, or rows of its sparse tables would move that no batch reads.
        """
        made, plain = self.made(seed), self.resolved()
        if isinstance(made, Model):
            self._check_own()
            return made
        frozen = _freeze(made, self.frozen)
        check_tables(made, self.l2, self.average)
        check_optimizer(sparse_tables(made), self.optimizer, self.settings)
        shared = {f.name: getattr(plain, f.name) for f in fields(Learning)}
        model, start = ModuleModel(made, self.loss, Learning(**shared)), 0
        model.frozen = frozen
        for name, array in frozen.items() if history else ():
            given = history[0][start : start + array.size].reshape(array.shape)
            start += array.size
            given = given.astype(array.dtype, copy=not given.flags.writeable)
            # a view of the vector: the workers of an executor map one file
            made.get_parameter(name).data = torch.from_numpy(given)
            frozen[name] = given
        return model

    def _check_own(self) -> None:
        """Refuses what a Model of the user's own has in its `learn`, and would not be looked at."""
        shared = {*(f.name for f in fields(Learning)), "loss", "frozen"}
        usual = {f.name: f for f in fields(self) if f.name in shared}
        for name, field_ in usual.items():
            default = field_.default if field_.default is not MISSING else {}
            usual_ones = (default, "mse") if name == "loss" else (default,)  # or an estimator's
            if getattr(self, name) not in usual_ones:
                wrong = f"{self.module} makes a photinus.Model, which has a {name} of its own"
                raise UsageError(wrong, got=f"{name}={getattr(self, name)!r}", do="leave it out")

    def made(self, seed: int) -> nn.Module | Model:
        """Calls the factory under the seed; `build` says what it raises."""
        factory = code_named(self.module, "module", nn.Module, Model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                made = factory(**self.arguments)
            except Exception as error:  # whatever the user's factory raises
                raise UsageError(
                    f"the module {self.module!r} cannot be made from its arguments",
                    got=f"{dict(self.arguments)}: {type(error).__name__}: {error}",
                    do=f"it takes {_signature(factory)}",
                ) from error
        if not isinstance(made, (nn.Module, Model)):
            wrong = f"{self.module} must return a torch.nn.Module or a photinus.Model"
            raise UsageError(wrong, got=type(made).__name__)
        return made

    def resolved(self) -> ModuleStage:
        """Returns the same without "auto", measured here: once a run, by the driver.

        Raises:
            UsageError: `example` is missing, or is not what the module reads.
        """
        if "auto" not in (self.precision, self.memory):
            return self
        if not self.example:
            raise UsageError('"auto" needs example, the shape of what the module reads', got="none")
        precisions = PRECISIONS if self.precision == "auto" else (self.precision,)
        memories = MEMORIES if self.memory == "auto" else (self.memory,)
        shape = (min(self.batch_size, _TRIED_ROWS), *self.example)
        try:
            chosen, memory = fastest(self._made_module, shape, precisions, memories)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise UsageError(
                f"the module {self.module} does not read examples of shape {list(self.example)}",
                got=str(error).partition("\n")[0],
            ) from error
        return replace(self, precision=chosen, memory=memory)

    def _made_module(self) -> nn.Module:
        made = self.made(0)
        if isinstance(made, Model):
            self._check_own()
        assert isinstance(made, nn.Module)
        return made

    def finished(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns loss, error and the named metrics."""
        return finished(self.metrics, sums)

    def preload(self) -> None:
        """Imports the factory and what it is trained with; the factory is not called."""
        code_named(self.module, "module", nn.Module, Model)
        preload(self.optimizer)

    def inner(self, layout: Layout) -> Inner:
        inner = TorchInner(
            layout,
            self.optimizer,
            self.settings,
            self.rate(),
            decays=self.decays,
            per_tensor=self.per_tensor,
        )
        return Clipped(inner, self.clip) if self.clip else inner
