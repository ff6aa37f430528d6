import io
from types import SimpleNamespace

import numpy as np
import pytest

from photinus.engine import child
from photinus.engine.child import LOST, UNREADABLE, Order


@pytest.fixture
def fed(monkeypatch):
    """Makes bytes the standard input."""

    def feed(data):
        monkeypatch.setattr(child.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return feed


def test_a_slots_rows_are_read_from_its_files(tmp_path, tiny):
    names = [str(tmp_path / name) for name in ("x.npy", "y.npy")]
    np.save(names[0], tiny.features)
    np.save(names[1], tiny.labels)
    errand = SimpleNamespace(program=tiny.program())
    assert Order(errand, 0, "a", *names, None).part().rows == 90
    assert Order(errand, 0, "a", names[0], "", None).part().rows == 90


def test_an_errand_that_cannot_be_imported_is_told_by_the_exit_code(fed, capsys):
    fed(b"cnunpy\nones\n.")  # what pickle writes for nunpy.ones
    assert child.main() == UNREADABLE
    assert "nunpy" in capsys.readouterr().err


def test_a_parent_that_went_before_it_spoke_is_lost(fed):
    fed(b"")
    assert child.main() == LOST
