import errno
import os
import tempfile

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.engine.local import shared_rows
from photinus.engine.local.shared_rows import RowsFile

ARRAYS = [
    np.arange(7, dtype=np.uint8),
    np.random.default_rng(0).random((5, 3, 2)),
    np.arange(12, dtype="f4").reshape(3, 4).T,
    np.arange(20, dtype=np.int64)[::3],
    np.empty((0, 4), dtype=np.float32),
    np.array([True, False]),
]


def test_every_array_is_mapped_as_it_was_handed_over():
    with RowsFile() as rows:
        stored = [rows.add(array) for array in ARRAYS]
        for array, place in zip(ARRAYS, stored, strict=True):
            mapped = place.mapped(rows.descriptor)
            assert mapped.dtype == array.dtype
            np.testing.assert_array_equal(mapped, array)
            with pytest.raises(ValueError, match="read-only"):
                mapped[:1] = mapped[:1] if array.size else _read_only()


def _read_only():
    raise ValueError("read-only: nothing can be written")


def test_large_rows_go_in_pieces(monkeypatch):
    monkeypatch.setattr(shared_rows, "_PIECE", 100)
    array = np.arange(1000, dtype=np.int64).reshape(100, 10)[:, ::2]
    with RowsFile() as rows:
        np.testing.assert_array_equal(rows.add(array).mapped(rows.descriptor), array)


def test_no_name_is_seen_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with RowsFile() as rows:
        rows.add(ARRAYS[0])
        assert os.listdir(tmp_path) == []


def test_a_full_temporary_folder_is_one_sentence(monkeypatch):
    with RowsFile() as rows:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, rows.descriptor)
        os.close(full)
        with pytest.raises(NotReadyError) as failed:
            rows.add(np.zeros(1_000_000))
    assert str(failed.value) == (
        f"the temporary folder {tempfile.gettempdir()} cannot take the workers' rows; got "
        f"{os.strerror(errno.ENOSPC)}, at 8 MB; set TMPDIR to a folder with room for them"
    )


def test_no_temporary_folder_at_all_is_one_sentence(monkeypatch):
    def fail(**fields):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(NotReadyError, match=r"finds no temporary folder .*; set TMPDIR"):
        RowsFile()
