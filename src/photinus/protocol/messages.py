"""Converts a strategy's messages to frames and back.

Every array of a frame is named in its note, so that both sides read the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.errors import FrameError
from photinus.core.parameters import Vector
from photinus.strategies.base import Message
from photinus.strategies.sparse import to_dense
from photinus.training.asks import Grant, News, Page, Snapshot
from photinus.transport.frames import Frame

Kinds = Mapping[str, tuple[str, tuple[int, ...]]]
"""Types and shapes of arrays by name."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Under which name a node speaks: run, term, phase, slot and lease."""

    run: bytes
    term: int = 0
    phase: int = 0
    slot: int = 0
    lease: int = 0

    def frame(self, kind: str, **fields: Any) -> Frame:  # noqa: ANN401 - the fields of Frame
        """Returns a frame that speaks for this seat."""
        return Frame(
            kind,
            run=self.run,
            term=self.term,
            phase=self.phase,
            slot=self.slot,
            lease=self.lease,
            **fields,
        )


def pack(
    frame: Frame,
    arrays: Mapping[str, Vector | None],
    note: Mapping[str, Any] | None = None,
    **fields: Any,  # noqa: ANN401 - the fields of Frame
) -> Frame:
    """Returns the frame with its arrays, each named in the note; None is left out."""
    kept = {name: array for name, array in arrays.items() if array is not None}
    told = {**frame.note, **(note or {}), "arrays": list(kept)}
    return replace(frame, arrays=tuple(kept.values()), note=told, **fields)


def named(frame: Frame) -> dict[str, Vector]:
    """Returns a frame's arrays by name.

    Raises:
        FrameError: names and arrays do not match.
    """
    names = frame.note.get("arrays", [])
    if not isinstance(names, list) or len(names) != len(frame.arrays):
        raise FrameError("the arrays of a frame do not match their names", got=names)
    return dict(zip(names, frame.arrays, strict=True))


def message_to(frame: Frame, message: Message, **note: Any) -> Frame:  # noqa: ANN401 - plain
    """Returns the frame with a message in it."""
    since = message.since
    arrays = {
        "vector": message.vector,
        "rows": message.rows,
        "kept": message.kept,
        "floats": message.floats,
        "integers": message.integers,
    }
    if message.fingerprint:
        note["fingerprint"] = message.fingerprint
    slots = {"slots": list(message.slots)} if message.slots else {}
    return pack(
        frame,
        arrays | {f"outer.{i}": o for i, o in enumerate(message.outer)},
        {**note, **slots},
        version=message.version,
        fragment=message.fragment,
        codec=message.codec,
        steps=since.steps,
        examples=since.examples,
        epochs=since.epochs,
        seconds=since.seconds,
    )


def message_of(frame: Frame, kind: str = "") -> Message:
    """Returns the message in a frame, its vector with all its zeros."""
    arrays = named(frame)
    message = Message(
        kind or frame.kind,
        arrays.get("vector"),
        frame.fragment,
        arrays.get("rows"),
        arrays.get("kept"),
        since=Clock(frame.steps, frame.examples, frame.epochs, frame.seconds),
        version=frame.version,
        codec=frame.codec,
        outer=_numbered(arrays, "outer"),
        floats=arrays.get("floats"),
        integers=arrays.get("integers"),
        fingerprint=str(frame.note.get("fingerprint", "")),
        slots=tuple(int(s) for s in frame.note.get("slots", ())),
    )
    return to_dense(message)


def is_sparse(frame: Frame) -> bool:
    """Tells whether zeros were left out of the vector in a frame."""
    return "kept" in frame.note.get("arrays", ())


def news_of(frames: Sequence[Frame], seconds: float) -> News:
    """Returns what answers mean for the loop; an `ack` tells only how far all are."""
    told = [f.note["progress"] for f in frames if "progress" in f.note]
    return News(
        seconds,
        tuple(message_of(frame) for frame in frames if frame.kind != "ack"),
        told[-1] if told else None,
        stop=any(frame.note.get("stop") for frame in frames),
        save=any(frame.note.get("save") for frame in frames),
        measure=any(frame.note.get("measure") for frame in frames),
    )


