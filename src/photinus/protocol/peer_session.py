"""A worker's side of the exchange with other workers, without input or output.

A publication counts at most once for (origin, lease, number), and only where both workers are at
the same agreed point; the next meeting makes up for what is lost on the way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector, is_finite
from photinus.core.seeds import reordered
from photinus.protocol.messages import Seat, message_of, message_to
from photinus.protocol.reduce_scatter import WHOLE, Piece, ReduceScatter
from photinus.protocol.row_meeting import RowMeeting, ShardExchange, next_to
from photinus.protocol.shard_restoring import ShardRestore
from photinus.strategies.base import Message
from photinus.strategies.codecs import is_sound
from photinus.strategies.row_codec import RowCodec
from photinus.strategies.sparse import to_dense, with_zeros, without_zeros
from photinus.transport.frames import Frame
from photinus.transport.ring import RingMembers

GIVE_UP_SECONDS = 30.0
"""How long a worker that reads rows waits for an owner's next answer."""
COORDINATOR = -1
"""The address of a frame that is for no worker."""
PEERS = ("publish", "part", "norm", "whole", "missing", "fetch", "heal")
"""Kinds of frames that workers send to each other."""
OTHERS = ("here", "meet")
"""Kinds of frames in which the coordinator reports about the others."""
_MOST_WAITING, _MOST_WAITING_BYTES = 64, 1 << 30
"""How many publications, and bytes of several, may wait to be taken in; a later one removes the
oldest."""


class AddressedFrame(NamedTuple):
    """A frame and the slot that it is for."""

    to: int
    frame: Frame


