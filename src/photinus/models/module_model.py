"""Any torch module with a loss; its parameters are in the flat buffer."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

import photinus
from photinus.core.errors import DataError, UsageError
from photinus.core.masks import mask_of
from photinus.core.parameters import FLOATS, INTEGERS, TRAINED, Layout, Vector
from photinus.core.settings import (
    unknown_name,
)
from photinus.models.activations import AUTO, Activations, PeakBytes, fitting
from photinus.models.average import Average, average_layout
from photinus.models.base import Batch
from photinus.models.buffers import Buffers
from photinus.models.heads import errors_of, head_under
from photinus.models.label_broadcast import is_paired
from photinus.models.losses import (
    Outputs,
    loss_named,
    predicted,
    target_for,
    whole_target,
    wrong_label,
)
from photinus.models.low_precision import autocast, gradients
from photinus.models.metrics import counted
from photinus.models.placement import (
    CPU,
    MEASURED_EVERY,
    DeviceParameters,
    PlacedModel,
    SentBatch,
)
from photinus.models.reading import (
    FeatureReading,
    Features,
    Read,
    chunks,
    examples,
    in_type,
    layer_of,
    output_of,
    parts,
    some_of,
)
from photinus.models.recording import Recorder, no_dropout
from photinus.models.tables import sparse_tables, write_rows
from photinus.models.tensors import tensor_of
from photinus.nn import ShardedEmbedding


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
    cuda_graph: bool = False


class _Sent(NamedTuple):
    """A batch on the device: what the module reads, and what its outputs are compared with."""

    features: Any
    """As `FeatureReading.here` returns them."""
    labels: Any
    weights: Tensor | None
    examples: int
    draws: Tensor | None
    """As `FeatureReading.chance` returns them."""


class _Place(NamedTuple):
    """Of a part of a batch, among the parts whose slopes are added up."""

    is_first: bool = True
    is_last: bool = False


class ExternalInputs(Protocol):
    """What a module reads beside its own tensors, such as rows of a table elsewhere."""

    def lie(self, at: DeviceParameters) -> None:
        """Takes the device on which the module computes from now on."""

    def inputs(self) -> list[Tensor]:
        """Returns the tensors that the forward pass has read, to differentiate by."""

    def take(self, slopes: Sequence[Tensor | None]) -> None:
        """Takes their gradients, in the same order; None where the loss does not depend on one."""


class ModuleModel(PlacedModel):
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

    def __init__(
        self,
        module: nn.Module,
        loss: str,
        how: Learning | None = None,
        external: ExternalInputs | None = None,
    ) -> None:
        """Moves the module's tensors; their numbers are kept.

        Args:
            module: maps features [B, ...] to outputs [B, ...].
            loss: one of `LOSSES`, or "package.module:function".
            how: all else; without it, the defaults of `Learning`.
            external: what it reads that is not its own.

        Raises:
            UsageError: nothing to train, types are mixed, parameters overlap in memory, or `l2`
                names none of them.
        """
        self.module, self._how, self._external = module, how or Learning(), external
        self._budget, self._fits = self._how.activation_bytes, ("keep", 0)
        """How activations are kept, for batches of up to so many rows."""
        self._name, self._loss = loss, loss_named(loss, self._how.label_smoothing)
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        dtype = _common_type(trained) if trained or not _has_tables(module) else "float32"
        kept = {n: b for n, b in module.named_buffers() if b.dtype in _SECTIONS}
        _check_statistics(module)
        self._names, self._kept = list(trained), list(kept)
        entries = [(n, tuple(p.shape), TRAINED) for n, p in trained.items()]
        tensors = entries + [(n, tuple(b.shape), _SECTIONS[b.dtype]) for n, b in kept.items()]
        tensors += average_layout(entries) if self._how.average else []
        self._dtype = getattr(torch, dtype)
        self._trained = list(trained.values())
        tables = sparse_tables(module)
        self._tables = frozenset(tables)
        self._norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d)]
        self._is_learning = False
        self._made, self._tried = {n for n, _ in module.named_parameters()}, set[bool]()
        """The parameters that it was made with, and the modes in which it was seen to add none."""
        self._classes = 0
        """The outputs of a row, where the last batch's had two dimensions."""
        self.frozen: dict[str, Vector] = {}
        self._lie(DeviceParameters(Layout.of(tensors, dtype, tables)))

    def _lie(self, at: DeviceParameters) -> None:
        """Makes the module's tensors views of flat vectors; their numbers are kept."""
        self.module.to(at.device)
        self._at, self.parameters, self._gradient = at, at.parameters, at.gradient
        self._sums = torch.float64 if at.has_float64 else torch.float32
        if self._external is not None:
            self._external.lie(at)
        self._slopes = [at.slope(name) for name in self._names]
        for name, parameter in zip(self._names, self._trained, strict=True):
            parameter.data = at.view(name).copy_(parameter.detach())
        self._buffers = Buffers(self.module, self._kept, at)
        trained = at.tensor(self.parameters.trained)
        self._decayed = _decayed(self.parameters.layout, at.view, self._how.l2)
        decay, p = self._how.average, self.parameters
        rest = at.tensor(p.floats), at.tensor(p.integers)
        self._average = Average(trained, *rest, decay) if decay else None
        self._activations = Activations(self.module)
        how = self._how
        self._reading = FeatureReading.of(self.module, self._dtype, how.reads, how.memory, at)
        name = type(self.module).__name__
        may = how.cuda_graph and at.is_apart
        dropout = partial(no_dropout, self.module)
        self._recorder = Recorder(at, name, still=dropout) if may else None
        at.touched(*at.sections)
        at.to_host(at.sections)

    def learn(self, batch: Batch | SentBatch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient by automatic differentiation, and the loss with its penalty."""
        self._at.sync()
        is_first = not self._is_learning  # it shows how many classes there are
        host: Batch = batch.batch if isinstance(batch, SentBatch) else batch
        if is_first:
            self._check_loss(host)
        self._begin_learning()
        is_plain = is_first or examples(host) == 1
        total: Tensor | float
        if self._recorder is not None and not is_plain:
            total = self._recorder.take(self._sent_step, self._arrived(batch), seed)
        elif isinstance(batch, SentBatch) and not is_plain:
            total = self._sent_step(self._arrived(batch), seed)
        else:
            total = self._step(host, seed)
        self._at.touched(self._gradient, self.parameters.floats, self.parameters.integers)
        if self._at.is_apart and seed % MEASURED_EVERY:
            return self._gradient, {}
        return self._gradient, {"loss": float(total)}

    def _check_loss(self, batch: Batch) -> None:
        """Refuses a loss of the user's own that compares each output with every label.

        Raises:
            UsageError: it does.
        """
        two = some_of(batch, slice(2))
        if ":" not in self._name or two.labels is None or examples(two) < 2:
            return
        self.module.eval()
        with torch.no_grad():
            outputs, _ = self._outputs(two, None)
        labels = tensor_of(two.labels)
        if not isinstance(outputs, Tensor) or isinstance(labels, dict):
            return
        weights = getattr(two, "weights", None)
        if is_paired(lambda o, y: self._loss(o, y, weights), outputs.to(CPU), labels):
            wrong = f"the loss {self._name} compares each output with every label"
            do = "let it read outputs[:, 0]; labels[None, :] where each pair is meant"
            raise UsageError(wrong, got="outputs [B, 1] and labels [B]", do=do)

    def _begin_learning(self) -> None:
        """Sets the module to training, where it is not: a walk through all its parts takes time."""
        if not (self._is_learning and self.module.training):
            self.module.train()
            self._is_learning = True

    @property
    def send(self) -> Callable[[Any], Any] | None:
        """As of every model; not where a function reads batches on the host, or they are parted.

        That function may draw numbers, which the seed of its step decides.
        """
        how = self._how
        is_read_here = bool(how.reads) and self._reading.tensors is None
        is_whole = how.accumulate == 1 and how.activation_bytes is None and not is_read_here
        return super().send if is_whole else None

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Returns a batch as tensors on the host: what `_sent_step` reads."""
        draws = getattr(batch, "draws", None)
        read, chance = self._reading.here(batch.features, draws), self._reading.chance(draws)
        named = read if isinstance(read, dict) else {"": read}
        inputs = {_READ + name: x for name, x in named.items()}
        if chance is not None:
            inputs["draws"] = chance
        if batch.labels is not None:
            inputs["labels"] = whole_target(self._name, tensor_of(batch.labels))
        weights = getattr(batch, "weights", None)
        return inputs if weights is None else {**inputs, "weights": tensor_of(weights)}

    def _arrived(self, batch: Batch | SentBatch) -> Mapping[str, Tensor]:
        """As of every model, with labels that are classes."""
        host: Batch = batch.batch if isinstance(batch, SentBatch) else batch
        if host.labels is not None:
            self._checked(tensor_of(host.labels))
        return super()._arrived(batch)

    def _sent_step(self, inputs: Mapping[str, Tensor], seed: int | None) -> Tensor:
        """Takes a step from what `_inputs` returned, on the device; no seed: chance is seeded."""
        named = {n.removeprefix(_READ): x for n, x in inputs.items() if n.startswith(_READ)}
        read: Read = named.get("", named)
        rows = len(next(iter(named.values())))
        labels, weights, draws = (inputs.get(name) for name in ("labels", "weights", "draws"))
        sent = _Sent(read, labels, weights, rows, draws)
        total = self._step(sent, seed)
        assert isinstance(total, Tensor)
        return total

    def _step(self, batch: Batch, seed: int | None) -> Tensor | float:
        """Writes the gradient, and returns the loss with its penalty []."""
        if self._average is not None:
            self._average.step()
        total: Tensor | float = 0.0
        some = list(parts(batch, self._how.accumulate))
        for number, (part, share) in enumerate(some):
            with self._normed(examples(part)):
                how = self._kept_for(part)
                loss = self._lost(part, None if seed is None else seed ^ number, how)
                at = _Place(is_first=not number, is_last=number == len(some) - 1)
                self._differentiate(loss if share == 1.0 else loss * share, at)
            total = total + share * loss.detach().to(self._sums)
        self._buffers.take_back()  # not before: the way back reads what forward has read
        for _, weights, factor in self._decayed:
            squares = torch.dot(weights.ravel(), weights.ravel())
            total = total + factor / 2 * squares.to(self._sums)
        return total

    def try_forward(self, batch: Batch, seed: int | None) -> None:
        """Runs the forward passes of a step for what they read: no number changes.

        Without a seed it is that of a measurement.
        """
        if seed is None:
            self.module.eval()
            with torch.no_grad():
                self._outputs(batch, None)
            return
        self._begin_learning()
        with torch.no_grad(), self._buffers_kept():
            for number, (part, _) in enumerate(parts(batch, self._how.accumulate)):
                with self._chance(seed ^ number), self._normed(examples(part)):
                    self._outputs(part, getattr(part, "draws", None))

    @contextmanager
    def _normed(self, rows: int) -> Iterator[None]:
        """Normalizes a single row by the running statistics: it has no variance."""
        alone = [norm for norm in self._norms if norm.training] if rows == 1 else []
        for norm in alone:
            norm.eval()
        try:
            yield
        finally:
            for norm in alone:
                norm.train()

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Has the buffers afterwards as they were before."""
        self._at.sync()
        vectors = self.parameters.floats, self.parameters.integers
        buffers = [self._at.tensor(vector) for vector in vectors]
        before = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            self._buffers.take_back()
            for buffer, kept in zip(buffers, before, strict=True):
                buffer.copy_(kept)

    def _lost(self, batch: Batch, seed: int | None, how: str) -> Tensor:
        """Returns the loss of a forward pass under a seed, its activations left in a way."""
        chance = nullcontext() if seed is None else self._chance(seed)
        with chance, self._activations.left(how):
            return self._forward(batch, getattr(batch, "draws", None))[0]

    @contextmanager
    def _chance(self, seed: int) -> Iterator[None]:
        """Has a seed decide all chance of torch meanwhile."""
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed looks at every accelerator, and at the call stack: 1 ms a step
            torch.default_generator.manual_seed(seed)
            self._at.seed(seed)
            yield

    def _kept_for(self, batch: Batch) -> str:
        """Returns how a batch's activations are kept; a budget is held to the first batch."""
        asked, rows, budget = self._how.activation_memory, examples(batch), self._budget
        if budget is None:
            return asked
        if rows > self._fits[1]:

            def peak(how: str, rows: int) -> int:
                with PeakBytes() as bytes_:
                    self._differentiate(self._lost(some_of(batch, slice(rows)), 0, how), _Place())
                most: int = bytes_.most
                return most

            ways = self._activations.ways if asked == AUTO else (asked,)
            with self._buffers_kept():
                self._fits = fitting(peak, rows, budget, ways)[0], rows
        return self._fits[0]

    def _differentiate(self, loss: Tensor, at: _Place) -> None:
        # `backward` into views would zero them, read and add: three more passes over the memory
        inputs = [] if self._external is None else self._external.inputs()
        with self._written_early(at) as written:
            slopes = gradients(loss, [*self._trained, *inputs], self._how.precision)
        if self._external is not None:
            self._external.take(slopes[len(self._trained) :])
        for number in range(len(self._trained)):
            if number not in written:
                self._write(number, slopes[number], at)

    @contextmanager
    def _written_early(self, at: _Place) -> Iterator[set[int]]:
        """Has each slope written while the backward pass continues, where anyone waits for it.

        On a device the host would have to wait for each; of float16 any may change in the end.
        """
        written: set[int] = set()
        is_waited_for = self.on_gradient is not None and at.is_last
        if not is_waited_for or self._at.is_apart or self._how.precision == "float16":
            yield written
            return

        def write(number: int, slope: Tensor) -> None:
            written.add(number)
            self._write(number, slope, at)

        hooks = [
            p.register_hook(partial(write, n))  # type: ignore[no-untyped-call]
            for n, p in enumerate(self._trained)
        ]
        try:
            yield written
        finally:
            for hook in hooks:
                hook.remove()

    def _write(self, number: int, slope: Tensor | None, at: _Place) -> None:
        """Writes, or adds, a parameter's slope, and with the last one its penalty's."""
        name, mine = self._names[number], self._slopes[number]
        if slope is not None and name in self._tables:
            write_rows(mine, slope, name, is_first=at.is_first)
        elif slope is not None:
            write = Tensor.copy_ if at.is_first else Tensor.add_
            write(mine, slope.to_dense() if slope.is_sparse else slope)
        elif at.is_first:
            mine.zero_()
        if not at.is_last:
            return
        for decayed, weights, factor in self._decayed:
            if decayed == name:
                mine.add_(weights, alpha=factor)
        if self.on_gradient is not None and not self._at.is_apart:  # there the host's is old
            entry = self.parameters.layout.entry(name)
            self.on_gradient(self._gradient, entry.offset, entry.offset + entry.size)

    def measure(self, batch: Batch) -> Mapping[str, float]:
        """Returns examples, the summed loss without a penalty and, with classes, the errors.

        Where there is a moving average, it is what is measured.
        """
        self.module.eval()
        with torch.no_grad(), self.shown():
            loss, outputs, labels = self._forward(batch)
        self._buffers.take_back()
        size = examples(batch)
        sums = {"examples": float(size), "loss": float(loss) * size}
        if isinstance(labels, dict) or not isinstance(outputs, Tensor):
            return sums
        outputs = outputs.detach()  # as of `outputs`
        head = head_under(self._name, outputs, labels, self._how.metrics)
        errors = errors_of(head, outputs, labels)
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
            # detached: what is made under `enable_grad` has a graph
            made.append(output_of(layer, out).detach().to(CPU, self._dtype))

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

    def returns_one(self, features: Features) -> bool:
        """Returns whether the module returns one tensor, and not several."""
        self.module.eval()
        with torch.no_grad():
            return isinstance(self._pass(self._read(features)), Tensor)

    def _read(self, features: Features, draws: Vector | None = None) -> Read:
        """Returns features [B, ...] as the module reads them, where it lies."""
        self._at.sync()
        return self._reading(features, draws)

    def _pass(self, x: Read) -> Outputs:
        with autocast(self._at.device.type, self._how.precision):
            outputs = self.module(**x) if isinstance(x, dict) else self.module(x)
        if self.module.training not in self._tried:
            self._check_made()
            self._tried.add(self.module.training)
        return in_type(outputs, self._dtype)  # [B, ...]

    def _check_made(self) -> None:
        """Refuses layers that the first call makes: they are not among what is trained."""
        late = [name for name, _ in self.module.named_parameters() if name not in self._made]
        if late:
            wrong = f"{type(self.module).__name__} makes layers in forward"
            raise UsageError(wrong, got=", ".join(late), do="make them in __init__")

    def _target(self, features: Read) -> Read:
        """Returns what outputs are compared with where there are no labels.

        That is what the module read. Of named inputs it is the only one, without its mask, or for
        a loss of the user's own all of them.
        """
        if not isinstance(features, dict):
            return features
        masks = {"mask", "attention_mask", *map(mask_of, features)} & features.keys()
        if len(features) - len(masks) == 1:
            return next(x for name, x in features.items() if name not in masks)
        if ":" not in self._name or self._how.metrics:
            wrong = "several inputs are the target of a loss of your own alone, and of no metric"
            raise DataError(wrong, got=f"loss {self._name}", do="name a column of labels")
        return features

    def _forward(self, batch: Batch, draws: Vector | None = None) -> tuple[Tensor, Outputs, Read]:
        outputs, features = self._outputs(batch, draws)
        if not isinstance(outputs, Tensor) and (":" not in self._name or self._how.metrics):
            wrong = "several outputs are for a loss of your own alone, and for no metric"
            got, do = f"loss {self._name}, {type(outputs).__name__}", "return one tensor"
            raise UsageError(wrong, got=got, do=do)
        is_table = isinstance(outputs, Tensor) and outputs.ndim == 2
        self._classes = outputs.shape[1] if is_table else 0
        given = None if batch.labels is None else tensor_of(batch.labels)
        labels = self._target(features) if given is None else given
        with self._told(f"features {_shape(features)}, labels {_shape(labels)}"):
            if given is not None and self._at.is_apart and not isinstance(batch, _Sent):
                labels = self._at.sent(self._checked(given))
            weights = getattr(batch, "weights", None)
            if weights is not None and not isinstance(batch, _Sent):
                weights = self._at.sent(tensor_of(weights))
            of = "its target" if given is None else "a label"
            try:
                loss = self._loss(outputs, target_for(self._name, outputs, labels, of), weights)
            except (RuntimeError, IndexError):
                if given is not None and not self._at.is_apart:
                    self._checked(given)
                raise
        return loss, outputs, labels

    def _checked(self, labels: Tensor) -> Tensor:
        """Returns labels of the host; refuses one that is none of the classes.

        torch's error lacks row and remedy, and after it a card is lost to the process.
        """
        whole = whole_target(self._name, labels)
        classes = self._classes
        if not classes or (wrong := wrong_label(self._name, classes, whole)) is None:
            return whole
        row, label = wrong
        is_more = label >= classes
        do = f"give the module {int(label) + 1} outputs or more, or " if is_more else ""
        raise DataError(
            f"{type(self.module).__name__} with loss {self._name} does not take this batch",
            got=f"label {label:g} outside 0..{classes - 1} in its example {row}",
            do=f"{do}mend the row",
        )

    def _outputs(self, batch: Batch, draws: Vector | None) -> tuple[Outputs, Read]:
        """Returns what the module makes of a batch, [B, ...], and what it has read."""
        if isinstance(batch, _Sent):
            features = self._reading.laid(batch.features, batch.draws)
        else:
            features = self._read(batch.features, draws)  # [B, ...]
        labels = "none" if batch.labels is None else _shape(tensor_of(batch.labels))
        with self._told(f"features {_shape(features)}, labels {labels}"):
            return self._pass(features), features

    @contextmanager
    def _told(self, batch: str) -> Iterator[None]:
        """Adds to an error of torch's which batch it was."""
        try:
            yield
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            if _is_users_own(error):
                raise
            raise DataError(
                f"{type(self.module).__name__} with loss {self._name} does not take this batch",
                got=f"{batch}: {error}{_place(error)}",
                do="compare the columns with what the module reads",
            ) from error


_HOMES = (*torch.__path__, *photinus.__path__)


def _is_users_own(error: Exception) -> bool:
    """Returns whether the user's code raised an error itself: its text and traceback say more."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return not last.filename.startswith(_HOMES) and (last.line or "").startswith("raise")


def _place(error: Exception) -> str:
    """Returns the user's line at which an error was raised; nothing where no line is theirs."""
    found = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in found if not frame.filename.startswith(_HOMES)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


_READ = "read:"
_SECTIONS = {torch.float32: FLOATS, torch.int64: INTEGERS}


def _decayed(
    layout: Layout, view: Callable[[str], Tensor], l2: Mapping[str, float]
) -> list[tuple[str, Tensor, float]]:
    """Returns (name, weights [...], factor) for all that `l2` names."""
    found = []
    for pattern, factor in l2.items():
        names = [e.name for e in layout.entries if e.section == TRAINED]
        named = [name for name in names if fnmatchcase(name, pattern)]
        if not named:
            raise unknown_name("parameter in l2", pattern, names)
        found += [(name, view(name), float(factor)) for name in named]
    return found


def _shape(tensor: Read) -> str:
    if isinstance(tensor, dict):
        return ", ".join(f"{name} {_shape(x)}" for name, x in tensor.items())
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _check_statistics(module: nn.Module) -> None:
    """Refuses running statistics that are in no flat vector: the trained model would lack them."""
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")) and buffer.dtype not in _SECTIONS:
            wrong = f"running statistics must be float32: {name}"
            got = str(buffer.dtype).removeprefix("torch.")
            raise UsageError(wrong, got=got, do="make the module in float32, or use LayerNorm")


def _has_tables(module: nn.Module) -> bool:
    return any(isinstance(layer, ShardedEmbedding) for layer in module.modules())


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
