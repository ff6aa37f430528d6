"""A run folder's copy elsewhere, in the memory of fsspec; on HDFS see tests/fault/test_yarn.py."""

import json

import numpy as np
import pytest

from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.mirror import Mirror
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError, FencedError, NotReadyError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def address(tmp_path):
    name = f"memory://runs/{tmp_path.name}"
    yield name
    fs, path = fsspec.core.url_to_fs(name)
    if fs.exists(path):
        fs.rm(path, recursive=True)


@pytest.fixture
def coordinator(address, tmp_path):
    """Makes a machine with a run folder, its store and its mirror, which has claimed a term."""

    def make(name, fetch=False):
        mirror = Mirror(address, tmp_path / name)
        if fetch:
            mirror.fetch()
        folder = RunFolder(tmp_path / name, resume=fetch)
        mirror.claim(folder.claim_term())
        return folder, Store(folder.checkpoints, keep=2), mirror

    return make


def save(store, number, value=1.0):
    store.save(f"{number:05d}", {"phase": number}, {"model": {"w": np.full(3, value)}})


def test_another_machine_finds_journal_and_newest_checkpoint(coordinator):
    folder, store, mirror = coordinator("first")
    folder.events.write_text("a line\n")
    for number in range(4):
        save(store, number, number)
        mirror.push()
    store.pin("00002")
    mirror.push()
    second_folder, second_store, second_mirror = coordinator("second", fetch=True)
    assert second_mirror.term == 2
    assert second_folder.events.read_text() == "a line\n"
    assert second_store.names() == store.names() == ("00002", "00003")
    assert second_store.pinned() == "00002"
    assert second_store.latest().files["model"]["w"].tolist() == [3.0] * 3


def test_only_what_changed_is_sent_again(coordinator, monkeypatch):
    folder, store, mirror = coordinator("first")
    (folder.path / "job.json").write_text("{}")
    folder.events.write_text("a line\n")
    save(store, 1)
    mirror.push()
    sent_paths = []
    put = mirror._fs.put_file
    monkeypatch.setattr(
        mirror._fs, "put_file", lambda *paths: (sent_paths.append(paths[1]), put(*paths))
    )
    folder.events.write_text("a line\nanother\n")
    mirror.push()
    assert [path.rpartition("/")[2] for path in sent_paths] == ["events.jsonl"]


def test_a_checkpoint_that_is_saved_again_takes_the_olders_place(coordinator):
    _, store, mirror = coordinator("first")
    save(store, 1, 1.0)
    mirror.push()
    save(store, 1, 2.0)
    mirror.push()
    _, second_store, _ = coordinator("second", fetch=True)
    assert second_store.latest().files["model"]["w"].tolist() == [2.0] * 3


def test_an_older_coordinator_is_fenced(coordinator):
    _, store, old = coordinator("first")
    save(store, 1)
    old.push()
    coordinator("second", fetch=True)
    with pytest.raises(FencedError, match="the newest at memory://"):
        old.check()
    with pytest.raises(FencedError):
        old.push()


def test_of_two_that_claim_a_term_one_gets_it(address, tmp_path, coordinator):
    coordinator("first")
    folder = RunFolder(tmp_path / "unaware")
    with pytest.raises(FencedError, match="another coordinator"):
        Mirror(address, folder.path).claim(folder.claim_term())


def test_what_a_killed_coordinator_left_half_written_is_removed(coordinator, address):
    _, store, mirror = coordinator("first")
    save(store, 1)
    mirror.push()
    fs, path = fsspec.core.url_to_fs(address)
    fs.pipe_file(f"{path}/checkpoints/.00002.tmp-0123456789ab/manifest.json", b"half")
    coordinator("second", fetch=True)
    assert not fs.exists(f"{path}/checkpoints/.00002.tmp-0123456789ab")


def test_a_place_that_cannot_be_written_is_a_checkpoint_error(coordinator, monkeypatch):
    folder, _, mirror = coordinator("first")
    (folder.path / "job.json").write_text(json.dumps({}))

    def refuse(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr(mirror._fs, "put_file", refuse)
    with pytest.raises(CheckpointError, match="cannot be written to; got no space"):
        mirror.push()


def test_an_address_that_nothing_opens_says_so(tmp_path):
    with pytest.raises(NotReadyError, match="nowhere://runs cannot be opened"):
        Mirror("nowhere://runs", tmp_path)
