import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
MEAN_WORDS = 20
MOST_WORDS = 45
FEWEST_WORDS = 3
"""What is shorter is a label or a piece of a formula, no sentence."""

CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"(])")
WORD = re.compile(r"[A-Za-z0-9][\w'’.,/%-]*")


def sentences(text: str) -> dict[str, int]:
    """How many words each sentence of a page has; code blocks, tables and headings are left out."""
    lines = CODE_BLOCK.sub("", text).split("\n")
    prose = "\n".join(line for line in lines if not line.startswith(("|", "#", "!")))
    words = {}
    for paragraph in PARAGRAPH_END.split(prose):
        plain = re.sub(r"`[^`]*`", "X", LINK.sub(r"\1", paragraph))  # a command is one word
        for sentence in SENTENCE_END.split(" ".join(plain.split())):
            if (count := len(WORD.findall(sentence))) >= FEWEST_WORDS:
                words[sentence] = count
    return words


def test_sentences_are_counted_without_code_tables_and_headings():
    page = (
        "# A heading is not counted\n\nOne two three. `a command` is one\n[word](page.md#here).\n\n"
        "| a | table | is | left | out |\n\n```\nso is a code block\n```\n- a point of five words\n"
    )
    expected = {"One two three.": 3, "X is one word.": 4, "- a point of five words": 5}
    assert sentences(page) == expected


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_of_a_page_are_short(path):
    found = sentences(path.read_text())
    assert mean(found.values()) <= MEAN_WORDS
    assert [sentence for sentence, count in found.items() if count > MOST_WORDS] == []
