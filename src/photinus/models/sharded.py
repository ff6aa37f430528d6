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
from photinus.models.base import Batch, Model
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
    found = {f"{n}.weight": m for n, m in module.named_modules() if isinstance(m, ShardedEmbedding)}
    kinds = {(table.embedding_dim, table.optimizer) for table in found.values()}
    if len(kinds) > 1:
        wrong = "all ShardedEmbedding tables of a module need one embedding_dim and one optimizer"
        got = ", ".join(f"{dim} and {optimizer}" for dim, optimizer in sorted(kinds))
        raise UsageError(
            wrong, got=got, do="make them alike, or use nn.Embedding for the smaller ones"
        )
    return found


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
        views: their rows with the numbers of their optimizers [N, D + kept], likewise.
    """

    def __init__(self, tables: Mapping[str, ShardedEmbedding], views: Mapping[str, Vector]) -> None:
        self._tables, self._views = tables, views
        self._at: DeviceParameters
        self._read: list[tuple[str, Vector, Tensor]] = []
        """Table, ids [r] and their rows [r, D], of the forward pass that is not differentiated."""
        self._differentiated: list[tuple[str, Vector, Tensor]] = []
        self._asked: list[tuple[str, Vector]] | None = None
        """Table and ids [r], where a forward pass only records which rows it reads."""
        self._allowed: Mapping[str, Vector] | None = None
        """Table -> the ids [r] that are here; None: all."""
        self._found: dict[str, list[tuple[Vector, Vector]]] = {name: [] for name in tables}
        """Table -> ids [r] and their gradients [r, D]."""
        for name, table in tables.items():
            table.reader = partial(self._look_up, name)

    def lie(self, at: DeviceParameters) -> None:
        """Sends rows to a device from now on, and brings their gradients from it."""
        self._at = at

    @contextmanager
    def asking(self) -> Iterator[list[tuple[str, Vector]]]:
        """Fills a list of table and ids meanwhile, and gives zeros for rows."""
        self._asked = []
        try:
            yield self._asked
        finally:
            self._asked = None

    @contextmanager
    def only(self, allowed: Mapping[str, Vector] | None) -> Iterator[None]:
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
        self._differentiated, self._read = self._read, []
        return [rows for _, _, rows in self._differentiated]

    def take(self, gradients: Sequence[Tensor | None]) -> None:
        """Keeps their gradients; what was looked up again on the way back is forgotten."""
        for (name, ids, _), gradient in zip(self._differentiated, gradients, strict=True):
            if gradient is not None:
                self._found[name].append((ids, self._at.brought(gradient)))
        self._read.clear()

    def gradients(self) -> dict[str, tuple[Vector, Vector]]:
        """Returns table -> ids [r] in order, and their gradients [r, D], and forgets them."""
        found = {n: _merged(f, self._tables[n].padding_idx) for n, f in self._found.items() if f}
        for kept in self._found.values():
            kept.clear()
        return found

    def _look_up(self, name: str, ids: Tensor) -> Tensor:
        """Returns the rows [..., D] of ids [...], each read once."""
        table = self._tables[name]
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} is looked up by int32 or int64, and got {ids.dtype}")
        asked = self._at.brought(ids).astype(np.int64, copy=False)  # [...]
        rows, places = np.unique(asked, return_inverse=True)
        if rows.size and (rows[0] < 0 or rows[-1] >= table.num_embeddings):
            wrong = rows[0] if rows[0] < 0 else rows[-1]
            raise IndexError(f"{name} has rows 0 to {table.num_embeddings - 1}, and no row {wrong}")
        if self._asked is not None:
            self._asked.append((name, rows))
            return torch.zeros(*ids.shape, table.embedding_dim, device=self._at.device)
        if self._allowed is not None and not np.isin(rows, self._allowed.get(name, [])).all():
            wrong = f"the rows of {name} that a step reads must follow from its batch alone"
            do = "look no table up by what another one holds, and draw by torch, not by numpy"
            raise UsageError(wrong, got="others than a pass over tables of zeros", do=do)
        own = self._at.sent(torch.from_numpy(self._views[name][rows, : table.embedding_dim]))
        if torch.is_grad_enabled():
            self._read.append((name, rows, own.requires_grad_()))
        return embedding(self._at.sent(torch.from_numpy(places.reshape(ids.shape))), own)


class ShardedModel(Model):
    """A module of which only those rows of its tables are here that the next steps read.

    Its parameters are rows of one width: the other layers, which every step reads, then the tables.
    A table's row holds the numbers of its optimizer, too. All rows are in the host's memory. What
    is trained of the other layers, and their running statistics, are the module's own, on its
    device: `to_host` and `to_device` copy them to and from their rows.

    Args:
        module: with empty tables.
        loss: as of `ModuleModel`.
        how: likewise.

    Raises:
        UsageError: as `ModuleModel` does; the layers keep statistics, or the tables are of several
            kinds.
    """

    def __init__(self, module: nn.Module, loss: str, how: Learning) -> None:
        self.module, self.embeddings, self.row_size = module, tables_of(module), row_size_of(module)
        self.frozen: dict[str, Vector] = {}
        _check(module, how)
        _check_tables(module, self.embeddings)
        self._views: dict[str, Vector] = {}
        self._lookups = Lookups(self.embeddings, self._views)
        self._net = ModuleModel(module, loss, how, self._lookups)
        statistics, counts = _statistics_of(module)
        self._statistics = statistics
        net = self._net.parameters.layout
        moving = {*statistics, *counts}
        self._fixed = [e.name for e in net.entries if e.section != TRAINED and e.name not in moving]
        self._layout = _layout(
            self._net.parameters.layout, self._statistics, self.embeddings, self.row_size
        )
        first = next(iter(self.embeddings))
        self._dense_rows = np.arange(self._layout.entry(first).offset // self.row_size)
        self._promised: dict[int | None, dict[str, Vector]] = {}
        """Seed of a step to come, None for a measurement -> table -> the ids [r] that it was
        recorded to read."""
        self._pages: Pages | None = Pages(self._layout.size(), "float32")
        self._lie(self._pages.vector)
        self.to_host(self.parameters.trained)

    def attach(self, trained: Vector) -> None:
        """Reads all rows where they lie [n] from now on, in a mapped file say."""
        self._pages = None
        self._lie(trained)
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
        self._lie(self.parameters.trained)
        return inner

    def to_host(self, *vectors: Vector) -> None:
        """Brings the other layers from the device, and to where they lie among the rows."""
        is_read = any(vector is self.parameters.trained for vector in vectors)
        self._net.to_host(*vectors, *(self._moving if is_read else []))
        if is_read:
            self.parameters.trained[: self.dense.size] = self.dense
            for name in self._statistics:
                self.parameters.view(name)[...] = self._net.parameters.view(name)

    def to_device(self, *vectors: Vector) -> None:
        """Sends the other layers to the device, as they lie among the rows."""
        is_written = any(vector is self.parameters.trained for vector in vectors)
        if is_written:
            self._net.to_host(*self._moving[1:])  # other buffers lie beside the statistics
            self.dense[...] = self.parameters.trained[: self.dense.size]
            for name in self._statistics:
                self._net.parameters.view(name)[...] = self.parameters.view(name)
        self._net.to_device(*vectors, *(self._moving if is_written else []))

    @property
    def _moving(self) -> list[Vector]:
        """The module's own vectors that steps change."""
        return [self.dense, *([self._net.parameters.floats] if self._statistics else [])]

    def _lie(self, trained: Vector) -> None:
        self.parameters = Parameters(self._layout, trained, None, self._net.parameters.integers)
        self._views.update((name, self.table(name)) for name in self.embeddings)

    @property
    def has_statistics(self) -> bool:
        """True where layers keep running means and variances, which are rows, too."""
        return bool(self._statistics)

    @property
    def kept_numbers(self) -> int:
        """How many numbers at the end of a row are its optimizer's, which takes roots of them."""
        return self.row_size - max(table.embedding_dim for table in self.embeddings.values())

    @property
    def dense(self) -> Vector:
        """The other layers [m]; on a device the host's numbers are old until `to_host`."""
        return self._net.parameters.trained

    def table(self, name: str) -> Vector:
        """Returns a table with the numbers of its optimizer [N, D + kept], as a view."""
        return self.parameters.view(name)

    def tensors(self) -> dict[str, Vector]:
        """Returns all tensors by name, as views: of a table its rows [N, D]."""
        found = {n: v for n, v in self.parameters.tensors().items() if n != _PADDING}
        cut = {n: found[n][:, : t.embedding_dim] for n, t in self.embeddings.items()}
        return {**self._net.parameters.tensors(), **found, **cut}

    def filled(self) -> nn.Module:
        """Returns the module with tables of its own memory, as it is used without a run."""
        readers: dict[int, Any] = {id(t.reader): None for t in self.embeddings.values()}
        module, held = copy.deepcopy(self.module, readers), self.tensors()
        for name in self.embeddings:
            weight = torch.from_numpy(np.array(held[name]))
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
            at = self._layout.entry(name).offset
            made = self._net.parameters.view(name).ravel()
            dense.ravel()[at : at + made.size] = made
        shard[: len(dense[slot::shards])] = dense[slot::shards]
        for name, table in self.embeddings.items():
            draw, width, start = generator(seed, name), table.embedding_dim, self._start(name)
            rows = max(1, _DRAWN // width)
            for first in range(0, table.num_embeddings, rows):
                count = min(rows, table.num_embeddings - first)
                drawn = draw.standard_normal((count, width), np.float32) * np.float32(table.std)
                if table.padding_idx is not None and first <= table.padding_idx < first + count:
                    drawn[table.padding_idx - first] = 0
                skipped = (slot - start - first) % shards
                own = drawn[skipped::shards]
                at = (start + first + skipped - slot) // shards
                shard[at : at + len(own), :width] = own

    def _start(self, name: str) -> int:
        """Returns at which row a table begins."""
        return self.parameters.layout.entry(name).offset // self.row_size

    def rows(self, batch: Batch, seed: int) -> Vector:
        """Returns the rows [r] of a step, by a forward pass over tables of zeros."""
        return np.concatenate([self._dense_rows, self._promised_rows(batch, seed)])

    def measured_rows(self, batch: Batch) -> Vector:
        """Returns the rows [r] of the tables that `measure` reads, likewise."""
        return self._promised_rows(batch, None)

    def _promised_rows(self, batch: Batch, seed: int | None) -> Vector:
        with self._lookups.asking() as asked:
            self._net.try_forward(batch, seed)
        promised: dict[str, Vector] = {}
        for name, ids in asked:
            promised[name] = np.union1d(promised.get(name, ids), ids)
        self._promised[seed] = promised
        told = [ids + self._start(name) for name, ids in promised.items()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *told]))

    def forget(self) -> None:
        """Gives the memory of all rows back."""
        if self._pages is not None:
            self._pages.forget()

    def gradients(
        self, batch: Batch, seed: int
    ) -> tuple[Vector, dict[str, tuple[Vector, Vector]], Mapping[str, float]]:
        """Returns the gradient of a batch by what has one.

        Returns:
            Of the other layers [m], to be read after `to_host`; table -> ids [r] in order, and
            their gradients [r, D]; metrics.

        Raises:
            UsageError: the step reads other rows than were recorded, or changes a buffer.
        """
        before = self._fixed_buffers()
        with self._lookups.only(self._promised.pop(seed, None)):
            gradient, metrics = self._net.learn(batch, seed)
        if not all(map(np.array_equal, before, self._fixed_buffers())):
            wrong = "beside sharded tables no buffer but running statistics may change in training"
            raise UsageError(wrong, got=type(self.module).__name__, do="use nn.Embedding instead")
        return gradient, self._lookups.gradients(), metrics

    def _fixed_buffers(self) -> list[Vector]:
        """Returns copies of the buffers that no step may change."""
        own = self._net.parameters
        if self._fixed:
            self._net.to_host(own.floats, own.integers)
        return [own.view(name).copy() for name in self._fixed]

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the whole gradient [n]; a job steps rows in place instead."""
        dense, moves, metrics = self.gradients(batch, seed)
        self.to_host(dense)
        whole = Parameters(self.parameters.layout)
        whole.trained[: dense.size] = dense
        for name, (ids, gradients) in moves.items():
            whole.view(name)[ids, : gradients.shape[1]] = gradients
        return whole.trained, metrics

    def measure(self, batch: Batch) -> Mapping[str, float]:
        """As `ModuleModel.measure`; all rows that the batch reads must be here."""
        with self._lookups.only(self._promised.pop(None, None)):
            return self._net.measure(batch)

    def outputs(self, features: Features, layer: str = "") -> Vector:
        """As `ModuleModel.outputs`, likewise."""
        return self._net.outputs(features, layer)


def _statistics_of(module: nn.Module) -> tuple[list[str], list[str]]:
    """Returns the names of running means and variances, and of the counts of batches beside them.

    With a momentum nothing follows from these counts.
    """
    kept = [name for name, layer in module.named_modules() if _keeps_statistics(layer)]
    paths = [f"{name}." if name else "" for name in kept]
    statistics = [f"{path}{last}" for path in paths for last in ("running_mean", "running_var")]
    return statistics, [f"{path}num_batches_tracked" for path in paths]


def _keeps_statistics(layer: nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None


def _check(module: nn.Module, how: Learning) -> None:
    """Refuses what would need all rows, or a buffer that the workers do not agree on."""
    beside = "beside sharded tables"
    for layer in module.modules():
        if _keeps_statistics(layer) and getattr(layer, "momentum", None) is None:
            wrong = f"{beside} running statistics need a momentum"
            raise UsageError(
                wrong, got=f"{type(layer).__name__}, momentum None", do="set it to 0.1"
            )
    for parameter in module.parameters():
        if parameter.dtype != torch.float32:
            got, do = str(parameter.dtype).removeprefix("torch."), "make it in float32"
            raise UsageError(f"{beside} all layers are float32", got=got, do=do)
    if sparse := sparse_tables(module):
        do = "make it a ShardedEmbedding, or sparse=False"
        raise UsageError(f"{beside} no nn.Embedding is sparse", got=sparse[0], do=do)
    usual = Learning()
    for name in ("average", "activation_memory", "activation_bytes"):
        if getattr(how, name) != getattr(usual, name):
            wrong = f"{beside} there is no {name}"
            raise UsageError(wrong, got=getattr(how, name), do="leave it out")


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
    dense: Layout, statistics: Sequence[str], tables: Mapping[str, ShardedEmbedding], rows: int
) -> Layout:
    """Returns the layout of all: the other layers, what fills a row, statistics, the tables."""
    trained = [(e.name, e.shape, TRAINED) for e in dense.entries if e.section == TRAINED]
    integers = [(e.name, e.shape, INTEGERS) for e in dense.entries if e.section == INTEGERS]
    kept = [dense.entry(name) for name in statistics]
    fill = -(dense.size() + sum(e.size for e in kept)) % rows
    lying = [(e.name, e.shape, TRAINED) for e in kept]
    lying += [(name, (table.num_embeddings, rows), TRAINED) for name, table in tables.items()]
    return Layout.of([*trained, (_PADDING, (fill,), TRAINED), *lying, *integers])


def _merged(found: list[tuple[Vector, Vector]], padding: int | None) -> tuple[Vector, Vector]:
    """Returns ids [r] once each, and the sums of their gradients [r, D]."""
    ids, at = np.unique(np.concatenate([ids for ids, _ in found]), return_inverse=True)
    sums = np.zeros((ids.size, found[0][1].shape[1]), np.float32)
    first = 0
    for some, gradients in found:  # each has its ids once
        sums[at[first : first + some.size]] += gradients
        first += some.size
    is_trained = np.ones(ids.size, np.bool_) if padding is None else ids != padding
    return ids[is_trained], sums[is_trained]
