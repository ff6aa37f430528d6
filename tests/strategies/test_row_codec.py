"""Rows on their way to their owners: each has its own scale, and what is left out comes later."""

import numpy as np
import pytest

from photinus.core.errors import FrameError
from photinus.strategies import row_codec
from photinus.strategies.codecs import codec, encode
from photinus.strategies.row_codec import RowCodec, RowErrorFeedback, answer_codec


def rows_of(count, width, seed=0):
    """Rows whose sizes differ by ten powers of ten."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-5, 5, (count, 1))
    return (sizes * rng.standard_normal((count, width))).astype(np.float32)


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize(("width", "exact"), [(1, 0), (6, 0), (7, 0), (7, 1), (16, 9)])
def test_a_row_differs_by_half_a_step_of_its_own_scale_at_most(width, exact, name):
    rows, by_row = rows_of(40, width), RowCodec(name, width, exact)
    sent = by_row.encode(rows)
    decoded, some = by_row.decode(sent), width - exact
    assert sent.size == 40 * by_row.size
    most = abs(rows[:, :some]).max(1) * codec(name).error * 1.0001
    assert (abs(decoded - rows)[:, :some].max(1) <= most).all()
    np.testing.assert_array_equal(decoded[:, some:], rows[:, some:])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_row_has_the_same_bytes_whatever_travels_beside_it(name):
    rows, by_row = rows_of(12, 5), RowCodec(name, 5, 1)
    together = by_row.encode(rows).reshape(12, -1)
    for row, sent in zip(rows, together, strict=True):
        np.testing.assert_array_equal(by_row.encode(row[None]), sent)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_without_scales_rows_travel_as_a_vector_does(name):
    rows, by_row = rows_of(9, 4), RowCodec(name, 4, 1)
    np.testing.assert_array_equal(by_row.encode(rows), encode(name, rows.ravel()))
    assert by_row.decode(by_row.encode(rows)).shape == (9, 4)


def test_no_rows_take_no_bytes():
    by_row = RowCodec("int4", 5, 1)
    sent = by_row.encode(np.empty((0, 5), np.float32))
    assert (sent.size, by_row.decode(sent).shape) == (0, (0, 5))


@pytest.mark.parametrize("place", [0, 3], ids=["in a scale", "exact"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_seen(value, place):
    rows, by_row = rows_of(3, 4), RowCodec("int8", 4, 1)
    assert by_row.is_sound(by_row.encode(rows))
    rows[1, place] = value
    assert not by_row.is_sound(by_row.encode(rows))


def test_bytes_that_are_no_rows_are_refused():
    with pytest.raises(FrameError, match="rows in codec int8 take 8 bytes each; got 9 bytes"):
        RowCodec("int8", 4).decode(np.zeros(9, np.uint8))


def test_rows_come_from_their_owners_in_a_codec_that_needs_no_feedback():
    assert [answer_codec(n) for n in ("fp32", "bf16", "int8", "int4")] == [
        "fp32", "bf16", "bf16", "bf16",
    ]  # fmt: skip


def test_beyond_its_bound_what_was_left_of_the_oldest_rows_is_dropped(monkeypatch):
    monkeypatch.setattr(row_codec, "MAX_LEFT_OUT", 6)
    feedback = RowErrorFeedback(np.array([9, 1, 4]), np.arange(6.0).reshape(3, 2))
    after = feedback.after(np.array([1, 2, 3]), np.array([[7.0, 7.0], [8.0, 0.0], [0.0, 0.0]]))
    assert after.rows.tolist() == [1, 2, 9], "row 3 is whole, and row 4 the oldest"
    assert after.numbers.tolist() == [[7, 7], [8, 0], [0, 1]]
