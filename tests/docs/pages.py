"""The pages of the docs and their blocks of Python."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python *(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([\w.]+)"')
PROGRAMS = (
    "docs/tutorial.md",
    "docs/callbacks.md",
    "docs/guides/tabular.md",
    "docs/guides/images.md",
    "docs/guides/several-inputs.md",
    "docs/guides/strategy.md",
    "docs/guides/tuning.md",
    "docs/coming-from.md",
    "docs/jvm.md",
)
"""Pages whose blocks are one program, from top to bottom."""
ON_DISK = re.compile(r'((?:addPyFile|save|load|parquet|textFile)\(")([\w.-]+"\))')
"""Names that Java finds in the folder where it was started, which is not the test's."""
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PIECES = [
    page.relative_to(ROOT).as_posix()
    for page in PAGES
    if BLOCK.search(page.read_text()) and page.relative_to(ROOT).as_posix() not in PROGRAMS
]
"""Pages with pieces of programs, which need a table or a model of the reader's: `test_pieces`
runs them with stand-ins."""


def blocks(page):
    """Returns file name (or nothing) and text of each block of a page."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [((TITLE.findall(head) or [""])[0], text) for head, text in found]


def placed(text, folder):
    """Returns a block whose files lie in a folder of the test's."""
    return ON_DISK.sub(rf"\g<1>{folder}/\g<2>", text)
