"""The coordinator: handles every frame from workers and answers it.

The same object serves processes, Spark tasks and the simulator; `coordinator.server` gives it a
lock, a clock and a listener. Seats are `coordinator.membership`'s, phases
`coordinator.phases`'s, snapshots `coordinator.snapshots`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.lease_server import FrameHandler, LeaseServer
from photinus.coordinator.leases import Leases, SeatState, Yields
from photinus.coordinator.lost_shards import LostShards
from photinus.coordinator.membership import Membership
from photinus.coordinator.parameter_server import PushResult
from photinus.coordinator.peer_directory import PeerDirectory
from photinus.coordinator.phases import Phases, RunResult
from photinus.core.errors import DataError
from photinus.core.events import WorkerLost
from photinus.protocol.messages import message_to, page_of, page_to, snapshot_of
from photinus.strategies.base import Message
from photinus.training.plan import TrainingPlan
from photinus.training.snapshots import RunSnapshot
from photinus.transport.frames import Frame

_ALL_NOT_FINITE = "every worker's values are not finite"
MAX_STRIKES = 3
"""After so many pushes that are not finite a slot's rows are not used any more."""


class Coordinator(LeaseServer):
    """Joins the leases, the owner of the present phase and the budget.

    Args:
        plan: what is trained.
        callbacks: receive events, ledger lines and snapshots.
        now: the time, in seconds of a monotonic clock.
        snapshot: what to continue from, of an earlier term.

    Raises:
        UsageError: the snapshot belongs to another plan.
    """

    result: RunResult | None = None
    """Set when all phases are over."""

    def __init__(
        self,
        plan: TrainingPlan,
        callbacks: Callbacks | None = None,
        *,
        now: float = 0.0,
        snapshot: RunSnapshot | None = None,
    ) -> None:
        self._set_up(plan, callbacks or Callbacks(), now, snapshot)

    def _set_up(
        self,
        plan: TrainingPlan,
        callbacks: Callbacks,
        now: float,
        snapshot: RunSnapshot | None = None,
    ) -> None:
        leases = Leases(plan.workers, plan.lease_seconds)
        super().__init__(leases, callbacks)
        self._phases = Phases(plan, leases, callbacks, snapshot)
        self.owner, self._snapshots = self._phases.owner, self._phases.snapshots
        self._peer_directory = PeerDirectory(self._phases, leases)
        self._is_preparing = False
        """A snapshot was asked for, so that seats can be given up."""
        self._membership = Membership(self._phases, self._peer_directory, leases, callbacks, now)
        self._lost_shards = LostShards(leases)
        self._handlers: Mapping[str, FrameHandler] = {
            "hello": self._hello,
            "push": self._push,
            "fetch": self._push,
            "close": self._close,
            "state": self._state,
            "bye": self._bye,
            "publish": self._publish,
            "ready": self._ready,
            "missing": self._missing,
            "page": self._page,
        }

    @property
    def phase(self) -> int:
        """The present phase's index."""
        return self.owner.phase

    @property
    def is_over(self) -> bool:
        """True when every worker may leave."""
        return self.result is not None or bool(self.failure)

    @property
    def is_between_passes(self) -> bool:
        """True when all workers have left, and wait for the next pass over rows that stream."""
        return self._phases.is_between_passes

    @property
    def wants_shuffle(self) -> bool:
        """True while the rows must be redistributed, before any of them is trained on."""
        return self._phases.wants_shuffle

    def next_pass(self, now: float) -> None:
        """Every worker says hello again, with another pass over its rows."""
        self._phases.next_pass(now)

    @property
    def is_snapshot_asked(self) -> bool:
        """True while a snapshot that was asked for is not whole."""
        return self._snapshots.is_requested

    def ask_for_snapshot(self) -> bool:
        """Has the present round saved, even shortly after a save; False where none is open."""
        if self.is_over:
            return False
        return self._snapshots.request(is_open=self.has_begun and not self.is_between_passes)

    # -- frames and time -------------------------------------------------------------------------

    def tick(self, now: float) -> list[Frame]:
        """Called some times a second: leases end, late slots are left out, standbys sit down."""
        if self.is_over or self.is_between_passes:
            return []
        self._phases.check_trial(now)
        out: list[Frame] = []
        for seat in self.leases.expire(now):
            reason = self.leases.reason(seat)
            self.callbacks.emit(WorkerLost(slot=seat.slot, lease=seat.lease, reason=reason))
            out += self._after_seat_emptied(seat, now)
        out += self._answer_all(self.owner.leave_out_the_late(now), now)
        out += self._fall_back(now)
        if self.owner.failure:
            return out + self.stop(self.owner.failure)
        slots = [*self.owner.slots_to_ask(now), *self._lost_shards.slots_to_ask(now)]
        out += self._peer_directory.repeated_calls(slots)
        out += self._membership.fill_free_seats(now)
        self._snapshots.save_if_whole(now)
        self._phases.decide_on_the_best()  # of a lost worker nothing more is waited for
        self._membership.warn_of_missing(now)
        return out + self._finish_if_closed(now) + self._notifications(now)

    def _notifications(self, now: float) -> list[Frame]:
        """Returns what workers without an owner must be sent now."""
        if self.is_over or not self.owner.policy.is_peer_to_peer:
            return []
        is_wanted = self._membership.is_healing or self._snapshots.is_due(now)
        return self._peer_directory.notifications(is_wanted=is_wanted)

    # -- seats -----------------------------------------------------------------------------------

    def _hello(self, frame: Frame, now: float) -> list[Frame]:
        seat, out = self.leases[frame.slot], list[Frame]()
        if seat.is_resting or self.is_between_passes:
            return [self._reply_to(frame, "done")]
        if seat.leaving_attempt and seat.leaving_attempt == frame.header["attempt"]:
            return [self._reply_to(frame, "busy")]
        if seat.yields in ("ends", "ended") and not seat.is_live:
            seat.yields = "ended"
            return [self._reply_to(frame, "done")]
        if seat.is_live and seat.is_same_attempt(frame) and frame.header["hello"] > seat.hello:
            self.leases.vacate(seat)  # it was refused, or sent to heal, and has left its seat
            out = self._after_seat_emptied(seat, now)
        try:
            return out + self._membership.hello(frame, now)
        except DataError as error:  # no worker has rows: the run ends before its first step
            return out + self.stop(str(error), DataError.__name__)

    @property
    def has_begun(self) -> bool:
        """True once all workers have come."""
        return self._phases.has_begun

    @property
    def can_yield(self) -> bool:
        """True while seats can be given up: rows are kept, and no worker alone holds a shard."""
        seats = self.leases
        is_training = self.has_begun and not self.is_over and not self.is_between_passes
        return is_training and not self.owner.has_shards and not any(s.is_streaming for s in seats)

    @property
    def is_kept(self) -> bool:
        """True while the agreed point outlives the workers that made it."""
        return self.owner.policy.holds_parameters

    @property
    def idle(self) -> frozenset[int]:
        """The slots that need no worker in this phase any more, their shares being done."""
        seats = self.leases if self.is_kept else ()
        return frozenset(seat.slot for seat in seats if seat.close_frame is not None)

    def prepared_to_yield(self) -> bool:
        """Returns whether all seats may be given up now.

        Asks for a snapshot first where only the workers hold the agreed point.
        """
        if not self.can_yield:
            return False
        if self.is_kept:
            return True
        if not self._is_preparing:
            self._is_preparing = self.ask_for_snapshot()
            return False
        if self.is_snapshot_asked:
            return False
        self._is_preparing = False
        return True

    def unprepare(self) -> None:
        """Drops the preparation: its snapshot is too old to give seats up later."""
        self._is_preparing = False

    def yield_seats(self, slots: Iterable[int], how: Yields, now: float) -> list[Frame]:
        """Gives seats up to another job, each after its next push; closed workers leave now.

        Args:
            slots: the seats; their rows are trained on once they are taken back.
            how: "parks", or "ends" where the place of its task is wanted.
            now: the time.
        """
        out: list[Frame] = []
        for seat in (self.leases[slot] for slot in slots):
            seat.yields = how
            if seat.is_live and seat.close_frame is not None:
                out += self._vacate(seat, now)
        return out

    def take_back(self, slots: Iterable[int]) -> frozenset[int]:
        """Ends the yielding of seats; returns those whose task has ended, and is waited for."""
        seats = [self.leases[slot] for slot in slots]
        ended = frozenset(seat.slot for seat in seats if seat.yields == "ended")
        for seat in seats:
            seat.yields = "back" if seat.slot in ended else ""
        return ended

    def _after_seat_emptied(self, seat: SeatState, now: float) -> list[Frame]:
        """Called when a seat was emptied: rounds that waited for it may close."""
        self._membership.worker_lost(seat)
        return self._fall_back(now) or self._answer_all(self.owner.close(now), now)

    def _fall_back(self, now: float) -> list[Frame]:
        """Sends all back to the last snapshot where lost shards cannot be restored."""
        lost_seats = self._lost_shards.lost_seats(self._snapshots.holders)
        is_stuck = self._lost_shards.is_stuck(now)
        if not lost_seats and not is_stuck:
            return []
        # a worker that rejoins when the budget is used up sends its shard as it was loaded
        can_continue = self.owner.has_moved and not (is_stuck or self._phases.is_spent)
        if can_continue and self._lost_shards.can_restore(lost_seats, self.owner.version):
            self._lost_shards.restore(lost_seats[0])
            self._restart_meeting()
            return []
        holder_seats = [self.leases[slot] for slot in self._snapshots.holders]
        for seat in holder_seats:
            self.leases.vacate(seat)
        self.owner.give_up()
        self.leases.free_numbers()
        self._snapshots.fall_back()
        self._lost_shards.forget()
        return [self._frame("fenced", s.slot, s.lease) for s in holder_seats]

    def _restart_meeting(self) -> None:
        """The open meeting begins anew: no worker is called to the old one any more."""
        for seat in self.leases:
            if seat.pending_push is not None and seat.last_answer is not None:
                seat.answers.pop(seat.pending_push.sequence, None)
                seat.last_answer = None

    def _bye(self, frame: Frame, now: float) -> list[Frame]:  # noqa: ARG002 - as all of `hear`
        """A worker reported an error of its own: the run ends, once, with that error's text."""
        if frame.lease and not self.leases.holds(frame):
            return []
        error, kind = frame.header.get("error", ""), frame.header.get("type", "")
        frames = self.stop(error or f"worker {frame.slot} failed", kind)
        return [*frames, self._reply_to(frame, "stop")]

    def _state(self, frame: Frame, now: float) -> list[Frame]:
        if not self.leases.holds(frame):
            return []
        self._snapshots.take(frame.slot, frame.header["version"], snapshot_of(frame), now)
        return self._membership.heal(frame, now)

    def _page(self, frame: Frame, now: float) -> list[Frame]:
        """A worker sends a page of its shard or asks for one; the answer to either is a page."""
        if not self.leases.holds(frame) or frame.phase != self.owner.phase:
            return [self._reply_to(frame, "fenced")]
        page = page_of(frame)
        answer = self._snapshots.page(frame.slot, page, now)
        return [page_to(self._reply_to(frame, "page"), answer, asked=page.start)]

    def _publish(self, frame: Frame, now: float) -> list[Frame]:  # noqa: ARG002 - as all of `hear`
        if not self.leases.holds(frame):
            return [self._reply_to(frame, "fenced")]
        return self._peer_directory.receive(frame)

    def _ready(self, frame: Frame, now: float) -> list[Frame]:
        if not self._is_meeting_current(frame):
            return []
        self._lost_shards.ready(frame)
        return self._answer_all(self.owner.ready(frame, now), now)

    def _missing(self, frame: Frame, now: float) -> list[Frame]:
        if self._is_meeting_current(frame):
            self._lost_shards.missing(frame, now)
            self.owner.missing(frame, now)
        return []

    def _is_meeting_current(self, frame: Frame) -> bool:
        """Returns whether a frame of a member belongs to a meeting that can still take place.

        For a table the frame names the leases of the others: they must be the present ones.
        """
        leases, header = self.leases, frame.header
        member_leases = zip(header["slots"], header.get("leases", ()), strict=False)
        is_present = all(
            slot in leases and leases[slot].lease == lease for slot, lease in member_leases
        )
        return leases.holds(frame) and frame.phase == self.owner.phase and is_present

    # -- pushes ----------------------------------------------------------------------------------

    def _apply(self, seat: SeatState, push: Frame, now: float) -> list[Frame]:
        self._phases.add_measurement(push)
        answers = self.owner.receive(seat, push, now)
        if answers is None:
            return self._refuse(seat, push, now)
        return self._answer_all(answers, now)

    def _refuse(self, seat: SeatState, frame: Frame, now: float) -> list[Frame]:
        """Refuses a push that is not finite: the worker heals, and continues behind its rows."""
        seat.strikes += 1
        seat.mark_lost(frame.header.get("position", seat.position), self.owner.numbers)
        seat.is_quarantined = seat.strikes >= MAX_STRIKES
        wrong = f"worker {seat.slot} pushed values that are not finite"
        then = f"the push was dropped ({seat.strikes} of {MAX_STRIKES})"
        then += "; its rows are not used any more" if seat.is_quarantined else ""
        is_table = self.owner.has_shards  # whose rows it would leave out are not its own
        do = "look at its rows, or lower the learning rate"
        do += "; a module must look table rows up, and not read weight itself" * is_table
        self.callbacks.warn(wrong, then=then, do=do)
        self.callbacks.enter("refuse", frame, {})
        if is_table or all(s.is_quarantined or not s.rows for s in self.leases):
            return self.stop(f"{wrong if is_table else _ALL_NOT_FINITE}; {do}")
        seat.last_answer = seat.answers[frame.sequence] = self._reply_to(frame, "refused")
        if not self.owner.policy.has_rounds:  # what it has under way behind this is no better
            self.leases.vacate(seat)
            return [seat.last_answer, *self._after_seat_emptied(seat, now)]
        return [seat.last_answer]

    def _answer_all(self, answers: Sequence[PushResult], now: float) -> list[Frame]:
        agreed_slots = frozenset(a.seat.slot for a in answers if a.is_applied)
        members, progress = agreed_slots & self.leases.members, self._phases.progress
        self._phases.warn_of_bad_loss()
        is_snapshot = bool(agreed_slots) and self._snapshots.begin(members, progress, now)
        out = [self._answer(answer, is_snapshot=is_snapshot) for answer in answers]
        for seat, _, message in answers:
            if message.kind == "rejoin" and message.fingerprint:
                self._warn_of_divergence(seat, message)
            if message.kind == "rejoin" or (seat.is_leaving and message.kind != "meet"):
                out += self._vacate(seat, now)
        return out

    def _vacate(self, seat: SeatState, now: float) -> list[Frame]:
        """Empties a seat; a worker that yields is fenced at once, and trains no round in vain."""
        self.leases.vacate(seat)
        frames = [self._frame("fenced", seat.slot, seat.lease)] if seat.is_yielding else []
        return frames + self._after_seat_emptied(seat, now)

    def _warn_of_divergence(self, seat: SeatState, message: Message) -> None:
        where = f" on {seat.host}" if seat.host else ""
        self.callbacks.warn(
            f"worker {seat.slot}{where} has other parameters than the other workers",
            got=message.fingerprint,
            then=f"its work since version {message.version} is dropped; "
            "it gets the agreed parameters",
            do="test the memory of its host if this comes again",
        )

    def _answer(self, answer: PushResult, *, is_snapshot: bool) -> Frame:
        seat, push, message = answer
        kind = "fenced" if message.kind == "rejoin" else message.kind
        member_fields = dict(self._peer_directory.member_fields()) if kind == "meet" else {}
        if member_fields and self.owner.has_shards:
            member_fields["kept"] = self._snapshots.restorable_version
        seat.last_answer = seat.answers[push.sequence] = message_to(
            self._reply_to(push, kind),
            message,
            **member_fields,
            progress=self.owner.progress,
            stop=self._phases.is_spent,
            save=kind == "agreed" and (is_snapshot or self._membership.is_healer(seat)),
            measure=kind == "agreed" and self._phases.early_stopping.should_measure(seat.slot),
        )
        if push.kind == "push" and kind in ("agreed", "ack"):  # as its worker will read it
            self.callbacks.enter("ack", seat.last_answer, {})
        return seat.last_answer

    # -- the end of a phase ----------------------------------------------------------------------

    def _close(self, frame: Frame, now: float) -> list[Frame]:
        seat, verdict = self.leases[frame.slot], self.leases.verdict(frame)
        if verdict != "next":
            return self._answer_out_of_turn(seat, frame, verdict)
        seat.sequence += 1
        self._phases.add_measurement(frame)
        self.leases.close(seat, frame)
        self._snapshots.keep_closing_state(frame)
        frames = [self._reply_to(frame, "done")] if seat.is_resting else []
        return frames + self._after_seat_emptied(seat, now) + self._finish_if_closed(now)

    def _finish_if_closed(self, now: float) -> list[Frame]:
        seats = self.leases
        if not self.has_begun or self.is_over or any(s.pending_push for s in seats):
            return []
        open_seats = [s for s in seats if s.close_frame is None and not s.is_resting]
        rejoin_seconds = self.callbacks.rejoin_seconds
        if any(
            s.is_live or s.pending_hello or s.yields or now < s.ends_at + rejoin_seconds
            for s in open_seats
        ):
            return []
        for seat in open_seats:
            wrong = f"worker {seat.slot} did not come back"
            self.callbacks.warn(wrong, then="the rest of its share is not trained on")
        if any(s.is_resting for s in seats) and not self._phases.is_spent:
            return self._phases.rest()
        return self._finish(now)

    def _finish(self, now: float) -> list[Frame]:
        self.result = self._phases.finish(now)
        if self.result is not None:
            return self._end_frames("done")
        return self._membership.regrant(self._phases.stateful_slots)

    def _kind_after_end(self, frame: Frame) -> str:
        if self.failure or self.result is None:
            return "stop" if self.failure else ""
        return "done" if frame.kind in ("hello", "close") else "fenced"
