"""How vectors travel: exactly, as torch's bfloat16, or by block as a plain reference has it."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from photinus.core.errors import FrameError, UsageError
from photinus.strategies.codecs import (
    BLOCK,
    CODECS,
    codec,
    decode,
    encode,
    residual,
    size_bytes,
)

pytestmark = pytest.mark.numerics

FLOATS = arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False))
FINITE = arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
BY_BLOCK = [name for name, c in CODECS.items() if c.levels]
SIZES = (0, 1, 2, 5, 6, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 70 * BLOCK + 333)
TINY = 2.0**-110


def noise(size, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) * 10.0 ** rng.integers(-9, 9, size)).astype(np.float32)


def plain(name, vector):
    """Block by block, number by number: the bytes, and what they are decoded to."""
    levels = CODECS[name].levels
    scales, body, decoded = [], [], []
    for block in (vector[i : i + BLOCK] for i in range(0, len(vector), BLOCK)):
        scale = np.float32(np.abs(block).max()) / np.float32(levels)
        scale = np.float32(0) if scale < TINY else scale
        inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
        numbers = [round(float(np.float32(x * inverse))) for x in block]  # nearest, ties to even
        scales.append(scale)
        decoded += [np.float32(q) * scale for q in numbers]
        if name == "int8":
            body += [q & 255 for q in numbers]
            continue
        half = (len(numbers) + 1) // 2
        lower, upper = numbers[:half], numbers[half:] + [-8] * (2 * half - len(numbers))
        body += [(low & 15) | (up & 15) << 4 for low, up in zip(lower, upper, strict=True)]
    sent = np.array(scales, "<f4").tobytes() + bytes(body)
    return np.frombuffer(sent, np.uint8), np.array(decoded, np.float32)


# -- fp32 and bf16 -----------------------------------------------------------------------------


@given(FLOATS)
def test_bf16_is_torchs(vector):
    expected = torch.from_numpy(vector.copy()).to(torch.bfloat16)
    sent = encode("bf16", vector)
    assert (sent == expected.view(torch.uint16).numpy()).all()
    np.testing.assert_array_equal(decode("bf16", sent), expected.float().numpy())


@given(FLOATS)
def test_what_was_decoded_travels_unchanged(vector):
    once = decode("bf16", encode("bf16", vector))
    np.testing.assert_array_equal(decode("bf16", encode("bf16", once)), once)


def test_a_vector_of_float64_keeps_the_digits_of_bf16():
    vector = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(decode("bf16", encode("bf16", vector)), vector, rtol=2**-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fp32_travels_as_it_is(dtype):
    vector = np.random.default_rng(0).normal(size=17).astype(dtype)
    assert encode("fp32", vector) is vector
    assert decode("fp32", vector) is vector


# -- by block ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BY_BLOCK)
def test_the_fast_path_is_the_plain_one_bit_for_bit(name, size):
    vector = noise(size)
    sent, expected = plain(name, vector)
    np.testing.assert_array_equal(encode(name, vector), sent)
    decoded = decode(name, sent)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, expected)


@given(FINITE)
@example(np.array([1e-45, 0], np.float32))
@example(np.array([3.4e38, -3.4e38, 1.0], np.float32))
@pytest.mark.parametrize("name", BY_BLOCK)
def test_no_number_is_further_off_than_half_a_scale(name, vector):
    decoded = decode(name, encode(name, vector)).astype(np.float64)
    largest = np.abs(vector).max(initial=0).astype(np.float64)
    most = max(largest * CODECS[name].error * (1 + 1e-5), codec(name).levels * TINY)
    assert decoded.shape == vector.shape
    assert np.abs(decoded - vector).max(initial=0) <= most


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_the_bytes_on_the_way_are_counted_exactly(name, size):
    assert encode(name, noise(size)).nbytes == size_bytes(name, size)


@pytest.mark.parametrize("name", BY_BLOCK)
def test_float64_travels_as_float32_does(name):
    vector = np.random.default_rng(1).normal(size=BLOCK + 3)
    np.testing.assert_array_equal(encode(name, vector), encode(name, vector.astype("f4")))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", BY_BLOCK)
def test_a_block_with_a_number_that_is_not_finite_travels_as_not_a_number(name, bad):
    vector = noise(3 * BLOCK + 7)
    vector[BLOCK + 5] = bad
    decoded = decode(name, encode(name, vector))
    assert np.isnan(decoded[BLOCK : 2 * BLOCK]).all()
    outside = np.delete(np.arange(vector.size), np.s_[BLOCK : 2 * BLOCK])
    clean = np.where(np.isfinite(vector), vector, 0)
    np.testing.assert_array_equal(decoded[outside], decode(name, encode(name, clean))[outside])


@pytest.mark.parametrize("name", BY_BLOCK)
def test_a_float64_beyond_float32_is_seen(name):
    assert np.isnan(decode(name, encode(name, np.array([1e300, 1.0])))).all()


def test_bf16_keeps_what_is_not_finite():
    sent = encode("bf16", np.array([np.nan, np.inf], np.float32))
    assert not np.isfinite(decode("bf16", sent)).any()


@pytest.mark.parametrize("sent", [np.zeros(3, "u1"), np.zeros(4, "u1"), np.zeros(8, "f4")])
@pytest.mark.parametrize("name", BY_BLOCK)
def test_bytes_that_are_no_vector_are_refused(name, sent):
    with pytest.raises(FrameError, match=f"these are no numbers of codec {name}; got"):
        decode(name, sent)


# -- error feedback ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_BLOCK)
def test_with_feedback_nothing_is_lost_for_good(name):
    """A delta that is far below a block's scale arrives all the same, some rounds later."""
    delta = np.array([1.0, 1e-3], np.float32)
    arrived, left = np.zeros(2), np.zeros(2, np.float32)
    for _ in range(400):
        sent = encode(name, delta + left)
        left = residual(name, delta + left, sent)
        arrived += decode(name, sent)
    np.testing.assert_allclose(arrived / 400, delta, atol=1.0 / CODECS[name].levels / 400)
    assert decode("int4", encode("int4", delta))[1] == 0, "without it, never"


def test_codecs_of_single_numbers_need_no_feedback():
    assert not residual("fp32", noise(4), encode("fp32", noise(4))).any()
    assert not any(codec(name).has_feedback for name in ("fp32", "bf16"))


# -- by name -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in CODECS if n != "fp32"])
def test_integers_are_refused(name):
    words = f"codec {name} takes floating-point vectors; got int64; send integers beside"
    with pytest.raises(UsageError, match=words):
        encode(name, np.arange(3))


def test_a_codec_is_found_by_name():
    assert [codec(name).bits for name in ("fp32", "bf16", "int8", "int4")] == [32, 16, 8, 4]
    with pytest.raises(UsageError, match="unknown codec; got 'bf61'; did you mean 'bf16'"):
        codec("bf61")
