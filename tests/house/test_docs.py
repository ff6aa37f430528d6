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


def test_the_picture_of_the_rooms_is_of_the_imports_as_they_are(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_rooms

    assert make_rooms.drawn() == make_rooms.PICTURE.read_text(), "python docs/make_rooms.py"


def test_the_pictures_of_a_push_and_of_a_batch_are_of_the_tables_beneath_them(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_lives

    for title, picture in make_lives.PICTURES.items():
        numbers = [number for number, _, _ in make_lives.hops(title)]
        assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
        assert make_lives.drawn(title) == picture.read_text(), "python docs/make_lives.py"
        for _, _, files in make_lives.hops(title):
            assert all((ROOT / "src" / "photinus" / file).exists() for file in files)


def test_the_design_names_every_room_floor_by_floor(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_rooms

    page = (ROOT / "docs" / "design.md").read_text()
    block = page.partition("## The layers")[2].partition("```")[2].partition("```")[0]
    named = re.findall(r"^[\d ]{2}  ?((?:\w+ \| )+\w+|\w+)", block, re.MULTILINE)
    rooms = [room for floor in make_rooms.floors() for room in floor]
    assert [room for line in named for room in line.split(" | ")] == rooms
