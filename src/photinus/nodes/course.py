"""How far a run is: its seats, the present phase and its owner, the budget, the cuts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from photinus.core.errors import UsageError, message
from photinus.core.events import Evaluated, PhaseStarted, Warned
from photinus.core.parameters import Vector
from photinus.feed.skew import skewed
from photinus.nodes.cuts import Cut, Cuts
from photinus.nodes.desk import Desk
from photinus.nodes.fence import Fence
from photinus.nodes.mail import Seat, inner_of, named
from photinus.nodes.owner import Owner
from photinus.nodes.program import Phase, Program
from photinus.nodes.trials import Trials
from photinus.strategies.base import GRADIENT, Message
from photinus.transport.frames import Frame

__all__ = ["Course"]

_LARGE = 2
"""A worker with so many times its share of the rows is told of."""


class Course:
    """What seats, pushes and phases have in common.

    Args:
        program: what is trained.
        desk: where events, ledger lines and cuts go.
        now: the time, in seconds that never go back.
        cut: what to go on from, of an earlier term.

    Raises:
        UsageError: the cut belongs to another program.
    """

    owner: Owner

    def __init__(self, program: Program, desk: Desk, now: float, cut: Cut | None) -> None:
        if cut is not None:
            _check(cut, program)
        self.program, self.desk = program, desk
        self.fence = Fence(program.workers, program.lease_seconds)
        self.history: tuple[Vector, ...] = cut.history if cut else ()
        self.cuts, self.has_begun, self.is_between_passes = Cuts(cut), False, False
        self._passes, self._is_cut_asked = 0, False
        self.enter(cut.phase if cut else 0, now)

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.program.phases[self.owner.phase]

    @property
    def is_spent(self) -> bool:
        """True when the budget is used up and shares were not fixed in advance."""
        is_done = self.owner.applied >= self.owner.budget
        return self.trials.is_stopped or (is_done and not self.phase.agreement.is_deterministic)

    def frame(self, kind: str, slot: int, lease: int, **fields: Any) -> Frame:  # noqa: ANN401
        """Returns a frame to a slot's worker."""
        seat = Seat(self.desk.run, self.desk.term, self.owner.phase, slot, lease)
        return seat.frame(kind, **fields)

    def warn(self, wrong: str, *, got: object = None, do: str = "") -> None:
        """Tells the user."""
        self.desk.emit(Warned(text=message(wrong, got=got, do=do)))

    # -- phases ----------------------------------------------------------------------------------

    def enter(self, phase: int, now: float) -> None:
        """Sets a phase up: its first parameters, its policy, every seat at its start."""
        self.entered = self.saved = now
        self.cuts.drop()
        self.fence.reopen()
        for seat in self.fence.seats.values():
            seat.position = 0
        policy, stage = (
            self.program.phases[phase].agreement.policy(),
            self.program.phases[phase].stage,
        )
        epochs = stage.epochs if self.program.validation else 0.0
        self.trials = Trials(epochs, self.program.patience)
        cut = self.cuts.last
        is_here = cut is not None and cut.phase == phase
        point = cut.point if cut is not None and is_here else self._start(phase)
        self.owner = Owner(phase, policy, point, self.fence, self.desk)
        if cut is not None and is_here:
            self._restore(cut)

    def begin(self, now: float) -> None:
        """The phase begins: all rows are counted; or another pass over them."""
        if not self.has_begun and self.owner.phase == 0:
            self._warn_of_skew()
        self.has_begun = True
        if self._passes:
            return
        self._warn_of_span()
        self.entered = self.saved = now
        stage, rows = self.phase.stage, {s.slot: s.rows for s in self.fence.seats.values()}
        self.owner.budget = max(1, round(stage.epochs * sum(rows.values())))
        cut = self.cuts.at(self.owner.phase, self.owner.version)
        if cut is not None and not cut.is_phase_start and rows != cut.rows:
            wrong = "the workers hold other rows than at the checkpoint: some count twice, or never"
            self.warn(wrong, do="resume with the same data in the same partitions")
        vector = self.owner.point.vector
        self.desk.emit(
            PhaseStarted(
                phase=self.owner.phase,
                name=self.phase.name,
                budget=self.owner.budget,
                parameters=0 if vector is None else vector.size,
                strategy=str(self.phase.agreement),
                batch_size=stage.batch_size,
                epochs=stage.epochs,
            )
        )

    def _warn_of_skew(self) -> None:
        """Workers that train alone between agreements drift apart when their rows are not alike."""
        self._warn_of_shares([seat.rows for seat in self.fence.seats.values()])
        far = skewed({s.slot: s.labels for s in self.fence.seats.values()})
        if far and any(p.agreement.strategy().site != GRADIENT for p in self.program.phases):
            slots = ", ".join(str(slot) for slot in far)
            self.warn(
                f"the rows of workers {slots} have other labels than those of all workers",
                got=f"up to {max(far.values()):.0%} of a worker's rows",
                do="shuffle the rows before training, or agree after every step",
            )

    def _warn_of_shares(self, rows: list[int]) -> None:
        """A round of fixed shares waits for the largest one."""
        empty, most, total = rows.count(0), max(rows), sum(rows)
        do = "repartition the data, or use fewer workers"
        if empty:
            self.warn(f"{empty} of {len(rows)} partitions are empty", do=do)
        elif most * len(rows) > _LARGE * total:
            wrong = f"worker {rows.index(most)} holds {most / total:.0%} of the rows"
            self.warn(wrong, got=f"{len(rows)} workers", do=do)

    def _warn_of_span(self) -> None:
        """Means of units lie in 0..1: other inputs are trained on without an error, to no end."""
        numbers = [number for seat in self.fence.seats.values() for number in seat.span]
        low, high = min(numbers, default=0.0), max(numbers, default=0.0)
        if self.phase.stage.reads_probabilities and (low < 0 or high > 1):
            self.warn(
                f"{self.phase.name} takes its inputs for probabilities, from 0 to 1",
                got=f"numbers from {low:g} to {high:g}",
                do='set data.scale, to 1/255 for bytes; or visible="gaussian", standardised',
            )

    def _start(self, phase: int) -> Message:
        parameters = self.program.build(phase, self.history).parameters
        return Message(
            "heal",
            parameters.trained.copy(),
            floats=parameters.floats.copy(),
            integers=parameters.integers.copy(),
        )

    # -- passes, where rows stream ---------------------------------------------------------------

    def rest(self) -> list[Frame]:
        """A pass over the rows is over: keeps what the workers held alone, and lets all go."""
        self.is_between_passes = True
        owner, seats = self.owner, self.fence.seats.values()
        cut = self.cuts.at(owner.phase, owner.version)
        if owner.version > 0 and (cut is None or not cut.inner):
            closed = {s.slot: s.closed for s in seats if s.closed is not None}
            self._keep({slot: named(f) for slot, f in closed.items() if self._is_newest(f)})
        here = [s for s in seats if s.is_live or s.asking is not None]
        return [self.frame("done", s.slot, s.lease) for s in here]

    def next_pass(self, now: float) -> None:
        """All come again, each with a pass over its rows."""
        self.is_between_passes, self.has_begun, self._passes = False, False, self._passes + 1
        self.cuts.drop()
        self.fence.empty(now)

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
        self.desk.save(self.cuts.last)

    # -- cuts ------------------------------------------------------------------------------------

    def here(self) -> Cut:
        """Returns the present point as a cut, without what the workers hold alone."""
        owner, seats = self.owner, self.fence.seats.values()
        return Cut(
            phase=owner.phase,
            version=owner.version,
            applied=owner.applied,
            budget=owner.budget,
            point=owner.point._replace(version=owner.version),
            positions={s.slot: s.position for s in seats},
            rows={s.slot: s.rows for s in seats},
            history=self.history,
        )

    def is_cut_due(self, now: float) -> bool:
        """Tells whether the present round shall be saved."""
        every = self.desk.checkpoint_seconds
        return self._is_cut_asked or (every is not None and now - self.saved >= every)

    def begin_cut(self, members: frozenset[int], now: float) -> bool:
        """Begins a cut of this round, if it is due or a trial needs it; tells if any is asked.

        Args:
            members: whose work was just agreed on.
            now: the time.
        """
        owner, seats = self.owner, self.fence.seats.values()
        is_all = bool(members) and not any(seat.closed for seat in seats)
        is_all = is_all and (members == self.fence.members or not owner.policy.waits)
        is_trial = is_all and self.trials.begin(owner.progress, owner.version, self.fence.members)
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
        self.trials.hold(cut)
        if self.is_cut_due(now):
            self.saved, self._is_cut_asked = now, False
            self.desk.save(cut)

    # -- validation ------------------------------------------------------------------------------

    def measured(self, frame: Frame) -> None:
        """Takes what a worker measured; where all have told, decides what is best."""
        told = frame.note.get("measured")
        if not isinstance(told, dict):
            return
        self.trials.take(frame.slot, told)
        found = self.trials.whole()
        if found is None:
            return
        extra = {"best": True} if found.is_best else {}
        self.desk.emit(
            Evaluated(
                phase=self.owner.phase,
                name="validation",
                examples=found.examples,
                metrics=found.metrics,
                extra=extra,
            )
        )
        if found.is_best and self.trials.best is not None:
            self.desk.best(self.trials.best)
        if self.trials.is_stopped:
            wrong = f"{self.phase.name}: no better point in {self.program.patience} measurements"
            self.warn(wrong, got="the phase ends, at its best point")

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
                positions=dict.fromkeys(self.fence.seats, 0),
            )
        self.cuts.last = cut
        self.cuts.drop()
        self._restore(cut)
        self.fence.reopen()
        self.desk.enter("back", self.frame("stop", 0, 0, version=cut.version), {})
        self.warn(
            "all workers were lost, and with them what they had agreed on",
            got=f"went back from version {lost} to {cut.version} of phase {cut.phase}",
            do="checkpoint more often to lose less",
        )

    def _restore(self, cut: Cut) -> None:
        self.owner.restore(cut.point, cut.applied)
        for seat in self.fence.seats.values():
            seat.position = cut.positions.get(seat.slot, 0)


def _check(cut: Cut, program: Program) -> None:
    if cut.phase >= len(program.phases):
        wrong = f"the checkpoint is of phase {cut.phase}, and this program has fewer phases"
        raise UsageError(wrong, got=len(program.phases), do="resume with the program it is of")
    workers = len(cut.positions)
    if not cut.is_phase_start and workers != program.workers:
        wrong = f"a checkpoint within a phase goes on with as many workers as it has, {workers}"
        raise UsageError(wrong, got=program.workers, do=f"resume with {workers} workers")
