"""The flat buffer, its layout, and the arithmetic on it."""

import copy

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.core.parameters import (
    FLOATS,
    INTEGERS,
    SECTIONS,
    TRAINED,
    Layout,
    Parameters,
    fingerprint,
    is_finite,
)

TENSORS = [
    ("w", (2, 3), TRAINED),
    ("mean", (3,), FLOATS),
    ("b", (3,), TRAINED),
    ("count", (), INTEGERS),
]


def test_tensors_lie_one_behind_the_other_in_their_sections():
    layout = Layout.of(TENSORS)
    assert [layout.size(s) for s in SECTIONS] == [9, 3, 1]
    assert [layout.entry(n).offset for n in ("w", "b", "mean", "count")] == [0, 6, 0, 0]
    assert layout.names() == ("w", "mean", "b", "count")


def test_an_unknown_tensor_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no tensor of that name; got 'W'; known: \('w',"):
        Layout.of(TENSORS).entry("W")


def test_views_share_memory_with_the_buffers():
    parameters = Parameters(Layout.of(TENSORS))
    for name, view in parameters.tensors().items():
        view[...] = 5
        assert parameters.view(name).shape == parameters.layout.entry(name).shape
    assert (parameters.trained == 5).all()
    assert parameters.floats.dtype == np.float32
    assert parameters.integers.tolist() == [5]


def test_so_do_those_of_a_copy_with_its_own():
    parameters = Parameters(Layout.of(TENSORS))
    view = parameters.view("w")
    assert parameters.view("w") is view, "made once"
    copied = copy.deepcopy(parameters)
    copied.view("w")[...] = 7
    assert (copied.trained == 7).any()
    assert not parameters.trained.any()


def test_a_copy_shares_nothing():
    parameters = Parameters(Layout.of(TENSORS, "float64"))
    copied = parameters.copy()
    copied.trained += 1
    assert (parameters.trained == 0).all()
    assert copied.trained.dtype == np.float64


@pytest.mark.parametrize(
    "given", [np.zeros(8, np.float32), np.zeros(9), np.zeros((3, 3), np.float32)]
)
def test_a_buffer_of_another_shape_or_type_is_refused(given):
    with pytest.raises(UsageError, match=r"the trained buffer must be float32\[9\]; got float"):
        Parameters(Layout.of(TENSORS), trained=given)


def test_a_buffer_that_fits_is_taken():
    trained = np.arange(9, dtype=np.float32)
    assert Parameters(Layout.of(TENSORS), trained=trained).view("w")[1, 2] == 5


def test_layouts_that_differ_have_other_fingerprints():
    fingerprints = {
        Layout.of(TENSORS).fingerprint(),
        Layout.of(TENSORS, "float64").fingerprint(),
        Layout.of(TENSORS[::-1]).fingerprint(),
        Layout.of([("w", (3, 2), TRAINED), *TENSORS[1:]]).fingerprint(),
    }
    assert len(fingerprints) == 4
    assert Layout.of(list(TENSORS)).fingerprint() in fingerprints


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_number_that_is_not_finite_is_found(bad, dtype):
    vector = np.ones(1001, dtype)
    assert is_finite(vector)
    vector[500] = bad
    assert not is_finite(vector)


def test_large_numbers_are_no_false_alarm():
    assert is_finite(np.full(10, 3e38, np.float32))
    assert is_finite(np.arange(3))
    assert is_finite(np.zeros(0))


def test_a_fingerprint_is_of_the_bits():
    a = np.ones(4)
    assert fingerprint(a) == fingerprint(a.copy())
    assert fingerprint(np.zeros(1)) != fingerprint(-np.zeros(1))
    assert fingerprint(a, a) != fingerprint(a)
