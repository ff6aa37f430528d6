"""Every Python block of the docs: programs run as they stand, pieces name what there is.

`test_pieces` runs the pieces, too, with stand-ins for what is the reader's.
"""

import ast
import re
import sys
from importlib.util import find_spec

import pytest
from pages import PAGES, PIECES, PROGRAMS, ROOT, blocks, placed

import photinus

LONG = ("docs/guides/tabular.md", "docs/guides/images.md", "docs/coming-from.md")


def named(text):
    """Returns what a piece takes from photinus."""
    tree, names = ast.parse(text), set()
    aliases = {"ph", "photinus"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "photinus":
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in aliases:
            names.add(node.attr)
    return {name for name in names if not find_spec(f"photinus.{name}")}  # a room, as `data`


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")  # of the libraries that a reader's program uses, too
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in PROGRAMS],
)
def test_a_page_is_a_program_that_runs(page, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before, names = set(sys.modules), {"__name__": "page"}
    for file, text in blocks(page):
        if file:
            (tmp_path / file).write_text(text)
        else:
            exec(compile(placed(text, tmp_path), page, "exec"), names)
    for made in set(sys.modules) - before:  # the next page has files of its own
        if str(tmp_path) in str(getattr(sys.modules[made], "__file__", "")):
            del sys.modules[made]


@pytest.mark.parametrize("page", PIECES)
def test_a_piece_of_a_program_is_python_and_names_what_there_is(page):
    taken = set().union(*(named(text) for _, text in blocks(page)))
    assert sorted(taken - set(photinus.__all__)) == []


def test_a_wrong_piece_is_found():
    assert named("import photinus as ph\nph.nosuch()\n") == {"nosuch"}
    with pytest.raises(SyntaxError):
        named("def f(:\n")


def test_the_tutorial_is_a_notebook_too(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_notebook

    made = make_notebook.notebook((ROOT / "docs" / "tutorial.md").read_text())
    assert made == (ROOT / "docs" / "tutorial.ipynb").read_text(), "python docs/make_notebook.py"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(executed):
    said = executed(lambda v4: v4.reads((ROOT / "docs" / "tutorial.ipynb").read_text()))
    assert "done" in said, "the view of the fit is an output of its cell"


def test_llms_txt_names_every_page():
    said = (ROOT / "docs" / "llms.txt").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES[1:]]
    missing = [page for page in pages if f"({page})" not in said and "strategies/" not in page]
    assert missing == []


def test_a_feature_that_is_there_names_a_test_that_is_there():
    page = (ROOT / "docs/features.md").read_text()
    rows = re.findall(r"^\|[^|]*\| yes: (.*?) \|", page, re.MULTILINE)
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    names = [name for row in rows for name in re.findall(r"`(test_\w+)`", row)]
    lost = [name for name in names if f"def {name}(" not in text]
    assert rows
    assert all("`test_" in row for row in rows)
    assert lost == []
