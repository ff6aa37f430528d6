"""A module whose `ShardedEmbedding` tables are sharded over the workers, with its other layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from photinus.core.errors import UsageError
from photinus.core.pages import Pages
from photinus.core.parameters import INTEGERS, TRAINED, Layout, Parameters, Vector
from photinus.core.seeds import generator
from photinus.models.base import BatchLike, Model
from photinus.models.module_model import Learning, ModuleModel
from photinus.models.optimizers import InnerOptimizer
from photinus.models.placement import DeviceParameters
from photinus.models.reading import Features
from photinus.models.row_steps import RowSteps, row_size
from photinus.models.tables import sparse_tables
from photinus.nn import ShardedEmbedding

_PADDING = "padding of rows"
"""Fills the last row of the other layers; their statistics and the tables follow it."""
_DRAWN = 1 << 20
"""How many numbers of a table are drawn at once."""


def tables_of(module: nn.Module) -> dict[str, ShardedEmbedding]:
    """Returns a module's tables that are sharded over the workers, by the names of their weights.

    Raises:
        UsageError: they are of several widths or optimizers.
    """
    tables = {
        f"{n}.weight": m for n, m in module.named_modules() if isinstance(m, ShardedEmbedding)
    }
    kinds = {(table.embedding_dim, table.optimizer) for table in tables.values()}
    if len(kinds) > 1:
        wrong = "all ShardedEmbedding tables of a module need one embedding_dim and one optimizer"
        got = ", ".join(f"{dim} and {optimizer}" for dim, optimizer in sorted(kinds))
        raise UsageError(
            wrong, got=got, do="make them alike, or use nn.Embedding for the smaller ones"
        )
    return tables


def row_size_of(module: nn.Module) -> int:
    """Returns how many numbers a row has, with what its optimizer keeps; 0 without such tables.

    Raises:
        UsageError: as of `tables_of`.
    """
    return max(map(row_size, tables_of(module).values()), default=0)


def dense_layout(layout: Layout) -> Layout:
    """Returns the layout of the other layers alone: they lie before the tables."""
    entries = layout.entries[: layout.names().index(_PADDING)]
    return Layout.of(((e.name, e.shape, TRAINED) for e in entries), layout.dtype)


class Lookups:
    """Looks rows of tables up where they lie, in the host's memory, and keeps their gradients.

    Args:
        tables: the layers by the names of their weights.
        views: their rows with the numbers of their optimizers [N, D + S], likewise.
    """

    def __init__(self, tables: Mapping[str, ShardedEmbedding], views: Mapping[str, Vector]) -> None:
        self._tables, self._views = tables, views
        self._storage: DeviceParameters
        self._looked_up: list[tuple[str, Vector, Tensor]] = []
        """Table, ids [r] and their rows [r, D], of the forward pass that is not differentiated."""
        self._differentiated: list[tuple[str, Vector, Tensor]] = []
        self._recorded: list[tuple[str, Vector]] | None = None
        """Table and ids [r], where a forward pass only records which rows it reads."""
        self._allowed: Mapping[str, Vector] | None = None
        """Table -> the ids [r] that are here; None: all."""
        self._row_gradients: dict[str, list[tuple[Vector, Vector]]] = {name: [] for name in tables}
        """Table -> ids [r] and their gradients [r, D]."""
        for name, table in tables.items():
            table.reader = partial(self._look_up, name)

    def bind(self, storage: DeviceParameters) -> None:
        """Sends rows to a device from now on, and brings their gradients from it."""
        self._storage = storage

    @contextmanager
    def recording(self) -> Iterator[list[tuple[str, Vector]]]:
        """Fills a list of table and ids meanwhile, and gives zeros for rows."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None

    @contextmanager
    def restricted_to(self, allowed: Mapping[str, Vector] | None) -> Iterator[None]:
        """Refuses to look others up meanwhile.

        Args:
            allowed: table -> the ids [r] that are here; None: all.
        """
        self._allowed = allowed
        try:
            yield
        finally:
            self._allowed = None

    def inputs(self) -> list[Tensor]:
        """Returns the rows of the last forward pass."""
        self._differentiated, self._looked_up = self._looked_up, []
        return [rows for _, _, rows in self._differentiated]

    def receive_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Keeps their gradients; what was looked up again on the way back is forgotten."""
        for (name, ids, _), gradient in zip(self._differentiated, gradients, strict=True):
            if gradient is not None:
                self._row_gradients[name].append((ids, self._storage.on_host(gradient)))
        self._looked_up.clear()

    def gradients(self) -> dict[str, tuple[Vector, Vector]]:
        """Returns table -> ids [r] in order, and their gradients [r, D], and forgets them."""
        merged = {
            n: _merge_duplicates(f, self._tables[n].padding_idx)
            for n, f in self._row_gradients.items()
            if f
        }
        for parts in self._row_gradients.values():
            parts.clear()
        return merged

    def _look_up(self, name: str, ids: Tensor) -> Tensor:
        """Returns the rows [..., D] of ids [...], each read once."""
        table = self._tables[name]
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} is looked up by int32 or int64, and got {ids.dtype}")
        requested = self._storage.on_host(ids).astype(np.int64, copy=False)  # [...]
        rows, positions = np.unique(requested, return_inverse=True)
        if rows.size and (rows[0] < 0 or rows[-1] >= table.num_embeddings):
            wrong = rows[0] if rows[0] < 0 else rows[-1]
            raise IndexError(f"{name} has rows 0 to {table.num_embeddings - 1}, and no row {wrong}")
        if self._recorded is not None:
            self._recorded.append((name, rows))
            return torch.zeros(*ids.shape, table.embedding_dim, device=self._storage.device)
        if self._allowed is not None and not _are_among(rows, self._allowed.get(name)):
            wrong = f"the rows of {name} that a step reads must follow from its batch alone"
            do = "look no table up by what another one holds, and draw by torch, not by numpy"
            raise UsageError(wrong, got="others than a pass over tables of zeros", do=do)
        values = self._storage.on_device(
            torch.from_numpy(self._views[name][rows, : table.embedding_dim])
        )
        if torch.is_grad_enabled():
            self._looked_up.append((name, rows, values.requires_grad_()))
        return embedding(
            self._storage.on_device(torch.from_numpy(positions.reshape(ids.shape))), values
        )


class ShardedModel(Model):
    """A module of which only those rows of its tables are here that the next steps read.

    Its parameters are rows of one width: the other layers, which every step reads, then the tables.
    A table's row holds the numbers of its optimizer, too. All rows are in the host's memory. What
    is trained of the other layers, and their running statistics, are the module's own, on its
    device: `to_host` and `to_device` copy them to and from their rows.

    Args:
        module: with empty tables.
        loss: as of `ModuleModel`.
        learning: likewise.

    Raises:
        UsageError: as `ModuleModel` does; the layers keep statistics, or the tables are of several
            kinds.
    """

    def __init__(self, module: nn.Module, loss: str, learning: Learning) -> None:
        self.module, self.embeddings, self.row_size = module, tables_of(module), row_size_of(module)
        self.frozen: dict[str, Vector] = {}
        _check_module(module, learning)
        _check_tables(module, self.embeddings)
        self._views: dict[str, Vector] = {}
        self._lookups = Lookups(self.embeddings, self._views)
        self._net = ModuleModel(module, loss, learning, self._lookups)
        statistics, counts = _statistics_of(module)
        self._statistics = statistics
        net_layout = self._net.parameters.layout
        statistic_names = {*statistics, *counts}
        self._fixed_names = [
            e.name
            for e in net_layout.entries
            if e.section != TRAINED and e.name not in statistic_names
        ]
        self._layout = _layout(
            self._net.parameters.layout, self._statistics, self.embeddings, self.row_size
        )
        first = next(iter(self.embeddings))
        self._dense_rows = np.arange(self._layout.entry(first).offset // self.row_size)
        self._expected_rows: dict[int | None, dict[str, Vector]] = {}
        """Seed of a step to come, None for a measurement -> table -> the ids [r] that it was
        recorded to read."""
        self._pages: Pages | None = Pages(self._layout.size(), "float32")
        self._bind(self._pages.vector)
        self.to_host(self.parameters.trained)

    def attach(self, trained: Vector) -> None:
        """Reads all rows where they lie [n] from now on, in a mapped file say."""
        self._pages = None
        self._bind(trained)
        self.to_device(trained)

    @property
    def device_bytes(self) -> int:
        """Those of the other layers; a device gets the rows of a batch alone."""
        return self._net.device_bytes

    def place(self, device: str, inner: InnerOptimizer) -> InnerOptimizer:
        """Moves the other layers to a device; the tables are stepped in the host's memory."""
        if not isinstance(inner, RowSteps):
            return super().place(device, inner)
        if inner.dense is None:
            self._net.move(device)
        else:
            inner.dense = self._net.place(device, inner.dense)
        self._bind(self.parameters.trained)
        return inner

    def to_host(self, *vectors: Vector) -> None:
        """Brings the other layers from the device, and to where they lie among the rows."""
        is_read = any(vector is self.parameters.trained for vector in vectors)
        self._net.to_host(*vectors, *(self._changing_vectors if is_read else []))
        if is_read:
            self.parameters.trained[: self.dense.size] = self.dense
            for name in self._statistics:
                self.parameters.view(name)[...] = self._net.parameters.view(name)

    def to_device(self, *vectors: Vector) -> None:
        """Sends the other layers to the device, as they lie among the rows."""
        is_written = any(vector is self.parameters.trained for vector in vectors)
        if is_written:
            # other buffers lie beside the statistics
            self._net.to_host(*self._changing_vectors[1:])
            self.dense[...] = self.parameters.trained[: self.dense.size]
            for name in self._statistics:
                self._net.parameters.view(name)[...] = self.parameters.view(name)
        self._net.to_device(*vectors, *(self._changing_vectors if is_written else []))

    @property
    def _changing_vectors(self) -> list[Vector]:
        """The module's own vectors that steps change."""
        return [self.dense, *([self._net.parameters.floats] if self._statistics else [])]

    def _bind(self, trained: Vector) -> None:
        self.parameters = Parameters(self._layout, trained, None, self._net.parameters.integers)
        self._views.update((name, self.table(name)) for name in self.embeddings)

    @property
    def has_statistics(self) -> bool:
        """True where layers keep running means and variances, which are rows, too."""
        return bool(self._statistics)

    @property
    def statistics_offset(self) -> int:
        """Where running statistics begin among the parameters; the tables follow them."""
        padding = self._layout.entry(_PADDING)
        return padding.offset + padding.size

    @property
    def dense_rows(self) -> int:
        """How many rows the other layers and their running statistics have."""
        return self._dense_rows.size

    @property
    def optimizer_state_width(self) -> int:
        """How many numbers at the end of a row are its optimizer's, which takes roots of them."""
        return self.row_size - max(table.embedding_dim for table in self.embeddings.values())

    @property
    def dense(self) -> Vector:
        """The other layers [m]; on a device the host's numbers are old until `to_host`."""
        return self._net.parameters.trained

    def table(self, name: str) -> Vector:
        """Returns a table with the numbers of its optimizer [N, D + S], as a view."""
        return self.parameters.view(name)

    def tensors(self) -> dict[str, Vector]:
        """Returns all tensors by name, as views: of a table its rows [N, D]."""
        tensors = {n: v for n, v in self.parameters.tensors().items() if n != _PADDING}
        tables = {n: tensors[n][:, : t.embedding_dim] for n, t in self.embeddings.items()}
        return {**self._net.parameters.tensors(), **tensors, **tables}

    def filled(self) -> nn.Module:
        """Returns the module with tables of its own memory, as it is used without a run."""
        readers: dict[int, Any] = {id(t.reader): None for t in self.embeddings.values()}
        module, tensors = copy.deepcopy(self.module, readers), self.tensors()
        for name in self.embeddings:
            weight = torch.from_numpy(np.array(tensors[name]))
            module.get_submodule(name.rpartition(".")[0]).weight = nn.Parameter(weight)
        return module

    def draw(self, seed: int) -> None:
        """Draws all rows."""
        self.first_rows(self.parameters.trained.reshape(-1, self.row_size), 0, seed, 1)

    def first_rows(self, shard: Vector, slot: int, seed: int, shards: int) -> None:
        """Draws the tables, some rows at a time, and keeps the worker's own."""
        dense = np.zeros((self._dense_rows.size, self.row_size), np.float32)
        dense.ravel()[: self.dense.size] = self.dense
        for name in self._statistics:
            offset = self._layout.entry(name).offset
            values = self._net.parameters.view(name).ravel()
            dense.ravel()[offset : offset + values.size] = values
        shard[: len(dense[slot::shards])] = dense[slot::shards]
        for name, table in self.embeddings.items():
            rng, width, start = generator(seed, name), table.embedding_dim, self.first_row(name)
            rows = max(1, _DRAWN // width)
            for first in range(0, table.num_embeddings, rows):
                count = min(rows, table.num_embeddings - first)
                samples = rng.standard_normal((count, width), np.float32) * np.float32(table.std)
                if table.padding_idx is not None and first <= table.padding_idx < first + count:
                    samples[table.padding_idx - first] = 0
                skipped = (slot - start - first) % shards
                own_samples = samples[skipped::shards]
                offset = (start + first + skipped - slot) // shards
                shard[offset : offset + len(own_samples), :width] = own_samples

    def first_row(self, name: str) -> int:
        """Returns at which row a table begins."""
        return self.parameters.layout.entry(name).offset // self.row_size

    def rows(self, batch: BatchLike, seed: int) -> Vector:
        """Returns the rows [r] of a step, by a forward pass over tables of zeros."""
        return np.concatenate([self._dense_rows, self._record_rows(batch, seed)])

    def measured_rows(self, batch: BatchLike) -> Vector:
        """Returns the rows [r] of the tables that `measure` reads, likewise."""
        return self._record_rows(batch, None)

    def _record_rows(self, batch: BatchLike, seed: int | None) -> Vector:
        with self._lookups.recording() as recorded:
            self._net.try_forward(batch, seed)
        expected: dict[str, Vector] = {}
        for name, ids in recorded:
            expected[name] = np.union1d(expected[name], ids) if name in expected else ids
        self._expected_rows[seed] = expected
        table_rows = [ids + self.first_row(name) for name, ids in expected.items()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *table_rows]))

    def forget(self) -> None:
        """Gives the memory of all rows back."""
        if self._pages is not None:
            self._pages.forget()

    def gradients(
        self, batch: BatchLike, seed: int
    ) -> tuple[Vector, dict[str, tuple[Vector, Vector]], Mapping[str, float]]:
        """Returns the gradient of a batch by what has one.

        Returns:
            Of the other layers [m], to be read after `to_host`; table -> ids [r] in order, and
            their gradients [r, D]; metrics.

        Raises:
            UsageError: the step reads other rows than were recorded, or changes a buffer.
        """
        buffers_before = self._fixed_buffers()
        with self._lookups.restricted_to(self._expected_rows.pop(seed, None)):
            gradient, metrics = self._net.learn(batch, seed)
        if not all(map(np.array_equal, buffers_before, self._fixed_buffers())):
            wrong = "beside sharded tables no buffer but running statistics may change in training"
            raise UsageError(wrong, got=type(self.module).__name__, do="use nn.Embedding instead")
        return gradient, self._lookups.gradients(), metrics

    def _fixed_buffers(self) -> list[Vector]:
        """Returns copies of the buffers that no step may change."""
        parameters = self._net.parameters
        if self._fixed_names:
            self._net.to_host(parameters.floats, parameters.integers)
        return [parameters.view(name).copy() for name in self._fixed_names]

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the whole gradient [n]; a job steps rows in place instead."""
        result = Parameters(self.parameters.layout)
        _, metrics = self.learn_into(result, batch, seed)
        return result.trained, metrics

    def learn_into(
        self, result: Parameters, batch: BatchLike, seed: int
    ) -> tuple[Vector, Mapping[str, float]]:
        """Writes the gradient of a batch where its rows lie.

        Returns:
            The rows [r] that have a gradient, in order; metrics.
        """
        dense, row_gradients, metrics = self.gradients(batch, seed)
        self.to_host(dense)
        result.trained[: dense.size] = dense
        for name, (ids, gradients) in row_gradients.items():
            result.view(name)[ids, : gradients.shape[1]] = gradients
        rows = [ids + self.first_row(name) for name, (ids, _) in row_gradients.items()]
        return np.concatenate([self._dense_rows, *rows]), metrics

    def statistics_into(self, result: Parameters) -> None:
        """Writes how far running statistics are from what was agreed on: before less now."""
        if self._statistics:
            self._net.to_host(*self._changing_vectors)
        for name in self._statistics:
            result.view(name)[...] = self.parameters.view(name) - self._net.parameters.view(name)

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """As `ModuleModel.measure`; all rows that the batch reads must be here."""
        with self._lookups.restricted_to(self._expected_rows.pop(None, None)):
            return self._net.measure(batch)

    def outputs(self, features: Features, layer: str = "") -> Vector:
        """As `ModuleModel.outputs`, likewise."""
        return self._net.outputs(features, layer)


def _statistics_of(module: nn.Module) -> tuple[list[str], list[str]]:
    """Returns the names of running means and variances, and of the counts of batches beside them.

    With a momentum nothing follows from these counts.
    """
    layer_names = [name for name, layer in module.named_modules() if _keeps_statistics(layer)]
    paths = [f"{name}." if name else "" for name in layer_names]
    statistics = [f"{path}{buffer}" for path in paths for buffer in ("running_mean", "running_var")]
    return statistics, [f"{path}num_batches_tracked" for path in paths]


def _keeps_statistics(layer: nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None


def _check_module(module: nn.Module, learning: Learning) -> None:
    """Refuses what would need all rows, or a buffer that the workers do not agree on."""
    prefix = "beside sharded tables"
    for layer in module.modules():
        if _keeps_statistics(layer) and getattr(layer, "momentum", None) is None:
            wrong = f"{prefix} running statistics need a momentum"
            raise UsageError(
                wrong, got=f"{type(layer).__name__}, momentum None", do="set it to 0.1"
            )
    for parameter in module.parameters():
        if parameter.dtype != torch.float32:
            got, do = str(parameter.dtype).removeprefix("torch."), "make it in float32"
            raise UsageError(f"{prefix} all layers are float32", got=got, do=do)
    if sparse := sparse_tables(module):
        do = "make it a ShardedEmbedding, or sparse=False"
        raise UsageError(f"{prefix} no nn.Embedding is sparse", got=sparse[0], do=do)
    defaults = Learning()
    for name in ("average", "activation_memory", "activation_bytes"):
        if getattr(learning, name) != getattr(defaults, name):
            wrong = f"{prefix} there is no {name}"
            raise UsageError(wrong, got=getattr(learning, name), do="leave it out")


def _check_tables(module: nn.Module, tables: Mapping[str, ShardedEmbedding]) -> None:
    """Refuses numbers of the user's own in a table, and a layer that reads it otherwise."""
    for name, table in tables.items():
        if not table.is_as_made:
            wrong, do = f"the owners of {name} draw its rows, and train them", "set std only"
            raise UsageError(wrong, got="a weight of one's own, or a frozen one", do=do)
        for path, layer in module.named_modules():
            if layer is not table and any(
                p is table.weight for p in layer.parameters(recurse=False)
            ):
                wrong = f"the table {name} is sharded: nothing else may read it"
                raise UsageError(wrong, got=path, do="use nn.Embedding, which all workers hold")
        table.weight.requires_grad = False


