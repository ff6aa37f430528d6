"""Pages take memory when they are touched, and give it back."""

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.core.pages import Pages, map_of, read_at_random, release_pages
from photinus.core.parameters import TRAINED, Layout, Parameters

SIZE = 1 << 24


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
def test_memory_is_taken_by_the_page_and_given_back():
    before, pages = resident(), Pages(SIZE, "float32")
    pages.vector[:: SIZE // 8] = 1
    assert resident() - before < 4 << 20
    pages.vector[:] = 2
    assert resident() - before > 48 << 20
    pages.forget()
    assert resident() - before < 4 << 20
    assert not pages.vector[:: SIZE // 8].any()


def test_nothing_at_all_is_a_vector_too():
    assert Pages(0, "float64").vector.shape == (0,)


def in_memory(file):
    """How many pages of a file are in memory."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        buffer = np.frombuffer(mapping, np.uint8)
        pages = (ctypes.c_ubyte * (buffer.size // mmap.PAGESIZE))()
        address, size = ctypes.c_void_p(buffer.ctypes.data), ctypes.c_size_t(buffer.size)
        assert ctypes.CDLL(None).mincore(address, size, pages) == 0
        del buffer
        return sum(page & 1 for page in pages)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are in memory")
def test_rows_that_are_read_at_random_bring_few_others_into_memory(tmp_path):
    size = 1 << 25
    (tmp_path / "rows").write_bytes(bytes(size))
    with open(tmp_path / "rows", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if in_memory(file):
            pytest.skip("this folder lies in memory")
        rows = np.memmap(file, np.uint8, "r")
        read_at_random(rows[5:])
        assert not rows[:: 1 << 21].any()
        assert in_memory(file) < 2 * 16


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="this system frees no such pages")
def test_what_is_given_back_takes_neither_memory_nor_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("photinus.core.pages._FREED_BYTES", 3 * mmap.PAGESIZE)
    with open(tmp_path / "rows", "wb+") as file:
        rows = np.memmap(file, np.float32, "w+", shape=(1 << 20,))
        rows[:] = 1
        rows.flush()
        assert os.fstat(file.fileno()).st_blocks
        release_pages(rows[7:])
        assert not os.fstat(file.fileno()).st_blocks
        assert not rows.any()
    array = np.ones(3)
    release_pages(array)
    assert array.all(), "memory of the C library stays"
    pages = Pages(3, "float32")
    pages.vector[:] = 1
    release_pages(pages.vector)
    assert pages.vector.all(), "as does memory that no file is behind"


def test_an_array_in_memory_has_no_map():
    assert map_of(np.zeros(3)) is None
    read_at_random(np.zeros(3))
    pages = Pages(3, "float32")
    assert map_of(pages.vector[1:]) is not None


def test_more_memory_than_there_can_be_is_one_sentence():
    with pytest.raises(NotReadyError, match="refuses so much memory; got 4000000000 MiB"):
        Pages(1_000_000_000 << 20, "float32")
    layout = Layout.of([("w", (1_000_000_000 << 20,), TRAINED)])
    with pytest.raises(NotReadyError, match="do not fit in memory; got 4000000000 MiB"):
        Parameters(layout)
