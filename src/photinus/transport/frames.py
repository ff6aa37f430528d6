"""The wire format: one `Frame`, its bytes and its decoder; no input or output.

A frame travels as *pieces*, each with a short header (magic, version, part k of m, length,
checksum). Piece 0 is the head: every number of the frame, the note as JSON, and the type and size
of each array. The pieces after it are the arrays' own bytes, at most `PIECE_BYTES` at a time, so
that a vector of any length passes without a copy and is delivered whole or not at all.

The checksum finds accidents (a torn buffer, a bad cable): the CRC-32 of the header and the piece,
each whole 4 KiB of it as the sum of its 32-bit words, which takes a ninth of the time. Integrity
against attackers is TLS's work, and so on a TLS link the payload needs no second one.
All numbers are little-endian. No code travels, and every size is checked before memory is taken.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from photinus.core.errors import FrameError
from photinus.core.parameters import Vector

# fmt: off
KINDS = (
    "hello", "grant", "busy", "done", "beat", "ack", "push", "agreed", "heal", "fetch",
    "close", "closed", "state", "fenced", "refused", "stop", "bye", "publish", "note",
    "here", "meet", "ready", "part", "whole", "missing", "page",
)
# fmt: on
CODEC_IDS = ("fp32", "bf16", "int8", "int4")
"""A codec travels as its place here; `strategies.codecs` holds what each does."""
DTYPES = ("f4", "f8", "u1", "u2", "i8")
PIECE_BYTES = 4 << 20
MAX_NOTE_BYTES = 64 << 10
MAX_ARRAYS = 16

_MAGIC, _VERSION = b"PHOT", 1
# magic, version, 1 if checked, part, parts, length of the body; then the checksum of both
_PIECE = struct.Struct("<4sBBIII")
_CHECKSUM, _BLOCK_BYTES = struct.Struct("<I"), 4 << 10
_HEADER_BYTES = _PIECE.size + _CHECKSUM.size
# kind, codec, run, the eleven whole numbers, epochs, seconds, length of the note, arrays
_HEAD = struct.Struct("<BB16s11qddIB")
_ARRAY = struct.Struct("<BQ")
_MAX_HEAD_BYTES = _HEAD.size + MAX_NOTE_BYTES + MAX_ARRAYS * _ARRAY.size
_WHOLE = ("term", "phase", "slot", "lease", "sequence", "version", "steps", "examples", "position")
_MOST = 1 << 63


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The one thing that passes over a link.

    Example:
        >>> frame = Frame("push", b"r" * 16, slot=1, arrays=(np.arange(3, dtype="f4"),))
        >>> [twin] = Decoder().feed(b"".join(encode(frame)))
        >>> twin.kind, twin.slot, twin.arrays[0].tolist()
        ('push', 1, [0.0, 1.0, 2.0])
    """

    kind: str
    """One of `KINDS`."""
    run: bytes = bytes(16)
    """The run's 16 bytes: a frame of another run is never heard."""
    term: int = 0
    phase: int = 0
    slot: int = 0
    lease: int = 0
    sequence: int = 0
    version: int = 0
    """Of the agreed parameters that this frame builds on, or carries."""
    fragment: tuple[int, int] = (0, 0)
    """Start and stop within the vector; (0, 0) is all of it."""
    steps: int = 0
    examples: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    position: int = 0
    """What the feed has handed out so far, in examples."""
    codec: str = "fp32"
    """One of `CODEC_IDS`: how `arrays` are to be read."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """Small plain values; NaN and infinity may stand in it (a loss that diverged)."""
    arrays: tuple[Vector, ...] = ()
    """Up to 16 vectors [n] of `DTYPES`; not to be written to until they are sent."""


def encode(
    frame: Frame, *, piece_bytes: int = PIECE_BYTES, checksums: bool = True
) -> list[bytes | memoryview]:
    """Returns a frame's bytes: headers, and views of the arrays themselves (no copy).

    Args:
        frame: what to send.
        piece_bytes: the most payload in one piece, at least 1.
        checksums: whether the payload carries checksums too (the head always does).

    Raises:
        FrameError: a field is out of its limits.
    """
    vectors = [_little(array) for array in frame.arrays]
    head = _head(frame, vectors)
    payload = [
        view[start : start + piece_bytes]
        for view in (v.view(np.uint8).data for v in vectors if v.size)
        for start in range(0, len(view), piece_bytes)
    ]
    parts = 1 + len(payload)
    pieces: list[bytes | memoryview] = [_header(0, parts, head, is_checked=True) + head]
    for part, view in enumerate(payload, 1):
        pieces += (_header(part, parts, view, is_checked=checksums), view)
    return pieces


def _header(part: int, parts: int, body: bytes | memoryview, *, is_checked: bool) -> bytes:
    if parts >= 1 << 32 or len(body) >= 1 << 32:
        raise FrameError("a frame has too many pieces or too long ones", got=f"{parts} pieces")
    header = _PIECE.pack(_MAGIC, _VERSION, is_checked, part, parts, len(body))
    checksum = zlib.crc32(header)
    return header + _CHECKSUM.pack(_checksum(body, checksum) if is_checked else checksum)


def _checksum(body: bytes | memoryview, start: int) -> int:
    end = len(body) - len(body) % _BLOCK_BYTES
    if end:
        words = np.frombuffer(body, "<u4", end // 4).reshape(-1, _BLOCK_BYTES // 4)
        start = zlib.crc32(words.sum(1, "<u4").data, start)
    return zlib.crc32(memoryview(body)[end:], start)


def _little(array: Vector) -> Vector:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.str[1:] not in DTYPES:
        got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array)
        raise FrameError(f"an array of a frame must be a vector of {', '.join(DTYPES)}", got=got)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _head(frame: Frame, vectors: list[Vector]) -> bytes:
    _check(frame)
    try:
        note = json.dumps(dict(frame.note), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError("the note of a frame must be plain JSON values", got=error) from error
    if len(note) > MAX_NOTE_BYTES:
        raise FrameError(f"a note takes at most {MAX_NOTE_BYTES} bytes", got=len(note))
    fixed = _HEAD.pack(
        KINDS.index(frame.kind),
        CODEC_IDS.index(frame.codec),
        frame.run,
        *(getattr(frame, name) for name in _WHOLE),
        *frame.fragment,
        frame.epochs,
        frame.seconds,
        len(note),
        len(vectors),
    )
    table = (_ARRAY.pack(DTYPES.index(v.dtype.str[1:]), v.size) for v in vectors)
    return fixed + note + b"".join(table)


def _check(frame: Frame) -> None:
    """Refuses a frame with a field out of its limits, on both sides of the wire."""
    limits = {
        f"kind must be one of {', '.join(KINDS)}": frame.kind in KINDS,
        f"codec must be one of {', '.join(CODEC_IDS)}": frame.codec in CODEC_IDS,
        "run must be 16 bytes": isinstance(frame.run, bytes) and len(frame.run) == 16,
        "whole numbers must be from -1 to 2^63": all(
            _is_whole(getattr(frame, name)) for name in _WHOLE
        ),
        "fragment must be start <= stop": len(frame.fragment) == 2
        and all(_is_whole(n) for n in frame.fragment)
        and 0 <= frame.fragment[0] <= frame.fragment[1],
        "epochs and seconds must be finite and not negative": all(
            isinstance(n, (int, float, np.floating)) and math.isfinite(n) and n >= 0
            for n in (frame.epochs, frame.seconds)
        ),
        f"arrays must be at most {MAX_ARRAYS}": len(frame.arrays) <= MAX_ARRAYS,
    }
    for limit, holds in limits.items():
        if not holds:
            raise FrameError(f"a frame's {limit}", got=_summary(frame))


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and -1 <= int(value) < _MOST


def _summary(frame: Frame) -> str:
    names = ("kind", "codec", *_WHOLE, "fragment", "epochs", "seconds")
    return ", ".join(f"{name} {getattr(frame, name)!r}" for name in names)[:400]


class Decoder:
    """Turns bytes, however they are cut, back into frames.

    A reader with a big payload ahead fills `wanted()` itself and says so with `filled(n)`: the
    bytes then go from the socket straight into the array.

    Args:
        max_frame_bytes: the most one piece may hold.
        max_vector_bytes: the most all arrays of one frame may hold together.
        checksums: whether a payload without a checksum is refused.
    """

    def __init__(
        self,
        max_frame_bytes: int = 2 * PIECE_BYTES,
        max_vector_bytes: int = 4 << 30,
        *,
        checksums: bool = True,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_vector_bytes = max_vector_bytes
        self._checksums = checksums
        self._broken = ""
        self._frames: list[Frame] = []
        self._part, self._parts, self._checksum, self._stated = 0, 0, 0, 0
        self._is_checked = True
        self._frame: Frame | None = None
        self._left: list[memoryview] = []
        self._body: memoryview | None = None
        self._header = bytearray()
        self._target = memoryview(self._header)
        self._await_header()

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Takes any bytes and returns the frames that are now whole.

        Frames that were whole before bad bytes are returned first; the next call raises.

        Raises:
            FrameError: these bytes are no frame; the decoder takes no more after that.
        """
        if self._broken:
            raise FrameError("nothing is read after a broken frame", got=self._broken)
        view = memoryview(data)
        while len(view):
            n = min(len(view), len(self._target))
            self._target[:n] = view[:n]
            view = view[n:]
            try:
                self._advance(n)
            except FrameError:
                if not self._frames:
                    raise
                break
        return self._taken()

    @property
    def is_broken(self) -> bool:
        """Tells whether bad bytes came: then `feed` raises."""
        return bool(self._broken)

    @property
    def arriving(self) -> Frame | None:
        """The head of the frame whose arrays come in now; they are not to be read yet."""
        return self._frame

    def wanted(self) -> memoryview | None:
        """Returns the part of an array that the next bytes belong to, or None outside of one."""
        return self._target if self._in_payload else None

    def filled(self, n: int) -> list[Frame]:
        """Says that the first `n` bytes of `wanted()` are there; returns frames like `feed`.

        Raises:
            FrameError: a checksum does not hold.
        """
        self._advance(n)
        return self._taken()

    @property
    def _in_payload(self) -> bool:
        return self._body is not None and self._frame is not None

    def _taken(self) -> list[Frame]:
        taken, self._frames = self._frames, []
        return taken

    def _advance(self, n: int) -> None:
        self._target = self._target[n:]
        if len(self._target):
            return
        try:
            if self._body is None:
                self._open_piece()
            else:
                self._close_piece(self._body)
        except FrameError as error:
            self._broken, self._left, self._frame = str(error), [], None
            raise

    def _await_header(self) -> None:
        self._body = None
        self._header = bytearray(_HEADER_BYTES)
        self._target = memoryview(self._header)

    def _open_piece(self) -> None:
        magic, version, checked, part, parts, length = _PIECE.unpack_from(self._header)
        (self._stated,) = _CHECKSUM.unpack_from(self._header, _PIECE.size)
        if magic != _MAGIC or version != _VERSION or checked > 1:
            got = f"{magic!r} version {version}"
            raise FrameError("these bytes are no frame of ours", got=got, do="check both versions")
        is_head = self._frame is None
        expected = parts if is_head else self._parts
        if part != self._part or part >= parts or parts != expected:
            raise FrameError("pieces out of order", got=f"{part} of {parts} for {self._part}")
        least, most = (_HEAD.size, _MAX_HEAD_BYTES) if is_head else (1, len(self._left[0]))
        if not least <= length <= (most := min(most, self._max_frame_bytes)):
            raise FrameError(f"a piece must hold {least} to {most} bytes", got=length)
        self._is_checked = checked == 1
        if not self._is_checked and (self._checksums or is_head):
            raise FrameError("a piece without a checksum is not taken on this link")
        self._parts = parts
        self._checksum = zlib.crc32(memoryview(self._header)[: _PIECE.size])
        body = memoryview(bytearray(length)) if is_head else self._left[0][:length]
        self._body = self._target = body

    def _close_piece(self, body: memoryview) -> None:
        checksum = _checksum(body, self._checksum) if self._is_checked else self._checksum
        if checksum != self._stated:
            raise FrameError("the checksum does not hold", got=f"{checksum:08x}")
        if self._frame is None:
            self._read_head(body)
        elif len(body) == len(self._left[0]):
            del self._left[0]
        else:
            self._left[0] = self._left[0][len(body) :]
        self._part += 1
        self._await_header()
        if bool(self._left) != (self._part < self._parts):
            raise FrameError("the pieces do not add up to the arrays", got=f"{self._parts} pieces")
        if not self._left and self._frame is not None:
            self._frames.append(self._frame)
            self._frame, self._part, self._parts = None, 0, 0

    def _read_head(self, body: memoryview) -> None:
        kind, codec, run, *numbers, note_bytes, count = _HEAD.unpack_from(body)
        whole, fragment, floats = numbers[:9], numbers[9:11], numbers[11:]
        if (
            kind >= len(KINDS)
            or codec >= len(CODEC_IDS)
            or count > MAX_ARRAYS
            or len(body) != _HEAD.size + note_bytes + count * _ARRAY.size
        ):
            raise FrameError("the head of a frame does not hold together", got=f"{len(body)} bytes")
        note = _read_note(bytes(body[_HEAD.size : _HEAD.size + note_bytes]))
        table = list(_ARRAY.iter_unpack(body[_HEAD.size + note_bytes :]))
        _check_table(table, self._max_vector_bytes)
        frame = Frame(
            KINDS[kind],
            run,
            **dict(zip(_WHOLE, whole, strict=True)),
            fragment=(fragment[0], fragment[1]),
            epochs=floats[0],
            seconds=floats[1],
            codec=CODEC_IDS[codec],
            note=note,
            arrays=_room(table),
        )
        _check(frame)
        self._frame = frame
        self._left = [a.view(np.uint8).data for a in frame.arrays if a.size]


def _read_note(text: bytes) -> Mapping[str, Any]:
    try:
        note = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("the note of a frame is no JSON", got=type(error).__name__) from error
    if not isinstance(note, dict):
        raise FrameError("the note of a frame must be a JSON object", got=type(note).__name__)
    return note


def _room(table: list[tuple[int, int]]) -> tuple[Vector, ...]:
    try:
        return tuple(np.empty(size, "<" + DTYPES[dtype]) for dtype, size in table)
    except MemoryError as error:
        raise FrameError("no memory for the arrays of a frame", got=error) from error


def _check_table(table: list[tuple[int, int]], max_vector_bytes: int) -> None:
    if any(dtype >= len(DTYPES) for dtype, _ in table):
        raise FrameError("an array of a frame has an unknown type", got=[d for d, _ in table])
    total = sum(size * np.dtype(DTYPES[dtype]).itemsize for dtype, size in table)
    if total > max_vector_bytes:
        raise FrameError(f"arrays hold at most {max_vector_bytes} bytes", got=total)
