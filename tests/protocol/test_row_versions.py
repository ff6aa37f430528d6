"""Receivers that hold any earlier version of a tree end with the newest one, bit by bit."""

import copy

import numpy as np
import pytest

from photinus.protocol.row_versions import RowVersions
from photinus.protocol.serialization import packed, unpacked


def bits(tree):
    return [array.tobytes() for array in (tree["table"], tree["line"], *tree["deep"])]


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i4", "u1", "?", "c16"])
def test_from_any_version_the_rows_that_moved_lead_to_the_newest(kind):
    draw = np.random.default_rng(0)

    def numbers(*shape):
        return draw.integers(0, 2, shape).astype(kind)

    tree = {"table": numbers(50, 8), "line": numbers(40), "deep": [numbers(9, 2, 3), numbers(0, 4)]}
    versions, trees = RowVersions(), {}
    for version in range(1, 8):
        for array in (tree["table"], tree["line"], tree["deep"][0]):
            rows = draw.integers(0, len(array), 2)
            array[rows] = numbers(*array[rows].shape)
        if version == 5:
            tree["line"] = numbers(41)
        assert versions.take(tree) == version
        for has in range(version):
            data = packed(tree, moved=versions.since(has))
            # the earliest receiver has nothing, the others what they held
            assert bits(unpacked(data, copy.deepcopy(trees.get(has)))) == bits(tree)
        trees[version] = copy.deepcopy(tree)


def test_a_negative_0_and_another_nan_are_moves():
    table = np.zeros((20, 2))
    versions = RowVersions()
    versions.take([table])
    table[3, 1], table[5] = -0.0, np.nan
    versions.take([table])
    assert versions.since(1)[(0,)].tolist() == [3, 5]
    versions.take([table])
    assert versions.since(2)[(0,)].size == 0


def test_where_most_rows_moved_the_array_travels_whole():
    table = np.zeros((20, 2))
    versions = RowVersions()
    versions.take([table])
    table[:18] = 1
    versions.take([table])
    assert versions.since(1) == {}


def test_who_has_nothing_gets_all():
    versions = RowVersions()
    versions.take([np.zeros((20, 2))])
    assert versions.since(0) == {}
