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
from photinus.strategies.sparse import gather, scatter, to_dense
from photinus.transport.frames import Frame
from photinus.transport.ring import RingMembers

GIVE_UP_SECONDS = 30.0
"""How long a worker that reads rows waits for an owner's next answer."""
COORDINATOR = -1
"""The address of a frame that is for no worker."""
PEERS = ("publish", "part", "whole", "missing", "fetch", "heal")
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
        self._heard: dict[tuple[int, int], int] = {}
        self._inbox: list[Frame] = []
        self._pieces: list[Frame] = []
        """Pieces of a meeting that this worker is not called to yet."""
        self._messages: list[Message] = []
        self._brought: Message | None = None
        self._is_sparse = False
        """Zeros of its shards do not travel."""
        self._stands: tuple[Vector, Vector] | None = None
        self._meeting: ReduceScatter | RowMeeting | ShardRestore | None = None
        self._met: tuple[int, ...] = ()
        """The leases of the open meeting's members, where it is about a table."""
        self._early: ReduceScatter | None = None
        """The next meeting, while it is not called: its members are those of the directory."""
        self._early_leases: tuple[int, ...] = ()
        """Of its members."""
        self._asks = 0
        self._table = ShardExchange()
        self._near: set[int] = set()
        """The slots from which anything arrived since this worker last reported what it lacks."""
        self._arriving: frozenset[int] = frozenset()
        """The slots from which a frame is arriving now: what it holds is not missing."""

    def seated(self, seat: Seat, version: int, told: Mapping[str, Any]) -> None:
        """Starts anew under a grant: its numbers begin again with the lease."""
        if seat.lease != self._seat.lease or seat.phase != self._seat.phase:
            self._edition, self._published = -1, 0
            self._inbox, self._heard = [], {}
        self._table = ShardExchange()
        self._seat, self._meeting, self._brought, self._early = seat, None, None, None
        self._stands_on(version)
        if "peers" in told:
            self._directory(told)

    def _stands_on(self, version: int) -> None:
        self._version, self._rounds = version, 0
        for counter in (self.counts, self._sent, self._taken):
            counter.clear()
        self._pieces = [p for p in self._pieces if p.header["version"] >= version]

    # -- from the coordinator --------------------------------------------------------------------

    def told(self, frame: Frame) -> list[AddressedFrame]:
        """Takes in the list of members, and calls to meetings; returns what to send."""
        is_ours = (frame.lease, frame.phase) == (self._seat.lease, self._seat.phase)
        if frame.kind not in OTHERS or not is_ours:
            return []
        self._directory(frame.header)
        if frame.kind == "here":
            if frame.header["call"]:
                self._messages.append(Message("call", version=frame.header["version"]))
        elif frame.header["version"] == self._version and self._brought is not None:
            self._table.kept = frame.header.get("kept", 0)
            return self._meets(message_of(frame))
        return []

    def _directory(self, here: Mapping[str, Any]) -> None:
        if here["edition"] <= self._edition:
            return
        self._edition = here["edition"]
        self._leases = {slot: lease for slot, lease, _ in here["peers"]}
        if self._early is not None and self._leases_of(self._early.slots) != self._early_leases:
            self._early = None
        self.addresses = {slot: address for slot, _, address in here["peers"]}
        told = Message("here", slot=self._seat.slot, slots=tuple(sorted(self._leases)))
        self._messages.append(told)

    def _meets(self, called: Message) -> list[AddressedFrame]:
        """Opens a meeting; if it is open already, asks for what has not arrived."""
        assert self._brought is not None
        if self._meeting is not None and set(called.slots) > set(self._meeting.slots):
            return []  # an old call: members are only ever lost
        slot, brought, met = self._seat.slot, self._brought, tuple[int, ...]()
        if brought.owned is not None:  # a lost member rejoins, with other parts
            met = self._leases_of(called.slots)
        if self._meeting is not None and (self._meeting.slots, self._met) == (called.slots, met):
            return self._says_again()
        self._near, self._met, out = set(), met, list[AddressedFrame]()
        if brought.kind == "fetch":
            self._meeting = restoring = ShardRestore(slot, called, brought)
            return self._asks_of(restoring.others)
        early, self._early = self._early, None
        if early is not None and early.slots == called.slots and early.open(called, brought):
            self._meeting = early
        else:
            meeting = self._meeting = self._opened(called, brought)
            out += [self._piece(s, "part", meeting.part(s)) for s in meeting.others]
        return out + self._wholes() + self._hear_held() + self._ready()

    def _hear_held(self) -> list[AddressedFrame]:
        """Takes in the pieces that came before this worker knew of their meeting."""
        held, self._pieces = self._pieces, []
        return [out for frame in held for out in self.hear(frame)]

    def _opened(self, called: Message, brought: Message) -> ReduceScatter | RowMeeting:
        slot, owned = self._seat.slot, brought.owned
        if owned is None:
            return ReduceScatter.called(slot, called, brought)
        ahead = self._table.ahead(brought.asks, self._version)
        guard = next_to(slot, called.slots)
        backlog = self._table.backlog(self._leases.get(guard, 0), owned)
        return RowMeeting(slot, called, brought, ahead, backlog)

    # -- to and from other workers ---------------------------------------------------------------

    def publishes(self, message: Message) -> list[AddressedFrame]:
        """Returns a publication for each of its readers, and the report of it for the coordinator.

        For a table it is a question to each owner, for the rows of the round after the next one.
        """
        if message.kind == "fetch":
            return self._fetches(message)
        self._published, self._rounds = self._published + 1, self._rounds + 1
        self._sent.update(str(slot) for slot in message.slots)
        frame = self._seat.frame("publish", sequence=self._published)
        sent = message_to(frame, message._replace(slots=()))
        self.counts["bytes"] += len(message.slots) * sent.size_bytes
        told = self._seat.frame(
            "publish",
            {
                "version": self._version,
                "examples": int(message.since.examples),
                "edition": self._edition,
            },
            sequence=self._rounds,
        )
        out = {slot: sent for slot in message.slots} | {COORDINATOR: told}
        return [AddressedFrame(to, out[to]) for to in reordered(out, self._published)]

    def _fetches(self, message: Message) -> list[AddressedFrame]:
        """Asks the owners of rows; answers earlier questions that waited for the shard to move."""
        assert message.asks is not None
        asks = self._table.wants(message.asks, self._version, self._seat.slot)
        told = {"restores": False}
        out = [self._told(slot, "fetch", {"asks": rows}, told) for slot, rows in asks.items()]
        return out + self._answers_early()

    def _answers_early(self) -> list[AddressedFrame]:
        """Answers the questions that waited for the shard to move."""
        early = self._table.serves(self._version)
        return [answer for frame in early for answer in self._answers(frame)]

    def reads(self, rows: Vector) -> list[AddressedFrame]:
        """Asks the owners of rows for their numbers, while the worker takes no step."""
        self._table.reads(rows, self._version, self._seat.slot)
        return self.reads_again() + self._answers_early()

    def reads_again(self) -> list[AddressedFrame]:
        """Asks those owners again that have not answered."""
        reading = self._table.reading
        told = {"restores": False, "reading": reading.number}
        return [self._told(s, "fetch", {"asks": reading.asks[s]}, told) for s in reading.owing]

    @property
    def owing(self) -> int:
        """How many owners have not answered the present question."""
        return len(self._table.reading.owing)

    def numbers_read(self) -> Vector | None:
        """Returns the numbers [r, width] of the rows that are read; None while any are missing."""
        return self._table.numbers_read()

    def _answers(self, frame: Frame) -> list[AddressedFrame]:
        rows = self._table.rows(frame.header["version"], frame.arrays)
        if rows is None:
            self._table.early.append(frame)
            return []
        told = {"restores": frame.header.get("restores", False), "to": frame.lease}
        told |= {"reading": frame.header.get("reading", 0)}
        return [self._told(frame.slot, "heal", rows, told)]

    def _asks_of(self, slots: Iterable[int]) -> list[AddressedFrame]:
        """Asks others for what the own shard and the next steps lack."""
        restoring = self._meeting
        assert isinstance(restoring, ShardRestore)
        told = {"restores": True}
        return [self._told(slot, "fetch", restoring.part(slot), told) for slot in slots]

    def _hears(self, frame: Frame) -> list[AddressedFrame]:
        """Takes rows in that were asked for: ahead, or for a shard that is restored.

        Answers to an earlier holder of the seat are ignored.
        """
        restoring, piece, told = self._meeting, frame.arrays, frame.header
        if told.get("to") != self._seat.lease:
            return []
        is_restored, reading = told.get("restores", False), self._table.reading
        if told.get("reading", 0):
            is_asked = told["reading"] == reading.number and frame.slot in reading.asks
            if is_asked and "vector" in piece:
                reading.came.setdefault(frame.slot, piece["vector"])
            return []
        if not is_restored:
            self._table.came(frame.slot, told["version"], piece.get("vector"))
        if not is_restored or not isinstance(restoring, ShardRestore):
            return []
        was_whole = restoring.is_whole
        out = self._asks_of([frame.slot]) if restoring.take(frame.slot, piece) else []
        return out if was_whole else out + self._ready()

    def _told(self, to: int, kind: str, piece: Piece, told: Mapping[str, Any]) -> AddressedFrame:
        frame = self._seat.frame(kind, {"version": self._version, **told}, piece)
        self.counts["bytes"] += frame.size_bytes
        return AddressedFrame(to, frame)

    def brings(
        self, message: Message, stands: tuple[Vector, Vector] | None = None
    ) -> tuple[Message, dict[str, Any]]:
        """Keeps the vector of a push for the meeting; returns what to send to the coordinator."""
        self._is_sparse, message = message.kept is not None, to_dense(message)
        assert message.vector is not None
        if (owned := message.owned) is None:
            sound = is_sound(message.codec, message.vector)
        else:
            by_row = RowCodec(message.codec, owned.rows.shape[1], owned.exact)
            sound = by_row.is_sound(message.vector)
        sound = sound and (message.floats is None or is_finite(message.floats))
        self._brought, self._stands, self._meeting = message, stands, None
        self._table.brings(message)
        told = message._replace(vector=None, rows=None, floats=None, integers=None)
        return told, {"is_finite": sound, **self._told_of()}

    def _told_of(self) -> dict[str, Any]:
        doubled = self.counts["doubled"]
        return {"sent": dict(self._sent), "taken": dict(self._taken), "doubled": doubled}

    def announces(self, run: Message, size: int, merge: str) -> list[AddressedFrame]:
        """Returns a run of segments for the members that merge them, before a meeting is called.

        Args:
            run: some segments of what this worker will bring, and the work in all of it.
            size: of all of it.
            merge: how the weights follow from the members' work.
        """
        slots, is_new = tuple(sorted(self._leases)), self._early is None
        if run.version != self._version or self._seat.slot not in slots or run.vector is None:
            return []
        if self._early is None:
            room = np.empty(size, run.vector.dtype)  # its pages are never touched
            self._early = ReduceScatter(self._seat.slot, slots, run._replace(vector=room))
            self._early_leases = self._leases_of(slots)
        shares, since = self._early.announce(run, merge), run.since
        work = {"steps": int(since.steps), "examples": int(since.examples), "merge": merge}
        out = [
            self._piece(s, "part", share.piece, share.start, work) for s, share in shares.items()
        ]
        return out + self._wholes() + (self._hear_held() if is_new else [])

    def nears(self, slots: Iterable[int]) -> None:
        """Takes in the slots from which a frame is arriving and is not whole yet."""
        self._arriving = frozenset(slots)

    def hear(self, frame: Frame) -> list[AddressedFrame]:
        """Takes a frame of another worker in; returns what to send."""
        seat, lease = self._seat, self._leases.get(frame.slot, 0)
        if (frame.term, frame.phase) != (seat.term, seat.phase) or frame.lease < lease:
            self.counts["fenced"] += 1
            return []
        self._near.add(frame.slot)
        version = frame.header["version"]
        if version < self._version:
            self.counts["late"] += 1
        elif frame.kind == "publish":
            self._publication(frame)
        elif frame.kind == "fetch":
            return self._answers(frame)
        elif frame.kind == "heal":
            return self._hears(frame)
        else:
            return self._takes(frame)
        return []

    def _publication(self, frame: Frame) -> None:
        line = frame.slot, frame.lease
        if frame.sequence <= self._heard.get(line, 0):
            self.counts["doubled"] += 1
            return
        self._heard[line] = frame.sequence
        self._inbox.append(frame)
        while len(self._inbox) > _MOST_WAITING or (
            len(self._inbox) > 1 and sum(f.size_bytes for f in self._inbox) > _MOST_WAITING_BYTES
        ):
            self._inbox.pop(0)
            self.counts["overrun"] += 1

    def news(self) -> tuple[Message, ...]:
        """Returns what has arrived: lists of members, calls, publications from the same point.

        Nothing while a push waits for its meeting: the push has counted what was taken in.
        """
        if self._brought is not None:
            return ()
        news, self._messages = self._messages, []
        kept: list[Frame] = []
        for frame in self._inbox:
            version = frame.header["version"]
            if version == self._version:
                message = message_of(frame)
                sound = message.vector is not None and is_sound(message.codec, message.vector)
                self.counts["taken" if sound else "refused"] += 1
                self._taken[f"{frame.slot} {frame.lease}"] += sound
                news += [message] if sound else []
            elif version > self._version:
                kept.append(frame)
        self._inbox = kept
        return tuple(news)

    # -- the meeting -----------------------------------------------------------------------------

    def _piece(
        self,
        to: int,
        kind: str,
        piece: Piece,
        start: int = WHOLE,
        work: Mapping[str, Any] = MappingProxyType({}),
    ) -> AddressedFrame:
        if self._is_sparse and (found := gather(piece["vector"])) is not None:
            piece = {**piece, "vector": found[0], "kept": found[1]}
        told = {"version": self._version, **self._group, **work}
        told |= {} if start == WHOLE else {"start": start}
        frame = self._seat.frame(kind, told, piece)
        self.counts["bytes"] += frame.size_bytes
        return AddressedFrame(to, frame)

    @property
    def _group(self) -> dict[str, Any]:
        """The fields that identify the meeting: its members, and their leases.

        Once it is called the members are enough, except for a table.
        """
        meeting, met = self._meeting, self._met
        if meeting is None:
            meeting, met = self._early, self._early_leases
        assert meeting is not None
        return {"slots": list(meeting.slots), **({"leases": list(met)} if met else {})}

    def _leases_of(self, slots: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._leases.get(slot, 0) for slot in slots)

    def _meeting_of(self, header: Mapping[str, Any]) -> ReduceScatter | RowMeeting | None:
        """Returns the meeting that a piece belongs to; None where this worker is in another."""
        slots, leases = tuple(header["slots"]), tuple(header.get("leases", ()))
        meeting, met = self._meeting, self._met
        if isinstance(meeting, ReduceScatter) and leases:  # of a piece that left before the call
            met = self._leases_of(slots)
        if meeting is None:
            meeting, met = self._early, self._early_leases
        if meeting is None or isinstance(meeting, ShardRestore) or leases != met:
            return None
        is_it = (header["version"], slots) == (meeting.version, meeting.slots)
        return meeting if is_it else None

    def _takes(self, frame: Frame) -> list[AddressedFrame]:
        header, meeting = frame.header, self._meeting_of(frame.header)
        if meeting is None:
            self._pieces += [frame] if frame.arrays else []
            return []
        if frame.kind == "missing":
            return self.again(frame.slot, header)
        was_whole = meeting.is_whole
        piece = dict(frame.arrays)
        if "kept" in piece:
            piece["vector"] = scatter(piece["vector"], piece.pop("kept"))
        if isinstance(meeting, RowMeeting):
            is_merged = meeting.take(frame.kind, frame.slot, piece)
        else:
            if "merge" in header:
                work = Clock(header.get("steps", 0), header.get("examples", 0))
                meeting.count(frame.slot, work, header["merge"])
            is_merged = meeting.take(frame.kind, frame.slot, piece, header.get("start", WHOLE))
        out = self._wholes() if is_merged else []
        return out if was_whole else out + self._ready()

    def _wholes(self) -> list[AddressedFrame]:
        """Returns what was merged here, for the others."""
        meeting = self._early if self._meeting is None else self._meeting
        if isinstance(meeting, ReduceScatter):
            runs, others = meeting.merged(), meeting.others
            return [self._piece(s, "whole", run.piece, run.start) for run in runs for s in others]
        if not isinstance(meeting, RowMeeting):
            return []
        wholes = {slot: meeting.whole_for(slot) for slot in meeting.others}
        return [self._piece(s, "whole", w) for s, w in wholes.items() if w is not None]

    def _ready(self) -> list[AddressedFrame]:
        meeting = self._meeting
        if meeting is None or not meeting.is_whole:
            return []
        told: dict[str, Any] = {"version": self._version, **self._group}
        told["bytes"] = self.counts["bytes"]
        if self._stands is not None and isinstance(meeting, ReduceScatter):
            apart = meeting.apart(*self._stands)
            told |= {"apart": apart} if math.isfinite(apart) else {}
        if isinstance(meeting, RowMeeting):
            told["guards"] = meeting.guards
        return [AddressedFrame(COORDINATOR, self._seat.frame("ready", told))]

    def _says_again(self) -> list[AddressedFrame]:
        """Reports what is missing to the coordinator and to those that owe it; or `ready`."""
        meeting = self._meeting
        if meeting is None or meeting.is_whole:
            return self._ready()
        lacks = meeting.lacks
        near = sorted(self._near | self._arriving)
        told = {"version": self._version, "near": near, **self._group, **lacks}
        self._near = set()
        frame = self._seat.frame("missing", told)
        self._asks += 1
        owing = {*lacks["parts"], *lacks["wholes"]} - self._arriving
        to = reordered(owing, self._asks)
        if isinstance(meeting, ShardRestore):
            return [*self._asks_of(to), AddressedFrame(COORDINATOR, frame)]
        return [*(AddressedFrame(slot, frame) for slot in to), AddressedFrame(COORDINATOR, frame)]

    def again(self, slot: int, lacks: Mapping[str, Any] | None = None) -> list[AddressedFrame]:
        """Returns what a member lacks, or may have missed when the line to it broke."""
        meeting, own = self._meeting, self._seat.slot
        if meeting is None or slot not in meeting.others:
            return []
        if isinstance(meeting, ShardRestore):
            return self._asks_of([slot] if slot in meeting.lacks["wholes"] else [])
        out = list[AddressedFrame]()
        if lacks is None or own in lacks["parts"]:
            out.append(self._piece(slot, "part", meeting.part(slot)))
        whole = meeting.whole_for(slot)
        if whole is not None and (lacks is None or own in lacks["wholes"]):
            out.append(self._piece(slot, "whole", whole))
        return out

    @property
    def summing(self) -> ReduceScatter | None:
        """The open meeting, while its mean is not made yet."""
        is_open = self.is_waiting_for_peers and isinstance(self._meeting, ReduceScatter)
        return self._meeting if is_open else None  # type: ignore[return-value]

    def ring_members(self, meeting: ReduceScatter) -> RingMembers:
        """Returns the members of a meeting, for a sum of all; any other lease is another group."""
        named_ = [f"{slot}.{self._leases[slot]}" for slot in meeting.slots]
        place, first = meeting.slots.index(meeting.slot), self.addresses[meeting.slots[0]]
        name = f"{self._seat.term}/{self._seat.phase}/{','.join(named_)}"
        return RingMembers(name, place, len(named_), first)

    def summed(self, mean: Piece) -> list[AddressedFrame]:
        """Takes the mean that a sum of all made; returns what to send."""
        assert isinstance(self._meeting, ReduceScatter)
        self._meeting.fill(mean)
        return self._ready()

    @property
    def is_meeting(self) -> bool:
        """True from the call to a meeting until its end."""
        return self._meeting is not None

    @property
    def is_waiting_for_peers(self) -> bool:
        """True while pieces of the open meeting are missing."""
        return self._meeting is not None and not self._meeting.is_whole

    def agreed(self, message: Message) -> Message:
        """Returns the answer that ends a meeting, with the mean in it."""
        meeting = self._meeting
        assert meeting is not None
        result = meeting.result()._replace(version=message.version)
        if self._brought is not None and not isinstance(meeting, ReduceScatter):
            guard = self._leases.get(meeting.guard, 0)
            self._table.agreed(self._brought, meeting.slots, (guard, meeting.told))
        self._meeting = self._brought = self._stands = self._early = None
        self._stands_on(message.version)
        return result
