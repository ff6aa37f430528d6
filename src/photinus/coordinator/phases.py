"""Phases of a run: seats, the present phase and its owner, the budget, the cuts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.early_stopping import EarlyStopping
from photinus.coordinator.leases import Leases
from photinus.coordinator.parameter_server import ParameterServer
from photinus.core.errors import UsageError, message
from photinus.core.events import Evaluated, PhaseStarted, Warned
from photinus.core.parameters import Vector
from photinus.data.skew import skewed
from photinus.protocol.messages import Seat, inner_of, named
from photinus.strategies.base import GRADIENT, Message
from photinus.training.plan import START, Phase, TrainingPlan
from photinus.training.snapshots import Cut, Cuts
from photinus.transport.frames import Frame

__all__ = ["Phases"]

_LARGE = 1.5
"""A worker with more than so many times its share of the rows lets the others wait."""
_SHUFFLES = "all rows are redistributed by their hash, once; shuffle=False leaves them"


class Phases:
    """What seats, pushes and phases have in common.

    Args:
        program: what is trained.
        desk: where events, ledger lines and cuts go.
        now: the time, in seconds that never go back.
        cut: what to go on from, of an earlier term.

    Raises:
        UsageError: the cut belongs to another program.
    """

    owner: ParameterServer

    def __init__(
        self, program: TrainingPlan, callbacks: Callbacks, now: float, cut: Cut | None
    ) -> None:
        if cut is not None:
            _check(cut, program)
        self.program, self.callbacks = program, callbacks
        self.leases = Leases(program.workers, program.lease_seconds)
        self.history: tuple[Vector, ...] = cut.history if cut else program.start.get("", ())
        self.span, self.keep = (0.0, 1.0), frozenset[int]()
        self.cuts, self.has_begun, self.is_between_passes = Cuts(cut), False, False
        self._begun, self._is_cut_asked, self._is_shuffled = -1, False, False
        self.wants_shuffle = False
        self.enter(cut.phase if cut else 0, now)

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.program.phases[self.owner.phase]

    @property
    def rows(self) -> int:
        """Of all workers."""
        return sum(max(0, seat.rows) for seat in self.leases.seats.values())

    @property
    def progress(self) -> float:
        """Of the stage, 0 to 1."""
        return self.span[0] + (self.span[1] - self.span[0]) * self.owner.progress

    @property
    def is_stage_over(self) -> bool:
        """True where no rest follows the present phase."""
        return self.phase.part != START or self.early_stopping.is_stopped or self.span[1] == 1.0

    @property
    def is_spent(self) -> bool:
        """True when the budget is used up and shares were not fixed in advance."""
        is_done = self.owner.applied >= self.owner.budget
        return self.early_stopping.is_stopped or (
            is_done and not self.program.is_fixed(self.owner.phase)
        )

    def frame(self, kind: str, slot: int, lease: int, **fields: Any) -> Frame:  # noqa: ANN401
        """Returns a frame to a slot's worker."""
        seat = Seat(self.callbacks.run, self.callbacks.term, self.owner.phase, slot, lease)
        return seat.frame(kind, **fields)

    def warn(self, wrong: str, *, got: object = None, then: str = "", do: str = "") -> None:
        """Warns the user; the arguments are those of `message`."""
        self.callbacks.emit(Warned(text=message(wrong, got=got, then=then, do=do)))

    # -- phases ----------------------------------------------------------------------------------

    def enter(self, phase: int, now: float, point: Message | None = None) -> None:
        """Sets a phase up: its first parameters, its policy, every seat at its start.

        Args:
            phase: its index.
            now: the time.
            point: of a rest, where its start ended: every seat goes on where it was.
        """
        self.entered = self.saved = now
        self.cuts.drop()
        self.leases.reopen()
        if point is None:
            for seat in self.leases.seats.values():
                seat.position, seat.reached, seat.lost = 0, {}, 0
            self.early_stopping = EarlyStopping(
                0.0, self.program.patience, self.program.phases[phase].stage.finished
            )
        cut = self.cuts.last
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
        self.agreement, self._settled_warnings = self.program.phases[phase].settled(
            self.rows, self.program.workers, self.span
        )
        self.owner = ParameterServer(
            phase, self.agreement.policy(), point, self.leases, self.callbacks
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
            self.warn(f"{self.phase.name}: {warning}")
        self._warn_of_span()
        self.entered = self.saved = now
        stage, rows = self.phase.stage, {s.slot: s.rows for s in self.leases.seats.values()}
        epochs = stage.passes(self.rows)
        if self.program.measures:
            self.early_stopping.epochs = epochs
        start, end = (round(share * epochs * self.rows) for share in self.span)
        self.owner.budget = max(1, end - start)
        cut = self.cuts.at(self.owner.phase, self.owner.version)
        if cut is not None and not cut.is_phase_start and rows != cut.rows:
            wrong = "the workers hold other rows than at the checkpoint: some count twice, or never"
            self.warn(wrong, do="resume with the same data in the same partitions")
        vector = self.owner.point.vector
        self.callbacks.emit(
            PhaseStarted(
                phase=self.owner.phase,
                name=self.phase.name,
                budget=self.owner.budget,
                parameters=0 if vector is None else vector.size,
                strategy=str(self.agreement),
                batch_size=stage.batch_size,
                epochs=(self.span[1] - self.span[0]) * epochs,
            )
        )

    def _spans(self, phase: int) -> tuple[float, float]:
        is_stream = any(seat.streams for seat in self.leases.seats.values())
        return self.program.phases[phase].span(self.rows, is_stream=is_stream)

    def finish(self, point: Message, now: float) -> bool:
        """Enters the phase after the present one, from where this one ended; False after the last.

        A rest goes on from its start's point, rows and inner optimizers.
        """
        following, goes_on = self.owner.phase + 1, not self.is_stage_over
        if self.phase.part == START and not goes_on:
            following += 1
        if not goes_on:
            assert point.vector is not None
            self.history = (*self.history, point.vector)
        if following == len(self.program.phases):
            return False
        closed = {s.slot: s.closed for s in self.leases.seats.values() if s.closed is not None}
        newest = max((frame.version for frame in closed.values()), default=-1)
        closed = {slot: f for slot, f in closed.items() if goes_on and f.version == newest}
        self.keep = frozenset(closed)
        self.enter(following, now, point if goes_on else None)
        self.begin(now)
        cut = self.here()
        if goes_on:
            self.callbacks.enter("rest", self.frame("stop", 0, 0), {})
            inner = {slot: inner_of(named(frame)) for slot, frame in closed.items()}
            cut = replace(cut, inner={slot: held for slot, held in inner.items() if held})
            self.cuts.last = cut
        self.callbacks.save(cut)
        return True

    def passes(self) -> dict[str, float]:
        """Returns how often each worker's rows were trained on in this stage."""
        seats = [seat for seat in self.leases.seats.values() if seat.rows > 0]
        numbers = self.owner.numbers
        return {str(s.slot): (s.position - s.lost - s.behind(numbers)) / s.rows for s in seats}

    def warn_of_unused_rows(self) -> None:
        """Names the workers whose rows were trained on less often than the others'."""
        if self.early_stopping.is_stopped or not self.program.is_fixed(self.owner.phase):
            return
        rows, stage = self.rows, self.phase.stage
        wanted = self.span[1] * stage.passes(rows)
        for slot, passes in self.passes().items():
            seat = self.leases.seats[int(slot)]
            missing = (wanted - passes) * seat.rows
            share = 1.0 if self.program.is_shared else seat.rows / rows
            if missing > math.ceil(stage.batch_size * share):
                self.warn(
                    f"{self.phase.name}: {missing:.0f} examples of worker {slot} were not used",
                    got=f"{passes:.2f} passes over its {seat.rows} rows, not {wanted:.2f}",
                )

    def look_for_skew(self) -> bool:
        """Looks at rows and labels once all workers came; tells if rows are to be dealt out anew.

        Workers that train alone between agreements drift apart when their rows are not alike, and
        who holds most rows works while the others wait.
        """
        wrong = [*self._uneven_rows(), *self._other_labels()]
        if not wrong or self._begun >= 0:
            return False
        can_shuffle = self.callbacks.can_shuffle and not self._is_shuffled
        self.wants_shuffle = self.program.shuffle and can_shuffle
        for text, got, do in wrong:
            self.warn(text, got=got or None, do=_SHUFFLES if self.wants_shuffle else do)
        return self.wants_shuffle

    def _other_labels(self) -> list[tuple[str, str, str]]:
        far = skewed({s.slot: s.labels for s in self.leases.seats.values()})
        local = [
            number
            for number, phase in enumerate(self.program.phases)
            if phase.agreement.strategy().site != GRADIENT and self._spans(number)[0] < 1.0
        ]
        if not far or not local:  # a mean gradient is of all labels
            return []
        slots = ", ".join(str(slot) for slot in far)
        wrong = f"the rows of workers {slots} have other labels than those of all workers"
        do = "shuffle the rows before training, or agree after every step"
        return [(wrong, f"up to {max(far.values()):.0%} of a worker's rows", do)]

    def _uneven_rows(self) -> list[tuple[str, str, str]]:
        rows = [max(0, seat.rows) for seat in self.leases.seats.values()]
        empty, most, total = rows.count(0), max(rows), sum(rows)
        do = "repartition the data, or use fewer workers"
        found = [(f"{empty} of {len(rows)} partitions are empty", "", do)] if empty else []
        if most * len(rows) > _LARGE * total and total:
            wrong = f"worker {rows.index(most)} holds {most / total:.0%} of the rows"
            found.append((wrong, f"{len(rows)} workers", do))
        return found

    def _warn_of_span(self) -> None:
        """Means of units lie in 0..1: other inputs are trained on without an error, to no end."""
        numbers = [number for seat in self.leases.seats.values() for number in seat.span]
        low, high = min(numbers, default=0.0), max(numbers, default=0.0)
        if self.phase.stage.reads_probabilities and (low < 0 or high > 1):
            self.warn(
                f"{self.phase.name} takes its inputs for probabilities, from 0 to 1",
                got=f"numbers from {low:g} to {high:g}",
                do='set data.scale, to 1/255 for bytes; or visible="gaussian", standardised',
            )

    def _start(self, phase: int) -> Message:
        trained, floats, integers = self.program.first(phase, self.history)
        return Message("heal", trained, floats=floats, integers=integers)

    # -- passes, where rows stream ---------------------------------------------------------------

    def rest(self) -> list[Frame]:
        """A pass over the rows is over: keeps what the workers held alone, and lets all go."""
        self.is_between_passes = True
        owner, seats = self.owner, self.leases.seats.values()
        cut = self.cuts.at(owner.phase, owner.version)
        if owner.version > 0 and (cut is None or not cut.inner):
            closed = {s.slot: s.closed for s in seats if s.closed is not None}
            self._keep({slot: named(f) for slot, f in closed.items() if self._is_newest(f)})
        here = [s for s in seats if s.is_live or s.asking is not None]
        return [self.frame("done", s.slot, s.lease) for s in here]

    def next_pass(self, now: float) -> None:
        """All come again, each with a pass over its rows."""
        self.is_between_passes, self.has_begun = False, False
        self._is_shuffled, self.wants_shuffle = self._is_shuffled or self.wants_shuffle, False
        self.cuts.drop()
        self.leases.empty(now)

    def _is_newest(self, closed: Frame) -> bool:
        """Tells whether a worker's own state fits the agreed point."""
        return self.owner.policy.keeps or closed.version == self.owner.version

    def _keep(self, held: Mapping[int, Mapping[str, Vector]]) -> None:
        """Saves a cut: with agreement on gradients the workers told the point, too."""
        cut = self.here()
        if not self.owner.policy.keeps:
            if not held:
                return
            first = held[min(held)]
            point = cut.point._replace(
                vector=first["vector"], floats=first["floats"], integers=first["integers"]
            )
            cut = replace(cut, point=point)
        self.cuts.last = replace(cut, inner={s: inner_of(a) for s, a in sorted(held.items())})
        self.callbacks.save(self.cuts.last)

    # -- cuts ------------------------------------------------------------------------------------

    def here(self) -> Cut:
        """Returns the present point as a cut, without what the workers hold alone."""
        owner, seats = self.owner, self.leases.seats.values()
        return Cut(
            phase=owner.phase,
            version=owner.version,
            applied=owner.applied,
            budget=owner.budget,
            point=owner.point._replace(version=owner.version),
            positions={s.slot: s.position for s in seats},
            reached={s.slot: dict(s.reached) for s in seats if s.reached},
            lost={s.slot: s.lost for s in seats if s.lost},
            rows={s.slot: s.rows for s in seats},
            history=self.history,
        )

    def is_cut_due(self, now: float) -> bool:
        """Tells whether the present round shall be saved."""
        every = self.callbacks.checkpoint_seconds
        return self._is_cut_asked or (every is not None and now - self.saved >= every)

    def begin_cut(self, members: frozenset[int], now: float) -> bool:
        """Begins a cut of this round, if it is due or a trial needs it; tells if any is asked.

        Args:
            members: whose work was just agreed on.
            now: the time.
        """
        owner, seats = self.owner, self.leases.seats.values()
        is_all = bool(members) and not any(seat.closed for seat in seats)
        is_all = is_all and (members == self.leases.members or not owner.policy.waits)
        is_trial = is_all and self.early_stopping.begin(
            self.progress, owner.version, self.leases.members
        )
        if not is_trial and not self.is_cut_due(now):
            return False
        # where nobody waits, no two workers are at the same point: each starts fresh
        asked = members if owner.policy.waits else frozenset[int]()
        self.cuts.begin(self.here(), asked)
        return bool(asked)

    def ask_for_a_cut(self) -> bool:
        """The present round shall be saved, whenever the last one was; False where none is open."""
        self._is_cut_asked = self.has_begun and not self.is_between_passes
        return self._is_cut_asked

    @property
    def is_cut_asked(self) -> bool:
        """True while a cut that was asked for is not whole."""
        return self._is_cut_asked

    def save_if_whole(self, now: float) -> None:
        """Saves the cut in the making once every worker has told its part."""
        cut = self.cuts.whole(keeps=self.owner.policy.keeps)
        if cut is None:
            return
        self.early_stopping.hold(cut)
        if self.is_cut_due(now):
            self.saved, self._is_cut_asked = now, False
            self.callbacks.save(cut)

    # -- validation ------------------------------------------------------------------------------

    def measured(self, frame: Frame) -> None:
        """Takes what a worker measured; where all have told, decides what is best."""
        told = frame.note.get("measured")
        if not isinstance(told, dict):
            return
        self.early_stopping.take(frame.slot, told)
        found = self.early_stopping.whole()
        if found is None:
            return
        extra = {"best": True} if found.is_best else {}
        self.callbacks.emit(
            Evaluated(
                phase=self.owner.phase,
                name="validation",
                examples=found.examples,
                metrics=found.metrics,
                extra=extra,
            )
        )
        if found.is_best and self.early_stopping.best is not None:
            self.callbacks.best(self.early_stopping.best)
        if self.early_stopping.is_stopped:
            wrong = f"{self.phase.name}: no better point in {self.program.patience} measurements"
            self.warn(wrong, then="the phase ends, at its best point")

    def remember(self, held: Mapping[str, Vector], version: int) -> None:
        """Keeps the parameters of a worker that is done, should all others be lost."""
        owner = self.owner
        is_new = version == owner.version and self.cuts.at(owner.phase, version) is None
        if is_new and version > 0 and not owner.policy.keeps:
            here = self.here()
            point = here.point._replace(
                vector=held["vector"], floats=held["floats"], integers=held["integers"]
            )
            self.cuts.last = replace(here, point=point)

    def fall_back(self) -> None:
        """Nobody is left who knows the parameters: the last cut, or the phase's start."""
        cut, lost = self.cuts.last, self.owner.version
        if cut is None or cut.phase != self.owner.phase:
            cut = replace(
                self.here(),
                version=0,
                applied=0,
                point=self._start(self.owner.phase),
                positions=dict.fromkeys(self.leases.seats, 0),
            )
        self.cuts.last = cut
        self.cuts.drop()
        self._restore(cut)
        self.leases.reopen()
        self.callbacks.enter("back", self.frame("stop", 0, 0, version=cut.version), {})
        self.warn(
            "all workers were lost, and with them what they had agreed on",
            then=f"the run went back from version {lost} to {cut.version} of phase {cut.phase}",
            do="checkpoint more often to lose less",
        )

    def _restore(self, cut: Cut) -> None:
        self.owner.restore(cut.point, cut.applied)
        for seat in self.leases.seats.values():
            seat.position = cut.positions.get(seat.slot, 0)
            seat.reached = dict(cut.reached.get(seat.slot, {}))
            seat.lost = cut.lost.get(seat.slot, 0)


def _check(cut: Cut, program: TrainingPlan) -> None:
    if cut.phase >= len(program.phases):
        wrong = f"the checkpoint is of phase {cut.phase}, and this program has fewer phases"
        raise UsageError(wrong, got=len(program.phases), do="resume with the program it is of")
    workers = len(cut.positions)
    if not cut.is_phase_start and workers != program.workers:
        wrong = f"a checkpoint within a phase goes on with as many workers as it has, {workers}"
        raise UsageError(wrong, got=program.workers, do=f"resume with {workers} workers")
