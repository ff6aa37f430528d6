"""What each push weighs, and the sum in a fixed order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.clock import Clock
from photinus.core.errors import FrameError
from photinus.strategies.codecs import CODECS, decode, encode
from photinus.strategies.merge import MERGES, coefficients, combine, combine_sent

pytestmark = pytest.mark.numerics

WORKS = st.lists(
    st.builds(Clock, steps=st.integers(0, 50), examples=st.integers(0, 999)), min_size=1, max_size=9
)


@pytest.mark.parametrize("merge", MERGES)
def test_with_equal_work_all_rules_are_the_mean(merge):
    assert coefficients(merge, [Clock(5, 40)] * 4) == pytest.approx([0.25] * 4)


def test_examples_weighs_by_examples():
    assert coefficients("examples", [Clock(1, 10), Clock(3, 30)]) == [0.25, 0.75]


def test_nova_weighs_by_its_formula():
    steps, examples = np.array([2, 8, 4]), np.array([16, 64, 20])
    p = examples / examples.sum()
    expected = p * (p * steps).sum() / steps
    works = [Clock(int(t), int(n)) for t, n in zip(steps, examples, strict=True)]
    assert coefficients("nova", works) == pytest.approx(expected)


def test_nova_does_not_pull_towards_who_takes_more_and_shorter_steps():
    """Two workers saw as many examples; one took twice the steps: its delta counts half."""
    slow, quick = coefficients("nova", [Clock(5, 100), Clock(10, 100)])
    assert slow == pytest.approx(2 * quick)


@pytest.mark.parametrize("merge", MERGES)
def test_a_push_without_work_weighs_nothing(merge):
    weights = coefficients(merge, [Clock(0, 0), Clock(4, 8), Clock(4, 0), Clock(4, 8)])
    assert weights[0] == weights[2] == 0
    assert weights[1] == weights[3] == pytest.approx(0.5)
    assert coefficients(merge, [Clock(0, 0)] * 2) == [0.0, 0.0]


@given(WORKS, st.sampled_from(MERGES))
def test_coefficients_are_never_negative_and_sum_to_one(works, merge):
    weights = coefficients(merge, works)
    assert all(w >= 0 for w in weights)
    if merge != "nova":
        assert sum(weights) == pytest.approx(1.0 if any(w > 0 for w in weights) else 0.0)


def test_combine_is_the_weighted_sum_and_keeps_the_precision():
    vectors = [np.full(3, v, np.float32) for v in (1, 2, 4)]
    combined = combine(vectors, [0.5, 0.0, 0.25])
    assert combined.dtype == np.float32
    assert combined.tolist() == [1.5] * 3


def test_combine_of_one_is_a_copy_bit_for_bit():
    vector = np.random.default_rng(0).normal(size=9)
    combined = combine([vector], [1.0])
    assert (combined == vector).all()
    assert not np.shares_memory(combined, vector)


def test_a_sum_by_blocks_has_the_bits_of_the_plain_sum():
    rng = np.random.default_rng(0)
    vectors = [rng.standard_normal(150_001, np.float32) for _ in range(3)]
    weights = [0.25, 0.0, 0.75]
    plain = np.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        plain += vector * np.float32(weight)
    assert np.array_equal(combine(vectors, weights), plain)
    assert not combine(vectors, [0.0] * 3).any()


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 65_536, 65_537, 150_000])
@pytest.mark.parametrize("name", CODECS)
def test_a_merge_of_what_travels_has_the_bits_of_the_plain_one(name, count):
    rng, weights = np.random.default_rng(count), [0.5, 0.25, 0.25]
    sent = [encode(name, rng.normal(size=count).astype("f4")) for _ in weights]
    for dtype in ("f4", "f8"):
        plain = [decode(name, vector).astype(dtype) for vector in sent]
        out = np.empty(count, dtype)
        apart = combine_sent([(name, v) for v in sent], weights, out, should_measure_spread=True)
        assert out.tobytes() == combine(plain, weights).tobytes()
        distances = plain - np.mean(plain, axis=0)
        assert apart == pytest.approx(np.sqrt((distances**2).sum(axis=1).mean()), rel=1e-3)


def test_a_push_of_another_length_is_refused():
    out = np.empty(3, np.float32)
    with pytest.raises(FrameError, match="a push must hold 3 numbers"):
        combine_sent([("fp32", np.ones(1, np.float32))], [1.0], out, should_measure_spread=False)
