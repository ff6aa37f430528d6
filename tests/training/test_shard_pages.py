"""A shard is told as it was at one version, while it moves; and it comes as it was told."""

import math

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.strategies.shards import ShardState
from photinus.training import shard_pages
from photinus.training.asks import Page
from photinus.training.shard_pages import ShardCopy, fetched


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(shard_pages, "PAGE_NUMBERS", 7)
    monkeypatch.setattr(shard_pages, "_KEPT_NUMBERS", 1 << 22)


def held(rows=20, width=3):
    chance = np.random.default_rng(0)
    outer = (chance.random(rows), chance.random(rows * width))
    return ShardState(
        chance.random((rows, width)), outer, np.empty(0, np.int64), np.empty((0, 3)), version=4
    )


def told(pages, into, most=10**6):
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
    state, into, chance = held(), {}, np.random.default_rng(1)
    before = [state.own.ravel().copy(), *(outer.copy() for outer in state.outer)]
    copy, rounds = ShardCopy(state), 0
    while not copy.is_over:
        assert told(copy.pages(1), into) == 1
        at = np.flatnonzero(chance.random(20) < 0.4)
        copy.moving(at)
        state.own[at] += 1
        for outer in state.outer:
            outer.reshape(20, -1)[at] -= 1
        rounds += 1
    assert rounds == 10 + 3 + 10, "two rows of three numbers, or seven of one, fit a page"
    for name, array in zip(("vector", "outer.0", "outer.1"), before, strict=True):
        assert np.array_equal(into[name], array)
    assert told(copy.pages(1), into) == 0


def test_where_much_is_kept_aside_more_is_told_at_once(monkeypatch):
    monkeypatch.setattr(shard_pages, "_KEPT_NUMBERS", 30)
    copy = ShardCopy(held())
    assert told(copy.pages(1), {}) == 1
    copy.moving(np.arange(20))  # 18 · 3 + 20 + 20 · 3 numbers
    assert told(copy.pages(1), {}) == 1 + 4


def test_no_more_is_told_than_is_wanted():
    copy = ShardCopy(held(), is_last=True)
    pages = copy.pages()
    assert next(pages).is_last
    with pytest.raises(StopIteration):
        pages.send(Page(4, "vector", -1))
    assert copy.is_over


def test_a_shard_without_rows_is_told_by_one_page_without_numbers():
    nothing = np.empty((0, 3))
    copy = ShardCopy(ShardState(nothing, (), np.empty(0, np.int64), nothing))
    into = {}
    assert told(copy.pages(), into) == 1
    assert copy.is_over
    assert into["vector"].size == 0


def test_a_row_that_is_longer_than_a_page_is_told_whole():
    into = {}
    assert told(ShardCopy(held(rows=4, width=11)).pages(), into) == 4 + 1 + 4
    assert np.array_equal(into["vector"], held(rows=4, width=11).own.ravel())


def test_what_is_fetched_lies_where_there_is_room_or_is_refused():
    numbers = np.arange(10.0)
    asks = fetched({"vector": ("float64", (10,))}, 3, lambda shape, dtype: np.empty(shape, dtype))
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
        next(fetched({"vector": ("float64", (10,))}, 3, lambda shape, dtype: None))
