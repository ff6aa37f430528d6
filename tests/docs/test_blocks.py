"""Every Python block of the docs: programs run as they stand, pieces name what there is."""

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import photinus

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python *(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([\w.]+)"')
PROGRAMS = (
    "docs/tutorial.md",
    "docs/callbacks.md",
    "docs/guides/tabular.md",
    "docs/guides/images.md",
    "docs/guides/strategy.md",
    "docs/guides/tuning.md",
    "docs/coming-from.md",
    "docs/jvm.md",
)
"""Pages whose blocks are one program, from top to bottom."""
LONG = ("docs/guides/tabular.md", "docs/guides/images.md", "docs/coming-from.md")
ON_DISK = re.compile(r'((?:addPyFile|save|load|parquet)\(")([\w.-]+"\))')
"""Names that Java finds in the folder where it was started, which is not the test's."""
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PIECES = [
    page.relative_to(ROOT).as_posix()
    for page in PAGES
    if BLOCK.search(page.read_text()) and page.relative_to(ROOT).as_posix() not in PROGRAMS
]
"""Pages with pieces of programs: they need a cluster, a table or a model of the reader's."""


def blocks(page):
    """Returns file name (or nothing) and text of each block of a page."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [((TITLE.findall(head) or [""])[0], text) for head, text in found]


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
            placed = ON_DISK.sub(rf"\g<1>{tmp_path}/\g<2>", text)
            exec(compile(placed, page, "exec"), names)
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
