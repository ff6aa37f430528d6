"""HTML and SVG as nested calls: what is not markup already is escaped, without exception."""

from __future__ import annotations

import html

__all__ = ["Markup", "tag"]

_EMPTY = {"meta", "img", "br", "circle", "line", "path", "polyline", "rect"}


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
    if name in _EMPTY and not children:
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
