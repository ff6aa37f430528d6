"""The wire format: one `Frame`, its bytes and its decoder; no input or output.

A frame is an identity (which kind, of which run, under which lease, with which number), a header of
plain values, and arrays by name. The protocol defines the fields of the header.

A frame travels as *pieces*, each with a short header (magic, version, part k of m, length,
checksum). Piece 0 is the head: the identity as fixed numbers, the header as JSON, and the type,
size and name of each array. The pieces after it are the arrays' own bytes, at most `PIECE_BYTES` at
a time, so that a vector of any length passes without a copy and is delivered whole or not at all.

The checksum finds accidents (a torn buffer, a bad cable): the CRC-32 of the header and the piece,
each whole 4 KiB of it as the sum of its 32-bit words, which takes a ninth of the time. Integrity
against attackers is TLS's work, and so on a TLS link the payload needs no second one.
All numbers are little-endian. No code travels, and every size is checked before memory is taken.
"""

from __future__ import annotations

import json
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
    "here", "meet", "ready", "part", "whole", "missing", "page", "norm",
)
# fmt: on
DTYPES = ("f4", "f8", "u1", "u2", "i8")
PIECE_BYTES = 4 << 20
MAX_HEADER_BYTES = 64 << 10
MAX_ARRAYS = 16
MAX_NAME_BYTES = 255

