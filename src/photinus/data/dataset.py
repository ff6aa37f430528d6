"""A DataFrame's rows as a data set of torch, for training without photinus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from photinus.core.addresses import filesystem, is_address, on_disk
from photinus.core.errors import NotReadyError, UsageError
from photinus.core.settings import validate, whole
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.arrow import ColumnSpec
from photinus.data.base import Batch
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec, rename_columns
from photinus.data.rows import Rows
from photinus.data.spool import Budget, gather

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_SINGLE_INPUT = "features"


def batches(
    df: DataFrame,
    inputs: str | Mapping[str, Any] = _SINGLE_INPUT,
    label: str | list[str] | None = None,
    *,
    weight: str | None = None,
    encoders: Mapping[str, str] | None = None,
    collate: str = "",
    batch_size: int = 32,
    seed: int = 0,
    rank: int | None = None,
    workers: int | None = None,
    budget: Budget | None = None,
) -> FrameBatches:
    """Returns a DataFrame's rows as batches of tensors, under any launcher.

    Each pass over it is an epoch, in an order of its own. Of Parquet files that Spark only selects
    columns of, every process reads its share by itself: the data set may be pickled, as by
    TorchDistributor. Any other plan is run by Spark for one process, the driver's.

    Args:
        df: the rows.
        inputs: a column, or a dict: name -> column, or several columns of numbers.
        label: a column of numbers, several of them, or None.
        weight: a column of numbers, or None.
        encoders: input -> "package.module:function", as of `Source`; of one column its name.
        collate: as of `Source`.
        batch_size: examples of one step of all processes together.
        seed: decides the order.
        rank: this process's number; left out, RANK of the environment, or 0.
        workers: how many processes share the rows; left out, WORLD_SIZE, or 1.
        budget: of memory and disk for the rows of a process.

    Returns:
        Batches of `features` [B, ...] (of several inputs a dict), `labels` and `weights`.

    Raises:
        UsageError: a column is unknown, or a number is out of its limits.
        DataError: a column has a type that a model cannot learn from.

    Example:
        >>> rows = batches(df, {"tokens": "ids"}, "label", batch_size=64)  # doctest: +SKIP
        >>> for batch in rows:  # doctest: +SKIP
        ...     loss = criterion(model(**batch.features), batch.labels)
    """
    from photinus.data.spark import parquet_files, selected

    columns = {_SINGLE_INPUT: inputs} if isinstance(inputs, str) else dict(inputs)
    encoders_by_input = encoders or {}
    if isinstance(inputs, str) and inputs in encoders_by_input:
        encoders_by_input = {_SINGLE_INPUT: encoders_by_input[inputs]}
    spec = InputSpec(columns=columns, encoders=encoders_by_input, collate=collate)
    frame, column_spec = selected(df, [], label, inputs=spec, weight=weight)
    source_columns: dict[str, Any] = dict(columns)
    source_columns |= {str(column_spec.label): label} if label else {}
    source_columns |= {str(column_spec.weight): weight} if weight else {}
    files = parquet_files(df)
    settings = _LoaderSettings(
        batch_size, seed, rank, workers, isinstance(inputs, str), budget or Budget()
    )
    if files is None:
        return FrameBatches(_SparkSource(frame), column_spec, settings)
    return FrameBatches(_ParquetSource(_row_groups(files), source_columns), column_spec, settings)


@dataclass(frozen=True, slots=True)
class _LoaderSettings:
    """What a data set's order depends on, beside its rows."""

    batch_size: int
    seed: int
    rank: int | None
    workers: int | None
    is_single_input: bool
    """Whether the features of a batch are one tensor, and no dict."""
    budget: Budget = field(default_factory=Budget)
    LIMITS = {"batch_size": whole(1), "seed": whole(0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self, of="batches")

    def rank_and_workers(self) -> tuple[int, int]:
        """Returns this process's number, and how many there are.

        Raises:
            UsageError: the number is none of theirs.
        """
        rank = int(os.environ.get("RANK", "0")) if self.rank is None else self.rank
        workers = self.workers
        if workers is None:
            workers = int(os.environ.get("WORLD_SIZE", "1"))
        if not 0 <= rank < workers:
            raise UsageError("rank must lie in 0..workers-1", got=f"{rank} of {workers}")
        return rank, workers


class FrameBatches(IterableDataset[Batch]):
    """What `batches` returns; with a DataLoader use `batch_size=None`.

    Args:
        source: where the rows come from.
        spec: what the columns are.
        settings: which rows this process reads, and in which order.
    """

    def __init__(
        self, source: _ParquetSource | _SparkSource, spec: ColumnSpec, settings: _LoaderSettings
    ) -> None:
        self._source, self._spec, self._settings = source, spec, settings
        self._feed: PartitionFeed | None = None

    @property
    def position(self) -> int:
        """Rows handed out so far to this process, in all epochs."""
        return self._open_feed().position

    def __iter__(self) -> Iterator[Batch]:
        """Yields the rest of an epoch.

        Raises:
            UsageError: several processes of a DataLoader would each hand out all rows.
            DataError: a row is bad.
            NotReadyError: the rows fit neither in memory nor on disk.
        """
        loader = get_worker_info()
        if loader is not None and loader.num_workers > 1:
            do = "use num_workers=0 or 1: the rows are read before the first batch"
            raise UsageError("each process of a DataLoader would read all rows", do=do)
        feed = self._open_feed()
        end = (feed.position // max(1, feed.rows) + 1) * feed.rows
        for batch in feed if feed.rows else ():
            yield self._tensors(batch)
            if feed.position >= end:
                return

    def state_dict(self) -> dict[str, int]:
        """Returns where this process is: plain numbers."""
        return {**self._identity(), "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues behind the last batch that was handed out before `state_dict`.

        Raises:
            UsageError: the state is of other rows, or of another share of them.
        """
        identity = self._identity()
        for name, expected in identity.items():
            if state.get(name) != expected:
                wrong = f"the state is of another {name.replace('_', ' ')}: {state.get(name)}"
                raise UsageError(wrong, got=expected, do="make the data set as it was made then")
        self._open_feed().seek(int(state["position"]))

    def _identity(self) -> dict[str, int]:
        rank, workers = self._settings.rank_and_workers()
        settings = {"batch_size": self._settings.batch_size, "seed": self._settings.seed}
        return {"rows": self._open_feed().rows, "rank": rank, "workers": workers, **settings}

    def _open_feed(self) -> PartitionFeed:
        """Returns the feed over this process's rows, which are read once."""
        if self._feed is not None:
            return self._feed
        rank, workers = self._settings.rank_and_workers()
        checker = RowChecker(RowChecks(), rank)
        total, record_batches = self._source.read_share(rank, workers)
        rows = gather(record_batches, self._spec, checker, self._settings.budget)
        if not isinstance(rows, Rows):
            do = "use more processes, or a larger budget"
            raise NotReadyError("a process's rows fit neither in memory nor on disk", do=do)
        order = FeedOrder(
            batch_size=self._settings.batch_size,
            share=(max(1, len(rows)), max(1, total or len(rows))),
            seed=self._settings.seed,
            slot=rank,
            workers=workers,
        )
        self._feed = PartitionFeed(rows, order)
        return self._feed

    def _tensors(self, batch: Batch) -> Batch:
        """Returns the batch with tensors in the place of arrays; they share the memory."""
        features: Any = {name: torch.from_numpy(a) for name, a in batch.features.items()}
        others: Any = (None if a is None else torch.from_numpy(a) for a in batch[1:3])
        return Batch(
            features[_SINGLE_INPUT] if self._settings.is_single_input else features, *others
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickles what reads the rows, and no row."""
        if isinstance(self._source, _SparkSource):
            do = "write it as Parquet, and give batches what spark.read.parquet returns"
            raise UsageError("the plan of a DataFrame stays in the driver", do=do)
        return {**self.__dict__, "_feed": None}


@dataclass(frozen=True, slots=True)
class _SparkSource:
    """Rows of a plan that Spark runs."""

    frame: DataFrame

    def read_share(self, rank: int, workers: int) -> tuple[int, Iterable[pa.RecordBatch]]:
        """Returns the rows: all of them.

        Raises:
            UsageError: other processes want a part.
        """
        from photinus.data.spark import stream_batches

        if workers > 1:
            do = "write it as Parquet, and give batches what spark.read.parquet returns"
            got = f"process {rank} of {workers}"
            raise UsageError("the plan of a DataFrame runs for one process", got=got, do=do)
        return 0, stream_batches(self.frame)


_RowGroup = tuple[str, int, int]
"""Of a Parquet file: its address, a row group's number, and its rows."""


@dataclass(frozen=True, slots=True)
class _ParquetSource:
    """Rows of Parquet files."""

    groups: list[_RowGroup]
    names: Mapping[str, Any]
    """What the workers call a column -> what it, or several, are called in the files."""

    def read_share(self, rank: int, workers: int) -> tuple[int, Iterable[pa.RecordBatch]]:
        """Returns how many rows all have, and those of one: equally many, but for one row."""
        total = sum(rows for _, _, rows in self.groups)
        first, last = (total * n // workers for n in (rank, rank + 1))
        return total, self._read(first, last)

    def _read(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        lists = ([n] if isinstance(n, str) else list(n) for n in self.names.values())
        columns = list(dict.fromkeys(name for names in lists for name in names))
        position = 0
        for path, group, rows in self.groups:
            start, stop = max(first - position, 0), min(last - position, rows)
            position += rows
            if start >= stop:
                continue
            with _open_file(path) as file:
                table = pq.ParquetFile(file).read_row_group(group, columns=columns)
            for batch in table.slice(start, stop - start).to_batches():
                yield rename_columns(batch, self.names)


def _row_groups(files: list[str]) -> list[_RowGroup]:
    """Returns the row groups of all files, from the metadata at each file's end."""
    import pyarrow.parquet as pq

    row_groups = []
    for path in files:
        with _open_file(path) as file:
            metadata = pq.ParquetFile(file).metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        row_groups += [(path, group, rows) for group, rows in enumerate(counts)]
    return row_groups


def _open_file(path: str) -> AbstractContextManager[Any]:
    if is_address(path):
        system, remote_path = filesystem(path)
        open_remote: Callable[..., AbstractContextManager[Any]] = system.open
        return open_remote(remote_path, "rb")
    local_path = path.removeprefix("file://").removeprefix("file:")
    return open(on_disk(local_path), "rb")
