"""The report's curves as a picture that stands alone, for pages that take no HTML."""

from collections.abc import Sequence

from photinus.report.chart import Chart, chart
from photinus.report.markup import tag

INKS = ("#2b6cb0", "#d9730d", "#2f855a", "#a23b9a", "#b7791f", "#2a9d9d", "#c53030", "#6b5fc7")
STYLE = (
    "text{font:10.5px system-ui,sans-serif;fill:#667085}"
    ".grid{stroke:#e6e7e3}.axis{stroke:#667085}.dot{fill:#fff}"
    "polyline{fill:none;stroke-width:1.5;stroke-linejoin:round}"
)


def curves(pictured: Chart) -> str:
    """Returns SVG: the title and a key above the axes and curves, on white."""
    drawn = str(chart(pictured))
    inner = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    top = 24 + 14 * len(pictured.series)
    inks = "".join(f".s{n}{{stroke:{ink}}}.k{n}{{fill:{ink}}}" for n, ink in enumerate(INKS))
    head = [
        tag("rect", x=0, y=0, width=360, height=176 + top, fill="#ffffff"),
        tag("text", f"{pictured.title}: {pictured.subtitle}", x=44, y=18),
    ]
    for n, one in enumerate(pictured.series):
        head.append(tag("text", one.name, x=62, y=34 + 14 * n, class_=f"k{n % len(INKS)}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 {176 + top}" width="720">'
        f"<style>{STYLE}{inks}</style>{''.join(map(str, head))}"
        f'<g transform="translate(0 {top})">{inner}</g></svg>\n'
    )


def grid(charts: Sequence[Chart], columns: int = 3) -> str:
    """Returns SVG: charts with equally many curves, from left to right and from top to bottom."""
    width, height = 360, 200 + 14 * len(charts[0].series)
    cells = []
    for n, one in enumerate(charts):
        place = f'x="{n % columns * width}" y="{n // columns * height}"'
        cell = curves(one).replace("<svg ", f"<svg {place} ", 1)
        cells.append(cell.replace('width="720"', f'width="{width}" height="{height}"', 1))
    box = f"0 0 {columns * width} {-(-len(charts) // columns) * height}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">{"".join(cells)}</svg>\n'
