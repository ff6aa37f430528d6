"""The script that measures the house counts what it says."""

import importlib
from collections import Counter
from pathlib import Path

import pytest


@pytest.fixture
def house(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("house")


def test_lines_of_code_leave_out_blank_lines_comments_and_texts(house):
    text = '"""Head."""\n\nimport os  # why\n# a comment\n'
    text += 'x = """\ntext"""\n\ndef f():\n    """Says."""\n'
    assert house.code_lines(text) == 4


def test_what_a_push_costs_is_what_one_run_has_more_than_another(house):
    fewer = Counter({("a.py", "offer"): 2, ("b.py", "tick"): 9, ("c.py", "once"): 5})
    more = Counter({("a.py", "offer"): 6, ("a.py", "part"): 8, ("b.py", "tick"): 10})
    more["c.py", "once"] = 5
    assert house.of_each(more, fewer, 4) == (3, 1)


def test_each_room_of_the_tree_is_counted(house, tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text("x = 1\n\n")
    (tmp_path / "__init__.py").write_text("y = 2\n")
    assert house.lines(tmp_path) == {"(package)": (1, 1, 1), "room": (1, 2, 1)}
