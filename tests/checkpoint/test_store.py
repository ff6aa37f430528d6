"""A checkpoint is whole or refused by name; what is older stands."""

from __future__ import annotations

import json
import os
import random
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from photinus.checkpoint.mapped import ScratchFolder
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError, FencedError, UsageError

META = {"phase": 1, "version": 7, "positions": [3, 4], "note": "é", "loss": 0.1}


def arrays(value: float = 1.0) -> dict[str, dict[str, np.ndarray]]:
    return {
        "model": {"trained": np.full(20, value, np.float32), "integers": np.arange(3)},
        "slot-0": {"velocity": np.linspace(0, value, 5), "none": np.zeros((1, 0), np.uint8)},
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")


def test_what_was_saved_comes_back_bit_for_bit(store):
    store.save("00001", META, arrays(0.1))
    checkpoint = store.latest()
    assert (checkpoint.name, checkpoint.meta, checkpoint.is_finite) == ("00001", META, True)
    for file, tensors in arrays(0.1).items():
        for name, array in tensors.items():
            loaded = checkpoint.files[file][name]
            assert loaded.dtype == array.dtype
            assert loaded.shape == array.shape
            assert loaded.tobytes() == array.tobytes()
            assert loaded.flags.writeable


def test_views_with_strides_are_saved_as_they_read(store):
    matrix = np.arange(12.0).reshape(3, 4)
    store.save(
        "1", {}, {"m": {"transposed": matrix.T, "every": matrix[:, ::2], "zero": np.float64(3)}}
    )
    loaded = store.latest().files["m"]
    assert np.array_equal(loaded["transposed"], matrix.T)
    assert np.array_equal(loaded["every"], matrix[:, ::2])
    assert loaded["zero"].shape == ()


def test_only_the_owner_may_read_it(store):
    folder = store.save("1", META, arrays())
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()} == {0o600}


def test_every_one_of_a_thousand_flipped_bits_is_refused(store):
    store.save("00001", META, arrays())
    folder = store.save("00002", META, arrays(2.0))
    files = {f: f.read_bytes() for f in sorted(folder.iterdir())}
    places = [(f, bit) for f, data in files.items() for bit in range(8 * len(data))]
    for file, bit in random.Random(5).sample(places, 1000):
        data = bytearray(files[file])
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match=f"checkpoint 00002: {file.name}"):
            store.load("00002")
        file.write_bytes(files[file])
    assert store.latest().name == "00002"


def _cut(folder: Path) -> None:
    file = folder / "slot-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _foreign_version(folder: Path) -> None:
    from photinus.checkpoint.files import _seal_text

    manifest = folder / "manifest.json"
    body = json.loads(manifest.read_text())
    del body["sha256"]
    manifest.write_bytes(_seal_text({**body, "version": 99}))


def _leads_outside(folder: Path) -> None:
    from photinus.checkpoint.files import _seal_text

    manifest = folder / "manifest.json"
    body = json.loads(manifest.read_text())
    del body["sha256"]
    body["files"]["../secret"] = body["files"].pop("model.safetensors")
    manifest.write_bytes(_seal_text(body))


def _link(folder: Path) -> None:
    file = folder / "model.safetensors"
    moved = file.rename(folder.parent.parent / "elsewhere")
    file.symlink_to(moved)


def _link_folder(folder: Path) -> None:
    folder.symlink_to(folder.rename(folder.parent.parent / "elsewhere"))


