"""Draws the lives of a push and of a batch, from tables of design.md: python docs/make_lives.py.

A box is a hop: its number and its files. Each place that the table names has a column.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design.md"
PICTURES = {
    "The life of a push": ROOT / "docs" / "images" / "push.svg",
    "The life of a batch": ROOT / "docs" / "images" / "batch.svg",
}
WIDTH, SIDE, BOX, LINE, GAP, HEAD = 760, 40, 300, 17, 22, 34
STYLE = """<style>
text { font: 13px sans-serif; fill: #1b1b1b; }
.file { font: 12.5px monospace; }
.place { font-weight: bold; text-anchor: middle; }
.number { fill: #4a6fa5; font-weight: bold; text-anchor: end; }
rect { fill: #eef3fb; stroke: #4a6fa5; }
path { fill: none; stroke: #4a6fa5; stroke-opacity: .7; marker-end: url(#tip); }
.tip { fill: #4a6fa5; stroke: none; marker-end: none; }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>"""

_ROW = re.compile(r"^\|\s*(\d*)\s*\|\s*([^|]*?)\s*\|\s*([^|]*?)\s*\|", re.MULTILINE)

Hop = tuple[str, str, list[str]]
"""Number, place and files."""


def hops(title: str) -> list[Hop]:
    """Returns the rows of the table under a title that have a file."""
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    found: list[Hop] = []
    place = ""
    for number, where, files in _ROW.findall(section):
        place = where.strip() or place
        if number:
            found.append((number, place, re.findall(r"`([^`]+)`", files)))
    return found


def drawn(title: str) -> str:
    """Returns the picture of a life."""
    rows = hops(title)
    places = list(dict.fromkeys(place for _, place, _ in rows))
    apart = (WIDTH - 2 * SIDE - BOX) / (len(places) - 1)
    lefts = {place: SIDE + apart * column for column, place in enumerate(places)}
    parts = [
        f'<text class="place" x="{left + BOX / 2:g}" y="20">{place}</text>'
        for place, left in lefts.items()
    ]
    top, before = HEAD, None
    for number, place, files in rows:
        left, high = lefts[place], len(files) * LINE + 10
        if before is not None:
            parts.append(_arrow(before, (left, top)))
        parts.append(f'<text class="number" x="{left - 8:g}" y="{top + 19}">{number}</text>')
        parts.append(f'<rect x="{left:g}" y="{top}" width="{BOX}" height="{high}" rx="5"/>')
        parts += [
            f'<text class="file" x="{left + 10:g}" y="{top + 19 + LINE * line}">{file}</text>'
            for line, file in enumerate(files)
        ]
        before, top = (left, top + high), top + high + GAP
    size = f'viewBox="0 0 {WIDTH} {top - GAP + 8}"'
    body = "\n".join([STYLE, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Returns the way from the bottom of a box to the top of the next one."""
    (x, y), (to, down) = (start[0] + BOX / 2, start[1]), (end[0] + BOX / 2, end[1])
    middle = y + GAP / 2
    return f'<path d="M{x:g} {y:g}V{middle:g}H{to:g}V{down - 1:g}"/>'


if __name__ == "__main__":
    for title, picture in PICTURES.items():
        picture.write_text(drawn(title))
