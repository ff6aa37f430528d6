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
from photinus.core.settings import FAR_LABEL, NUMBER_THE_CLASSES, unknown_name
from photinus.models.activations import AUTO, Activations, PeakBytes, choose_mode
from photinus.models.average import Average, average_layout
from photinus.models.base import BatchLike
from photinus.models.buffers import Buffers
from photinus.models.heads import errors_of, head_under
from photinus.models.label_broadcast import is_paired
from photinus.models.losses import (
    SEQUENCE_LOSS,
    Outputs,
    class_count,
    labelled_tokens,
    loss_named,
    no_token_labels,
    predicted,
    target_for,
    whole_target,
    wrong_label,
)
from photinus.models.low_precision import autocast, gradients
from photinus.models.metrics import counted
from photinus.models.one_row import OneRowNorms, unsqueezed
from photinus.models.optimizers import LARGE
from photinus.models.placement import CPU, MEASURED_EVERY, DeviceParameters, PlacedModel, SentBatch
from photinus.models.reading import (
    FeatureReading,
    Features,
    ModuleInput,
    advice_for_input,
    cast_floats,
    chunks,
    example_count,
    input_rows,
    layer_of,
    main_output,
    output_of,
    slice_batch,
    split_batch,
)
from photinus.models.recording import Recorder, no_dropout
from photinus.models.tables import sparse_tables, write_rows
from photinus.models.tensors import tensor_of, type_advice
from photinus.nn import ShardedEmbedding


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """How a module learns and is measured, beside its loss: the like fields of `ModuleConfig`."""

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


class _DeviceBatch(NamedTuple):
    """A batch on the device: what the module reads, and what its outputs are compared with."""

    features: Any
    """As `FeatureReading.host_inputs` returns them."""
    labels: Any
    weights: Tensor | None
    examples: int
    draws: Tensor | None
    """As `FeatureReading.device_draws` returns them."""


class _PartPosition(NamedTuple):
    """Of a part of a batch, among the parts whose gradients are added up."""

    is_first: bool = True
    is_last: bool = False