def _fifo(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


DAMAGES = {
    "cut file": (_cut, "slot-0.safetensors: size mismatch; got"),
    "missing file": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "missing manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
    "empty manifest": (lambda f: (f / "manifest.json").write_text(""), "manifest.json is damaged"),
    "deep manifest": (
        lambda f: (f / "manifest.json").write_text("[" * 99999),
        "manifest.json is d",
    ),
    "foreign version": (_foreign_version, "manifest.json is of another format; got photinus-ch"),
    "leads outside": (_leads_outside, "manifest.json names no plain files"),
    "extra file": (lambda f: (f / "x.bin").touch(), "x.bin is a file that manifest.json does not"),
    "linked file": (_link, "model.safetensors is a symbolic link"),
    "linked folder": (_link_folder, "00002 is a symbolic link"),
    "fifo": (_fifo, "model.safetensors is no plain file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(store, damage):
    store.save("00001", META, arrays(1.0))
    harm, reason = DAMAGES[damage]
    harm(store.save("00002", META, arrays(2.0)))
    assert store.latest().name == "00001"
    (refusal,) = store.refusals
    assert str(refusal).startswith(f"checkpoint 00002 is refused: {reason}")


def test_a_wrong_hash_is_shown_beside_the_right_one(store):
    folder = store.save("1", META, arrays())
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(
        CheckpointError, match=r"sha256 mismatch; got [0-9a-f]{64}; expected [0-9a-f]"
    ):
        store.load("1")


def test_what_hides_in_a_checkpoint_is_the_systems_and_harmless(store):
    (store.save("1", META, arrays()) / ".DS_Store").touch()
    assert store.latest().name == "1"


def test_without_any_checkpoint_there_is_nothing_to_resume(store):
    assert store.latest() is None
    with pytest.raises(CheckpointError, match=r"checkpoint 7: manifest\.json is missing"):
        store.load("7")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101, "a\n", "a\0"])
def test_a_name_that_leads_elsewhere_is_refused(store, name):
    for act in (
        lambda: store.save(name, {}, {}),
        lambda: store.load(name),
        lambda: store.pin(name),
    ):
        with pytest.raises(UsageError):
            act()
    with pytest.raises(UsageError):
        store.save("1", {}, {name: {}})


def test_what_is_no_json_or_no_number_is_refused(store):
    with pytest.raises(UsageError, match="meta must be plain JSON"):
        store.save("1", {"x": {1, 2}}, arrays())
    with pytest.raises(UsageError, match="these arrays cannot be saved; got object"):
        store.save("1", {}, {"m": {"x": np.array([None])}})
    assert list(store.folder.iterdir()) == []


def test_the_newest_the_pinned_and_the_last_finite_stay(tmp_path):
    store = Store(tmp_path / "c", keep=2)
    nan = arrays(float("nan"))
    store.save("01", {}, arrays())
    store.pin("01")
    for name in ("02", "03"):
        store.save(name, {}, arrays())
    for name in ("04", "05", "06", "07"):
        store.save(name, {}, nan)
    assert store.names() == ("01", "03", "06", "07")
    assert store.latest().name == "03"
    assert [str(r) for r in store.refusals] == [
        f"checkpoint {n} is refused: holds numbers that are not finite" for n in ("07", "06")
    ]
    store.pin("07")
    store.save("08", {}, arrays())
    assert store.names() == ("07", "08")
    with pytest.raises(CheckpointError, match="no checkpoint of that name"):
        store.pin("01")


def test_three_stay_unless_somebody_says_otherwise(tmp_path):
    store = Store(tmp_path / "c")
    for name in ("01", "02", "03", "04", "05"):
        store.save(name, {}, arrays())
    assert store.names() == ("03", "04", "05")


def test_a_damaged_one_is_replaced_when_the_run_comes_to_it_again(store):
    store.save("1", META, arrays())
    _cut(store.save("2", META, arrays(2.0)))
    store.save("2", META, arrays(3.0))
    assert store.latest().files["model"]["trained"][0] == 3.0
    assert {e.name for e in store.folder.iterdir()} == {"1", "2"}


STEPS = ["create", "model.safetensors", "slot-0.safetensors", "manifest.json", "commit", "sync"]


def test_a_save_goes_through_its_steps_in_order(tmp_path):
    steps: list[str] = []
    Store(tmp_path, step=steps.append).save("1", META, arrays())
    assert steps == STEPS


@pytest.mark.parametrize("point", STEPS[:-1])
def test_a_full_disk_at_any_step_leaves_the_older_ones_and_no_rubbish(tmp_path, point):
    Store(tmp_path).save("1", META, arrays())

    def fail(step: str) -> None:
        if step == point:
            raise OSError(28, "No space left on device")

    broken = Store(tmp_path, step=fail)
    with pytest.raises(
        CheckpointError, match="checkpoint 2 could not be written; got No space left"
    ):
        broken.save("2", META, arrays(2.0))
    assert [e.name for e in tmp_path.iterdir()] == ["1"]
    assert broken.latest().name == "1"


def test_a_file_limit_of_the_system_is_a_clear_error(store):
    store.save("1", META, arrays())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            CheckpointError, match="checkpoint 2 could not be written; got File too"
        ):
            store.save("2", META, {"big": {"x": np.zeros(5000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [e.name for e in store.folder.iterdir()] == ["1"]


def test_a_fence_ends_a_save_before_its_commit(tmp_path):
    def leases(step: str) -> None:
        if step == "commit":
            raise FencedError("this coordinator's term is over")

    store = Store(tmp_path, step=leases)
    with pytest.raises(FencedError):
        store.save("1", META, arrays())
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, sys, numpy as np
from photinus.checkpoint.store import Store
def die(step):
    if step == sys.argv[2]: os._exit(9)
files = {"model": {"w": np.ones(9)}, "slot-0": {"v": np.ones(3)}}
Store(sys.argv[1], step=die).save(sys.argv[3], {"x": 2}, files)
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", ["1", "2"])
@pytest.mark.parametrize("point", ["slot-0.safetensors", "commit", "sync"])
def test_a_process_killed_inside_a_save_leaves_no_half_checkpoint(tmp_path, point, name):
    store = Store(tmp_path)
    store.save("0", META, arrays())
    store.save("1", META, arrays())
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), point, name], check=False
    )
    assert process.returncode == 9
    for saved in store.names():
        store.load(saved)
    assert store.latest().meta == ({"x": 2} if point == "sync" else META)
    store.save("3", META, arrays())
    assert not [e.name for e in tmp_path.iterdir() if e.name.startswith(".")]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"the folder .* cannot be made; got Not a directory"):
        Store(tmp_path / "file" / "checkpoints")
    with pytest.raises(UsageError, match="keep of Store"):
        Store(tmp_path, keep=0)


def test_of_large_tables_no_older_checkpoint_stays(tmp_path, monkeypatch):
    store, scratch = Store(tmp_path / "c"), ScratchFolder(tmp_path / "pages")
    for name in ("01", "02", "03"):
        file = scratch.paged({"vector": ("float32", (4,))})
        file.write("vector", 0, np.ones(4, np.float32))
        table = file.closed()
        if name == "03":
            monkeypatch.setattr("photinus.checkpoint.store.LARGE_BYTES", table.size)
        store.save(name, {}, {"shard-00000": table})
        assert len(store.names()) == (1 if name == "03" else int(name))
    assert store.latest().name == "03"