_ITEM_BYTES = tuple(np.dtype(name).itemsize for name in DTYPES)
_MAGIC, _VERSION = b"PHOT", 2
# magic, version, 1 if checked, part, parts, length of the body; then the checksum of both
_PIECE = struct.Struct("<4sBBIII")
_CHECKSUM, _BLOCK_BYTES = struct.Struct("<I"), 4 << 10
_HEADER_BYTES = _PIECE.size + _CHECKSUM.size
_ENCODER = json.JSONEncoder(separators=(",", ":"))
# kind, run, term, phase, slot, lease, sequence, length of the header, arrays
_HEAD = struct.Struct("<B16s5qIB")
# type, numbers, length of the name; then the name
_ARRAY = struct.Struct("<BQB")
_MAX_HEAD_BYTES = _HEAD.size + MAX_HEADER_BYTES + MAX_ARRAYS * (_ARRAY.size + MAX_NAME_BYTES)
_MAX_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The unit that passes over a link.

    Example:
        >>> frame = Frame("push", b"r" * 16, slot=1, arrays={"vector": np.arange(3, dtype="f4")})
        >>> [twin] = Decoder().feed(b"".join(encode_frame(frame)))
        >>> twin.kind, twin.slot, twin.arrays["vector"].tolist()
        ('push', 1, [0.0, 1.0, 2.0])
    """

    kind: str
    """One of `KINDS`."""
    run: bytes = bytes(16)
    """The run's 16 bytes: a frame of another run is ignored."""
    term: int = 0
    phase: int = 0
    slot: int = 0
    lease: int = 0
    sequence: int = 0
    header: Mapping[str, Any] = field(default_factory=dict)
    """Small plain values; NaN and infinity are allowed (a loss that diverged)."""
    arrays: Mapping[str, Vector] = field(default_factory=dict)
    """Up to 16 vectors [n] of `DTYPES`; not to be written to until they are sent."""

    @property
    def size_bytes(self) -> int:
        """Of all its arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def encode_frame(
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
    vectors = [_little_endian(array) for array in frame.arrays.values()]
    head = _encode_head(frame, vectors)
    payload = [
        view[start : start + piece_bytes]
        for view in (v.view(np.uint8).data for v in vectors if v.size)
        for start in range(0, len(view), piece_bytes)
    ]
    parts = 1 + len(payload)
    pieces: list[bytes | memoryview] = [_piece_header(0, parts, head, is_checked=True) + head]
    for part, view in enumerate(payload, 1):
        pieces += (_piece_header(part, parts, view, is_checked=checksums), view)
    return pieces


def _piece_header(part: int, parts: int, body: bytes | memoryview, *, is_checked: bool) -> bytes:
    if parts >= 1 << 32 or len(body) >= 1 << 32:
        raise FrameError("a frame has too many pieces or too long ones", got=f"{parts} pieces")
    header = _PIECE.pack(_MAGIC, _VERSION, is_checked, part, parts, len(body))
    checksum = zlib.crc32(header)
    return header + _CHECKSUM.pack(_checksum(body, checksum) if is_checked else checksum)


def _checksum(body: bytes | memoryview, crc: int) -> int:
    end = len(body) - len(body) % _BLOCK_BYTES
    if end:
        words = np.frombuffer(body, "<u4", end // 4).reshape(-1, _BLOCK_BYTES // 4)
        crc = zlib.crc32(words.sum(1, "<u4").data, crc)
    return zlib.crc32(memoryview(body)[end:], crc)


def _little_endian(array: Vector) -> Vector:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.str[1:] not in DTYPES:
        got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array)
        raise FrameError(f"an array of a frame must be a vector of {', '.join(DTYPES)}", got=got)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _encode_head(frame: Frame, vectors: list[Vector]) -> bytes:
    _check_frame(frame)
    try:
        header = _ENCODER.encode(dict(frame.header)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError("the header of a frame must be plain JSON values", got=error) from error
    if len(header) > MAX_HEADER_BYTES:
        wrong = f"the header of a frame takes at most {MAX_HEADER_BYTES} bytes"
        raise FrameError(wrong, got=len(header))
    fixed = _HEAD.pack(
        KINDS.index(frame.kind), frame.run, *_numbers(frame), len(header), len(vectors)
    )
    table = []
    for name, vector in zip(frame.arrays, vectors, strict=True):
        encoded_name = name.encode()
        if len(encoded_name) > MAX_NAME_BYTES:
            raise FrameError(f"a name takes at most {MAX_NAME_BYTES} bytes", got=len(encoded_name))
        table += [
            _ARRAY.pack(DTYPES.index(vector.dtype.str[1:]), vector.size, len(encoded_name)),
            encoded_name,
        ]
    return b"".join((fixed, header, *table))


def _numbers(frame: Frame) -> tuple[int, ...]:
    return frame.term, frame.phase, frame.slot, frame.lease, frame.sequence


def _check_frame(frame: Frame) -> None:
    """Refuses a frame with a field out of its limits, on both sides of the wire."""
    wrong = ""
    if frame.kind not in KINDS:
        wrong = f"kind must be one of {', '.join(KINDS)}"
    elif not isinstance(frame.run, bytes) or len(frame.run) != 16:
        wrong = "run must be 16 bytes"
    elif not all(
        isinstance(n, (int, np.integer)) and -1 <= n < _MAX_NUMBER for n in _numbers(frame)
    ):
        wrong = "whole numbers must be from -1 to 2^63"
    elif len(frame.arrays) > MAX_ARRAYS:
        wrong = f"arrays must be at most {MAX_ARRAYS}"
    if wrong:
        names = ("kind", "term", "phase", "slot", "lease", "sequence")
        got = ", ".join(f"{name} {getattr(frame, name)!r}" for name in names)
        raise FrameError(f"a frame's {wrong}", got=got[:400])


class Decoder:
    """Turns bytes, however they are cut, back into frames.

    A reader with a big payload ahead fills `payload_target()` itself and then calls
    `payload_received(n)`: the bytes pass from the socket straight into the array.

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
        self._error_text = ""
        self._frames: list[Frame] = []
        self._part, self._parts, self._checksum, self._expected_checksum = 0, 0, 0, 0
        self._is_checked = True
        self._frame: Frame | None = None
        self._unfilled_views: list[memoryview] = []
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
        if self._error_text:
            raise FrameError("nothing is read after a broken frame", got=self._error_text)
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
        return self._take_frames()

    @property
    def is_broken(self) -> bool:
        """Returns whether bad bytes arrived: then `feed` raises."""
        return bool(self._error_text)

    @property
    def arriving(self) -> Frame | None:
        """The head of the frame whose arrays are arriving; they must not be read yet."""
        return self._frame

    def payload_target(self) -> memoryview | None:
        """Returns the part of an array that the next bytes belong to, or None outside of one."""
        return self._target if self._in_payload else None

    def payload_received(self, n: int) -> list[Frame]:
        """Takes in the first `n` bytes of `payload_target()`, now filled; returns frames as `feed`.

        Raises:
            FrameError: a checksum does not hold.
        """
        self._advance(n)
        return self._take_frames()

    @property
    def _in_payload(self) -> bool:
        return self._body is not None and self._frame is not None

    def _take_frames(self) -> list[Frame]:
        frames, self._frames = self._frames, []
        return frames

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
            self._error_text, self._unfilled_views, self._frame = str(error), [], None
            raise

    def _await_header(self) -> None:
        self._body = None
        self._header = bytearray(_HEADER_BYTES)
        self._target = memoryview(self._header)

    def _open_piece(self) -> None:
        magic, version, checked, part, parts, length = _PIECE.unpack_from(self._header)
        (self._expected_checksum,) = _CHECKSUM.unpack_from(self._header, _PIECE.size)
        if magic != _MAGIC or checked > 1:
            got = f"{magic!r} version {version}"
            raise FrameError("these bytes are no frame of ours", got=got)
        if version != _VERSION:
            wrong = f"this side speaks version {_VERSION} of the wire format"
            do = "check that driver and workers have one version of photinus"
            raise FrameError(wrong, got=f"a frame of version {version}", do=do)
        is_head = self._frame is None
        expected = parts if is_head else self._parts
        if part != self._part or part >= parts or parts != expected:
            raise FrameError("pieces out of order", got=f"{part} of {parts} for {self._part}")
        least, most = (
            (_HEAD.size, _MAX_HEAD_BYTES) if is_head else (1, len(self._unfilled_views[0]))
        )
        if not least <= length <= (most := min(most, self._max_frame_bytes)):
            raise FrameError(f"a piece must hold {least} to {most} bytes", got=length)
        self._is_checked = checked == 1
        if not self._is_checked and (self._checksums or is_head):
            raise FrameError("a piece without a checksum is not taken on this link")
        self._parts = parts
        self._checksum = zlib.crc32(memoryview(self._header)[: _PIECE.size])
        body = memoryview(bytearray(length)) if is_head else self._unfilled_views[0][:length]
        self._body = self._target = body

    def _close_piece(self, body: memoryview) -> None:
        checksum = _checksum(body, self._checksum) if self._is_checked else self._checksum
        if checksum != self._expected_checksum:
            raise FrameError("the checksum does not hold", got=f"{checksum:08x}")
        if self._frame is None:
            self._read_head(body)
        elif len(body) == len(self._unfilled_views[0]):
            del self._unfilled_views[0]
        else:
            self._unfilled_views[0] = self._unfilled_views[0][len(body) :]
        self._part += 1
        self._await_header()
        if bool(self._unfilled_views) != (self._part < self._parts):
            raise FrameError("the pieces do not add up to the arrays", got=f"{self._parts} pieces")
        if not self._unfilled_views and self._frame is not None:
            self._frames.append(self._frame)
            self._frame, self._part, self._parts = None, 0, 0

    def _read_head(self, body: memoryview) -> None:
        kind, run, *numbers, length, count = _HEAD.unpack_from(body)
        table = _HEAD.size + length
        if kind >= len(KINDS) or count > MAX_ARRAYS or table > len(body):
            raise FrameError("the parts of a frame's head do not agree", got=f"{len(body)} bytes")
        header = _read_header(bytes(body[_HEAD.size : table]))
        array_types = _read_table(bytes(body[table:]), count)
        _check_sizes(array_types, self._max_vector_bytes)
        term, phase, slot, lease, sequence = numbers
        arrays = _allocate(array_types)
        frame = Frame(KINDS[kind], run, term, phase, slot, lease, sequence, header, arrays)
        _check_frame(frame)
        self._frame = frame
        self._unfilled_views = [a.view(np.uint8).data for a in frame.arrays.values() if a.size]


