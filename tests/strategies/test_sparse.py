"""Vectors of which most numbers are 0 travel without them, to the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.errors import FrameError
from photinus.protocol.messages import Seat, message_of, message_to
from photinus.strategies.base import Message
from photinus.strategies.codecs import CODECS, encode
from photinus.strategies.sparse import to_dense, to_sparse, with_zeros, without_zeros
from photinus.transport.frames import Decoder, encode_frame

SEAT = Seat(b"r" * 16)


def mostly_zero(size, some=5, dtype="f4"):
    vector, chance = np.zeros(size, dtype), np.random.default_rng(size)
    vector[chance.integers(0, size, some)] = chance.integers(1, 99, some)
    return vector


@given(
    st.sampled_from(["f4", "f8", "u1", "u2"]),
    st.integers(0, 3000),
    st.lists(st.integers(0, 2999), max_size=20),
)
def test_what_is_gathered_is_scattered_to_the_same_bits(dtype, size, places):
    vector = np.zeros(size, dtype)
    vector[[place for place in places if place < size]] = 7
    gathered = without_zeros(vector)
    if gathered is not None:
        assert gathered[0].nbytes + gathered[1].nbytes < vector.nbytes
        whole = with_zeros(*gathered)
        assert whole.dtype == vector.dtype
        np.testing.assert_array_equal(whole, vector)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [4096, 5001])
def test_a_message_in_any_codec_comes_back_to_the_bit_over_the_wire(codec, size):
    message = Message("push", encode(codec, mostly_zero(size)), codec=codec)
    frame = message_to(SEAT.frame("push"), to_sparse(message))
    [received] = Decoder().feed(b"".join(encode_frame(frame)))
    assert "kept" in received.arrays
    assert received.size_bytes < message.vector.nbytes / 2
    np.testing.assert_array_equal(message_of(received).vector, message.vector)


def test_a_minus_zero_and_a_nan_travel():
    vector = np.zeros(1000, np.float32)
    vector[200], vector[400] = -0.0, np.nan
    whole = with_zeros(*without_zeros(vector))
    np.testing.assert_array_equal(whole.view(np.uint32), vector.view(np.uint32))


def test_what_holds_no_zeros_or_rows_of_its_own_travels_as_it_is():
    dense = Message("push", np.ones(1000, np.float32))
    assert to_sparse(dense) is dense
    assert to_dense(dense) is dense
    rows = Message("push", mostly_zero(1000), rows=np.arange(3))
    assert to_sparse(rows) is rows
    assert to_sparse(Message("fetch")).kept is None


@pytest.mark.parametrize(
    ("some", "kept", "words"),
    [
        (np.ones(15, "f4"), np.array([255], "u1"), "128 numbers of a sparse vector must travel"),
        (np.ones(0, "f4"), np.zeros(8 << 20 | 1, "u1"), "holds at most 4294967296 bytes"),
        (np.ones(15, "f4"), np.array([1], "i8"), "the grains of a vector are told by bits"),
    ],
)
def test_bits_that_do_not_go_with_the_numbers_are_refused(some, kept, words):
    with pytest.raises(FrameError, match=words):
        with_zeros(some, kept)
