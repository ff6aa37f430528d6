from __future__ import annotations

import pytest

from photinus.core.errors import UsageError
from photinus.report.interval import error_interval


@pytest.mark.parametrize(
    ("errors", "examples", "low", "high"),
    [
        # Newcombe, 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_it_equals_the_published_examples(errors, examples, low, high):
    assert error_interval(errors, examples) == pytest.approx((low, high), abs=5e-5)


def test_it_is_symmetric_and_stays_within_0_and_1():
    low, high = error_interval(3, 40)
    assert error_interval(37, 40) == pytest.approx((1 - high, 1 - low))
    assert error_interval(5, 5)[1] == 1.0


@pytest.mark.parametrize(("errors", "examples"), [(0, 0), (2, 1), (-1, 3), (float("nan"), 3)])
def test_what_is_no_rate_is_refused(errors, examples):
    with pytest.raises(UsageError, match="an interval needs errors"):
        error_interval(errors, examples)
