"""Phases of a run: seats, the present phase and its owner, the budget, the cuts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photinus.checkpoint.mapped import Kind
from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.early_stopping import EarlyStopping
from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.parameter_server import ParameterServer
from photinus.coordinator.row_checks import no_probabilities, other_labels, uneven
from photinus.coordinator.sharded_table import ENOUGH, Shard, ShardFiles, Table, kinds_of, page_in
from photinus.core.errors import UsageError, message
from photinus.core.events import CheckpointFailed, PhaseEnded, PhaseStarted
from photinus.core.parameters import Vector, fingerprint
from photinus.protocol.messages import Seat, inner_of
from photinus.strategies.base import GRADIENT, Message
from photinus.strategies.merge import combine
from photinus.training.asks import Grant, Page, Snapshot
from photinus.training.plan import START, Phase, TrainingPlan
from photinus.training.snapshots import Cut, Cuts
from photinus.transport.frames import Frame

_MOST_RETURNS = 10
"""So often in a row a run goes back to the same cut before it is given up."""
_SHUFFLES = "all rows are redistributed by their hash, once; shuffle=False leaves them"


@dataclass(frozen=True, slots=True)
class Result:
    """What a run ends with: the agreed parameters of every phase."""

    history: tuple[Vector, ...]
    """Of each phase [n], but for a table among the workers."""
    floats: Vector
    integers: Vector
    table: Table | None = None
    """What the last phase agreed on, where it lay among the workers."""

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The agreed parameters of every phase [n]; a table is read through a memory map."""
        return self.history if self.table is None else (*self.history, self.table.vector)