def _layout(
    dense: Layout, statistics: Sequence[str], tables: Mapping[str, ShardedEmbedding], row_width: int
) -> Layout:
    """Returns the layout of all: the other layers, what fills a row, statistics, the tables."""
    trained = [(e.name, e.shape, TRAINED) for e in dense.entries if e.section == TRAINED]
    integers = [(e.name, e.shape, INTEGERS) for e in dense.entries if e.section == INTEGERS]
    statistic_entries = [dense.entry(name) for name in statistics]
    padding = -(dense.size() + sum(e.size for e in statistic_entries)) % row_width
    trailing = [(e.name, e.shape, TRAINED) for e in statistic_entries]
    trailing += [
        (name, (table.num_embeddings, row_width), TRAINED) for name, table in tables.items()
    ]
    return Layout.of([*trained, (_PADDING, (padding,), TRAINED), *trailing, *integers])


def _merge_duplicates(
    parts: list[tuple[Vector, Vector]], padding: int | None
) -> tuple[Vector, Vector]:
    """Returns ids [r] once each, and the sums of their gradients [r, D]."""
    ids, sums = parts[0]  # each has its ids once, in order
    if len(parts) > 1:
        ids, positions = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
        sums = np.zeros((ids.size, parts[0][1].shape[1]), np.float32)
        start = 0
        for part_ids, gradients in parts:
            sums[positions[start : start + part_ids.size]] += gradients
            start += part_ids.size
    if padding is None:
        return ids, sums
    is_trained = ids != padding
    return ids[is_trained], sums[is_trained]


def _are_among(rows: Vector, allowed: Vector | None) -> bool:
    """Returns whether all of some rows [r] are allowed; usually they are just these, in order."""
    if allowed is None:
        return not rows.size
    return np.array_equal(rows, allowed) or bool(np.isin(rows, allowed).all())
