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
_BLOCKS_AT_ONCE = 128
"""How many blocks are worked on at a time: they stay in the processor's cache."""
_SMALLEST_SCALE = np.float32(2.0**-110)
_LARGEST = np.float32(3.402e38)
"""A scale for more would be decoded to infinity."""
_EXPONENT_BITS, _CHUNK = 0x7F80, 1 << 20
"""Of bf16: what is not finite has all of these bits set. So many numbers are read at a time."""
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
    codec_ = codec(name)
    scales = 4 * -(-count // BLOCK) if codec_.levels else 0
    return scales + -(-count * codec_.bits // 8)


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
    return _encode_bf16(vector) if name == "bf16" else _encode_blocks(codec(name), vector)


def decode(name: str, encoded: Vector) -> Vector:
    """The inverse of `encode`: returns float [n].

    Raises:
        FrameError: these bytes are no vector of that codec.
    """
    if name == "fp32":
        return encoded
    if name == "bf16":
        numbers: Vector = np.left_shift(encoded, 16, dtype=np.uint32).view(np.float32)
        return numbers
    return _decode_blocks(codec(name), encoded, 0, numbers_in(name, encoded))


def numbers_in(name: str, encoded: Vector) -> int:
    """Returns how many numbers a vector holds as the codec sends it; nothing is decoded.

    Raises:
        FrameError: these bytes are no vector of that codec.

    Example:
        >>> numbers_in("int8", encode("int8", np.zeros(2500, np.float32)))
        2500
    """
    codec_ = codec(name)
    if not codec_.levels or not encoded.size:
        return encoded.size
    whole_blocks, _, tail_at = _block_offsets(codec_, encoded)
    return whole_blocks * BLOCK + _last_block_size(codec_, encoded[None, tail_at:])


def is_sound(name: str, encoded: Vector) -> bool:
    """Returns whether all numbers would be finite, were they decoded; they are not.

    Raises:
        FrameError: these bytes are no vector of that codec.

    Example:
        >>> [is_sound(name, encode(name, np.array([1.0, np.inf], "f4"))) for name in CODECS]
        [False, False, False, False]
    """
    codec_ = codec(name)
    if codec_.name == "fp32" or not encoded.size:
        return is_finite(encoded)
    if codec_.levels:
        _, body_at, _ = _block_offsets(codec_, encoded)
        scales = np.ascontiguousarray(encoded[:body_at]).view(np.float32)
        return bool((np.abs(scales) <= _LARGEST / np.float32(codec_.levels)).all())
    chunks = (encoded[start : start + _CHUNK] for start in range(0, encoded.size, _CHUNK))
    return all(int((chunk & _EXPONENT_BITS).max()) < _EXPONENT_BITS for chunk in chunks)


class Decoded:
    """A vector as it travels, of which any part is decoded when it is read: it never stands whole.

    Args:
        name: of the codec.
        encoded: as `encode` made it.
        dtype: of the numbers that are read.

    Example:
        >>> encoded = encode("bf16", np.arange(4, dtype=np.float32))
        >>> Decoded("bf16", encoded, np.dtype("f4"))[2:4].tolist()
        [2.0, 3.0]
    """

    def __init__(self, name: str, encoded: Vector, dtype: np.dtype[Any]) -> None:
        self._codec, self._encoded, self.dtype = codec(name), encoded, dtype
        self._size = numbers_in(name, encoded)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: slice) -> Vector:
        """Returns numbers [stop − start]; `start` is a multiple of `BLOCK`."""
        start, stop, _ = index.indices(self._size)
        codec = self._codec
        numbers = (
            _decode_blocks(codec, self._encoded, start, stop)
            if codec.levels
            else decode(codec.name, self._encoded[start:stop])
        )
        return numbers.astype(self.dtype, copy=False)


def residual(name: str, vector: Vector, encoded: Vector) -> Vector:
    """Returns what a codec left out: vector − decode(encoded) [n].

    Error feedback adds it to the next delta: e ← e + Δ; send Q(e); e ← e − Q(e) (1-bit SGD:
    Seide et al., 2014).
    """
    error: Vector = vector - decode(name, encoded)
    return error


def _encode_bf16(vector: Vector) -> Vector:
    import torch  # here, so that planning and simulating need no torch

    bfloats = torch.from_numpy(np.ascontiguousarray(vector)).to(torch.bfloat16)
    encoded: Vector = bfloats.view(torch.uint16).numpy()
    return encoded


def _encode_blocks(codec: Codec, vector: Vector) -> Vector:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is seen
        numbers = np.ascontiguousarray(vector, np.float32)
    count = numbers.size
    whole_size = count - count % BLOCK
    scratch = np.empty((_BLOCKS_AT_ONCE, BLOCK), np.float32)
    encoded = np.empty(size_bytes(codec.name, count), np.uint8)
    body_at = 4 * -(-count // BLOCK)
    scales, tail_at = encoded[:body_at].view(np.float32), body_at + whole_size * codec.bits // 8
    if whole_size:
        body = encoded[body_at:tail_at].reshape(whole_size // BLOCK, -1)  # [blocks, bytes of one]
        blocks = numbers[:whole_size].reshape(-1, BLOCK)
        for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
            rows = slice(start, min(start + _BLOCKS_AT_ONCE, len(blocks)))
            chunk = blocks[rows]
            pack(codec, chunk, scales[rows], body[rows], scratch[: len(chunk)])
    if whole_size < count:
        tail = numbers[None, whole_size:]
        pack(codec, tail, scales[-1:], encoded[None, tail_at:], scratch[:1, : count - whole_size])
    return encoded


def pack(codec: Codec, numbers: Vector, scales: Vector, body: Vector, scratch: Vector) -> None:
    """Fills scales [b] and bytes [b, bytes of one] from numbers [b, r]; needs scratch [b, r]."""
    largest = np.abs(numbers, out=scratch).max(1)
    with np.errstate(invalid="ignore", divide="ignore"):  # NaN goes into the scale, as promised
        np.divide(largest, np.float32(codec.levels), out=scales)
        scales[scales < _SMALLEST_SCALE] = 0
        scales[~np.isfinite(scales)] = np.nan
        np.minimum(scales, _LARGEST / np.float32(codec.levels), out=scales)
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
        np.multiply(numbers, inverse[:, None], out=scratch)
    if not np.isfinite(scales).all():
        np.nan_to_num(scratch, copy=False, nan=0, posinf=0, neginf=0)
    np.rint(scratch, out=scratch)
    _LAYOUTS[codec.name].store(scratch, body)


def _decode_blocks(codec: Codec, encoded: Vector, start: int, stop: int) -> Vector:
    """Returns numbers [stop − start]; `start` is a multiple of `BLOCK`."""
    numbers = np.empty(stop - start, np.float32)
    if not numbers.size:
        return numbers
    whole_blocks, body_at, tail_at = _block_offsets(codec, encoded)
    scales = np.ascontiguousarray(encoded[:body_at]).view(np.float32)
    body = encoded[body_at:tail_at].reshape(whole_blocks, BLOCK * codec.bits // 8)
    first, last = start // BLOCK, min(-(-stop // BLOCK), whole_blocks)
    whole, tail = np.split(numbers, [(last - first) * BLOCK])
    blocks = whole.reshape(-1, BLOCK)
    for at in range(0, len(blocks), _BLOCKS_AT_ONCE):
        chunk = blocks[at : at + _BLOCKS_AT_ONCE]
        rows = slice(first + at, first + at + len(chunk))
        unpack(codec, body[rows], scales[rows], chunk)
    if tail.size:
        unpack(codec, encoded[None, tail_at:], scales[-1:], tail[None])
    return numbers


def _block_offsets(codec: Codec, encoded: Vector) -> tuple[int, int, int]:
    """Returns the count of whole blocks, and where the first of them and the last block begin."""
    block_bytes = BLOCK * codec.bits // 8
    whole_blocks = (encoded.size - 1) // (4 + block_bytes)  # the last block may be short
    body_at, tail_at = 4 * (whole_blocks + 1), 4 * (whole_blocks + 1) + whole_blocks * block_bytes
    if encoded.dtype != np.uint8 or tail_at >= encoded.size:
        raise FrameError(f"these are no numbers of codec {codec.name}", got=f"{encoded.size} bytes")
    return whole_blocks, body_at, tail_at


def _last_block_size(codec: Codec, tail: Vector) -> int:
    """Returns how many numbers the last block [1, bytes] holds."""
    return _LAYOUTS[codec.name].count(tail)


def unpack(codec: Codec, body: Vector, scales: Vector, numbers: Vector) -> None:
    """Fills numbers [b, r] from bytes [b, bytes of one] and scales [b]."""
    _LAYOUTS[codec.name].load(body, numbers)
    numbers *= scales[:, None]


class _Layout(NamedTuple):
    """How whole numbers lie in the bytes of a block."""

    store: Callable[[Vector, Vector], None]
    """Fills bytes [b, bytes of one] from whole numbers [b, r]."""
    load: Callable[[Vector, Vector], None]
    """Fills numbers [b, r] from bytes [b, bytes of one]."""
    count: Callable[[Vector], int]
    """Returns how many numbers a block [1, bytes] holds."""


def _store_bytes(integers: Vector, body: Vector) -> None:
    np.copyto(body.view(np.int8), integers, casting="unsafe")


def _load_bytes(body: Vector, numbers: Vector) -> None:
    np.copyto(numbers, body.view(np.int8))


def _store_nibbles(integers: Vector, body: Vector) -> None:
    half, nibbles = body.shape[1], integers.astype(np.int8).view(np.uint8)  # [b, r]
    np.bitwise_and(nibbles[:, :half], 15, out=body)
    upper = np.full_like(body, _PAD << 4) if nibbles.shape[1] < 2 * half else np.empty_like(body)
    np.left_shift(nibbles[:, half:], 4, out=upper[:, : nibbles.shape[1] - half])
    body |= upper


def _load_nibbles(body: Vector, numbers: Vector) -> None:
    half, nibbles = body.shape[1], np.empty(numbers.shape, np.int8)
    low = nibbles[:, :half]
    np.left_shift(body.view(np.int8), 4, out=low)
    low >>= 4
    np.right_shift(body.view(np.int8)[:, : numbers.shape[1] - half], 4, out=nibbles[:, half:])
    np.copyto(numbers, nibbles)


_LAYOUTS = {
    "int8": _Layout(_store_bytes, _load_bytes, lambda last: last.size),
    "int4": _Layout(
        _store_nibbles,
        _load_nibbles,
        lambda last: 2 * last.size - (int(last[0, -1]) >> 4 == _PAD),
    ),
}
"""Of the codecs with levels."""
