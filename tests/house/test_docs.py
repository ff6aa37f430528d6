"""What holds for every page of the docs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Headings as GitHub names them, and anchors that a page sets itself."""
    named = re.findall(r'<a id="([^"]+)"', text)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {*named, *(re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings)}


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_link_within_the_docs_leads_to_a_page_and_a_heading(page):
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(prose(target))):
            lost.append(link)
    assert lost == []
