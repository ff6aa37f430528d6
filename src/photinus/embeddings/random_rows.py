"""Draws some rows of a table of random numbers, and passes over the others.

A generator of NumPy (PCG64) takes a step for each 64 bits: s ← a·s + c modulo 2¹²⁸. So n steps are
one with other constants, and the rows between are not drawn.

Reference: O'Neill, PCG: a family of simple fast space-efficient statistically good algorithms for
random number generation (2014); the jump: Brown, Random number generation with arbitrary stride
(1994).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from photinus.core.parameters import Vector

_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_MASK = (1 << 128) - 1
_LOW_MASK, _HALF, _BITS, _ROTATION_SHIFT = (np.uint64(n) for n in ((1 << 32) - 1, 32, 64, 58))
_SHIFT, _UNIT = np.uint64(8), np.float32(1.0 / 16777216.0)


def draw_spaced(rows: Vector, rng: np.random.Generator, first: int, spacing: int) -> bool:
    """Writes rows first, first + spacing, ... of what `rng` gives for a whole table, 0 to 1.

    Args:
        rows: of that table [m, width] float32.
        rng: stands before its first row.
        first: the number of the first row.
        spacing: from one row to the next.

    Returns:
        False where it cannot: the generator is of another kind, or two rows share 64 bits.
    """
    state: Any = rng.bit_generator.state
    if state["bit_generator"] != "PCG64" or state["has_uint32"] or rows.shape[1] % 2:
        return False
    steps, c = rows.shape[1] // 2, state["state"]["inc"]
    a0, c0 = _jump(first * steps, c)
    start_state = (a0 * state["state"]["state"] + c0) & _MASK
    constants = [start_state, _MULTIPLIER, c, *_jump(spacing * steps, c)]
    _draw(rows, np.array([_halves(n) for n in constants], np.uint64))
    return True


def _halves(number: int) -> tuple[int, int]:
    return number >> 64, number & ((1 << 64) - 1)


def _jump(steps: int, c: int) -> tuple[int, int]:
    """Returns the constants of so many steps at once."""
    a, multiplier, constant = _MULTIPLIER, 1, 0
    while steps:
        if steps & 1:
            multiplier, constant = multiplier * a & _MASK, (constant * a + c) & _MASK
        a, c = a * a & _MASK, (a + 1) * c & _MASK
        steps >>= 1
    return multiplier, constant


@njit(inline="always")
def _advance(s1: Any, s0: Any, a1: Any, a0: Any, c1: Any, c0: Any) -> Any:
    """Returns a·s + c, of numbers in two halves."""
    p, q, r, t = s0 & _LOW_MASK, s0 >> _HALF, a0 & _LOW_MASK, a0 >> _HALF
    pr, pt, qr = p * r, p * t, q * r
    middle = (pr >> _HALF) + (pt & _LOW_MASK) + (qr & _LOW_MASK)
    high = q * t + (pt >> _HALF) + (qr >> _HALF) + (middle >> _HALF) + s1 * a0 + s0 * a1 + c1
    low = s0 * a0 + c0
    if low < c0:
        high += np.uint64(1)
    return high, low


@njit(nogil=True, cache=True)
def _draw(rows: Any, constants: Any) -> None:
    # high and low halves: the state before a row, a step's constants, and those of a jump
    b1, b0 = constants[0]
    a1, a0 = constants[1]
    c1, c0 = constants[2]
    j1, j0 = constants[3]
    k1, k0 = constants[4]
    for row in range(rows.shape[0]):
        s1, s0 = b1, b0
        for column in range(0, rows.shape[1], 2):
            s1, s0 = _advance(s1, s0, a1, a0, c1, c0)
            bits, rotation = s1 ^ s0, s1 >> _ROTATION_SHIFT
            bits = (bits >> rotation) | (bits << ((_BITS - rotation) & np.uint64(63)))
            rows[row, column] = np.float32((bits & _LOW_MASK) >> _SHIFT) * _UNIT
            rows[row, column + 1] = np.float32(bits >> (_HALF + _SHIFT)) * _UNIT
        b1, b0 = _advance(b1, b0, j1, j0, k1, k0)
