"""Files that are written in pages are safetensors files, and are read where they lie."""

import errno
import hashlib

import numpy as np
import pytest
import safetensors.numpy

from photinus.checkpoint import mapped
from photinus.checkpoint.export import load_model, save_model
from photinus.checkpoint.mapped import MappedFile, PagedFile, ScratchFolder, is_mapped, write_arrays
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError, UsageError

ARRAYS = {
    "odd": np.arange(3, dtype=np.uint8),
    "wide": np.arange(4, dtype=np.int64).reshape(2, 2)[:, ::-1],
    "none": np.zeros((0, 3), np.float32),
    "one": np.array(2.5, np.float16),
    "big-endian": np.arange(3, dtype=">f4"),
}


def test_the_library_reads_what_is_written_and_the_other_way_round(tmp_path):
    path = tmp_path / "arrays.safetensors"
    size, digest = write_arrays(path, ARRAYS, metadata={"words": "a\nb"})
    assert (size, digest) == (
        path.stat().st_size,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    theirs, ours = safetensors.numpy.load_file(path), MappedFile(path)
    assert ours.metadata == {"words": "a\nb"}
    for name, array in ARRAYS.items():
        assert np.array_equal(theirs[name], array)
        assert np.array_equal(ours[name], array)
        assert ours[name].flags.aligned
        assert is_mapped(ours[name])
        assert not ours[name].flags.writeable
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "theirs.safetensors")
    assert MappedFile(tmp_path / "theirs.safetensors")["a"].tolist() == [1, 1]
    assert not is_mapped(np.ones(2))


def test_kinds_of_numbers_that_no_such_file_has_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be saved; got complex128"):
        write_arrays(tmp_path / "a", {"a": np.ones(1, complex)})
    with pytest.raises(UsageError, match="holds at most 100 MB"):
        write_arrays(tmp_path / "a", {}, metadata={"words": " " * 100_000_000})
    assert not (tmp_path / "a").exists()


def test_pages_come_in_order_and_of_their_type_or_are_refused(tmp_path):
    file = PagedFile(tmp_path / "a", {"a": ("float32", (3,)), "b": ("float64", (1,))})
    for name, start, page in (
        ("a", 1, np.ones(1, np.float32)),
        ("a", 0, np.ones(4, np.float32)),
        ("b", 0, np.ones(1)),
        ("a", 0, np.ones(3)),
    ):
        with pytest.raises(CheckpointError):
            file.write(name, start, page)
    file.write("a", 0, np.ones(3, np.float32))
    file.write("b", 0, np.array([np.nan]))
    closed = file.closed()
    assert closed.sha256 == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    assert not closed.is_finite
    del closed
    assert not (tmp_path / "a").exists()


def test_a_file_that_is_none_is_refused(tmp_path):
    for data in (b"", b"short", b"\xff" * 40, (8).to_bytes(8, "little") + b"{nojson}"):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(CheckpointError, match="no safetensors file"):
            MappedFile(tmp_path / "a")


def scratch_file(scratch, value=1.0):
    file = scratch.paged({"vector": ("float32", (4,))})
    file.write("vector", 0, np.full(4, value, np.float32))
    return file.closed()


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_checkpoint_gets_another_name_of_the_file_or_its_bytes(tmp_path, monkeypatch, is_linked):
    def refuse(*_):
        raise OSError(errno.EXDEV, "another disk")

    if not is_linked:
        monkeypatch.setattr("photinus.checkpoint.files.os.link", refuse)
    shard, store = scratch_file(ScratchFolder(tmp_path / "pages")), Store(tmp_path / "store")
    folder = store.save("one", {}, {"shard-00000": shard})
    saved = folder / "shard-00000.safetensors"
    assert saved.samefile(shard.path) is is_linked
    del shard
    loaded = store.latest().files["shard-00000"]
    assert loaded["vector"].tolist() == [1.0] * 4
    assert isinstance(loaded, MappedFile)
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"shard-00000\.safetensors: sha256 mismatch"):
        store.load("one")
    saved.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=r"shard-00000\.safetensors: size mismatch"):
        store.load("one")
    saved.unlink()
    with pytest.raises(CheckpointError, match=r"shard-00000\.safetensors is missing"):
        store.load("one")


def test_a_shard_that_is_not_finite_is_told_by_its_checkpoint(tmp_path):
    store = Store(tmp_path / "store")
    store.save("one", {}, {"shard-00000": scratch_file(ScratchFolder(tmp_path), np.inf)})
    assert not store.load("one").is_finite


def test_what_an_earlier_run_left_behind_is_removed(tmp_path):
    scratch = ScratchFolder(tmp_path)
    (tmp_path / "photinus-left.pages").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"")
    scratch.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("has_fallocate", [True, False])
def test_a_scratch_array_is_zeros_in_a_file_without_a_name(tmp_path, monkeypatch, has_fallocate):
    if not has_fallocate:
        monkeypatch.delattr(mapped.os, "posix_fallocate")
    array = ScratchFolder(tmp_path).array((2, 3), "float32")
    assert array.tolist() == [[0.0] * 3] * 2
    array[1] = 5
    assert array.sum() == 15
    assert not list(tmp_path.iterdir())


def test_a_model_can_be_read_where_it_lies(tmp_path):
    folder = save_model(tmp_path / "net", {"w": np.ones((2, 2))}, {"classes": 2}, is_own=True)
    for source in (folder, folder / "model.safetensors"):
        model = load_model(source, is_mapped=True)
        assert is_mapped(model.tensors["w"])
        assert model.tensors["w"].tolist() == [[1, 1], [1, 1]]
    assert load_model(folder).is_own
