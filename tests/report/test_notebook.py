"""A run in a cell of a notebook: one output that is replaced."""

import sys
import threading
import types

import pytest

from photinus.core.events import PhaseStarted, RoundClosed, RunStarted, Warned
from photinus.report import notebook, terminal
from photinus.report.notebook import Cell, in_notebook


class Frontend:
    """What a notebook's frontend holds: the outputs of a cell."""

    def __init__(self):
        self.outputs = []

    def display(self, html, display_id):
        assert display_id
        place = len(self.outputs)
        self.outputs.append(html)

        def update(new_html):
            self.outputs[place] = new_html

        return types.SimpleNamespace(update=update)


@pytest.fixture
def frontend(monkeypatch):
    notebook_frontend = Frontend()
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display, ipython.display.HTML = notebook_frontend.display, str
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return notebook_frontend


def test_without_ipython_there_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    assert not terminal.is_watched()


def test_a_run_is_one_output_that_is_replaced(frontend):
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
    [page] = frontend.outputs
    assert "100%" in page
    assert "0.5" in page
    assert "&lt;b&gt;the rate&lt;/b&gt;" in page, "what workers say is no markup"


def test_a_run_in_another_thread_is_not_drawn(frontend):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(terminal.is_watched()))
    thread.start()
    thread.join()
    assert answers == [False]
    assert terminal.is_watched()


def test_a_cell_keeps_the_newest_lines(frontend):
    cell = Cell(frontend.display, str)
    for n in range(50):
        cell.console.print(f"line {n}")
    cell.update("view")
    assert "line 49" in frontend.outputs[0]
    assert "line 3<" not in frontend.outputs[0]
    assert frontend.outputs[0].count("line ") == notebook._MAX_LINES
