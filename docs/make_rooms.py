"""Draws the rooms and what they import, from the imports: python docs/make_rooms.py.

An arrow is drawn only where no longer way leads from one room to the other. The rows are the
floors of `.importlinter`.
"""

import configparser
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
WIDTH, STEP, BOX, GAP = 980, 62, (104, 30), 16
SHIFTS = (0, 85, -85)
"""Of a floor to the side, so that an arrow past the next one is seen."""
STYLE = """<style>
text { font: 13px sans-serif; text-anchor: middle; fill: #1b1b1b; }
rect { fill: #eef3fb; stroke: #4a6fa5; }
line { stroke: #4a6fa5; stroke-opacity: .55; marker-end: url(#tip); }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto"><path d="M0 0L8 4L0 8z" fill="#4a6fa5"/></marker></defs>"""


def floors() -> list[list[str]]:
    """Returns the rooms of each floor, from the highest to the lowest."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    lines = contracts["importlinter:contract:floors"]["layers"].split("\n")
    return [[room.strip() for room in line.split("|")] for line in lines if line.strip()]


def imports() -> dict[str, set[str]]:
    """Returns room -> the rooms that its modules import."""
    graph = grimp.build_graph("photinus", exclude_type_checking_imports=True, cache_dir=None)
    found: dict[str, set[str]] = {room: set() for floor in floors() for room in floor}
    for module in graph.modules - {"photinus.__main__"}:  # above all rooms: the command itself
        for other in graph.find_modules_directly_imported_by(module):
            here, there = f"{module}..".split(".")[1], f"{other}..".split(".")[1]
            if here and there and here != there:
                found[here].add(there)
    return found


def shortest(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Returns the imports for which no longer way exists."""

    def reached(room: str) -> set[str]:
        return found[room].union(*map(reached, found[room]))

    return sorted(
        (room, other)
        for room, others in found.items()
        for other in others
        if not any(other in reached(third) for third in others)
    )


def drawn() -> str:
    """Returns the picture."""
    (wide, high), rows = BOX, floors()
    places = {}
    for row, rooms in enumerate(rows):
        left = (WIDTH - len(rooms) * wide - (len(rooms) - 1) * GAP) / 2 + SHIFTS[row % 3]
        for column, room in enumerate(rooms):
            places[room] = (left + column * (wide + GAP), 8 + row * STEP)
    assert all(low[1] - high[1] in (0, STEP) for high, low in pairwise(places.values()))
    parts = [
        f'<line x1="{places[a][0] + wide / 2:g}" y1="{places[a][1] + high}"'
        f' x2="{places[b][0] + wide / 2:g}" y2="{places[b][1]}"/>'
        for a, b in shortest(imports())
    ]
    for room, (x, y) in places.items():
        parts.append(f'<rect x="{x:g}" y="{y}" width="{wide}" height="{high}" rx="5"/>')
        parts.append(f'<text x="{x + wide / 2:g}" y="{y + 20}">{room}</text>')
    size = f'viewBox="0 0 {WIDTH} {len(rows) * STEP - 16}"'
    body = "\n".join([STYLE, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(drawn())
