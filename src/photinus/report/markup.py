"""HTML and SVG as nested calls; everything that is not markup is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_NARROW_COLUMNS = 4
"""How many columns a narrow screen has room for."""
_VOID_ELEMENTS = {"meta", "img", "br", "circle", "line", "path", "polyline", "rect"}


class Markup(str):
    """Text that is markup: only `tag` makes it from anything but constants."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Returns an element; strings among the children are text.

    Args:
        name: of the element.
        children: markup, text or numbers; None is left out.
        attributes: `class_` is class, `_` in a name is `-`; None is left out.

    Example:
        >>> tag("p", "a < b", tag("b", 3), class_="x")
        '<p class="x">a &lt; b<b>3</b></p>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID_ELEMENTS and not children:
        return Markup(f"<{name}{pairs}>" if name in {"meta", "img", "br"} else f"<{name}{pairs}/>")
    inner = "".join(
        child if isinstance(child, Markup) else html.escape(_text(child))
        for child in children
        if child is not None
    )
    return Markup(f"<{name}{pairs}>{inner}</{name}>")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")  # pixels: two digits after the point do
    # NUL and its like are allowed nowhere in HTML, not even escaped
    return "".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in str(value))


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A name that begins with # heads a column of numbers, set to the right.

    Where there are more than `_NARROW_COLUMNS` columns, a narrow screen shows each row as a list
    of names and values: every cell knows the name of its column.
    """
    columns = [(n.removeprefix("#"), "r" if n.startswith("#") else None) for n in names]
    head = [tag("th", name, class_=c) for name, c in columns]
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=c, data_name=name or None)
                for cell, (name, c) in zip(row, columns, strict=True)
            ),
        )
        for row in rows
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", table, class_="wide" if len(names) <= _NARROW_COLUMNS else "wide stacks")
