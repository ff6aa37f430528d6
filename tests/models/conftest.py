"""What two ways of one computation may differ by, from the arithmetic and not from a machine."""

import numpy as np
import pytest

from photinus.core.threads import limit_threads


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """As a worker computes; threads that wait for each other are slow on a busy machine."""
    with limit_threads(1):
        yield


@pytest.fixture
def rounding():
    """Returns the bound on float32 sums of so many terms, one after the other, in any two orders.

    Each sum is off by at most an eps for each of its terms, as a share of the terms' absolute sum.
    """

    def bound(*lengths, scale=1.0):
        return float(np.finfo(np.float32).eps) * sum(lengths) * scale

    return bound
