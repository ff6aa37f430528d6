"""Pages take memory when they are touched, and give it back."""

import sys

import pytest

from photinus.core.pages import Pages

SIZE = 1 << 24


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
def test_memory_is_taken_by_the_page_and_given_back():
    before, pages = resident(), Pages(SIZE, "float32")
    pages.vector[:: SIZE // 8] = 1
    assert resident() - before < 4 << 20
    pages.vector[:] = 2
    assert resident() - before > 48 << 20
    pages.forget()
    assert resident() - before < 4 << 20
    assert not pages.vector[:: SIZE // 8].any()


def test_nothing_at_all_is_a_vector_too():
    assert Pages(0, "float64").vector.shape == (0,)
