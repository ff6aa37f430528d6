"""The driver writes shards to files as they come, and holds none of them."""

import errno
from types import SimpleNamespace

import numpy as np
import pytest

from photinus.checkpoint.mapped import PagedFile, ScratchFolder, is_mapped
from photinus.coordinator.sharded_table import NO_MORE_WANTED, ShardFiles, Table, kinds_of, page_in
from photinus.core.errors import RunFailedError
from photinus.training.requests import Page

KINDS = {"vector": ("float32", (6,)), "outer.0": ("float32", (2,))}


def page(name, start, numbers, version=5, **more):
    return Page(version, name, start, np.array(numbers, np.float32), KINDS, **more)


def take_all_pages(shards, slot=0, version=5):
    assert shards.take(slot, page("vector", 0, [0, 1, 2, 3], version)) == 4
    assert shards.take(slot, page("vector", 4, [4, 5], version)) == 6
    assert shards.take(slot, page("outer.0", 0, [7, 8], version)) == 2


@pytest.fixture
def failures():
    return []


@pytest.fixture
def shards(tmp_path, failures):
    return ShardFiles(ScratchFolder(tmp_path), failures.append)


def test_a_shard_is_there_once_all_its_pages_are(shards):
    shards.take(0, page("vector", 0, [0, 1, 2, 3]))
    assert shards.at(5) == {}
    take_all_pages(shards, slot=1)
    assert list(shards.at(5)) == [1]
    shard = shards.at(5)[1]
    assert shard["vector"].tolist() == [0, 1, 2, 3, 4, 5]
    assert shard["outer.0"].tolist() == [7, 8]
    assert is_mapped(shard["vector"])


def test_a_page_that_comes_twice_counts_once(shards):
    shards.take(0, page("vector", 0, [0, 1, 2, 3]))
    assert shards.take(0, page("vector", 0, [9, 9, 9, 9])) == 4
    for _ in range(2):
        shards.take(0, page("vector", 4, [4, 5]))
    shards.take(0, page("outer.0", 0, [7, 8]))
    assert shards.at(5)[0]["vector"].tolist() == [0, 1, 2, 3, 4, 5]
    assert shards.take(0, page("outer.0", 0, [7, 8])) == NO_MORE_WANTED


def test_another_version_takes_the_place_of_what_did_not_come_whole(shards, tmp_path):
    shards.take(0, page("vector", 0, [0, 1, 2, 3]))
    take_all_pages(shards, version=6)
    assert shards.at(5) == {}
    assert list(shards.at(6)) == [0]
    assert len(list(tmp_path.iterdir())) == 1
    shards.drop()
    assert shards.at(6) == {}
    assert not list(tmp_path.iterdir()), "a file goes with the last who reads it"


def test_a_full_disk_costs_a_checkpoint_and_ends_a_run_whose_result_it_is(
    shards, failures, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PagedFile, "write", full)
    assert shards.take(0, page("vector", 0, [0.0])) == NO_MORE_WANTED
    assert failures == ["a shard could not be written: No space left on device"]
    with pytest.raises(RunFailedError, match="No space left on device; free some space"):
        shards.take(0, page("vector", 0, [0.0], is_last=True))


def table_of(slot_shards, size, scratch):
    """The table of shards whose first numbers are those of the seed."""

    def first_rows(shard, slot, seed, shards):
        assert (slot, shards) == (0, 1)
        shard[...] = seed

    parameters = SimpleNamespace(trained=np.zeros(size))
    model = SimpleNamespace(parameters=parameters, first_rows=first_rows)
    return Table(slot_shards, 2, scratch, lambda: model, seed=7)


def test_a_table_lies_in_a_file_in_the_order_of_its_rows(tmp_path):
    shards = {1: {"vector": np.array([2.0, 3.0])}, 0: {"vector": np.array([0.0, 1.0, 4.0, 5.0])}}
    table = table_of(shards, 6, ScratchFolder(tmp_path))
    assert table.vector.tolist() == [0, 1, 2, 3, 4, 5]
    assert is_mapped(table.vector)
    assert not list(tmp_path.iterdir()), "the file has no name"
    assert Table.of(table.vector).vector is table.vector


@pytest.mark.parametrize("numbers", [2, 4, 100])
def test_rows_that_have_not_moved_are_drawn_where_the_table_is_joined(
    tmp_path, monkeypatch, numbers
):
    monkeypatch.setattr("photinus.coordinator.sharded_table._JOINED_NUMBERS", numbers)
    moved = {"at": np.array([[1]]), "first": np.zeros((1, 2)), "vector": np.array([[4.0, 5.0]])}
    still = {"at": np.zeros((0, 1), np.int64), "vector": np.zeros((0, 2))}
    assert table_of({0: moved, 1: still}, 8, ScratchFolder(tmp_path)).vector.tolist() == [
        *[7, 7, 7, 7],
        *[4, 5, 7, 7],
    ]
    whole = {"vector": np.array([2.0, 3.0, 6.0, 1.0])}
    assert table_of({0: moved, 1: whole}, 8, ScratchFolder(tmp_path)).vector.tolist() == [
        *[7, 7, 2, 3],
        *[4, 5, 6, 1],
    ]


def full_until(success_at, monkeypatch):
    """Has a disk without room until it is asked for the number-th time."""
    calls, original = [], ScratchFolder.array

    def full(*args):
        calls.append(args)
        if len(calls) < success_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    monkeypatch.setattr(ScratchFolder, "array", full)
    monkeypatch.setattr("photinus.coordinator.sharded_table._LOOK_SECONDS", 0.0)


def test_a_table_waits_for_the_room_that_workers_release(tmp_path, monkeypatch):
    full_until(3, monkeypatch)
    shards = {0: {"vector": np.array([0.0, 1.0])}}
    assert table_of(shards, 2, ScratchFolder(tmp_path)).vector.tolist() == [0, 1]


def test_a_table_without_room_ends_the_run_with_one_sentence(tmp_path, monkeypatch):
    full_until(9, monkeypatch)
    monkeypatch.setattr("photinus.coordinator.sharded_table.RELEASE_SECONDS", 0.0)
    table = table_of({0: {"vector": np.array([0.0, 1.0])}}, 2, ScratchFolder(tmp_path))
    with pytest.raises(RunFailedError, match="could not be written: No space left on device; free"):
        _ = table.vector


def test_a_page_of_rows_that_are_asked_for_begins_with_a_row(monkeypatch):
    monkeypatch.setattr("photinus.coordinator.sharded_table.PAGE_NUMBERS", 5)
    rows = np.arange(24.0).reshape(-1, 2)[1::3]
    assert kinds_of({"vector": rows}) == {"vector": ("float64", (4, 2))}
    assert page_in(rows, 4).tolist() == [14, 15, 20, 21]
    assert page_in(rows.ravel(), 3).tolist() == [9, 14, 15, 20, 21]
