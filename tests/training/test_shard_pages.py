"""A shard is told as it was at one version, while it moves; and it comes as it was told."""

import math

import numpy as np
import pytest

from photinus.coordinator.sharded_table import kinds_of, page_in
from photinus.core.errors import NotReadyError, UsageError
from photinus.strategies.shards import ShardState
from photinus.training import shard_pages
from photinus.training.requests import Page
from photinus.training.shard_pages import ShardCopy, fetched_moved, fetched_shard, sample_of


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(shard_pages, "PAGE_NUMBERS", 7)
    monkeypatch.setattr(shard_pages, "_KEPT_NUMBERS", 1 << 22)


def shard_state(rows=20, width=3, moved=None):
    """A shard that was loaded whole, or one of which some rows have moved since the start."""
    rng = np.random.default_rng(0)
    outer = (rng.random(rows), rng.random(rows * width))
    own, nothing = rng.random((rows, width)), np.empty(0, np.int64)
    state = ShardState(own, outer, nothing, np.empty((0, 3)), version=4)
    if moved is None:
        return state
    marks = np.zeros(rows, np.int32)
    marks[moved] = 3
    return state._replace(moved=marks, first=np.zeros((2, width)))


def received(pages, into, most=10**6):
    """Takes pages in as the driver does; returns how many came."""
    count = 0
    try:
        page = next(pages)
        while True:
            count += 1
            dtype, shape = page.kinds[page.name]
            array = into.setdefault(page.name, np.zeros(math.prod(shape), dtype))
            array[page.start : page.start + page.numbers.size] = page.numbers
            page = pages.send(Page(page.version, page.name, page.start + page.numbers.size))
            assert count < most
    except StopIteration:
        return count


def test_it_is_told_as_it_was_however_often_its_rows_move_meanwhile():
    state, into, rng = shard_state(), {}, np.random.default_rng(1)
    before = [state.own.ravel().copy(), *(outer.copy() for outer in state.outer)]
    copy, rounds = ShardCopy(state), 0
    while not copy.is_over:
        assert received(copy.pages(1), into) == 1
        at = np.flatnonzero(rng.random(20) < 0.4)
        copy.moving(at)
        state.own[at] += 1
        for outer in state.outer:
            outer.reshape(20, -1)[at] -= 1
        rounds += 1
    assert rounds == 10 + 3 + 10, "two rows of three numbers, or seven of one, fit a page"
    for name, array in zip(("vector", "outer.0", "outer.1"), before, strict=True):
        assert np.array_equal(into[name], array)
    assert received(copy.pages(1), into) == 0


def test_of_a_shard_that_began_at_the_start_only_the_rows_that_moved_are_told():
    at = np.array([0, 3, 4, 11, 12, 13, 19])
    state, into, rng = shard_state(moved=at), {}, np.random.default_rng(1)
    before = [state.own[at].copy(), *(outer.reshape(20, -1)[at].copy() for outer in state.outer)]
    copy = ShardCopy(state)
    while not copy.is_over:
        assert received(copy.pages(1), into) == 1
        moving = np.flatnonzero(rng.random(20) < 0.4)
        copy.moving(moving)
        state.own[moving] += 1
        for outer in state.outer:
            outer.reshape(20, -1)[moving] -= 1
        state.moved[moving] = 5
    assert into.pop("at").tolist() == at.tolist()
    assert into.pop("first").size == 2 * 3
    for name, array in zip(("vector", "outer.0", "outer.1"), before, strict=True):
        assert np.array_equal(into[name].reshape(array.shape), array)


def test_a_shard_of_which_no_row_has_moved_is_two_pages():
    into = {}
    assert received(ShardCopy(shard_state(moved=[])).pages(), into) == 1
    assert list(into) == ["first"]


def answers(asks, files):
    """Answers pages that are asked for as the driver does; returns what came of it."""
    page = next(asks)
    while True:
        try:
            page = asks.send(page._replace(numbers=page_in(files[page.name], page.start)))
        except StopIteration as ended:
            return ended.value


def test_rows_that_moved_are_written_over_those_of_the_start():
    start = np.arange(60.0).reshape(20, 3)
    now = shard_state()
    at = np.array([1, 2, 3, 8, 19])
    files = {"at": at[:, None], "first": sample_of(start), "vector": now.own[at]}
    files["outer.0"] = now.outer[0][at, None]
    shard = {"vector": start.copy(), "outer.0": np.zeros((20, 1))}
    moved = answers(fetched_moved(kinds_of(files), 4, shard), files)
    assert moved.at.tolist() == at.tolist()
    assert np.array_equal(moved.rows, sample_of(start))
    start[at] = now.own[at]
    assert np.array_equal(shard["vector"], start)
    assert np.array_equal(np.flatnonzero(shard["outer.0"]), at)


def test_a_start_that_is_drawn_otherwise_than_for_the_checkpoint_is_refused():
    start = np.arange(60.0).reshape(20, 3)
    files = {"at": np.zeros((0, 1), np.int64), "first": sample_of(start), "vector": start[:0]}
    start[5] += 1
    with pytest.raises(UsageError, match="first numbers of the table are drawn otherwise"):
        answers(fetched_moved(kinds_of(files), 4, {"vector": start}), files)


def test_where_much_is_kept_aside_more_is_told_at_once(monkeypatch):
    monkeypatch.setattr(shard_pages, "_KEPT_NUMBERS", 30)
    copy = ShardCopy(shard_state())
    assert received(copy.pages(1), {}) == 1
    copy.moving(np.arange(20))  # 18 · 3 + 20 + 20 · 3 numbers
    assert received(copy.pages(1), {}) == 1 + 4


def test_no_more_is_told_than_is_wanted():
    copy = ShardCopy(shard_state(), is_last=True)
    pages = copy.pages()
    assert next(pages).is_last
    with pytest.raises(StopIteration):
        pages.send(Page(4, "vector", -1))
    assert copy.is_over


def test_a_shard_without_rows_is_told_by_one_page_without_numbers():
    nothing = np.empty((0, 3))
    copy = ShardCopy(ShardState(nothing, (), np.empty(0, np.int64), nothing))
    into = {}
    assert received(copy.pages(), into) == 1
    assert copy.is_over
    assert into["vector"].size == 0


def test_a_row_that_is_longer_than_a_page_is_told_whole():
    into = {}
    assert received(ShardCopy(shard_state(rows=4, width=11)).pages(), into) == 4 + 1 + 4
    assert np.array_equal(into["vector"], shard_state(rows=4, width=11).own.ravel())


def test_what_is_fetched_lies_where_there_is_room_or_is_refused():
    numbers = np.arange(10.0)
    asks = fetched_shard(
        {"vector": ("float64", (10,))}, 3, lambda shape, dtype: np.empty(shape, dtype)
    )
    page, starts = next(asks), []
    while page is not None:
        starts.append(page.start)
        assert (page.version, page.name, page.numbers) == (3, "vector", None)
        try:
            page = asks.send(page._replace(numbers=numbers[page.start : page.start + 4]))
        except StopIteration as ended:
            page, arrays = None, ended.value
    assert starts == [0, 4, 8]
    assert np.array_equal(arrays["vector"], numbers)
    with pytest.raises(NotReadyError, match="fits neither in memory nor on disk"):
        next(fetched_shard({"vector": ("float64", (10,))}, 3, lambda shape, dtype: None))
