"""A run in a cell of a notebook: one output that is replaced."""

import sys
import threading
import types

import pytest

from photinus.core.events import PhaseStarted, RoundClosed, RunStarted, Warned
from photinus.report import notebook, terminal
from photinus.report.notebook import Cell, in_notebook


class Shown:
    """What a notebook's frontend holds: the outputs of a cell."""

    def __init__(self):
        self.outputs = []

    def display(self, made, display_id):
        assert display_id
        place = len(self.outputs)
        self.outputs.append(made)

        def update(again):
            self.outputs[place] = again

        return types.SimpleNamespace(update=update)


@pytest.fixture
def shown(monkeypatch):
    front = Shown()
    shell = types.SimpleNamespace(kernel=object())
    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: shell
    fake.display = types.ModuleType("IPython.display")
    fake.display.display, fake.display.HTML = front.display, str
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    return front


def test_without_ipython_there_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    assert not terminal.is_watched()


def test_a_run_is_one_output_that_is_replaced(shown):
    assert in_notebook()
    view = terminal.Terminal(now=iter(range(100)).__next__)
    view.write(RunStarted(run="rings", term=1, engine="spark", workers=2))
    view.write(PhaseStarted(phase=0, name="net", budget=100, parameters=9, strategy="averaging"))
    view.write(Warned(text="<b>the rate</b> is clamped"))
    for n in (1, 2):
        loss = {"loss": 1.0 / n}
        view.write(
            RoundClosed(
                phase=0, version=n, slots=(0,), examples=50 * n, progress=n / 2, seconds=1.0,
                metrics=loss,
            )
        )  # fmt: skip
    view.close()
    [page] = shown.outputs
    assert "100%" in page
    assert "0.5" in page
    assert "&lt;b&gt;the rate&lt;/b&gt;" in page, "what workers say is no markup"


def test_a_run_in_another_thread_is_not_drawn(shown):
    told = []
    thread = threading.Thread(target=lambda: told.append(terminal.is_watched()))
    thread.start()
    thread.join()
    assert told == [False]
    assert terminal.is_watched()


def test_a_cell_keeps_the_newest_lines(shown):
    cell = Cell(shown.display, str)
    for n in range(50):
        cell.console.print(f"line {n}")
    cell.update("view")
    assert "line 49" in shown.outputs[0]
    assert "line 3<" not in shown.outputs[0]
    assert shown.outputs[0].count("line ") == notebook._MAX_LINES
