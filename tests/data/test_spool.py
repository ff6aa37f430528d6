import errno
import mmap
import os
import signal
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pytest

from photinus.core.errors import NotReadyError
from photinus.data import spool
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.arrow import ColumnSpec
from photinus.data.base import Block, MappedFeed
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.rows import Rows
from photinus.data.spool import Budget, Storage, gather
from photinus.data.stream import Stream, StreamFeed

VALUES = np.random.default_rng(1).random((100, 4), np.float32)
SPEC = ColumnSpec(features=("x",), label="y", shape=(4,))
ROWS_BYTES = 100 * (4 * 4 + 8)
INDEX_BYTES = 100 * 32
IN_MEMORY = ROWS_BYTES + INDEX_BYTES


def batches(size=13):
    for start in range(0, 100, size):
        part = VALUES[start : start + size]
        yield pa.RecordBatch.from_pydict(
            {
                "x": pa.array(part.tolist(), pa.list_(pa.float32())),
                "y": pa.array(range(start, start + len(part))),
            }
        )


def gather_rows(memory, disk=0, folder=""):
    budget = Budget(memory_bytes=memory, disk_bytes=disk, folder=str(folder))
    return gather(batches(), SPEC, RowChecker(RowChecks(classes=100)), budget)


def epochs_of(rows):
    feed = PartitionFeed(rows, FeedOrder(batch_size=8, epochs=2.0))
    return [(b.features.tolist(), b.labels.tolist()) for b in feed]


def test_memory_and_spool_feed_the_same_batches(tmp_path):
    memory = gather_rows(IN_MEMORY)
    spooled = gather_rows(IN_MEMORY - 1, ROWS_BYTES, tmp_path)
    assert isinstance(memory, Rows)
    assert isinstance(spooled, Rows)
    assert np.array_equal(spooled.features, VALUES)
    assert spooled.features.base is not None
    assert epochs_of(memory) == epochs_of(spooled)