class PeerSession:
    """The others, as one worker knows them: the members, what they sent, the open meeting."""

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}
        """Slot -> where it listens."""
        self.counts: Counter[str] = Counter()
        """Since the last exact average: taken, doubled, refused, overrun; bytes sent."""
        self._sent: Counter[str] = Counter()
        """How many publications were sent to each slot since then."""
        self._taken: Counter[str] = Counter()
        """How many of each slot and lease were taken in."""
        self._seat = Seat(bytes(16))
        self._leases: dict[int, int] = {}
        self._edition = -1
        self._version = self._published = self._rounds = 0
        self._last_sequence: dict[tuple[int, int], int] = {}
        self._inbox: list[Frame] = []
        self._early_pieces: list[Frame] = []
        """Pieces of a meeting that this worker is not called to yet."""
        self._messages: list[Message] = []
        self._push: Message | None = None
        self._is_sparse = False
        """Zeros of its shards do not travel."""
        self._points: tuple[Vector, Vector] | None = None
        self._meeting: ReduceScatter | RowMeeting | ShardRestore | None = None
        self._met_leases: tuple[int, ...] = ()
        """The leases of the open meeting's members, where it is about a table."""
        self._announced: ReduceScatter | None = None
        """The next meeting, while it is not called: its members are those of the directory."""
        self._announced_leases: tuple[int, ...] = ()
        """Of its members."""
        self._reminders = 0
        self._shards = ShardExchange()
        self._active: set[int] = set()
        """The slots from which anything arrived since this worker last reported what it lacks."""
        self._arriving: frozenset[int] = frozenset()
        """The slots from which a frame is arriving now: what it holds is not missing."""

    def seated(self, seat: Seat, version: int, header: Mapping[str, Any]) -> None:
        """Starts anew under a grant: its numbers begin again with the lease."""
        if seat.lease != self._seat.lease or seat.phase != self._seat.phase:
            self._edition, self._published = -1, 0
            self._inbox, self._last_sequence = [], {}
        self._shards = ShardExchange()
        self._seat, self._meeting, self._push, self._announced = seat, None, None, None
        self._begin_version(version)
        if "peers" in header:
            self._update_directory(header)

    def _begin_version(self, version: int) -> None:
        self._version, self._rounds = version, 0
        for counter in (self.counts, self._sent, self._taken):
            counter.clear()
        self._early_pieces = [p for p in self._early_pieces if p.header["version"] >= version]

    # -- from the coordinator --------------------------------------------------------------------

    def hear_coordinator(self, frame: Frame) -> list[AddressedFrame]:
        """Takes in the list of members, and calls to meetings; returns what to send."""
        is_ours = (frame.lease, frame.phase) == (self._seat.lease, self._seat.phase)
        if frame.kind not in OTHERS or not is_ours:
            return []
        self._update_directory(frame.header)
        if frame.kind == "here":
            if frame.header["call"]:
                self._messages.append(Message("call", version=frame.header["version"]))
        elif frame.header["version"] == self._version and self._push is not None:
            self._shards.checkpoint_version = frame.header.get("kept", 0)
            return self._open_meeting(message_of(frame))
        return []

    def _update_directory(self, header: Mapping[str, Any]) -> None:
        if header["edition"] <= self._edition:
            return
        self._edition = header["edition"]
        self._leases = {slot: lease for slot, lease, _ in header["peers"]}
        if (
            self._announced is not None
            and self._leases_of(self._announced.slots) != self._announced_leases
        ):
            self._announced = None
        self.addresses = {slot: address for slot, _, address in header["peers"]}
        members = Message("here", slot=self._seat.slot, slots=tuple(sorted(self._leases)))
        self._messages.append(members)

    def _open_meeting(self, called: Message) -> list[AddressedFrame]:
        """Opens a meeting; if it is open already, asks for what has not arrived."""
        assert self._push is not None
        if self._meeting is not None and set(called.slots) > set(self._meeting.slots):
            return []  # an old call: members are only ever lost
        slot, push, leases = self._seat.slot, self._push, tuple[int, ...]()
        if push.table.owned is not None:  # a lost member rejoins, with other parts
            leases = self._leases_of(called.slots)
        if self._meeting is not None and (self._meeting.slots, self._met_leases) == (
            called.slots,
            leases,
        ):
            return self._report_missing()
        self._active, self._met_leases, outgoing = set(), leases, list[AddressedFrame]()
        if push.kind == "fetch":
            self._meeting = restoring = ShardRestore(slot, called, push)
            return self._request_restore(restoring.others)
        announced, self._announced = self._announced, None
        if (
            announced is not None
            and announced.slots == called.slots
            and announced.open(called, push)
        ):
            self._meeting = announced
        else:
            meeting = self._meeting = self._new_meeting(called, push)
            outgoing += [self._piece(s, "part", meeting.part(s)) for s in meeting.others]
        return outgoing + self._merged_pieces() + self._take_early_pieces() + self._ready_frame()

    def _take_early_pieces(self) -> list[AddressedFrame]:
        """Takes in the pieces that came before this worker knew of their meeting."""
        pieces, self._early_pieces = self._early_pieces, []
        return [answer for frame in pieces for answer in self.hear_worker(frame)]

    def _new_meeting(self, called: Message, push: Message) -> ReduceScatter | RowMeeting:
        slot, owned = self._seat.slot, push.table.owned
        if owned is None:
            return ReduceScatter.called(slot, called, push)
        ahead = self._shards.fetched_ahead(push.table.asks, self._version)
        guard = next_to(slot, called.slots)
        backlog = self._shards.backlog(self._leases.get(guard, 0), owned)
        return RowMeeting(slot, called, push, ahead, backlog, self._shards.last_reads)

    # -- to and from other workers ---------------------------------------------------------------

    def publish(self, message: Message) -> list[AddressedFrame]:
        """Returns a publication for each of its readers, and the report of it for the coordinator.

        For a table it is a question to each owner, for the rows of the round after the next one.
        """
        if message.kind == "fetch":
            return self._fetch_rows(message)
        self._published, self._rounds = self._published + 1, self._rounds + 1
        self._sent.update(str(slot) for slot in message.slots)
        frame = self._seat.frame("publish", sequence=self._published)
        sent = message_to(frame, message._replace(slots=()))
        self.counts["bytes"] += len(message.slots) * sent.size_bytes
        report = self._seat.frame(
            "publish",
            {
                "version": self._version,
                "examples": int(message.since.examples),
                "edition": self._edition,
            },
            sequence=self._rounds,
        )
        frames = {slot: sent for slot in message.slots} | {COORDINATOR: report}
        return [AddressedFrame(to, frames[to]) for to in reordered(frames, self._published)]

    def _fetch_rows(self, message: Message) -> list[AddressedFrame]:
        """Asks the owners of rows; answers earlier questions that waited for the shard to move."""
        asks = message.table.asks
        assert asks is not None
        rows_by_owner = self._shards.request_ahead(asks, self._version, self._seat.slot)
        header = {"restores": False}
        outgoing = [
            self._addressed(slot, "fetch", {"asks": rows}, header)
            for slot, rows in rows_by_owner.items()
        ]
        return outgoing + self._answer_waiting()

    def _answer_waiting(self) -> list[AddressedFrame]:
        """Answers the questions that waited for the shard to move."""
        early = self._shards.take_waiting(self._version)
        return [answer for frame in early for answer in self._answer(frame)]

    def request_rows(self, rows: Vector) -> list[AddressedFrame]:
        """Asks the owners of rows for their numbers, while the worker takes no step."""
        self._shards.begin_read(rows, self._version, self._seat.slot)
        return self.repeat_requests() + self._answer_waiting()

    def repeat_requests(self) -> list[AddressedFrame]:
        """Asks those owners again that have not answered."""
        read = self._shards.read
        header = {"restores": False, "reading": read.number}
        return [
            self._addressed(s, "fetch", {"asks": read.rows_by_owner[s]}, header)
            for s in read.unanswered
        ]

    @property
    def unanswered(self) -> int:
        """How many owners have not answered the present question."""
        return len(self._shards.read.unanswered)

    def requested_rows(self) -> Vector | None:
        """Returns the numbers [r, width] of the rows that are read; None while any are missing."""
        return self._shards.read_rows()

    def _answer(self, frame: Frame) -> list[AddressedFrame]:
        rows = self._shards.rows(frame.header["version"], frame.arrays)
        if rows is None:
            self._shards.waiting.append(frame)
            return []
        header = {"restores": frame.header.get("restores", False), "to": frame.lease}
        header |= {"reading": frame.header.get("reading", 0)}
        return [self._addressed(frame.slot, "heal", rows, header)]

    def _request_restore(self, slots: Iterable[int]) -> list[AddressedFrame]:
        """Asks others for what the own shard and the next steps lack."""
        restoring = self._meeting
        assert isinstance(restoring, ShardRestore)
        header = {"restores": True}
        return [self._addressed(slot, "fetch", restoring.part(slot), header) for slot in slots]

    def _take_rows(self, frame: Frame) -> list[AddressedFrame]:
        """Takes rows in that were asked for: ahead, or for a shard that is restored.

        Answers to an earlier holder of the seat are ignored.
        """
        restoring, piece, header = self._meeting, frame.arrays, frame.header
        if header.get("to") != self._seat.lease:
            return []
        is_restored, read = header.get("restores", False), self._shards.read
        if header.get("reading", 0):
            is_asked = header["reading"] == read.number and frame.slot in read.rows_by_owner
            if is_asked and "vector" in piece:
                read.numbers.setdefault(frame.slot, piece["vector"])
            return []
        if not is_restored:
            self._shards.take_answer(frame.slot, header["version"], piece.get("vector"))
        if not is_restored or not isinstance(restoring, ShardRestore):
            return []
        was_whole = restoring.is_whole
        outgoing = self._request_restore([frame.slot]) if restoring.take(frame.slot, piece) else []
        return outgoing if was_whole else outgoing + self._ready_frame()

    def _addressed(
        self, to: int, kind: str, piece: Piece, header: Mapping[str, Any]
    ) -> AddressedFrame:
        frame = self._seat.frame(kind, {"version": self._version, **header}, piece)
        self.counts["bytes"] += frame.size_bytes
        return AddressedFrame(to, frame)

    def bring_push(
        self, message: Message, points: tuple[Vector, Vector] | None = None
    ) -> tuple[Message, dict[str, Any]]:
        """Keeps the vector of a push for the meeting; returns what to send to the coordinator."""
        self._is_sparse, message = message.kept is not None, to_dense(message)
        assert message.vector is not None
        if (owned := message.table.owned) is None:
            sound = is_sound(message.codec, message.vector)
        else:
            by_row = RowCodec(message.codec, owned.rows.shape[1], owned.exact)
            sound = by_row.is_sound(message.vector)
        sound = sound and (message.floats is None or is_finite(message.floats))
        self._push, self._points, self._meeting = message, points, None
        self._shards.bring_push(message)
        report = message._replace(vector=None, rows=None, floats=None, integers=None)
        return report, {"is_finite": sound, **self._publication_counts()}

    def _publication_counts(self) -> dict[str, Any]:
        doubled = self.counts["doubled"]
        return {"sent": dict(self._sent), "taken": dict(self._taken), "doubled": doubled}

    def announce(self, run: Message, size: int, merge: str) -> list[AddressedFrame]:
        """Returns a run of segments for the members that merge them, before a meeting is called.

        Args:
            run: some segments of what this worker will bring, and the work in all of it.
            size: of all of it.
            merge: how the weights follow from the members' work.
        """
        slots, is_new = tuple(sorted(self._leases)), self._announced is None
        if run.version != self._version or self._seat.slot not in slots or run.vector is None:
            return []
        if self._announced is None:
            placeholder = np.empty(size, run.vector.dtype)  # its pages are never touched
            self._announced = ReduceScatter(
                self._seat.slot, slots, run._replace(vector=placeholder)
            )
            self._announced_leases = self._leases_of(slots)
        ranges, since = self._announced.announce(run, merge), run.since
        work = {"steps": int(since.steps), "examples": int(since.examples), "merge": merge}
        outgoing = [
            self._piece(s, "part", found.piece, found.start, work) for s, found in ranges.items()
        ]
        return outgoing + self._merged_pieces() + (self._take_early_pieces() if is_new else [])

    def note_arriving(self, slots: Iterable[int]) -> None:
        """Takes in the slots from which a frame is arriving and is not whole yet."""
        self._arriving = frozenset(slots)

    def hear_worker(self, frame: Frame) -> list[AddressedFrame]:
        """Takes a frame of another worker in; returns what to send."""
        seat, lease = self._seat, self._leases.get(frame.slot, 0)
        if (frame.term, frame.phase) != (seat.term, seat.phase) or frame.lease < lease:
            self.counts["fenced"] += 1
            return []
        self._active.add(frame.slot)
        version = frame.header["version"]
        if version < self._version:
            self.counts["late"] += 1
        elif frame.kind == "publish":
            self._take_publication(frame)
        elif frame.kind == "fetch":
            return self._answer(frame)
        elif frame.kind == "heal":
            return self._take_rows(frame)
        else:
            return self._take_piece(frame)
        return []

    def _take_publication(self, frame: Frame) -> None:
        sender = frame.slot, frame.lease
        if frame.sequence <= self._last_sequence.get(sender, 0):
            self.counts["doubled"] += 1
            return
        self._last_sequence[sender] = frame.sequence
        self._inbox.append(frame)
        while len(self._inbox) > _MOST_WAITING or (
            len(self._inbox) > 1 and sum(f.size_bytes for f in self._inbox) > _MOST_WAITING_BYTES
        ):
            self._inbox.pop(0)
            self.counts["overrun"] += 1

    def arrived(self) -> tuple[Message, ...]:
        """Returns what has arrived: lists of members, calls, publications from the same point.

        Nothing while a push waits for its meeting: the push has counted what was taken in.
        """
        if self._push is not None:
            return ()
        messages, self._messages = self._messages, []
        later: list[Frame] = []
        for frame in self._inbox:
            version = frame.header["version"]
            if version == self._version:
                message = message_of(frame)
                sound = message.vector is not None and is_sound(message.codec, message.vector)
                self.counts["taken" if sound else "refused"] += 1
                self._taken[f"{frame.slot} {frame.lease}"] += sound
                messages += [message] if sound else []
            elif version > self._version:
                later.append(frame)
        self._inbox = later
        return tuple(messages)

    # -- the meeting -----------------------------------------------------------------------------

    def _piece(
        self,
        to: int,
        kind: str,
        piece: Piece,
        start: int = WHOLE,
        work: Mapping[str, Any] = MappingProxyType({}),
    ) -> AddressedFrame:
        if self._is_sparse and (found := without_zeros(piece["vector"])) is not None:
            piece = {**piece, "vector": found[0], "kept": found[1]}
        header = {**self._meeting_fields, **work, **({} if start == WHOLE else {"start": start})}
        return self._addressed(to, kind, piece, header)

    @property
    def _meeting_fields(self) -> dict[str, Any]:
        """The fields that identify the meeting: its members, and their leases.

        Once it is called the members are enough, except for a table.
        """
        meeting, leases = self._meeting, self._met_leases
        if meeting is None:
            meeting, leases = self._announced, self._announced_leases
        assert meeting is not None
        return {"slots": list(meeting.slots), **({"leases": list(leases)} if leases else {})}

    def _leases_of(self, slots: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._leases.get(slot, 0) for slot in slots)

    def _meeting_of(self, header: Mapping[str, Any]) -> ReduceScatter | RowMeeting | None:
        """Returns the meeting that a piece belongs to; None where this worker is in another."""
        slots, leases = tuple(header["slots"]), tuple(header.get("leases", ()))
        meeting, member_leases = self._meeting, self._met_leases
        if isinstance(meeting, ReduceScatter) and leases:  # of a piece that left before the call
            member_leases = self._leases_of(slots)
        if meeting is None:
            meeting, member_leases = self._announced, self._announced_leases
        if meeting is None or isinstance(meeting, ShardRestore) or leases != member_leases:
            return None
        is_same = (header["version"], slots) == (meeting.version, meeting.slots)
        return meeting if is_same else None

    def _take_piece(self, frame: Frame) -> list[AddressedFrame]:
        header, meeting = frame.header, self._meeting_of(frame.header)
        if meeting is None:
            self._early_pieces += [frame] if frame.arrays else []
            return []
        if frame.kind == "missing":
            return self.resend(frame.slot, header)
        was_whole = meeting.is_whole
        piece = dict(frame.arrays)
        if "kept" in piece:
            piece["vector"] = with_zeros(piece["vector"], piece.pop("kept"))
        is_merged = True
        if isinstance(meeting, RowMeeting):
            meeting.take(frame.kind, frame.slot, piece)
        else:
            if "merge" in header:
                work = Clock(header.get("steps", 0), header.get("examples", 0))
                meeting.count(frame.slot, work, header["merge"])
            is_merged = meeting.take(frame.kind, frame.slot, piece, header.get("start", WHOLE))
        outgoing = self._merged_pieces() if is_merged else []
        return outgoing if was_whole else outgoing + self._ready_frame()

    def _merged_pieces(self) -> list[AddressedFrame]:
        """Returns what was merged here since the last call, for the others."""
        meeting = self._announced if self._meeting is None else self._meeting
        if isinstance(meeting, ReduceScatter):
            runs, others = meeting.merged(), meeting.others
            return [self._piece(s, "whole", run.piece, run.start) for run in runs for s in others]
        if not isinstance(meeting, RowMeeting):
            return []
        return [self._piece(slot, kind, piece) for slot, kind, piece in meeting.new_pieces()]

    def _ready_frame(self) -> list[AddressedFrame]:
        meeting = self._meeting
        if meeting is None or not meeting.is_whole:
            return []
        header: dict[str, Any] = {"version": self._version, **self._meeting_fields}
        header["bytes"] = self.counts["bytes"]
        if self._points is not None and isinstance(meeting, ReduceScatter):
            distance = meeting.distance(*self._points)
            header |= {"apart": distance} if math.isfinite(distance) else {}
        if isinstance(meeting, RowMeeting):
            header["guards"] = meeting.is_backup_current
        return [AddressedFrame(COORDINATOR, self._seat.frame("ready", header))]

    def _report_missing(self) -> list[AddressedFrame]:
        """Reports what is missing to the coordinator and to those that owe it; or `ready`."""
        meeting = self._meeting
        if meeting is None or meeting.is_whole:
            return self._ready_frame()
        lacks = meeting.lacks
        active = sorted(self._active | self._arriving)
        header = {"version": self._version, "near": active, **self._meeting_fields, **lacks}
        self._active = set()
        frame = self._seat.frame("missing", header)
        self._reminders += 1
        debtors = {*lacks["parts"], *lacks["wholes"]} - self._arriving
        receivers = reordered(debtors, self._reminders)
        if isinstance(meeting, ShardRestore):
            return [*self._request_restore(receivers), AddressedFrame(COORDINATOR, frame)]
        return [
            *(AddressedFrame(slot, frame) for slot in receivers),
            AddressedFrame(COORDINATOR, frame),
        ]

    def resend(self, slot: int, lacks: Mapping[str, Any] | None = None) -> list[AddressedFrame]:
        """Returns what a member lacks, or may have missed when the line to it broke."""
        meeting, own_slot = self._meeting, self._seat.slot
        if meeting is None or slot not in meeting.others:
            return []
        if isinstance(meeting, ShardRestore):
            return self._request_restore([slot] if slot in meeting.lacks["wholes"] else [])
        outgoing = list[AddressedFrame]()
        if lacks is None or own_slot in lacks["parts"]:
            outgoing.append(self._piece(slot, "part", meeting.part(slot)))
        if lacks is None or own_slot in lacks["wholes"]:
            norm = meeting.norm if isinstance(meeting, RowMeeting) else None
            merged = {"norm": norm, "whole": meeting.whole_for(slot)}
            outgoing += [self._piece(slot, kind, p) for kind, p in merged.items() if p is not None]
        return outgoing

    @property
    def open_sum(self) -> ReduceScatter | None:
        """The open meeting, while its mean is not made yet."""
        is_open = self.is_waiting_for_peers and isinstance(self._meeting, ReduceScatter)
        return self._meeting if is_open else None  # type: ignore[return-value]

    def ring_members(self, meeting: ReduceScatter) -> RingMembers:
        """Returns the members of a meeting, for a sum of all; any other lease is another group."""
        names = [f"{slot}.{self._leases[slot]}" for slot in meeting.slots]
        rank, first = meeting.slots.index(meeting.slot), self.addresses[meeting.slots[0]]
        name = f"{self._seat.term}/{self._seat.phase}/{','.join(names)}"
        return RingMembers(name, rank, len(names), first)

    def summed(self, mean: Piece) -> list[AddressedFrame]:
        """Takes the mean that a sum of all made; returns what to send."""
        assert isinstance(self._meeting, ReduceScatter)
        self._meeting.fill(mean)
        return self._ready_frame()

    @property
    def is_meeting(self) -> bool:
        """True from the call to a meeting until its end."""
        return self._meeting is not None

    @property
    def is_waiting_for_peers(self) -> bool:
        """True while pieces of the open meeting are missing."""
        return self._meeting is not None and not self._meeting.is_whole

    def end_meeting(self, message: Message) -> Message:
        """Returns the answer that ends a meeting, with the mean in it."""
        meeting = self._meeting
        assert meeting is not None
        result = meeting.result()._replace(version=message.version)
        if self._push is not None and not isinstance(meeting, ReduceScatter):
            guard = self._leases.get(meeting.backup_slot, 0)
            reads = meeting.reads if isinstance(meeting, RowMeeting) else {}
            progress = guard, meeting.backed_up_to
            self._shards.end_round(self._push, meeting.slots, progress, reads)
        self._meeting = self._push = self._points = self._announced = None
        self._begin_version(message.version)
        return result
