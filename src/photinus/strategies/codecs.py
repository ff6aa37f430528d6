"""Codecs: how a vector is encoded for the network, up and down.

int8 and int4 encode blocks of `BLOCK` numbers with one scale each, nearest-even:
s = max|x| / L;  q = round(x / s);  x̂ = q·s;  L = 127 or 7, so |x − x̂| ≤ s / 2.

They travel as one vector of bytes: the float32 scales, then the blocks. An int8 block is its
numbers; in an int4 block of r numbers byte j holds number j below and number j + ⌈r/2⌉ above, and
a last block of an odd count ends with the one value that no number takes, −8. The count of
numbers follows from the count of bytes. A block with a number that is not finite travels with
the scale NaN, so that decoding shows that. Numbers of a block below 2⁻¹¹⁰ travel as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from photinus.core.errors import FrameError, UsageError
from photinus.core.parameters import Vector, is_finite
from photinus.core.settings import unknown_name

BLOCK = 1024
"""How many numbers share a scale."""
_ROWS = 128
"""How many blocks are worked on at a time: they stay in the processor's cache."""
_TINY = np.float32(2.0**-110)
_MOST = np.float32(3.402e38)
"""A scale for more would be decoded to infinity."""
_EXPONENT, _PART = 0x7F80, 1 << 20
"""Of bf16: of what is not finite every bit of the exponent is set. So many are looked at a time."""
_PAD = 8
"""The half byte that stands for no number."""


class Codec(NamedTuple):
    """A name, and how exact it is."""

    name: str
    bits: int
    """Of a number; int8 and int4 add 32 for each block's scale."""
    error: float
    """The largest error, as a share of the block's largest number; bf16: of the number."""
    levels: int = 0
    """How far a number in a block counts from 0; 0 where numbers travel one by one."""
    has_feedback: bool = False
    """True when what it leaves out of a delta is added to the next one (error feedback)."""


CODECS = {
    c.name: c
    for c in (
        Codec("fp32", 32, 0.0),
        Codec("bf16", 16, 2**-8),
        Codec("int8", 8, 1 / 254, levels=127, has_feedback=True),
        Codec("int4", 4, 1 / 14, levels=7, has_feedback=True),
    )
}