def test_a_spool_leaves_no_name_in_its_folder(tmp_path):
    spooled = gather_rows(0, ROWS_BYTES, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(spooled.features, VALUES)


def test_what_fits_neither_streams_from_the_first_row(tmp_path):
    for disk in (0, ROWS_BYTES // 2, ROWS_BYTES - 1):
        stream = gather_rows(0, disk, tmp_path)
        assert isinstance(stream, Stream)
        feed = StreamFeed(stream, FeedOrder(batch_size=9))
        handed_out = list(feed)
        assert np.array_equal(np.concatenate([b.features for b in handed_out]), VALUES)
        assert np.concatenate([b.labels for b in handed_out]).tolist() == list(range(100))


def test_a_disk_that_is_full_before_its_quota_streams(tmp_path):
    room = Storage(Budget(memory_bytes=0, disk_bytes=ROWS_BYTES, folder=str(tmp_path)))
    block = Block(VALUES, np.arange(100))

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise OSError(errno.ENOSPC, "no space left")

        def __getattr__(self, name):
            return getattr(self.file, name)

    half = Block(VALUES[:50], np.arange(50))
    written = spool._Spool(room, block)
    assert written.add(half)
    written._files[1] = Full(written._files[1])
    assert not written.add(half)
    assert np.array_equal(
        np.concatenate([block.features for block in written.blocks()]), VALUES[:50]
    )


def test_no_more_than_most_of_the_free_disk_is_taken(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 0, 1000)
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda folder: usage)
    room = Storage(Budget(memory_bytes=0, disk_bytes=10**9, folder=str(tmp_path)))
    assert room.disk_left() == 900
    assert room((901,), np.dtype(np.uint8)) is None
    assert room((900,), np.dtype(np.uint8)) is not None


def test_a_disk_that_cannot_reserve_gives_no_room(tmp_path, monkeypatch):
    def full(file, size):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(spool, "_reserve", full)
    room = Storage(Budget(memory_bytes=0, folder=str(tmp_path)))
    assert room((8,), np.dtype(np.uint8)) is None


def test_rows_without_labels_are_spooled_too(tmp_path):
    spec = ColumnSpec(features=("x",), shape=(4,))
    budget = Budget(memory_bytes=0, folder=str(tmp_path))
    rows = gather(batches(), spec, RowChecker(RowChecks()), budget)
    assert rows.labels is None
    assert np.array_equal(rows.features, VALUES)


def test_room_given_up_is_room_again(tmp_path):
    room = Storage(Budget(memory_bytes=100, disk_bytes=100, folder=str(tmp_path)))
    byte = np.dtype(np.uint8)
    first, second = room((80,), byte), room((80,), byte)
    assert (room.has_memory_for(0, 20), room.has_memory_for(0, 21), room.disk_left()) == (
        True,
        False,
        20,
    )
    second[:] = 7
    assert second.sum() == 560
    assert room((30,), byte) is None
    del first
    assert room.has_memory_for(0, 100)
    del second
    assert room.disk_left() == 100


def test_a_part_of_what_does_not_fit_into_memory_lies_in_a_file(tmp_path):
    room = Storage(Budget(memory_bytes=100, disk_bytes=100, folder=str(tmp_path)))
    assert isinstance(room((10,), np.dtype(np.int8), 101).base, np.memmap)
    part = room((10,), np.dtype(np.int8), 100)
    assert not isinstance(part.base, np.memmap)
    assert not part.any()


def test_rows_are_mapped_where_there_is_room_left(tmp_path):
    for memory, disk, is_stored in (
        (IN_MEMORY + 1600, 0, True),
        (IN_MEMORY, 1600, True),
        (0, ROWS_BYTES + 1600, True),
        (IN_MEMORY, 0, False),
    ):
        rows = gather_rows(memory, disk, tmp_path)
        mapped = PartitionFeed(rows, FeedOrder(batch_size=8, epochs=1.0)).mapped(np.negative)
        assert isinstance(mapped, PartitionFeed if is_stored else MappedFeed)
        assert sum(b.features.sum(dtype=float) for b in mapped) == pytest.approx(-VALUES.sum())


def test_without_mremap_rows_grow_by_a_copy(monkeypatch):
    class Fixed(mmap.mmap):
        def resize(self, size):
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(spool.mmap, "mmap", Fixed)
    monkeypatch.setattr(spool, "_FIRST_BYTES", 1)
    rows = gather_rows(IN_MEMORY)
    assert np.array_equal(rows.features, VALUES)
    assert rows.labels.tolist() == list(range(100))


def test_where_untouched_memory_counts_rows_grow_by_what_they_need(monkeypatch):
    original, sizes = spool._mapping, []

    def limited(size):
        sizes.append(size)
        if size > IN_MEMORY:
            raise MemoryError
        return original(size)

    class Fixed(mmap.mmap):
        def resize(self, size):
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(spool.mmap, "mmap", Fixed)
    monkeypatch.setattr(spool, "_FIRST_BYTES", ROWS_BYTES // 2)
    monkeypatch.setattr(spool, "_mapping", limited)
    pages = spool._Pages()
    pages.reserve(10)
    pages.array((10,), np.dtype(np.uint8))[:] = 7
    monkeypatch.setattr(spool, "_FIRST_BYTES", 1)
    pages.reserve(IN_MEMORY - 8)
    assert pages.array((10,), np.dtype(np.uint8)).tolist() == [7] * 10
    pages.reserve(IN_MEMORY)
    assert sizes[-2:] == [2 * (IN_MEMORY - 8), IN_MEMORY]


def test_what_grew_takes_no_more_than_its_rows(monkeypatch):
    mappings = []

    class Watched(mmap.mmap):
        def __new__(cls, *args, **kwargs):
            mappings.append(super().__new__(cls, *args, **kwargs))
            return mappings[-1]

    monkeypatch.setattr(spool.mmap, "mmap", Watched)
    rows = gather_rows(IN_MEMORY)
    assert [len(pages) for pages in mappings] == [rows.features.nbytes, rows.labels.nbytes]


@pytest.mark.processes
def test_gathering_rows_takes_little_more_than_the_rows():
    """In a process of its own: what a column's blocks, their copies and freed memory come to."""
    code = (
        "import numpy as np, pyarrow as pa\n"
        "from photinus.core.malloc import keep_freed_memory\n"
        "from photinus.data.arrow import ColumnSpec\n"
        "from photinus.data.checks import RowChecks, RowChecker\n"
        "from photinus.data.spool import Budget, gather\n"
        "keep_freed_memory()\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(l.split()[1]) << 10 for l in lines if l.startswith('VmHWM'))\n"
        "def batches(count):\n"
        "    for number in range(count):\n"
        "        x = np.full(10_000 * 100, number, np.float32)\n"
        "        offsets = pa.array(np.arange(10_001, dtype=np.int32) * 100)\n"
        "        lists = pa.ListArray.from_arrays(offsets, pa.array(x))\n"
        "        labels = pa.array(np.arange(10_000) % 2)\n"
        "        yield pa.RecordBatch.from_arrays([lists, labels], ['x', 'y'])\n"
        "spec = ColumnSpec(features=('x',), label='y', shape=(100,))\n"
        "gather(batches(1), spec, RowChecker(RowChecks()), Budget())\n"
        "before = peak()\n"
        "rows = gather(batches(50), spec, RowChecker(RowChecks(classes=2)), Budget())\n"
        "print((peak() - before) / (rows.features.nbytes + rows.labels.nbytes))\n"
    )
    if not os.path.exists("/proc/self/status"):
        pytest.skip("this system does not tell a process's peak")
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(process.stdout) <= 1.3


def test_an_empty_partition_has_no_rows():
    rows = gather(iter(()), SPEC, RowChecker(RowChecks()), Budget())
    assert isinstance(rows, Rows)
    assert (rows.features.shape, rows.labels.shape) == ((0, 4), (0,))
    assert list(PartitionFeed(rows, FeedOrder())) == []


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(NotReadyError, match=r"rows cannot be spooled to .*; name a folder"):
        gather_rows(0, ROWS_BYTES, tmp_path / "missing")


@pytest.mark.processes
def test_a_killed_worker_leaves_nothing_behind(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from photinus.data.spool import Budget, Storage\n"
        "room = Storage(Budget(memory_bytes=0, folder=sys.argv[1]))\n"
        "kept = room((1 << 20,), np.dtype(np.uint8))\n"
        "kept[:] = 1\n"
        "print('spooled', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout.readline() == b"spooled\n"
        os.kill(worker.pid, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
