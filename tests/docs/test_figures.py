"""A figure of time, speed or memory says on which processor it was measured."""

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "README.md"
DEPENDS = re.compile(r"\d (s|ms|µs|min|times|MB|GB|CPU minutes)\b|/s\b|a second\b")
PROCESSOR = re.compile(r"EPYC|Xeon|Intel|AMX")
LINK = re.compile(r"\]\((\.\./)?([\w./-]+\.md)")
ROWS = [line for line in RESULTS.read_text().splitlines() if line.startswith("| ") and "`" in line]


def says_its_processor(row):
    pages = [RESULTS.parent / f"{up}{name}" for up, name in LINK.findall(row)]
    return any(PROCESSOR.search(text) for text in (row, *(page.read_text() for page in pages)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_a_row_of_results_that_depends_on_the_processor_names_it(row):
    what, figure, _ = row.strip("| ").rsplit(" | ", 2)
    assert says_its_processor(row) or not DEPENDS.search(f"{what} {figure}"), row


@pytest.mark.parametrize("figure", ["1.5 s", "40 images/s", "3.6 times", "17 CPU minutes"])
def test_a_row_without_its_processor_would_be_found(figure):
    assert DEPENDS.search(figure)
    assert not says_its_processor(f"| what | {figure} | `python script.py` |")
