"""Formats numbers for people."""

from __future__ import annotations

import math


def seconds_text(seconds: float) -> str:
    """Returns a duration in the two units that matter.

    Example:
        >>> [seconds_text(s) for s in (0.0042, 3.21, 75, 7384)]
        ['4.2 ms', '3.2 s', '1 min 15 s', '2 h 03 min']
    """
    if not math.isfinite(seconds):
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def bytes_text(size: float) -> str:
    """Returns a size in decimal units.

    Example:
        >>> [bytes_text(n) for n in (12, 3_400, 6_700_000)]
        ['12 B', '3.4 kB', '6.7 MB']
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def count_text(count: float) -> str:
    """Returns a count with thin thousands.

    Example:
        >>> count_text(60000)
        '60,000'
    """
    return f"{count:,.0f}" if math.isfinite(count) else "–"


def number_text(value: float) -> str:
    """Returns a measured number with four digits that matter.

    Example:
        >>> [number_text(v) for v in (0.0108, 12.34567, 812345.0, float("nan"))]
        ['0.0108', '12.35', '812,345', 'nan']
    """
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