def grant_to(frame: Frame, grant: Grant) -> Frame:
    """Returns a grant frame: the seat's next phase, where it goes on, and from what."""
    inner = {f"inner.{name}": value for name, value in grant.inner.items()}
    filled = message_to(
        frame,
        grant.heal,
        budget=grant.budget,
        progress=grant.progress,
        rows=grant.rows,
        span=list(grant.span),
        tells=grant.tells,
        is_fresh=grant.is_fresh,
        is_idle=grant.is_idle,
        is_behind=grant.is_behind,
        shard=_plain(grant.shard),
        history=[v.size for v in grant.history],
    )
    arrays = {**named(filled), **inner, "history": _joined(grant.history)}
    return pack(
        filled,
        arrays,
        kind="grant",
        phase=grant.phase,
        lease=grant.lease,
        sequence=grant.sequence,
        position=grant.position,
    )


def grant_of(frame: Frame) -> Grant:
    """The inverse of `grant_to`."""
    arrays, note = named(frame), frame.note
    inner = inner_of(arrays)
    sizes = [int(n) for n in note["history"]]
    history = np.split(arrays["history"], np.cumsum(sizes)[:-1]) if sizes else []
    return Grant(
        phase=frame.phase,
        lease=frame.lease,
        sequence=frame.sequence,
        position=frame.position,
        budget=int(note["budget"]),
        progress=float(note["progress"]),
        rows=int(note["rows"]),
        span=(float(note["span"][0]), float(note["span"][1])),
        tells=bool(note["tells"]),
        heal=message_of(frame, "heal"),
        is_fresh=bool(note["is_fresh"]),
        inner=inner,
        history=tuple(history),
        shard=_kinds(note["shard"]),
        is_idle=bool(note["is_idle"]),
        is_behind=bool(note["is_behind"]),
    )


def snapshot_to(frame: Frame, snapshot: Snapshot) -> Frame:
    """Returns a state frame."""
    inner = {f"inner.{name}": value for name, value in snapshot.inner.items()}
    arrays = {
        "trained": snapshot.trained,
        "floats": snapshot.floats,
        "integers": snapshot.integers,
        **inner,
    }
    return pack(frame, arrays, position=snapshot.position)


def snapshot_of(frame: Frame) -> Snapshot:
    """The inverse of `snapshot_to`."""
    arrays = named(frame)
    return Snapshot(
        frame.position,
        inner_of(arrays),
        arrays.get("trained"),
        arrays["floats"],
        arrays["integers"],
    )


def page_to(frame: Frame, page: Page) -> Frame:
    """Returns a page frame."""
    note = {
        "name": page.name,
        "start": page.start,
        "kinds": _plain(page.kinds),
        "is_last": page.is_last,
    }
    return pack(frame, {"numbers": page.numbers}, note, version=page.version)


def page_of(frame: Frame) -> Page:
    """The inverse of `page_to`."""
    note = frame.note
    return Page(
        frame.version,
        str(note["name"]),
        int(note["start"]),
        named(frame).get("numbers"),
        _kinds(note["kinds"]),
        bool(note["is_last"]),
    )


def _plain(kinds: Kinds) -> dict[str, Any]:
    return {name: [dtype, list(shape)] for name, (dtype, shape) in kinds.items()}


def _kinds(told: Mapping[str, Any]) -> Kinds:
    return {n: (str(dtype), tuple(map(int, shape))) for n, (dtype, shape) in told.items()}


def inner_of(arrays: Mapping[str, Vector]) -> dict[str, Vector]:
    """Returns an inner optimizer's state among a frame's named arrays."""
    prefix = "inner."
    return {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}


def _numbered(arrays: Mapping[str, Vector], name: str) -> tuple[Vector, ...]:
    return tuple(arrays[f"{name}.{i}"] for i in range(len(arrays)) if f"{name}.{i}" in arrays)


def _joined(vectors: Sequence[Vector]) -> Vector | None:
    return np.concatenate(vectors) if vectors else None
