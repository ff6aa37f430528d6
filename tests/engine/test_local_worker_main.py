import io
import signal
from types import SimpleNamespace

import pytest

from photinus.core.errors import NotReadyError
from photinus.data.base import Block
from photinus.engine.local import worker_main
from photinus.engine.local.shared_rows import RowsFile
from photinus.engine.local.worker_main import LOST, NO_FILES, UNREADABLE, ChildSpec


@pytest.fixture
def fed(monkeypatch):
    """Makes bytes the standard input."""

    def feed(data):
        monkeypatch.setattr(worker_main.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return feed


def test_a_slots_rows_are_read_from_the_file_that_was_handed_over(tiny):
    bootstrap = SimpleNamespace(plan=tiny.plan())
    with RowsFile() as rows:
        for labels in (tiny.labels, None):
            stored = rows.add_rows(Block(tiny.features, labels))
            order = ChildSpec(bootstrap, 0, "a", stored, None, rows.descriptor, -1)
            assert order.part().rows == 90


@pytest.fixture(autouse=True)
def handler():
    """The handler of SIGTERM as it was, and is again after the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_child_that_may_open_too_few_files_says_so_by_the_exit_code(fed, capsys, monkeypatch):
    def refuse(files, who):
        raise NotReadyError(f"{who} may not open {files}")

    monkeypatch.setattr(worker_main, "allow_descriptors", refuse)
    fed(b"")
    assert worker_main.main() == NO_FILES
    assert capsys.readouterr().err == "a worker may not open 16\n"


def test_an_errand_that_cannot_be_imported_is_told_by_the_exit_code(fed, capsys):
    fed(b"cnunpy\nones\n.")  # what pickle writes for nunpy.ones
    assert worker_main.main() == UNREADABLE
    assert "nunpy" in capsys.readouterr().err


def test_a_parent_that_went_before_it_spoke_is_lost(fed):
    fed(b"")
    assert worker_main.main() == LOST
    fed(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00]")
    assert worker_main.main() == LOST, "or before it had said all"
