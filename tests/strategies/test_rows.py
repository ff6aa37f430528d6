"""Rows of a flat vector, and pushes of only those that changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.clock import Clock, Steps
from photinus.core.errors import FrameError, UsageError
from photinus.strategies.base import Message, Turn
from photinus.strategies.outer import Adagrad, Nesterov, Sgd
from photinus.strategies.recipes import all_reduce, averaging, downpour, from_plain, to_plain
from photinus.strategies.rows import changed, numbers_of, union
from photinus.testing import check_strategy


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.5, -2.0]), max_size=40), st.integers(1, 9))
def test_the_rows_that_changed_hold_every_number_that_is_not_zero(numbers, width):
    vector = np.array(numbers, np.float32)
    rows = changed(vector, width)
    at = numbers_of(rows, width, vector.size)
    assert set(np.flatnonzero(vector)) <= set(at)
    assert sorted(set(at // width)) == rows.tolist()
    scattered = np.zeros_like(vector)
    scattered[at] = vector[at]
    np.testing.assert_array_equal(scattered, vector)


@given(st.lists(st.lists(st.integers(-3, 2**40) | st.integers(0, 50)), max_size=4))
def test_the_rows_of_some_lists_are_what_sorting_all_of_them_finds(lists):
    arrays = [np.array(rows, np.int64) for rows in lists]
    expected = sorted({row for rows in lists for row in rows})
    found = union(arrays)
    assert (found.tolist(), found.dtype) == (expected, np.int64)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.array([-1, 2]), "rows must lie within the 10 numbers"),
        (np.array([2, 4]), "rows must lie within the 10 numbers"),
        (np.array([0.5]), "rows must lie within the 10 numbers"),
        (np.array([1, 1]), "rows must be named once, in order"),
        (np.array([2, 1]), "rows must be named once, in order"),
    ],
)
def test_what_are_no_rows_is_refused(rows, words):
    with pytest.raises(FrameError, match=words):
        numbers_of(rows, 3, 10)
    assert numbers_of(np.array([3]), 3, 10).tolist() == [9], "the last row may be shorter"


@pytest.mark.parametrize("outer", [Sgd(), Adagrad(lr=0.1)])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_keep_the_contract_of_a_strategy(outer, codec, dtype):
    check_strategy(downpour(every=Steps(3), rows=5, outer=outer, codec=codec), dtype=dtype)


@pytest.mark.parametrize("outer", [Sgd(), Adagrad(lr=0.1)])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_rows_move_owner_and_worker_to_the_bits_of_whole_vectors(outer, codec):
    size, width = 53, 5
    rng = np.random.default_rng(0)
    start = rng.normal(size=size).astype("f4")
    ends = []
    for rows in (0, width):
        halves = downpour(every=Steps(1), rows=rows, outer=outer, codec=codec)
        policy, rng = halves.owner(), np.random.default_rng(1)
        empty = np.zeros(0, "f4"), np.zeros(0, np.int64)
        served = policy.init(Message("heal", start.copy(), floats=empty[0], integers=empty[1]))
        workers = [halves.worker() for _ in range(3)]
        vectors = [start.copy() for _ in workers]
        states = [w.init(v) for w, v in zip(workers, vectors, strict=True)]
        sent = 0
        for round_ in range(12):
            for n in (0, 1, 2) if round_ % 2 else (2, 0):
                touched = rng.choice(size, 4)
                vectors[n][touched] -= rng.normal(size=4).astype("f4")
                for turn in (Turn("push"), Turn("fetch")):
                    clock = Clock(round_ + 1, round_ + 1)
                    request, states[n] = workers[n].offer(turn, vectors[n], clock, states[n])
                    [reply], served = policy.receive(n, request, frozenset({0, 1, 2}), served)
                    for message in (request, reply.message):
                        sent += sum(
                            a.nbytes for a in (message.vector, message.rows) if a is not None
                        )
                    if turn.kind == "fetch":
                        states[n] = workers[n].accept(vectors[n], reply.message, states[n])
        ends.append((served.vector, *served.outer, *vectors))
        ends[-1] += (sent,)
    for whole, some in zip(ends[0][:-1], ends[1][:-1], strict=True):
        np.testing.assert_array_equal(some, whole)
    assert ends[1][-1] < ends[0][-1]


@pytest.mark.parametrize(
    "parts",
    [
        {"outer": Nesterov()},
        {"payload": "gradient"},
        {"codec": "int8"},
    ],
)
def test_where_rows_cannot_stand_for_the_whole_they_are_refused(parts):
    with pytest.raises(UsageError, match="rows are for deltas released at once"):
        downpour(rows=8, **parts)


def test_rows_are_a_part_like_the_others():
    strategy = downpour(rows=300)
    assert ", rows of 300, bf16 up" in str(strategy)
    assert from_plain(to_plain(strategy)) == strategy
    with pytest.raises(UsageError, match="unknown argument of streaming; got 'rows'"):
        from_plain({"recipe": "streaming", "rows": 3})


def test_in_rounds_they_are_a_table_among_the_workers():
    how = {"outer": Sgd(), "merge": "uniform", "gradients_until": 0.0}
    strategy = averaging(owners=4, rows=300, **how)
    assert ", rows of 300 among 4 workers, bf16" in str(strategy)
    assert from_plain(to_plain(strategy)) == strategy
    assert strategy.is_sharded
    assert not downpour(rows=300).is_sharded
    with pytest.raises(UsageError, match=r"rows in rounds are for deltas, merge uniform or reads"):
        averaging(rows=3)


@pytest.mark.parametrize(
    "part", [{"quorum": 0.5}, {"merge": "reads"}, {"codec": "int8", "error_feedback": False}]
)
def test_their_gradients_are_those_of_all_workers(part):
    strategy = all_reduce(owners=4, rows=300)
    assert ", rows of 300 among 4 workers, fp32" in str(strategy)
    assert from_plain(to_plain(strategy)) == strategy
    with pytest.raises(UsageError, match=r"^rows of all_reduce are for gradients of all workers"):
        all_reduce(owners=4, rows=300, **part)


@pytest.mark.parametrize("merge", ["uniform", "reads"])
def test_rows_of_owners_that_do_not_wait_are_named_with_their_merge(merge):
    strategy = downpour(rows=4, owners=3, gradients_until=0.0, merge=merge)
    assert f"merge {merge}, rows of 4 among 3 workers" in str(strategy)