class Phases:
    """What seats, pushes and phases have in common.

    Args:
        plan: what is trained.
        leases: the seats.
        callbacks: where events, ledger lines and cuts go.
        now: the time, in seconds that never go back.
        cut: what to continue from, of an earlier term.

    Raises:
        UsageError: the cut belongs to another plan.
    """

    owner: ParameterServer

    def __init__(
        self,
        plan: TrainingPlan,
        leases: Leases,
        callbacks: Callbacks,
        now: float,
        cut: Cut | None = None,
    ) -> None:
        if cut is not None:
            _check(cut, plan)
        self._plan, self._leases, self._callbacks = plan, leases, callbacks
        self.history: tuple[Vector, ...] = cut.history if cut else plan.start.get("", ())
        self.span, self.keep = (0.0, 1.0), frozenset[int]()
        self._cuts, self.has_begun, self.is_between_passes = Cuts(cut), False, False
        self._begun, self._is_cut_asked, self._is_shuffled = -1, False, False
        self._is_tried = False
        self.wants_shuffle = False
        self._returns = 0
        """How often in a row the run went back and agreed on nothing in between."""
        self.holders = set[int]()
        """The slots that hold a shard of the present point, where nobody else does."""
        self._shards = ShardFiles(callbacks.scratch, self._no_shard)
        self.enter(cut.phase if cut else 0, now)

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._plan.phases[self.owner.phase]

    @property
    def _progress(self) -> float:
        """Of the stage, 0 to 1."""
        return self.span[0] + (self.span[1] - self.span[0]) * self.owner.progress

    @property
    def _is_stage_over(self) -> bool:
        """True where no rest follows the present phase."""
        return self.phase.part != START or self._early_stopping.is_stopped or self.span[1] == 1.0

    @property
    def is_spent(self) -> bool:
        """True when the budget is used up and shares were not fixed in advance."""
        is_done = self.owner.applied >= self.owner.budget
        return self._is_stopped or (is_done and not self._plan.is_fixed(self.owner.phase))

    @property
    def _is_stopped(self) -> bool:
        """True where the phase ends before its rows are used up."""
        return self._early_stopping.is_stopped or self._is_tried

    @property
    def at(self) -> tuple[int, int]:
        """Phase and version: the present point."""
        return self.owner.phase, self.owner.version

    @property
    def meets(self) -> bool:
        """True when the workers make every mean among themselves."""
        return self.owner.policy.meets

    @property
    def has_shards(self) -> bool:
        """True when each worker owns a part of the parameters that nobody else has."""
        return self.owner.policy.shards > 0

    @property
    def numbers(self) -> int:
        """How many numbers the parameters have; 0 where the workers alone hold them."""
        return self.owner.numbers

    @property
    def completed(self) -> int:
        """How many stages are over."""
        return len(self.history)

    @property
    def rounds_between(self) -> int:
        """How many publications of each worker there are between two meetings."""
        return self.owner.policy.rounds_between

    def would_spend(self, examples: int) -> bool:
        """Tells whether so many more examples use the budget up."""
        return self._is_tried or self.owner.applied + examples >= self.owner.budget

    def look_at(self, now: float) -> None:
        """Ends the present phase of a trial once it was tried for long enough."""
        seconds = self._plan.trial_seconds
        self._is_tried = self.has_begun and seconds is not None and now - self._entered >= seconds

    def end_of(self, seat: SeatState) -> float:
        """Returns the position in a seat's rows at which its share of the phase ends."""
        return self.span[1] * self.phase.stage.passes(self._leases.rows) * seat.rows

    def frame(self, kind: str, slot: int, lease: int, **header: Any) -> Frame:  # noqa: ANN401
        """Returns a frame to a slot's worker."""
        seat = Seat(self._callbacks.run, self._callbacks.term, self.owner.phase, slot, lease)
        return seat.frame(kind, header)

    # -- phases ----------------------------------------------------------------------------------

    def enter(self, phase: int, now: float, point: Message | None = None) -> None:
        """Sets a phase up: its first parameters, its policy, every seat at its start.

        Args:
            phase: its index.
            now: the time.
            point: of a rest, where its start ended: every seat continues where it was.
        """
        self._entered = self._saved_at = now
        self._is_tried = False
        self.holders = set()
        self._cuts.drop()
        self._shards.drop()
        self._leases.reopen()
        if point is None:
            self._leases.restart()
            self._early_stopping = EarlyStopping(
                0.0, self._plan.patience, self._plan.phases[phase].stage.finished
            )
        cut = self._cuts.last
        is_here = cut is not None and cut.phase == phase
        if point is None:
            point = cut.point if cut is not None and is_here else self._start(phase)
        self._make_owner(
            phase, point._replace(version=cut.version if cut is not None and is_here else 0)
        )
        if cut is not None and is_here:
            self._restore(cut)

    def _make_owner(self, phase: int, point: Message) -> None:
        """Makes the owner of a phase at a point, for the rows that are counted by now."""
        self.strategy, self._settled_warnings = self._plan.phases[phase].settled(
            self._leases.rows, self._plan.workers, self.span
        )
        self.owner = ParameterServer(
            phase, self.strategy.owner(), point, self._leases, self._callbacks
        )

    def begin(self, now: float) -> None:
        """The phase begins: all rows are counted; or another pass over them."""
        self.has_begun = True
        if self._begun == self.owner.phase:
            return
        self.span = self._spans(self.owner.phase)
        if self.span[0] == self.span[1]:
            self.enter(self.owner.phase + 1, now)
            self.span = self._spans(self.owner.phase)
        self._begun = self.owner.phase
        owner = self.owner
        point, applied = owner.point._replace(version=owner.version), owner.applied
        self._make_owner(owner.phase, point)
        self.owner.restore(point, applied)
        for warning in self._settled_warnings:
            self._callbacks.warn(f"{self.phase.name}: {warning}")
        if self.phase.stage.reads_probabilities:
            spans = (seat.span for seat in self._leases.seats.values())
            for text, got, do in no_probabilities(self.phase.name, spans):
                self._callbacks.warn(text, got=got, do=do)
        self._entered = self._saved_at = now
        stage, rows = self.phase.stage, {s.slot: s.rows for s in self._leases.seats.values()}
        epochs = stage.passes(self._leases.rows)
        if self._plan.measures:
            self._early_stopping.epochs = epochs
        start, end = (round(share * epochs * self._leases.rows) for share in self.span)
        self.owner.budget = max(1, end - start)
        cut = self.saved
        if cut is not None and not cut.is_phase_start and rows != cut.rows:
            wrong = "the workers hold other rows than at the checkpoint: some count twice, or never"
            self._callbacks.warn(wrong, do="resume with the same data in the same partitions")
        self._callbacks.emit(
            PhaseStarted(
                phase=self.owner.phase,
                name=self.phase.name,
                budget=self.owner.budget,
                parameters=self._size(),
                strategy=str(self.strategy),
                batch_size=stage.batch_size,
                epochs=(self.span[1] - self.span[0]) * epochs,
            )
        )

    def _size(self) -> int:
        """Returns how many numbers are trained in this phase."""
        if self.has_shards:
            blank = self.phase.stage.blank(self.history, self._plan.seed)
            return blank.parameters.layout.size()
        return self.numbers

    def _spans(self, phase: int) -> tuple[float, float]:
        leases = self._leases
        return self._plan.phases[phase].span(leases.rows, is_stream=leases.are_streams)

    def finish(self, now: float) -> Result | None:
        """Ends the present phase, and enters the next one; returns the result after the last."""
        point, table = self._final(), self._table()
        assert point.floats is not None
        assert point.integers is not None
        self._warn_of_unused_rows()
        self._callbacks.emit(
            PhaseEnded(
                phase=self.owner.phase,
                name=self.phase.name,
                examples=self.owner.applied,
                seconds=now - self._entered,
                metrics=self.owner.metrics,
                passes={str(s): n for s, n in self._leases.passes(self.numbers).items()},
                fingerprint=_fingerprint(point) if table is None else table.fingerprint,
            )
        )
        if self._goes_on(point, now):
            return None
        return Result(self.history, point.floats, point.integers, table)

    def _table(self) -> Table | None:
        """Returns the table that lay among the workers; its shards were sent before they closed."""
        if not self.has_shards:
            return None
        closed = self._leases.closed.values()
        shards = self._shards.at(max(frame.header["version"] for frame in closed))
        return Table(shards, self.owner.policy.rows, self._callbacks.scratch)

    def _goes_on(self, point: Message, now: float) -> bool:
        """Enters the phase after the present one, from where this one ended; False after the last.

        A rest continues from its start's point, rows and inner optimizers.
        """
        following, goes_on = self.owner.phase + 1, not self._is_stage_over
        if self.phase.part == START and not goes_on:
            following += 1
        if not goes_on and not self.has_shards:
            assert point.vector is not None
            self.history = (*self.history, point.vector)
        if following == len(self._plan.phases):
            return False
        closed = self._leases.closed
        newest = max((frame.header["version"] for frame in closed.values()), default=-1)
        closed = {s: f for s, f in closed.items() if goes_on and f.header["version"] == newest}
        self.keep = frozenset(closed)
        self.enter(following, now, point if goes_on else None)
        self.begin(now)
        cut = self._here()
        if goes_on:
            self._callbacks.enter("rest", self.frame("stop", 0, 0), {})
            inner = {slot: inner_of(frame.arrays) for slot, frame in closed.items()}
            cut = replace(cut, inner={slot: held for slot, held in inner.items() if held})
            self._cuts.last = cut
        self._callbacks.save(cut)
        return True

    def _final(self) -> Message:
        """The exact average at a phase's end: the owner's point, or the mean of the workers'."""
        point, best = self.owner.point, self._early_stopping.best
        if self._is_stage_over and self._plan.patience and best is not None:
            return best.point
        closed = [frame for frame in self._leases.closed.values() if frame.arrays]
        if self.owner.policy.keeps or self.has_shards or not closed:
            return point
        newest = max(frame.header["version"] for frame in closed)
        held = [frame.arrays for frame in closed if frame.header["version"] == newest]
        share = [1.0 / len(held)] * len(held)
        vector = held[0]["vector"].copy()  # its worker may train on in the same memory
        if len({fingerprint(h["vector"]) for h in held}) > 1:
            self._callbacks.warn("the workers ended with different bits; took their mean")
            vector = combine([h["vector"] for h in held], share)
        return point._replace(
            vector=vector,
            floats=combine([h["floats"] for h in held], share),
            integers=np.maximum.reduce([h["integers"] for h in held]),
        )

    def _warn_of_unused_rows(self) -> None:
        """Names the workers whose rows were trained on less often than the others'."""
        if self._is_stopped or not self._plan.is_fixed(self.owner.phase):
            return
        rows, stage = self._leases.rows, self.phase.stage
        wanted = self.span[1] * stage.passes(rows)
        for slot, passes in self._leases.passes(self.numbers).items():
            seat = self._leases.seats[slot]
            missing = (wanted - passes) * seat.rows
            share = 1.0 if self._plan.is_shared else seat.rows / rows
            if missing > math.ceil(stage.batch_size * share):
                self._callbacks.warn(
                    f"{self.phase.name}: {missing:.0f} examples of worker {slot} were not used",
                    got=f"{passes:.2f} passes over its {seat.rows} rows, not {wanted:.2f}",
                )

    def look_for_skew(self) -> bool:
        """Looks at rows and labels once all workers came; tells if rows are to be dealt out anew.

        Workers that train alone between agreements drift apart when their rows are not alike, and
        who holds most rows works while the others wait.
        """
        seats = self._leases.seats
        wrong = uneven([max(0, seat.rows) for seat in seats.values()])
        if self._has_local_steps:  # a mean gradient is of all labels
            wrong += other_labels({slot: seat.labels for slot, seat in seats.items()})
        if not wrong or self._begun >= 0:
            return False
        can_shuffle = self._callbacks.can_shuffle and not self._is_shuffled
        self.wants_shuffle = self._plan.shuffle and can_shuffle
        for text, got, do in wrong:
            self._callbacks.warn(text, got=got or None, do=_SHUFFLES if self.wants_shuffle else do)
        return self.wants_shuffle

    @property
    def _has_local_steps(self) -> bool:
        """True when in any phase workers train alone between agreements."""
        return any(
            phase.strategy.worker().site != GRADIENT and self._spans(number)[0] < 1.0
            for number, phase in enumerate(self._plan.phases)
        )

    def _start(self, phase: int) -> Message:
        trained, floats, integers = self._plan.first(phase, self.history)
        vector = None if self._plan.is_sharded(phase) else trained
        return Message("heal", vector, floats=floats, integers=integers)

    # -- where a worker begins -------------------------------------------------------------------

    @property
    def is_in_workers_only(self) -> bool:
        """True when neither the owner nor a cut with inner states holds the present point."""
        cut = self.saved
        is_whole = cut is not None and bool(cut.inner)
        return not (self.owner.policy.keeps or self.owner.version == 0 or is_whole)

    def start_for(self, slot: int) -> tuple[Message, Mapping[str, Vector]]:
        """Returns the present point, and an inner state of a slot's worker to continue with.

        The inner state is its own, or where all are the same anybody's.
        """
        cut, owner = self.saved, self.owner
        point = owner.point if cut is None or owner.policy.keeps else cut.point
        if cut is None or not cut.inner:
            return point, {}
        is_own = owner.policy.keeps and cut.version > 0
        anybody = {} if is_own else cut.inner[min(cut.inner)]
        return point, cut.inner.get(slot, anybody)

    def held_by(self, worker: Snapshot) -> Message:
        """Returns the present point as a worker holds it, where the owner does not."""
        return self.owner.point._replace(
            version=self.owner.version,
            vector=worker.trained,
            floats=worker.floats,
            integers=worker.integers,
        )

    def grant(self, seat: SeatState, point: Message, inner: Mapping[str, Vector]) -> Grant:
        """Returns what a seat's worker is sent: the phase, and from where it continues."""
        owner, is_fresh = self.owner, self.owner.version == 0
        shard: dict[str, Kind] = {}
        if self.has_shards:
            shard = kinds_of(self._shard(seat.slot))
            self.holders.add(seat.slot)
        return Grant(
            phase=owner.phase,
            lease=seat.lease,
            sequence=seat.sequence,
            position=seat.position,
            budget=owner.budget,
            progress=owner.progress,
            rows=self._leases.rows,
            span=self.span,
            tells=seat is max(self._leases.seats.values(), key=lambda s: s.rows),
            # whoever begins makes the outer state for itself
            heal=point._replace(outer=()) if is_fresh else point,
            is_fresh=is_fresh,
            inner=inner,
            history=self.history[seat.has :],
            shard=shard,
            is_behind=self.has_shards and owner.has_moved,
            is_idle=seat.is_quarantined or self.is_spent,
        )

    def _shard(self, slot: int) -> Shard:
        """Returns what a worker's shard is loaded from; nothing where the worker makes it."""
        cut = self._cuts.last
        if cut is not None and cut.phase == self.owner.phase and cut.shards:
            return cut.shards[slot]
        given = self._plan.start.get(self.phase.stage.name, ())
        if not given or not given[0].size:
            return {}
        policy = self.owner.policy
        return {"vector": given[0].reshape(-1, policy.rows)[slot :: policy.shards]}

    def page(self, slot: int, page: Page, now: float) -> Page:
        """Answers a page of a worker's shard that is told, or asked for."""
        if page.numbers is None:
            return page._replace(numbers=page_in(self._shard(slot)[page.name], page.start))
        is_wanted = page.is_last or page.version == self._cuts.version
        come = self._shards.take(slot, page) if is_wanted else ENOUGH
        self.save_if_whole(now)
        return Page(page.version, page.name, come)

    def _no_shard(self, reason: str) -> None:
        """A shard could not be written: this round is not saved, and training continues."""
        self._callbacks.emit(CheckpointFailed(name=self._here().name, reason=reason))
        self._cuts.drop()

    def without(self, slot: int) -> None:
        """A worker was lost: it can complete neither a cut nor a measurement."""
        self._cuts.without(slot)
        if self.has_shards and slot not in self._shards_told:
            self._cuts.drop()  # nobody tells that version of its shard any more
        self._early_stopping.without(slot)

    # -- passes, where rows stream ---------------------------------------------------------------

    def rest(self) -> list[Frame]:
        """A pass over the rows is over: keeps what the workers held alone, and lets all go."""
        self.is_between_passes = True
        leases, cut = self._leases, self.saved
        if self.owner.version > 0 and (cut is None or not cut.inner):
            closed = leases.closed.items()
            self._keep({slot: f.arrays for slot, f in closed if self._is_newest(f)})
        return [self.frame("done", s.slot, s.lease) for s in leases.here]

    def next_pass(self, now: float) -> None:
        """All come again, each with a pass over its rows."""
        self.is_between_passes, self.has_begun = False, False
        self._is_shuffled, self.wants_shuffle = self._is_shuffled or self.wants_shuffle, False
        self._cuts.drop()
        self._leases.empty(now)

    def _is_newest(self, closed: Frame) -> bool:
        """Tells whether a worker's own state fits the agreed point."""
        return self.owner.policy.keeps or bool(closed.header["version"] == self.owner.version)

    def _keep(self, held: Mapping[int, Mapping[str, Vector]]) -> None:
        """Saves a cut: with agreement on gradients the workers sent the point, too."""
        cut = self._here()
        if self.has_shards:
            cut = replace(cut, shards=self._shards.at(cut.version))
        elif not self.owner.policy.keeps:
            if not held:
                return
            cut = replace(cut, point=self._told(held[min(held)]))
        self._cuts.last = replace(cut, inner={s: inner_of(a) for s, a in sorted(held.items())})
        self._callbacks.save(self._cuts.last)

    def _told(self, held: Mapping[str, Vector]) -> Message:
        """Returns the agreed point as a worker sent it."""
        return self.owner.point._replace(
            version=self.owner.version,
            vector=held["vector"],
            floats=held["floats"],
            integers=held["integers"],
        )

    # -- cuts ------------------------------------------------------------------------------------

    def _here(self) -> Cut:
        """Returns the present point as a cut, without what the workers hold alone."""
        owner = self.owner
        return Cut(
            phase=owner.phase,
            version=owner.version,
            applied=owner.applied,
            budget=owner.budget,
            point=owner.point._replace(version=owner.version),
            **self._leases.positions(),
            history=self.history,
            row_size=owner.policy.rows if self.has_shards else 0,
        )

    def is_cut_due(self, now: float) -> bool:
        """Tells whether the present round shall be saved."""
        every = self._callbacks.checkpoint_seconds
        return self._is_cut_asked or (every is not None and now - self._saved_at >= every)

    def begin_cut(self, members: frozenset[int], now: float) -> bool:
        """Begins a cut of this round, if it is due or a trial needs it; tells if any is asked.

        Args:
            members: whose work was just agreed on.
            now: the time.
        """
        owner, seats = self.owner, self._leases.seats.values()
        if self._cuts.version >= 0 and len(self._shards_told) < owner.policy.shards:
            return False  # it will be whole: with a worker that is lost it is given up
        is_all = bool(members) and not any(seat.closed for seat in seats)
        is_all = is_all and (members == self._leases.members or not owner.policy.waits)
        is_trial = is_all and self._early_stopping.begin(
            self._progress, owner.version, self._leases.members
        )
        if not is_trial and not self.is_cut_due(now):
            return False
        # where nobody waits, no two workers are at the same point: each starts fresh
        asked = members if owner.policy.waits else frozenset[int]()
        self._cuts.begin(self._here(), asked)
        return bool(asked)

    @property
    def _shards_told(self) -> Mapping[int, Shard]:
        return self._shards.at(self._cuts.version)

    def ask_for_a_cut(self) -> bool:
        """The present round shall be saved, whenever the last one was; False where none is open."""
        self._is_cut_asked = self.has_begun and not self.is_between_passes
        return self._is_cut_asked

    @property
    def is_cut_asked(self) -> bool:
        """True while a cut that was asked for is not whole."""
        return self._is_cut_asked

    @property
    def saved(self) -> Cut | None:
        """The last cut, when nothing was agreed since."""
        return self._cuts.at(*self.at)

    def take(self, slot: int, version: int, snapshot: Snapshot, now: float) -> None:
        """Takes in the state that a worker sent, for the cut in the making."""
        self._cuts.take(slot, version, snapshot)
        self.save_if_whole(now)

    def save_if_whole(self, now: float) -> None:
        """Saves the cut in the making once every worker has sent its part."""
        cut = self._cuts.whole(self.owner.policy, self._shards_told)
        if cut is None:
            return
        self._early_stopping.hold(cut)
        if self.is_cut_due(now):
            self._saved_at, self._is_cut_asked = now, False
            self._callbacks.save(cut)

    # -- validation ------------------------------------------------------------------------------

    def asks_to_measure(self, slot: int) -> bool:
        """Tells, once, whether a slot's worker shall measure the point that it is sent now."""
        return self._early_stopping.asks(slot)

    def measured(self, frame: Frame) -> None:
        """Takes what a worker measured."""
        told = frame.header.get("measured")
        if told is not None:
            self._early_stopping.take(frame.slot, told)
            self.decide_on_the_best()

    def decide_on_the_best(self) -> None:
        """Where all have sent what they measured, decides what is best and whether to stop."""
        self._early_stopping.decide(self.owner.phase, self.phase.name, self._callbacks)

    def remember(self, closed: Frame) -> None:
        """Keeps the parameters of a worker that is done, should all others be lost."""
        owner, version = self.owner, closed.header["version"]
        is_new = version == owner.version and self.saved is None
        if is_new and version > 0 and not (owner.policy.keeps or self.has_shards):
            self._cuts.last = replace(self._here(), point=self._told(closed.arrays))

    def fall_back(self) -> None:
        """Nobody is left who knows the parameters: the last cut, or the phase's start."""
        cut, lost = self._cuts.last, self.owner.version
        if cut is None or cut.phase != self.owner.phase:
            cut = replace(
                self._here(),
                version=0,
                applied=0,
                point=self._start(self.owner.phase),
                positions=dict.fromkeys(self._leases.seats, 0),
            )
        self._returns = self._returns + 1 if lost == cut.version else 0
        self._cuts.last, self.holders = cut, set()
        self._cuts.drop()
        self._shards.drop()
        self._restore(cut)
        self._leases.reopen()
        self._callbacks.enter("back", self.frame("stop", 0, 0, version=cut.version), {})
        do = "checkpoint more often to lose less"
        if self.has_shards:
            wrong = "a worker was lost, and with it the rows that it owned"
        elif any(seat.is_yielding for seat in self._leases.seats.values()):
            wrong, do = "all seats were given up, and with them what the workers had agreed on", ""
        else:
            wrong = "all workers were lost, and with them what they had agreed on"
        then = f"the run went back from version {lost} to {cut.version} of phase {cut.phase}"
        self._callbacks.warn(wrong, then=then, do=do)
        if self.has_shards and self._returns == _MOST_RETURNS:
            wrong = f"the workers agreed on nothing after version {lost}"
            got = f"{_MOST_RETURNS} times one was lost, or could not reach another"
            self.owner.failure = message(wrong, got=got, do="mend the network; resume the run")

    def _restore(self, cut: Cut) -> None:
        self.owner.restore(cut.point, cut.applied)
        self._leases.go_back(cut)


def _fingerprint(point: Message) -> str:
    assert point.vector is not None
    return fingerprint(point.vector)


def _check(cut: Cut, plan: TrainingPlan) -> None:
    if cut.phase >= len(plan.phases):
        wrong = f"the checkpoint is of phase {cut.phase}, and this plan has fewer phases"
        raise UsageError(wrong, got=len(plan.phases), do="resume with the plan it is of")
    workers = len(cut.positions)
    if not cut.is_phase_start and workers != plan.workers:
        wrong = f"a checkpoint within a phase continues with as many workers as it has, {workers}"
        raise UsageError(wrong, got=plan.workers, do=f"resume with {workers} workers")
