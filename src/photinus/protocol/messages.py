"""What each kind of frame holds: a strategy's messages as headers and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import ALL, Message
from photinus.strategies.sparse import to_dense
from photinus.training.requests import Grant, Page, StepReply, WorkerSnapshot
from photinus.transport.frames import Frame

Kinds = Mapping[str, tuple[str, tuple[int, ...]]]
"""Types and shapes of arrays by name."""

_NO_WORK = Clock()


@dataclass(frozen=True, slots=True)
class Seat:
    """The identity under which a node sends frames: run, term, phase, slot and lease."""

    run: bytes
    term: int = 0
    phase: int = 0
    slot: int = 0
    lease: int = 0

    def frame(
        self,
        kind: str,
        header: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Vector] | None = None,
        *,
        sequence: int = 0,
    ) -> Frame:
        """Returns a frame of this seat."""
        ids = self.term, self.phase, self.slot, self.lease, sequence
        return Frame(kind, self.run, *ids, header or {}, arrays or {})


def message_to(frame: Frame, message: Message, **header: Any) -> Frame:  # noqa: ANN401 - plain
    """Returns the frame with a message in it, and with more in its header."""
    since = message.since
    fields: dict[str, Any] = {**frame.header, "version": message.version, **header}
    if message.fragment != ALL:
        fields["fragment"] = message.fragment
    if message.codec != "fp32":
        fields["codec"] = message.codec
    if since != _NO_WORK:
        fields["steps"], fields["examples"] = int(since.steps), int(since.examples)
        fields["epochs"], fields["seconds"] = float(since.epochs), float(since.seconds)
    if message.fingerprint:
        fields["fingerprint"] = message.fingerprint
    if message.slots:
        fields["slots"] = message.slots
    arrays = {
        "vector": message.vector,
        "rows": message.rows,
        "kept": message.kept,
        "floats": message.floats,
        "integers": message.integers,
    }
    present = {name: array for name, array in arrays.items() if array is not None}
    present |= {f"outer.{i}": vector for i, vector in enumerate(message.outer)}
    return replace(frame, header=fields, arrays=present)


def message_of(frame: Frame, kind: str = "") -> Message:
    """Returns the message in a frame, its vector with all its zeros."""
    header, arrays = frame.header, frame.arrays
    start, stop = header.get("fragment", ALL)
    message = Message(
        kind or frame.kind,
        arrays.get("vector"),
        (start, stop),
        arrays.get("rows"),
        arrays.get("kept"),
        since=Clock(
            header.get("steps", 0),
            header.get("examples", 0),
            header.get("epochs", 0.0),
            header.get("seconds", 0.0),
        ),
        version=header["version"],
        codec=header.get("codec", "fp32"),
        outer=tuple(arrays[f"outer.{i}"] for i in range(len(arrays)) if f"outer.{i}" in arrays),
        floats=arrays.get("floats"),
        integers=arrays.get("integers"),
        fingerprint=header.get("fingerprint", ""),
        slots=tuple(header.get("slots", ())),
    )
    return message if message.kept is None else to_dense(message)


def step_reply_of(frames: Sequence[Frame], seconds: float) -> StepReply:
    """Returns what answers mean for the loop; an `ack` reports only how far all are."""
    reported = [f.header["progress"] for f in frames if "progress" in f.header]
    return StepReply(
        seconds,
        tuple(message_of(frame) for frame in frames if frame.kind != "ack"),
        reported[-1] if reported else None,
        stop=any(frame.header.get("stop") for frame in frames),
        save=any(frame.header.get("save") for frame in frames),
        measure=any(frame.header.get("measure") for frame in frames),
    )


def grant_to(frame: Frame, grant: Grant) -> Frame:
    """Returns a grant frame: the seat's next phase, where it continues, and from what."""
    filled = message_to(
        frame,
        grant.heal,
        position=grant.position,
        budget=grant.budget,
        progress=grant.progress,
        rows=grant.rows,
        span=grant.span,
        sends_inner=grant.sends_inner,
        is_fresh=grant.is_fresh,
        is_idle=grant.is_idle,
        is_behind=grant.is_behind,
        shard=grant.shard,
        history=[v.size for v in grant.history],
    )
    arrays = {**filled.arrays, **inner_to(grant.inner)}
    if grant.history:
        arrays["history"] = np.concatenate(grant.history)
    return replace(
        filled,
        kind="grant",
        phase=grant.phase,
        lease=grant.lease,
        sequence=grant.sequence,
        arrays=arrays,
    )


def grant_of(frame: Frame) -> Grant:
    """The inverse of `grant_to`."""
    header, arrays = frame.header, frame.arrays
    sizes, (start, end) = header["history"], header["span"]
    history = np.split(arrays["history"], np.cumsum(sizes)[:-1]) if sizes else []
    return Grant(
        phase=frame.phase,
        lease=frame.lease,
        sequence=frame.sequence,
        position=header["position"],
        budget=header["budget"],
        progress=header["progress"],
        rows=header["rows"],
        span=(start, end),
        sends_inner=header["sends_inner"],
        heal=message_of(frame, "heal"),
        is_fresh=header["is_fresh"],
        inner=inner_of(arrays),
        history=tuple(history),
        shard=_kinds(header["shard"]),
        is_idle=header["is_idle"],
        is_behind=header["is_behind"],
    )


def snapshot_to(frame: Frame, snapshot: WorkerSnapshot) -> Frame:
    """Returns a state frame."""
    trained = {} if snapshot.trained is None else {"trained": snapshot.trained}
    own = {"floats": snapshot.floats, "integers": snapshot.integers}
    header = {**frame.header, "position": snapshot.position}
    return replace(frame, header=header, arrays=trained | own | inner_to(snapshot.inner))


def snapshot_of(frame: Frame) -> WorkerSnapshot:
    """The inverse of `snapshot_to`."""
    arrays = frame.arrays
    return WorkerSnapshot(
        frame.header["position"],
        inner_of(arrays),
        arrays.get("trained"),
        arrays["floats"],
        arrays["integers"],
    )


def page_to(frame: Frame, page: Page, **header: Any) -> Frame:  # noqa: ANN401 - plain values
    """Returns a page frame, with more in its header."""
    fields = {
        "version": page.version,
        "name": page.name,
        "start": page.start,
        "kinds": dict(page.kinds),
        "is_last": page.is_last,
    }
    arrays = {} if page.numbers is None else {"numbers": page.numbers}
    return replace(frame, header={**frame.header, **fields, **header}, arrays=arrays)


def page_of(frame: Frame) -> Page:
    """The inverse of `page_to`."""
    header = frame.header
    return Page(
        header["version"],
        header["name"],
        header["start"],
        frame.arrays.get("numbers"),
        _kinds(header["kinds"]),
        header["is_last"],
    )


def _kinds(fields: Mapping[str, Any]) -> Kinds:
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in fields.items()}


def inner_to(inner: Mapping[str, Vector]) -> dict[str, Vector]:
    """Returns an inner optimizer's state under the names that it has in a frame."""
    return {f"inner.{name}": vector for name, vector in inner.items()}


def inner_of(arrays: Mapping[str, Vector]) -> dict[str, Vector]:
    """The inverse of `inner_to`, among a frame's arrays."""
    prefix = "inner."
    return {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