class ExternalInputs(Protocol):
    """What a module reads beside its own tensors, such as rows of a table elsewhere."""

    def bind(self, storage: DeviceParameters) -> None:
        """Takes the device on which the module computes from now on."""

    def inputs(self) -> list[Tensor]:
        """Returns the tensors that the forward pass has read, to differentiate by."""

    def receive_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Takes their gradients, in the same order; None where the loss does not depend on one."""


class ModuleModel(PlacedModel):
    """A module whose tensors are views of the flat buffer.

    Trainable parameters lie in the trained section, floating buffers (BatchNorm's statistics) in
    floats, int64 ones (its counter) in integers. Frozen parameters and buffers of other kinds stay
    in the module: they are constants, the same on every worker; `frozen` has the parameters among
    them that a config froze as arrays by name. A tied parameter is one entry.

    Example:
        >>> model = ModuleModel(nn.Linear(3, 2), "mse")
        >>> model.parameters.layout.names(), model.parameters.trained.shape
        (('weight', 'bias'), (8,))
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str,
        learning: Learning | None = None,
        external: ExternalInputs | None = None,
    ) -> None:
        """Moves the module's tensors; their numbers are kept.

        Args:
            module: maps features [B, ...] to outputs [B, ...].
            loss: one of `LOSSES`, or "package.module:function".
            learning: all else; without it, the defaults of `Learning`.
            external: what it reads that is not its own.

        Raises:
            UsageError: nothing to train, types are mixed, parameters overlap in memory, or `l2`
                names none of them.
        """
        self.module, self._learning, self._external = module, learning or Learning(), external
        self._budget, self._mode_choice = self._learning.activation_bytes, ("keep", 0)
        """How activations are kept, for batches of up to so many rows."""
        self._name, self._loss = loss, loss_named(loss, self._learning.label_smoothing)
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        dtype = _common_type(trained) if trained or not _has_tables(module) else "float32"
        buffers = {n: b for n, b in module.named_buffers() if b.dtype in _SECTIONS}
        _check_statistics(module)
        self._trained_names, self._buffer_names = list(trained), list(buffers)
        entries = [(n, tuple(p.shape), TRAINED) for n, p in trained.items()]
        tensors = entries + [(n, tuple(b.shape), _SECTIONS[b.dtype]) for n, b in buffers.items()]
        tensors += average_layout(entries) if self._learning.average else []
        self._dtype = getattr(torch, dtype)
        self._trained = list(trained.values())
        tables = sparse_tables(module)
        self._sparse_tables = frozenset(tables)
        self._norms = OneRowNorms(module)
        self._is_learning = False
        self._known_names, self._seen_modes = {n for n, _ in module.named_parameters()}, set[bool]()
        """The parameters that it was made with, and the modes in which it was seen to add none."""
        self._class_count = 0
        """The outputs of a row, where the last batch's had two dimensions."""
        self.frozen: dict[str, Vector] = {}
        self._bind(DeviceParameters(Layout.of(tensors, dtype, tables)))

    def _bind(self, storage: DeviceParameters) -> None:
        """Makes the module's tensors views of flat vectors; their numbers are kept."""
        self.module.to(storage.device)
        self._storage, self.parameters = storage, storage.parameters
        self._gradient = storage.gradient
        self._sum_dtype = torch.float64 if storage.has_float64 else torch.float32
        if self._external is not None:
            self._external.bind(storage)
        self._gradient_views = [storage.gradient_view(name) for name in self._trained_names]
        for name, parameter in zip(self._trained_names, self._trained, strict=True):
            parameter.data = storage.view(name).copy_(parameter.detach())
        self._buffers = Buffers(self.module, self._buffer_names, storage)
        trained = storage.tensor(self.parameters.trained)
        learning, p = self._learning, self.parameters
        self._l2_terms = _l2_terms(p.layout, storage.view, learning.l2)
        averaged = trained, storage.tensor(p.floats), storage.tensor(p.integers)
        self._average = Average(*averaged, learning.average) if learning.average else None
        self._activations = Activations(self.module)
        self._reading = FeatureReading.of(
            self.module, self._dtype, learning.reads, learning.memory, storage
        )
        name = type(self.module).__name__
        can_record = learning.cuda_graph and storage.is_on_device
        dropout_off = partial(no_dropout, self.module)
        self._recorder = Recorder(storage, name, dropout_off=dropout_off) if can_record else None
        storage.mark_changed(*storage.sections)
        storage.to_host(storage.sections)

    def learn(self, batch: BatchLike | SentBatch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient by automatic differentiation, and the loss with its penalty."""
        self._storage.sync()
        is_first = not self._is_learning  # it shows how many classes there are
        host_batch: BatchLike = batch.batch if isinstance(batch, SentBatch) else batch
        if is_first:
            self._check_loss(host_batch)
        self._begin_learning()
        is_plain = is_first or example_count(host_batch) == 1
        total: Tensor | float
        if self._recorder is not None and not is_plain:
            total = self._recorder.take(self._device_step, self._ready_inputs(batch), seed)
        elif isinstance(batch, SentBatch) and not is_plain:
            total = self._device_step(self._ready_inputs(batch), seed)
        else:
            total = self._step(host_batch, seed)
        self._storage.mark_changed(self._gradient, self.parameters.floats, self.parameters.integers)
        if self._storage.is_on_device and seed % MEASURED_EVERY:
            return self._gradient, {}
        return self._gradient, {"loss": float(total)}

    def _check_loss(self, batch: BatchLike) -> None:
        """Refuses a loss of the user's own that compares each output with every label.

        Raises:
            UsageError: it does.
        """
        pair = slice_batch(batch, slice(2))
        if ":" not in self._name or pair.labels is None or example_count(pair) < 2:
            return
        self.module.eval()
        with torch.no_grad():
            outputs, _ = self._outputs(pair, None)
        labels = tensor_of(pair.labels)
        if not isinstance(outputs, Tensor) or isinstance(labels, dict):
            return
        weights = getattr(pair, "weights", None)
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
        learning = self._learning
        is_on_host = bool(learning.reads) and self._reading.tensors is None
        is_whole = learning.accumulate == 1 and learning.activation_bytes is None and not is_on_host
        return super().send if is_whole else None

    def _inputs(self, batch: BatchLike) -> dict[str, Tensor]:
        """Returns a batch as tensors on the host: what `_device_step` reads."""
        draws = getattr(batch, "draws", None)
        features = self._reading.host_inputs(batch.features, draws)
        device_draws = self._reading.device_draws(draws)
        by_name = features if isinstance(features, dict) else {"": features}
        inputs = {_PREFIX + name: x for name, x in by_name.items()}
        if device_draws is not None:
            inputs["draws"] = device_draws
        if batch.labels is not None:
            inputs["labels"] = whole_target(self._name, tensor_of(batch.labels))
        weights = getattr(batch, "weights", None)
        return inputs if weights is None else {**inputs, "weights": tensor_of(weights)}

    def _ready_inputs(self, batch: BatchLike | SentBatch) -> Mapping[str, Tensor]:
        """As of every model, with labels that are classes."""
        host_batch: BatchLike = batch.batch if isinstance(batch, SentBatch) else batch
        if host_batch.labels is not None:
            self._validated_labels(tensor_of(host_batch.labels))
        return super()._ready_inputs(batch)

    def _device_step(self, inputs: Mapping[str, Tensor], seed: int | None) -> Tensor:
        """Takes a step from what `_inputs` returned, on the device; no seed: chance is seeded."""
        by_name = {n.removeprefix(_PREFIX): x for n, x in inputs.items() if n.startswith(_PREFIX)}
        features: ModuleInput = by_name.get("", by_name)
        rows = len(next(iter(by_name.values())))
        labels, weights, draws = (inputs.get(name) for name in ("labels", "weights", "draws"))
        batch = _DeviceBatch(features, labels, weights, rows, draws)
        total = self._step(batch, seed)
        assert isinstance(total, Tensor)
        return total

    def _step(self, batch: BatchLike, seed: int | None) -> Tensor | float:
        """Writes the gradient, and returns the loss with its penalty []."""
        if self._average is not None:
            self._average.step()
        total: Tensor | float = 0.0
        batch_parts = list(split_batch(batch, self._learning.accumulate))
        for index, (part, fraction) in enumerate(batch_parts):
            with self._norms.using(example_count(part)):
                mode = self._activation_mode(part)
                loss = self._compute_loss(part, None if seed is None else seed ^ index, mode)
                position = _PartPosition(is_first=not index, is_last=index == len(batch_parts) - 1)
                self._differentiate(loss if fraction == 1.0 else loss * fraction, position)
            part_loss = loss.detach().to(self._sum_dtype)
            total = part_loss if fraction == 1.0 else total + fraction * part_loss
        self._buffers.restore_views()  # not before: the way back reads what forward has read
        for _, weights, factor in self._l2_terms:
            squares = torch.dot(weights.ravel(), weights.ravel())
            total = total + factor / 2 * squares.to(self._sum_dtype)
        return total

    def try_forward(self, batch: BatchLike, seed: int | None) -> None:
        """Runs the forward passes of a step for what they read: no number changes.

        Without a seed it is that of a measurement.
        """
        if seed is None:
            self.module.eval()
            with torch.no_grad():
                self._outputs(batch, None)
            return
        self._begin_learning()
        with torch.no_grad(), self._preserved_buffers():
            for index, (part, _) in enumerate(split_batch(batch, self._learning.accumulate)):
                with self._seeded(seed ^ index), self._norms.using(example_count(part)):
                    self._outputs(part, getattr(part, "draws", None))

    @contextmanager
    def _preserved_buffers(self) -> Iterator[None]:
        """Has the buffers afterwards as they were before."""
        self._storage.sync()
        vectors = self.parameters.floats, self.parameters.integers
        buffers = [self._storage.tensor(vector) for vector in vectors]
        originals = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            self._buffers.restore_views()
            for buffer, original in zip(buffers, originals, strict=True):
                buffer.copy_(original)

    def _compute_loss(self, batch: BatchLike, seed: int | None, mode: str) -> Tensor:
        """Returns the loss of a forward pass under a seed, its activations left in a mode."""
        seeded = nullcontext() if seed is None else self._seeded(seed)
        with seeded, self._activations.using(mode):
            return self._forward(batch, getattr(batch, "draws", None))[0]

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Has a seed decide all chance of torch meanwhile."""
        state = torch.default_generator.get_state()
        try:
            # torch.manual_seed looks at every accelerator, and at the call stack: 1 ms a step
            torch.default_generator.manual_seed(seed)
            self._storage.seed(seed)
            yield
        finally:
            torch.default_generator.set_state(state)

    def _activation_mode(self, batch: BatchLike) -> str:
        """Returns how a batch's activations are kept; a budget is held to the first batch."""
        setting, rows, budget = self._learning.activation_memory, example_count(batch), self._budget
        if budget is None:
            return setting
        if rows > self._mode_choice[1]:

            def peak(mode: str, rows: int) -> int:
                with PeakBytes() as counter:
                    self._differentiate(
                        self._compute_loss(slice_batch(batch, slice(rows)), 0, mode),
                        _PartPosition(),
                    )
                most: int = counter.most
                return most

            modes = self._activations.modes if setting == AUTO else (setting,)
            with self._preserved_buffers():
                self._mode_choice = choose_mode(peak, rows, budget, modes)[0], rows
        return self._mode_choice[0]

    def _differentiate(self, loss: Tensor, position: _PartPosition) -> None:
        # `backward` into views would zero them, read and add: three more passes over the memory
        inputs = [] if self._external is None else self._external.inputs()
        with self._written_early(position) as written:
            grads = gradients(loss, [*self._trained, *inputs], self._learning.precision)
        if self._external is not None:
            self._external.receive_gradients(grads[len(self._trained) :])
        for index in sorted(set(range(len(self._trained))) - written):
            if not (all(position) and self._is_taken(index, grads[index])):
                self._write(index, grads[index], position)

    @contextmanager
    def _written_early(self, position: _PartPosition) -> Iterator[set[int]]:
        """Has each gradient written while the backward pass continues, where anyone waits for it.

        On a device the host would have to wait for each; of float16 any may change in the end.
        """
        written: set[int] = set()
        is_awaited = self.on_gradient is not None and position.is_last
        if not is_awaited or self._storage.is_on_device or self._learning.precision == "float16":
            yield written
            return

        def write(index: int, grad: Tensor) -> None:
            written.add(index)
            self._write(index, grad, position)

        hooks = [
            p.register_hook(partial(write, n))  # type: ignore[no-untyped-call]
            for n, p in enumerate(self._trained)
        ]
        try:
            yield written
        finally:
            for hook in hooks:
                hook.remove()

    def _write(self, index: int, grad: Tensor | None, position: _PartPosition) -> None:
        """Writes, or adds, a parameter's gradient, and with the last one its penalty's."""
        name, target = self._trained_names[index], self._gradient_views[index]
        if grad is not None and name in self._sparse_tables:
            write_rows(target, grad, name, is_first=position.is_first)
        elif grad is not None:
            write = Tensor.copy_ if position.is_first else Tensor.add_
            write(target, grad.to_dense() if grad.is_sparse else grad)
        elif position.is_first:
            target.zero_()
        if not position.is_last:
            return
        for penalized, weights, factor in self._l2_terms:
            if penalized == name:
                target.add_(weights, alpha=factor)
        # on a device the host's gradient is old
        if self.on_gradient is not None and not self._storage.is_on_device:
            entry = self.parameters.layout.entry(name)
            self.on_gradient(self._gradient, entry.offset, entry.offset + entry.size)

    def _is_taken(self, index: int, grad: Tensor | None) -> bool:
        if self.give_gradient is None or grad is None or grad.numel() < LARGE:
            return False
        name = self._trained_names[index]
        is_penalized = any(name == penalized for penalized, *_ in self._l2_terms)
        return not is_penalized and self.give_gradient(
            self.parameters.layout.entry(name).offset, grad
        )

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns examples, the summed loss without a penalty and, with classes, the errors.

        Where there is a moving average, it is what is measured.
        """
        self.module.eval()
        with torch.no_grad(), self.shown():
            loss, outputs, labels = self._forward(batch)
        self._buffers.restore_views()
        size = example_count(batch)
        if isinstance(labels, dict) or not isinstance(outputs, Tensor):
            return {"examples": float(size), "loss": float(loss) * size}
        outputs, labels = labelled_tokens(self._name, outputs.detach(), labels)  # as of `outputs`
        size = len(labels) if self._name == SEQUENCE_LOSS else size
        sums = {"examples": float(size), "loss": float(loss) * size}
        sums |= counted(self._learning.metrics, predicted(self._name, outputs), labels)
        head = head_under(self._name, outputs, labels, self._learning.metrics)
        return sums | errors_of(head, outputs, labels)

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
        submodule = layer_of(self.module, layer)
        chunk_outputs: list[Tensor] = []

        def collect(_: nn.Module, __: tuple[Any, ...], out: object) -> None:
            # detached: what is made under `enable_grad` has a graph
            if not layer:
                out = unsqueezed(main_output(out, self._name), rows)
            chunk_outputs.append(output_of(layer, out).detach().to(CPU, self._dtype))

        self.module.eval()
        hook = submodule.register_forward_hook(collect)
        try:
            with torch.no_grad(), self.shown():
                for chunk in chunks(features):
                    inputs = self._read(chunk)
                    rows = input_rows(inputs)
                    self._call_module(inputs)
        finally:
            hook.remove()
        result: Vector = torch.cat(chunk_outputs).numpy()
        return result

    def returns_one(self, features: Features) -> bool:
        """Returns whether the module returns one tensor, and not several."""
        self.module.eval()
        with torch.no_grad():
            return isinstance(self._call_module(self._read(features)), Tensor)

    def _read(self, features: Features, draws: Vector | None = None) -> ModuleInput:
        """Returns features [B, ...] as the module reads them, where it lies."""
        self._storage.sync()
        return self._reading(features, draws)

    def _call_module(self, inputs: ModuleInput) -> Outputs:
        with autocast(self._storage.device.type, self._learning.precision):
            outputs = self.module(**inputs) if isinstance(inputs, dict) else self.module(inputs)
        if self.module.training not in self._seen_modes:
            self._check_late_layers()
            self._seen_modes.add(self.module.training)
        outputs = main_output(outputs, self._name)
        if ":" not in self._name:  # a loss of the user's own may read what is no row
            outputs = unsqueezed(outputs, input_rows(inputs))
        return cast_floats(outputs, self._dtype)  # [B, ...]

    def _check_late_layers(self) -> None:
        """Refuses layers that the first call makes: they are not among what is trained."""
        late = [name for name, _ in self.module.named_parameters() if name not in self._known_names]
        if late:
            wrong = f"{type(self.module).__name__} makes layers in forward"
            raise UsageError(wrong, got=", ".join(late), do="make them in __init__")

    def _target(self, features: ModuleInput) -> ModuleInput:
        """Returns what outputs are compared with where there are no labels.

        That is what the module read. Of named inputs it is the only one, without its mask, or for
        a loss of the user's own all of them.
        """
        if self._name == SEQUENCE_LOSS:  # the mask, if it is read at all, may have another name
            raise no_token_labels("none")
        if not isinstance(features, dict):
            return features
        masks = {"mask", "attention_mask", *map(mask_of, features)} & features.keys()
        if len(features) - len(masks) == 1:
            return next(x for name, x in features.items() if name not in masks)
        if ":" not in self._name or self._learning.metrics:
            wrong = "several inputs are the target of a loss of your own alone, and of no metric"
            raise DataError(wrong, got=f"loss {self._name}", do="name a column of labels")
        return features

    def _forward(
        self, batch: BatchLike, draws: Vector | None = None
    ) -> tuple[Tensor, Outputs, ModuleInput]:
        outputs, features = self._outputs(batch, draws)
        if not isinstance(outputs, Tensor) and (":" not in self._name or self._learning.metrics):
            wrong = "several outputs are for a loss of your own alone, and for no metric"
            got = f"loss {self._name}, {type(outputs).__name__}"
            one = "one tensor" if self._name != "in_batch" else "torch.stack([one, other], 1)"
            raise UsageError(wrong, got=got, do=f"return {one}, or set a loss that reads them")
        self._class_count = class_count(self._name, outputs)
        batch_labels = None if batch.labels is None else tensor_of(batch.labels)
        labels = self._target(features) if batch_labels is None else batch_labels
        with self._explained_errors(features, labels):
            is_sent = isinstance(batch, _DeviceBatch)
            if batch_labels is not None and self._storage.is_on_device and not is_sent:
                labels = self._storage.on_device(self._validated_labels(batch_labels))
            weights = getattr(batch, "weights", None)
            if weights is not None and not is_sent:
                weights = self._storage.on_device(tensor_of(weights))
            noun = "its target" if batch_labels is None else "a label"
            try:
                loss = self._loss(outputs, target_for(self._name, outputs, labels, noun), weights)
            except (RuntimeError, IndexError):
                if batch_labels is not None and not self._storage.is_on_device:
                    self._validated_labels(batch_labels)
                raise
        return loss, outputs, labels

    def _validated_labels(self, labels: Tensor) -> Tensor:
        """Returns labels of the host; refuses one that is none of the classes.

        torch's error lacks row and remedy, and after it a card is lost to the process.
        """
        targets = whole_target(self._name, labels)
        classes = self._class_count
        if not classes or (first_wrong := wrong_label(self._name, classes, targets)) is None:
            return targets
        row, label = first_wrong
        do = f"{NUMBER_THE_CLASSES}, or "
        if classes <= label < FAR_LABEL * classes:
            do = f"give the module {int(label) + 1} outputs or more, or "
        raise DataError(
            f"{type(self.module).__name__} with loss {self._name} does not take this batch",
            got=f"label {label:g} outside 0..{classes - 1} in its example {row}",
            do=f"{do}mend the row",
        )

    def _outputs(self, batch: BatchLike, draws: Vector | None) -> tuple[Outputs, ModuleInput]:
        """Returns what the module makes of a batch, [B, ...], and what it has read."""
        if isinstance(batch, _DeviceBatch):
            features = self._reading.convert(batch.features, batch.draws)
        else:
            features = self._read(batch.features, draws)  # [B, ...]
        labels = None if batch.labels is None else tensor_of(batch.labels)
        with self._explained_errors(features, labels, is_call=True):
            return self._call_module(features), features

    @contextmanager
    def _explained_errors(
        self, features: ModuleInput, labels: ModuleInput | None, *, is_call: bool = False
    ) -> Iterator[None]:
        """Adds to an error of torch's which batch it was, and after a call what to do."""
        try:
            yield
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            if _is_users_own(error):
                raise
            raise DataError(
                f"{type(self.module).__name__} with loss {self._name} does not take this batch",
                got=f"features {_describe(features)}, labels {_describe(labels)}: {error}"
                + _error_location(error),
                do=advice_for_input(features if is_call else None, error)
                or "compare the columns with what the module reads",
            ) from error


_LIBRARY_PATHS = (*torch.__path__, *photinus.__path__)


def _is_users_own(error: Exception) -> bool:
    """Returns whether the user's code raised an error itself: its text and traceback say more."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return not frame.filename.startswith(_LIBRARY_PATHS) and (frame.line or "").startswith("raise")


def _error_location(error: Exception) -> str:
    """Returns the user's line at which an error was raised; nothing where no line is theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_PATHS)]
    return f" ({Path(outside[-1].filename).name}, line {outside[-1].lineno})" if outside else ""


_PREFIX = "read:"
_SECTIONS = {torch.float32: FLOATS, torch.int64: INTEGERS}


def _l2_terms(
    layout: Layout, view: Callable[[str], Tensor], l2: Mapping[str, float]
) -> list[tuple[str, Tensor, float]]:
    """Returns (name, weights [...], factor) for all that `l2` names."""
    terms = []
    for pattern, factor in l2.items():
        names = [e.name for e in layout.entries if e.section == TRAINED]
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise unknown_name("parameter in l2", pattern, names)
        terms += [(name, view(name), float(factor)) for name in matches]
    return terms


def _describe(tensor: ModuleInput | None) -> str:
    if tensor is None:
        return "none"
    if isinstance(tensor, dict):
        return ", ".join(f"{name} {_describe(x)}" for name, x in tensor.items())
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
            do=type_advice(types),
        )
    owners: dict[int, str] = {}
    for name, parameter in trained.items():
        if not parameter.numel():
            continue
        owner = owners.setdefault(parameter.untyped_storage().data_ptr(), name)
        if owner != name:
            raise UsageError(
                "two parameters share memory",
                got=f"{owner} and {name}",
                do="tie them by assigning the same nn.Parameter to both",
            )
    return str(types.pop()).removeprefix("torch.")
