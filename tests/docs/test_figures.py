"""A figure of time, speed or memory says on which processor it was measured."""

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "README.md"
DEPENDS = re.compile(r"\d (s|ms|µs|min|times|MB|GB|CPU minutes)\b|/s\b|a second\b")
PROCESSOR = re.compile(r"EPYC|Xeon|Intel|AMX")
LINK = re.compile(r"\]\((\.\./)?([\w./-]+\.md)")
COMMAND = re.compile(r"`[^`]*`")


def rows_of(text):
    """Returns each row of each table, below its head, with the text that leads to the table."""
    found, lead, table = [], [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            found += [(row, "\n".join(lead)) for row in table[2:]]
            lead, table = [], []
        lead = [] if line.startswith("#") else [*lead, line]
    return found


def says_its_processor(row, lead=""):
    pages = [RESULTS.parent / f"{up}{name}" for up, name in LINK.findall(row)]
    said = (row, lead, *(page.read_text() for page in pages))
    return any(PROCESSOR.search(text) for text in said)


@pytest.mark.parametrize(
    ("row", "lead"),
    [pytest.param(*pair, id=pair[0][2:60]) for pair in rows_of(RESULTS.read_text())],
)
def test_a_row_of_results_that_depends_on_the_processor_names_it(row, lead):
    assert says_its_processor(row, lead) or not DEPENDS.search(COMMAND.sub("", row)), row


@pytest.mark.parametrize("figure", ["1.5 s", "40 images/s", "3.6 times", "17 CPU minutes"])
def test_a_row_without_its_processor_would_be_found(figure):
    assert DEPENDS.search(figure)
    assert not says_its_processor(f"| what | {figure} | `python script.py` |")


def test_the_text_that_leads_to_a_table_is_that_since_the_last_table_or_heading():
    first = "on EPYC\n## Head\non AMX\n| a |\n|---|\n| 1 s |\n"
    text = f"{first}no name\n| a |\n|---|\n| 2 s |"
    assert rows_of(text) == [("| 1 s |", "on AMX"), ("| 2 s |", "no name")]
