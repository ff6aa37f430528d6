"""How vectors travel: exactly, or as torch's bfloat16."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from photinus.core.errors import UsageError
from photinus.strategies.codecs import CODECS, codec, decode, encode, round_trip

FLOATS = arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False))


@given(FLOATS)
def test_bf16_is_torchs(vector):
    expected = torch.from_numpy(vector.copy()).to(torch.bfloat16)
    assert (encode("bf16", vector) == expected.view(torch.uint16).numpy()).all()
    np.testing.assert_array_equal(round_trip("bf16", vector), expected.float().numpy())


@given(FLOATS)
def test_what_was_decoded_travels_unchanged(vector):
    once = round_trip("bf16", vector)
    np.testing.assert_array_equal(round_trip("bf16", once), once)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fp32_travels_as_it_is(dtype):
    vector = np.random.default_rng(0).normal(size=17).astype(dtype)
    assert encode("fp32", vector) is vector
    assert decode("fp32", vector) is vector
    assert round_trip("fp32", vector) is vector


def test_a_round_trip_keeps_the_precision_of_the_vector():
    vector = np.linspace(-2, 2, 9)
    narrow = round_trip("bf16", vector)
    assert narrow.dtype == np.float64
    np.testing.assert_allclose(narrow, vector, rtol=2**-8)


@pytest.mark.parametrize("name", [n for n in CODECS if n != "fp32"])
def test_integers_are_refused(name):
    with pytest.raises(UsageError, match="takes floating-point vectors; got int64"):
        encode(name, np.arange(3))


def test_a_codec_is_found_by_name():
    assert codec("bf16").bytes_per_number == 2
    assert codec("fp32").bytes_per_number == 4
    with pytest.raises(UsageError, match="unknown codec; got 'bf61'; did you mean 'bf16'"):
        codec("bf61")


def test_not_a_number_stays_not_a_number():
    assert not np.isfinite(round_trip("bf16", np.array([np.nan, np.inf], np.float32))).any()
