"""The confidence interval of an error rate."""

from __future__ import annotations

import math

from photinus.core.errors import UsageError

_Z = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


def error_interval(errors: float, examples: float) -> tuple[float, float]:
    """Returns the 95 % Wilson interval of an error rate.

    centre = (p + z²/2n) / (1 + z²/n), half = z √(p(1−p)/n + z²/4n²) / (1 + z²/n)

    Args:
        errors: how many were wrong.
        examples: n, how many were looked at.

    Raises:
        UsageError: there are no examples, or more errors than examples.

    Example:
        >>> low, high = error_interval(108, 10_000)
        >>> f"{low:.2%} to {high:.2%}"
        '0.90% to 1.30%'

    Reference: Wilson, 1927, Probable inference, the law of succession, and statistical inference.
    """
    if not (examples > 0 and 0 <= errors <= examples):
        raise UsageError(
            "an interval needs errors from 0 to examples, and at least one example",
            got=f"{errors:g} of {examples:g}",
        )
    p, squared = errors / examples, _Z * _Z / examples
    centre = p + squared / 2
    half = _Z * math.sqrt(p * (1 - p) / examples + squared / (4 * examples))
    scale = 1 + squared
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
