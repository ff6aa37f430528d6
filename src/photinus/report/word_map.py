"""Words as points of a plane: a picture that stands alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from photinus.core.parameters import Vector
from photinus.report.markup import tag

_SIDE, _EDGE, _LINE, _LETTER = 480.0, 40.0, 12.0, 6.5
"""Of the square, of its margin, of a line of text, and of a letter's width, in pixels."""
_STYLE = "text{font:11px system-ui,sans-serif;fill:#1f2933}circle{fill:#2b6cb0}"


def word_map(words: Sequence[str], points: Vector) -> str:
    """Returns SVG: a point and a label for each word; both axes have one scale.

    Args:
        words: n texts.
        points: [n, 2].

    Example:
        >>> drawn = word_map(["cat", "dog"], np.array([[0.0, 0.0], [1.0, 2.0]]))
        >>> drawn.count("<circle"), drawn.startswith("<svg")
        (2, True)
    """
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (_SIDE - 2 * _EDGE) / max(float((high - low).max()), 1e-12)
    pixels = _SIDE / 2 + (points - (low + high) / 2) * np.array([scale, -scale])
    elements, label_boxes = list[str](), list[tuple[float, float, float]]()
    for n in np.argsort(pixels[:, 1]):
        x, y = map(float, pixels[n])
        left, width = x + 6.0, _LETTER * len(words[n])
        left = left if left + width < _SIDE else x - 6.0 - width
        baseline = y + 4.0
        while any(
            abs(baseline - other_baseline) < _LINE and left < end and start < left + width
            for start, end, other_baseline in label_boxes
        ):
            baseline += 1.0  # below the label that lies there
        label_boxes.append((left, left + width, baseline))
        elements.append(str(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3)))
        elements.append(str(tag("text", words[n], x=f"{left:.1f}", y=f"{baseline:.1f}")))
    height = max(_SIDE, *(baseline + _LINE for _, _, baseline in label_boxes))
    background = tag("rect", width=_SIDE, height=height, fill="#ffffff")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE:.0f} {height:.0f}" '
        f'width="{_SIDE:.0f}"><style>{_STYLE}</style>{background}{"".join(elements)}</svg>\n'
    )