def _read_header(text: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(text.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError) as error:
        raise FrameError("the header of a frame is no JSON", got=type(error).__name__) from error
    if not isinstance(header, dict):
        raise FrameError("the header of a frame must be a JSON object", got=type(header).__name__)
    return header


def _read_table(table: bytes, count: int) -> dict[str, tuple[int, int]]:
    """Returns the type and the size of each array by its name."""
    array_types: dict[str, tuple[int, int]] = {}
    offset = 0
    for _ in range(count):
        try:
            dtype, size, length = _ARRAY.unpack_from(table, offset)
            offset += _ARRAY.size + length
            array_types[table[offset - length : offset].decode()] = dtype, size
        except (struct.error, ValueError) as error:
            raise FrameError("the arrays of a frame have no names", got=error) from error
    if offset != len(table) or len(array_types) != count:
        got = f"{len(table)} bytes, {len(array_types)} names of {count}"
        raise FrameError("the parts of a frame's head do not agree", got=got)
    return array_types


def _check_sizes(array_types: Mapping[str, tuple[int, int]], max_vector_bytes: int) -> None:
    if any(dtype >= len(DTYPES) for dtype, _ in array_types.values()):
        raise FrameError("an array of a frame has an unknown type", got=dict(array_types))
    total = sum(size * _ITEM_BYTES[dtype] for dtype, size in array_types.values())
    if total > max_vector_bytes:
        raise FrameError(f"arrays hold at most {max_vector_bytes} bytes", got=total)


def _allocate(array_types: Mapping[str, tuple[int, int]]) -> dict[str, Vector]:
    try:
        return {
            name: np.empty(size, "<" + DTYPES[dtype]) for name, (dtype, size) in array_types.items()
        }
    except MemoryError as error:
        raise FrameError("no memory for the arrays of a frame", got=error) from error