def codec(name: str) -> Codec:
    """Returns the codec of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in CODECS:
        raise unknown_name("codec", name, CODECS)
    return CODECS[name]


def size_bytes(name: str, count: int) -> int:
    """Returns how many bytes `count` float32 numbers take on the way.

    Example:
        >>> size_bytes("int8", 2500), size_bytes("int4", 2501)
        (2512, 1263)
    """
    taken = codec(name)
    scales = 4 * -(-count // BLOCK) if taken.levels else 0
    return scales + -(-count * taken.bits // 8)


def encode(name: str, vector: Vector) -> Vector:
    """Returns a float vector [n] as the codec sends it.

    fp32: as it is, float64 too · bf16: uint16 [n], nearest even · int8, int4: uint8, see above.

    Raises:
        UsageError: the vector holds integers.

    Example:
        >>> decode("int8", encode("int8", np.array([1.0, -0.5, 0.0], "f4"))).round(2).tolist()
        [1.0, -0.5, 0.0]
    """
    if name == "fp32":
        return vector
    if vector.dtype.kind != "f":
        wrong = f"codec {name} takes floating-point vectors"
        raise UsageError(wrong, got=str(vector.dtype), do="send integers beside the vector")
    return _bf16(vector) if name == "bf16" else _blocks(codec(name), vector)


def decode(name: str, sent: Vector) -> Vector:
    """The inverse of `encode`: returns float [n].

    Raises:
        FrameError: these bytes are no vector of that codec.
    """
    if name == "fp32":
        return sent
    if name == "bf16":
        wide: Vector = np.left_shift(sent, 16, dtype=np.uint32).view(np.float32)
        return wide
    return _from_blocks(codec(name), sent)


def numbers_in(name: str, sent: Vector) -> int:
    """Returns how many numbers a vector holds as the codec sends it; nothing is decoded.

    Raises:
        FrameError: these bytes are no vector of that codec.

    Example:
        >>> numbers_in("int8", encode("int8", np.zeros(2500, np.float32)))
        2500
    """
    taken = codec(name)
    if not taken.levels or not sent.size:
        return sent.size
    blocks, _, end = _borders(taken, sent)
    return blocks * BLOCK + _count(taken, sent[None, end:])


def is_sound(name: str, sent: Vector) -> bool:
    """Returns whether all numbers would be finite, were they decoded; they are not.

    Raises:
        FrameError: these bytes are no vector of that codec.

    Example:
        >>> [is_sound(name, encode(name, np.array([1.0, np.inf], "f4"))) for name in CODECS]
        [False, False, False, False]
    """
    taken = codec(name)
    if taken.name == "fp32" or not sent.size:
        return is_finite(sent)
    if taken.levels:
        _, at, _ = _borders(taken, sent)
        scales = np.ascontiguousarray(sent[:at]).view(np.float32)
        return bool((np.abs(scales) <= _MOST / np.float32(taken.levels)).all())
    parts = (sent[start : start + _PART] for start in range(0, sent.size, _PART))
    return all(int((part & _EXPONENT).max()) < _EXPONENT for part in parts)


class Decoded:
    """A vector as it travels, of which any part is decoded when it is read: it never stands whole.

    Args:
        name: of the codec.
        sent: as `encode` made it.
        dtype: of the numbers that are read.

    Example:
        >>> sent = encode("bf16", np.arange(4, dtype=np.float32))
        >>> Decoded("bf16", sent, np.dtype("f4"))[2:4].tolist()
        [2.0, 3.0]
    """

    def __init__(self, name: str, sent: Vector, dtype: np.dtype[Any]) -> None:
        self._codec, self._sent, self.dtype = codec(name), sent, dtype
        self._size = numbers_in(name, sent)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> Vector:
        """Returns numbers [stop − start]; `start` is a multiple of `BLOCK`."""
        start, stop, _ = where.indices(self._size)
        taken = self._codec
        if not taken.levels:
            return decode(taken.name, self._sent[start:stop]).astype(self.dtype, copy=False)
        blocks, at, end = _borders(taken, self._sent)
        first, last = start // BLOCK, min(-(-stop // BLOCK), blocks)
        scales = np.ascontiguousarray(self._sent[: 4 * (blocks + 1)]).view(np.float32)
        numbers, width = np.empty(stop - start, np.float32), BLOCK * taken.bits // 8
        if last > first:
            body = self._sent[at + first * width : at + last * width].reshape(-1, width)
            whole = numbers[: (last - first) * BLOCK].reshape(-1, BLOCK)
            unpack(taken, body, scales[first:last], whole)
        if stop > blocks * BLOCK:
            rest = numbers[None, (last - first) * BLOCK :]
            unpack(taken, self._sent[None, end:], scales[-1:], rest)
        return numbers.astype(self.dtype, copy=False)


def residual(name: str, vector: Vector, sent: Vector) -> Vector:
    """Returns what a codec left out: vector − decode(sent) [n].

    Error feedback adds it to the next delta: e ← e + Δ; send Q(e); e ← e − Q(e) (1-bit SGD:
    Seide et al., 2014).
    """
    left: Vector = vector - decode(name, sent)
    return left


def _bf16(vector: Vector) -> Vector:
    import torch  # here, so that planning and simulating need no torch

    narrow = torch.from_numpy(np.ascontiguousarray(vector)).to(torch.bfloat16)
    sent: Vector = narrow.view(torch.uint16).numpy()
    return sent


def _blocks(taken: Codec, vector: Vector) -> Vector:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is seen
        numbers = np.ascontiguousarray(vector, np.float32)
    count = numbers.size
    whole = count - count % BLOCK
    work = np.empty((_ROWS, BLOCK), np.float32)
    sent = np.empty(size_bytes(taken.name, count), np.uint8)
    at = 4 * -(-count // BLOCK)
    scales, end = sent[:at].view(np.float32), at + whole * taken.bits // 8
    if whole:
        body = sent[at:end].reshape(whole // BLOCK, -1)  # [blocks, bytes of one]
        blocks = numbers[:whole].reshape(-1, BLOCK)
        for start in range(0, len(blocks), _ROWS):
            rows = slice(start, min(start + _ROWS, len(blocks)))
            some = blocks[rows]
            pack(taken, some, scales[rows], body[rows], work[: len(some)])
    if whole < count:
        last = numbers[None, whole:]
        pack(taken, last, scales[-1:], sent[None, end:], work[:1, : count - whole])
    return sent


def pack(taken: Codec, numbers: Vector, scales: Vector, body: Vector, work: Vector) -> None:
    """Fills scales [b] and bytes [b, bytes of one] from numbers [b, r]; work [b, r] is scratch."""
    largest = np.abs(numbers, out=work).max(1)
    with np.errstate(invalid="ignore", divide="ignore"):  # NaN goes into the scale, as promised
        np.divide(largest, np.float32(taken.levels), out=scales)
        scales[scales < _TINY] = 0
        scales[~np.isfinite(scales)] = np.nan
        np.minimum(scales, _MOST / np.float32(taken.levels), out=scales)
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
        np.multiply(numbers, inverse[:, None], out=work)
    if not np.isfinite(scales).all():
        np.nan_to_num(work, copy=False, nan=0, posinf=0, neginf=0)
    np.rint(work, out=work)
    _LAYOUTS[taken.name].store(work, body)


def _from_blocks(taken: Codec, sent: Vector) -> Vector:
    if not sent.size:
        return np.empty(0, np.float32)
    blocks, at, end = _borders(taken, sent)
    block_bytes = BLOCK * taken.bits // 8
    last, scales = sent[None, end:], np.ascontiguousarray(sent[:at]).view(np.float32)
    numbers = np.empty(blocks * BLOCK + _count(taken, last), np.float32)
    body = sent[at:end].reshape(blocks, block_bytes)
    whole = numbers[: blocks * BLOCK].reshape(blocks, BLOCK)
    for start in range(0, blocks, _ROWS):
        rows = slice(start, min(start + _ROWS, blocks))
        unpack(taken, body[rows], scales[rows], whole[rows])
    unpack(taken, last, scales[-1:], numbers[None, blocks * BLOCK :])
    return numbers


def _borders(taken: Codec, sent: Vector) -> tuple[int, int, int]:
    """Returns the count of whole blocks, and where the first of them and the last block begin."""
    block_bytes = BLOCK * taken.bits // 8
    blocks = (sent.size - 1) // (4 + block_bytes)  # before the last one, which may be short
    at, end = 4 * (blocks + 1), 4 * (blocks + 1) + blocks * block_bytes
    if sent.dtype != np.uint8 or end >= sent.size:
        raise FrameError(f"these are no numbers of codec {taken.name}", got=f"{sent.size} bytes")
    return blocks, at, end


def _count(taken: Codec, last: Vector) -> int:
    """Returns how many numbers the last block [1, bytes] holds."""
    return _LAYOUTS[taken.name].count(last)


def unpack(taken: Codec, body: Vector, scales: Vector, numbers: Vector) -> None:
    """Fills numbers [b, r] from bytes [b, bytes of one] and scales [b]."""
    _LAYOUTS[taken.name].load(body, numbers)
    numbers *= scales[:, None]


class _Layout(NamedTuple):
    """How whole numbers lie in the bytes of a block."""

    store: Callable[[Vector, Vector], None]
    """Fills bytes [b, bytes of one] from whole numbers [b, r]."""
    load: Callable[[Vector, Vector], None]
    """Fills numbers [b, r] from bytes [b, bytes of one]."""
    count: Callable[[Vector], int]
    """Returns how many numbers a block [1, bytes] holds."""


def _store_bytes(work: Vector, body: Vector) -> None:
    np.copyto(body.view(np.int8), work, casting="unsafe")


def _load_bytes(body: Vector, numbers: Vector) -> None:
    np.copyto(numbers, body.view(np.int8))


def _store_halves(work: Vector, body: Vector) -> None:
    half, small = body.shape[1], work.astype(np.int8).view(np.uint8)  # [b, r]
    np.bitwise_and(small[:, :half], 15, out=body)
    upper = np.full_like(body, _PAD << 4) if small.shape[1] < 2 * half else np.empty_like(body)
    np.left_shift(small[:, half:], 4, out=upper[:, : small.shape[1] - half])
    body |= upper


def _load_halves(body: Vector, numbers: Vector) -> None:
    half, small = body.shape[1], np.empty(numbers.shape, np.int8)
    low = small[:, :half]
    np.left_shift(body.view(np.int8), 4, out=low)
    low >>= 4
    np.right_shift(body.view(np.int8)[:, : numbers.shape[1] - half], 4, out=small[:, half:])
    np.copyto(numbers, small)


_LAYOUTS = {
    "int8": _Layout(_store_bytes, _load_bytes, lambda last: last.size),
    "int4": _Layout(
        _store_halves,
        _load_halves,
        lambda last: 2 * last.size - (int(last[0, -1]) >> 4 == _PAD),
    ),
}
"""Of the codecs with levels."""
