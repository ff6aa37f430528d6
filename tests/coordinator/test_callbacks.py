"""The functions that are called with a run's events."""

import logging

import pytest

from photinus.coordinator.callbacks import emit_to
from photinus.core.errors import UsageError
from photinus.core.events import RunEnded, Warned


def test_every_callback_gets_every_event_and_the_log_only_what_none_gets(caplog):
    first, second = [], []
    with caplog.at_level(logging.WARNING, "photinus"):
        emit_to([first.append, second.append])(Warned(text="kept"))
        emit_to([])(Warned(text="logged"))
        emit_to([])(RunEnded(state="done", seconds=1.0))
    assert first == second == [Warned(text="kept")]
    assert [record.message for record in caplog.records] == ["logged"]


def test_a_callback_that_asks_for_a_run_folder_is_refused_where_none_is_made():
    class Tracker:
        def open(self, folder):
            raise AssertionError

        def __call__(self, event):
            raise AssertionError

    with pytest.raises(UsageError, match="Tracker needs a run folder, and none is made here"):
        emit_to([Tracker()])
