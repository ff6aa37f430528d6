import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from photinus.core.errors import FrameError, UsageError
from photinus.protocol.serialization import is_sound, packed, unpacked

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
kinds = st.sampled_from(["?", "<i1", "<u2", "<i4", "<u4", "<i8", "<f2", "<f4", "<f8", "<c8"])
arrays = kinds.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, min_side=0)))
trees = st.recursive(
    plain | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(trees)
def test_a_tree_comes_back_as_it_went(tree):
    assert same(tree, unpacked(packed(tree)))


@given(arrays, st.floats(0, 1), st.integers(0, 99))
def test_an_array_comes_back_bit_by_bit_whichever_rows_of_it_are_0(array, share, seed):
    if array.ndim:
        array[np.random.default_rng(seed).random(len(array)) < share] = 0
    assert same(array, unpacked(packed(array)))


def test_rows_of_0_do_not_travel_and_a_negative_0_does():
    table = np.zeros((1000, 50), np.float32)
    table[7], table[9, 3] = 1, -0.0
    data = packed({"table": table})
    assert data.nbytes < 1000
    received = unpacked(data)["table"]
    assert received.tobytes() == table.tobytes()
    received += 1


def test_rows_that_moved_are_written_into_what_is_held():
    table = np.arange(12.0).reshape(6, 2)
    copy = {"a": [table.copy(), 1]}
    table[4] = -1
    data = packed({"a": [table, 2]}, moved={("a", 0): np.array([4])})
    received = unpacked(data, copy)
    assert same(received, {"a": [table, 2]})
    assert received["a"][0] is copy["a"][0]


@pytest.mark.parametrize("held", [None, {"a": 3}, {"a": np.zeros((2, 2))}, {"a": np.zeros((6, 5))}])
def test_rows_that_moved_of_what_is_not_held_are_refused(held):
    data = packed({"a": np.ones((6, 2))}, moved={("a",): np.array([4, 5])})
    with pytest.raises(FrameError, match="no packed value"):
        unpacked(data, held)


def test_rows_of_0_that_would_fill_the_memory_are_refused():
    table = np.zeros((1000, 50), np.float32)
    data = packed(table)
    forged = bytes(data).replace(b"[1000,", b"[9" + b"0" * 11 + b",")
    size = int.from_bytes(forged[:8], "little") + len(forged) - len(data)
    with pytest.raises(FrameError, match="no packed value"):
        unpacked(np.frombuffer(size.to_bytes(8, "little") + forged[8:], np.uint8).copy())


def test_views_and_numbers_of_numpy_arrive_in_their_own_type():
    tree = [np.arange(6.0).reshape(2, 3).T, np.float32(2), np.arange(4, dtype=">i4")]
    turned, number, big = unpacked(packed(tree))
    assert np.array_equal(turned, tree[0])
    assert type(number) is np.float32
    assert big.tolist() == [0, 1, 2, 3]


def test_what_arrives_may_be_written_to():
    [array] = unpacked(packed([np.zeros(3)]))
    array += 1
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize("wrong", [object(), {1, 2}, b"x", np.array([None]), {("a", 1): 2}, 1j])
def test_anything_else_is_refused_by_its_place(wrong):
    with pytest.raises(UsageError, match=r"^it\['a'\]\[1\] must be an array or a plain value; got"):
        packed({"a": [0, wrong]}, "it")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff" * 8,
        b"\x02\0\0\0\0\0\0\0[}",
        b"\x1b\0\0\0\0\0\0\0" + b'{"array":["<f8",[99999],0]}',
        b"\x17\0\0\0\0\0\0\0" + b'{"array":["O",[1],0]}  ',
        b"\x0b\0\0\0\0\0\0\0" + b'{"strange":1}'[:11],
    ],
)
def test_bytes_that_hold_no_packed_value_are_refused(text):
    with pytest.raises(FrameError, match="no packed value"):
        unpacked(np.frombuffer(text, np.uint8))


def test_a_nan_anywhere_is_seen():
    assert is_sound({"a": [np.ones(2), np.arange(3)], "b": "x"})
    assert not is_sound({"a": [np.ones(2), np.array([[1.0], [np.inf]])]})
