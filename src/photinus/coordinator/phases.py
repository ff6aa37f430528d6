"""The phases of a run, one after the other: their parameters, budgets and ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.early_stopping import EarlyStopping
from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.parameter_server import ParameterServer
from photinus.coordinator.row_checks import (
    no_probabilities,
    no_rows,
    no_weights,
    other_labels,
    soon_used_up,
    uneven,
)
from photinus.coordinator.sharded_table import Table
from photinus.coordinator.snapshots import SnapshotCollector
from photinus.core.events import PhaseEnded, PhaseStarted
from photinus.core.parameters import Vector, fingerprint
from photinus.protocol.messages import inner_of
from photinus.strategies.base import AT_EVERY_STEP, Message
from photinus.strategies.merge import combine
from photinus.strategies.phase_defaults import AUTO, ENOUGH_STEPS
from photinus.training.plan import REST, START, Phase, TrainingPlan
from photinus.training.snapshots import RunSnapshot, Shards
from photinus.transport.frames import Frame

_DEFAULT_RECIPE = "averaging"
"""The recipe of a job that names none."""
_SMALL_FEATURES = 255.0
"""Features up to here, as pixels, are no reason for a large loss: weights of rows may be."""
_SHUFFLE_NOTE = "all rows are redistributed by their hash, once; shuffle=False leaves them"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run ends with: the agreed parameters of every phase."""

    history: tuple[Vector, ...]
    """The agreed parameters of each phase [n], except a sharded table."""
    floats: Vector
    integers: Vector
    table: Table | None = None
    """What the last phase agreed on, where that is a sharded table."""
    row_shape: tuple[int, ...] = ()
    """Of one row's features, where the engine asked the first row for it."""

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The agreed parameters of every phase [n]; a table is read through a memory map."""
        return self.history if self.table is None else (*self.history, self.table.vector)


class Phases:
    """The sequence of phases, and what is agreed on in the present one.

    Args:
        plan: what is trained.
        leases: the seats.
        callbacks: receive events, ledger lines and snapshots.
        snapshot: what to continue from, of an earlier term.

    Raises:
        UsageError: the snapshot belongs to another plan.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        leases: Leases,
        callbacks: Callbacks,
        snapshot: RunSnapshot | None = None,
    ) -> None:
        self._plan, self._leases, self._callbacks = plan, leases, callbacks
        self.owner = ParameterServer(leases, callbacks)
        self.early_stopping = EarlyStopping(0.0, plan.patience)
        self.snapshots = SnapshotCollector(
            plan, leases, self.owner, self.early_stopping, callbacks, snapshot
        )
        self.span, self.stateful_slots = (0.0, 1.0), frozenset[int]()
        self.has_begun, self.is_between_passes, self._is_trial_over = False, False, False
        self._begun_phase, self._is_shuffled, self.wants_shuffle = -1, False, False
        self._warned_stages = set[str]()
        """The stages that were warned of."""
        self._tried_stages = set[str]()
        """The stages whose first loss was looked at."""
        self.enter(snapshot.phase if snapshot else 0)

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._plan.phases[self.owner.phase]

    @property
    def progress(self) -> float:
        """Of the stage, 0 to 1."""
        return self.span[0] + (self.span[1] - self.span[0]) * self.owner.progress

    @property
    def _is_stage_over(self) -> bool:
        """True where no rest follows the present phase."""
        return self.phase.part != START or self.early_stopping.is_stopped or self.span[1] == 1.0

    @property
    def is_spent(self) -> bool:
        """True when the budget is used up and shares were not fixed in advance."""
        is_done = self.owner.applied >= self.owner.budget
        return self._is_cut_short or (is_done and not self._plan.is_fixed(self.owner.phase))

    @property
    def _is_cut_short(self) -> bool:
        """True where the phase ends before its rows are used up."""
        return self.early_stopping.is_stopped or self._is_trial_over

    def would_spend(self, examples: int) -> bool:
        """Returns whether so many more examples use the budget up."""
        return self._is_trial_over or self.owner.applied + examples >= self.owner.budget

    def check_trial(self, now: float) -> None:
        """Ends the present phase of a trial once it was tried for long enough."""
        seconds = self._plan.trial_seconds
        self._is_trial_over = (
            self.has_begun and seconds is not None and now - self._entered_at >= seconds
        )

    def end_of(self, seat: SeatState) -> float:
        """Returns the position in a seat's rows at which its share of the phase ends."""
        return self.span[1] * self.phase.config.passes(self._leases.rows) * seat.rows

    # -- phases ----------------------------------------------------------------------------------

    def enter(self, phase: int, point: Message | None = None) -> None:
        """Sets a phase up: its first parameters, its policy, every seat at its start.

        Args:
            phase: its index.
            point: of a rest, where its start ended: every seat continues where it was.
        """
        self._is_trial_over = False
        self.snapshots.forget()
        if point is None:
            self._leases.restart()
            self.early_stopping.restart(self._plan.phases[phase].config.finished)
        snapshot = self.snapshots.last
        if snapshot is not None and snapshot.phase == phase:
            self._enter_owner(phase, snapshot.point, snapshot.applied)
            self._leases.restore(snapshot)
        else:
            first = self.snapshots.first_point(phase) if point is None else point
            self._enter_owner(phase, first._replace(version=0))

    def _enter_owner(self, phase: int, point: Message, applied: int = 0) -> None:
        """Has the owner enter a phase at a point, for the rows that are counted by now."""
        self.strategy, self._settled_warnings = self._plan.phases[phase].settled(
            self._leases.rows, self._plan.workers, self.span
        )
        self.owner.enter(phase, self.strategy.owner(), point, applied)

    def begin(self, now: float) -> None:
        """Begins the phase, as all rows are counted; or another pass over them."""
        self.has_begun = True
        if self._begun_phase == self.owner.phase:
            return
        self.span = self._spans(self.owner.phase)
        if self.span[0] == self.span[1]:
            self.enter(self.owner.phase + 1)
            self.span = self._spans(self.owner.phase)
        owner = self.owner
        self._begun_phase = owner.phase
        point = owner.point._replace(version=owner.version)
        self._enter_owner(owner.phase, point, owner.applied)
        for warning in self._settled_warnings:
            self._callbacks.warn(f"{self.phase.name}: {warning}")
        self._warn_of_no_rest()
        self._warn_of_steady_rate()
        if self.phase.config.reads_probabilities:
            spans = (seat.span for seat in self._leases)
            for text, got, do in no_probabilities(self.phase.name, spans):
                self._callbacks.warn(text, got=got, do=do)
        self._entered_at = now
        self.snapshots.enter_phase(now)
        config, rows = self.phase.config, {s.slot: s.rows for s in self._leases}
        epochs = config.passes(self._leases.rows)
        if self._plan.measures:
            self.early_stopping.epochs = config.trials(epochs)
        start, end = (round(share * epochs * self._leases.rows) for share in self.span)
        self.owner.begin(end - start)
        snapshot = self.snapshots.saved
        if snapshot is not None and self._has_other_rows(snapshot, rows):
            wrong = "the workers hold other rows than at the checkpoint: some count twice, or never"
            self._callbacks.warn(wrong, do="resume with the same data in the same partitions")
        self._callbacks.emit(
            PhaseStarted(
                phase=self.owner.phase,
                name=self.phase.name,
                budget=self.owner.budget,
                parameters=self._size(),
                strategy=str(self.strategy),
                batch_size=config.batch_size,
                epochs=(self.span[1] - self.span[0]) * epochs,
            )
        )

    def begin_or_release(self, now: float) -> list[Frame]:
        """Begins as all workers have come; returns what sends them away before they train.

        They leave where their rows must be redistributed, or were only counted.

        Raises:
            DataError: no worker has rows, or any that count: the result would be the first
                parameters.
        """
        if self._leases.rows == 0:
            raise no_rows(sets_aside=self._plan.measures)
        if all(_is_weightless(seat) for seat in self._leases):
            raise no_weights()
        if self._warn_of_skew():
            return self.rest()
        self.begin(now)
        hellos = (seat.pending_hello for seat in self._leases.present_seats)
        is_counting_pass = any(
            hello is not None and hello.header.get("passes") == 0 for hello in hellos
        )
        return self.rest() if is_counting_pass else []

    def _has_other_rows(self, snapshot: RunSnapshot, rows: Mapping[int, int]) -> bool:
        if snapshot.is_phase_start:
            return False
        digests = {s.slot: s.digest for s in self._leases if s.digest}
        return rows != snapshot.rows or any(
            snapshot.digests.get(slot, digest) != digest for slot, digest in digests.items()
        )

    def _size(self) -> int:
        """Returns how many numbers are trained in this phase."""
        if self.owner.has_shards:
            blank = self.phase.config.blank(self.snapshots.history, self._plan.seed)
            return blank.parameters.layout.size()
        return self.owner.numbers

    def _spans(self, phase: int) -> tuple[float, float]:
        leases = self._leases
        return self._plan.phases[phase].span(leases.rows, is_stream=leases.are_streams)

    def finish(self, now: float) -> RunResult | None:
        """Ends the present phase, and enters the next one; returns the result after the last."""
        point, shards = self._final_point(), self.snapshots.closing_shards()
        table = self.snapshots.table(self._best)
        assert point.floats is not None
        assert point.integers is not None
        self._warn_of_unused_rows()
        self._callbacks.emit(
            PhaseEnded(
                phase=self.owner.phase,
                name=self.phase.name,
                examples=self.owner.applied,
                seconds=now - self._entered_at,
                metrics=self.owner.metrics,
                passes={str(s): n for s, n in self._leases.passes(self.owner.numbers).items()},
                fingerprint=_fingerprint(point) if table is None else table.fingerprint,
            )
        )
        if self._enter_next(point, shards, now):
            return None
        return RunResult(self.snapshots.history, point.floats, point.integers, table)

    def _enter_next(self, point: Message, shards: Shards, now: float) -> bool:
        """Enters the phase after the present one, from where this one ended; False after the last.

        A rest continues from its start's point, rows and inner optimizers, or from its shards: of
        these each owner has a part of the dense layers' optimizer alone, which begins anew.
        """
        next_phase, has_rest = self.owner.phase + 1, not self._is_stage_over
        if self.phase.part == START and not has_rest:
            next_phase += 1
        if not has_rest and not self.owner.has_shards:
            assert point.vector is not None
            self.snapshots.history = (*self.snapshots.history, point.vector)
        if next_phase == len(self._plan.phases):
            return False
        close_frames = self._leases.close_frames
        newest = max((frame.header["version"] for frame in close_frames.values()), default=-1)
        close_frames = {
            s: f for s, f in close_frames.items() if has_rest and f.header["version"] == newest
        }
        self.stateful_slots = frozenset(close_frames)
        self.enter(next_phase, point if has_rest else None)
        self.begin(now)
        snapshot = self.snapshots.present_snapshot()
        if has_rest:
            self._callbacks.enter("rest", self.owner.frame("stop", 0, 0), {})
            inner_states = {slot: inner_of(frame.arrays) for slot, frame in close_frames.items()}
            inner = {slot: state for slot, state in inner_states.items() if state}
            snapshot = replace(snapshot, inner=inner, shards=shards)
            self.snapshots.last = snapshot
        self._callbacks.save(snapshot)
        return True

    def _final_point(self) -> Message:
        """Returns the exact average at a phase's end: the owner's point, or the workers' mean."""
        point, best = self.owner.point, self._best
        if best is not None:
            return best.point
        close_frames = [frame for frame in self._leases.close_frames.values() if frame.arrays]
        if self.owner.policy.holds_parameters or self.owner.has_shards or not close_frames:
            return point
        newest = max(frame.header["version"] for frame in close_frames)
        states = [frame.arrays for frame in close_frames if frame.header["version"] == newest]
        weights = [1.0 / len(states)] * len(states)
        vector = states[0]["vector"].copy()  # its worker may train on in the same memory
        if len({fingerprint(arrays["vector"]) for arrays in states}) > 1:
            wrong = "the workers ended with different parameters"
            self._callbacks.warn(wrong, then="the result is their mean")
            vector = combine([arrays["vector"] for arrays in states], weights)
        return point._replace(
            vector=vector,
            floats=combine([arrays["floats"] for arrays in states], weights),
            integers=np.maximum.reduce([arrays["integers"] for arrays in states]),
        )

    def _warn_of_no_rest(self) -> None:
        """Warns where a recipe that the user named does nothing, as its start takes all steps."""
        phase = self.phase
        if phase.part != START or phase.until != AUTO or self.span != (0.0, 1.0):
            return
        strategy: Any = self._plan.phases[self.owner.phase + 1].strategy
        recipe = strategy.recipe
        if recipe != _DEFAULT_RECIPE or not strategy.has_usual_rounds:
            steps = phase.steps(self._leases.rows)
            self._callbacks.warn(
                f"{phase.config.name}: all steps average gradients, and none is of {recipe}",
                got=f"{steps} steps, of which the first {ENOUGH_STEPS} do",
                do=f"set gradients_until=0 to begin with {recipe}",
            )

    def _warn_of_steady_rate(self) -> None:
        """Warns where workers train alone, to the end, at a rate for all of them together.

        With SGD they end the further from a plain loop of the same rate the more of them there are.
        Adam's steps are smaller where gradients are noisier.
        """
        phase, rate = self.phase, getattr(self.phase.config, "rate", None)
        is_alone = phase.part == REST and phase.strategy.worker().site not in AT_EVERY_STEP
        if not is_alone or phase.is_adaptive or not callable(rate):
            return
        last = rate().at(1.0)
        if 0 < last >= rate().at(self.span[0]):
            self._callbacks.warn(
                f"{phase.name}: workers train alone from now on, each on its part of a batch, and"
                " the learning rate does not fall",
                got=f"{last:g} to the end",
                do=f"set lr=photinus.Schedule.usual({last:g}), or gradients_until=1",
            )

    @property
    def _best(self) -> RunSnapshot | None:
        """The point with which the stage ends, where it is not the last one."""
        is_chosen = self._is_stage_over and self._plan.patience
        return self.early_stopping.best if is_chosen else None

    def _warn_of_unused_rows(self) -> None:
        """Names the workers whose rows were trained on less often than the others'."""
        if self._is_cut_short or not self._plan.is_fixed(self.owner.phase):
            return
        rows, config = self._leases.rows, self.phase.config
        wanted = self.span[1] * config.passes(rows)
        for slot, passes in self._leases.passes(self.owner.numbers).items():
            seat = self._leases[slot]
            missing_examples = (wanted - passes) * seat.rows
            batch_share = 1.0 if self._plan.is_shared else seat.rows / rows
            if missing_examples > math.ceil(config.batch_size * batch_share):
                self._callbacks.warn(
                    f"{self.phase.name}: {missing_examples:.0f} examples of worker {slot}"
                    " were not used",
                    got=f"{passes:.2f} passes over its {seat.rows} rows, not {wanted:.2f}",
                )

    def _warn_of_skew(self) -> bool:
        """Warns of uneven rows or labels; returns whether to redistribute the rows.

        Workers that train alone between rounds drift apart when their rows are not alike, and
        the worker with the most rows works while the others wait.
        """
        rows = [max(0, seat.rows) for seat in self._leases]
        findings = uneven(rows) or soon_used_up(rows, self._common_batch_size)
        if self._has_local_steps:  # a mean gradient is of all labels
            findings += other_labels({seat.slot: seat.labels for seat in self._leases})
        if not findings or self._begun_phase >= 0:
            return False
        can_shuffle = self._callbacks.can_shuffle and not self._is_shuffled
        can_shuffle = can_shuffle and sum(rows) >= len(rows)
        self.wants_shuffle = self._plan.shuffle and can_shuffle
        for text, got, do in findings:
            self._callbacks.warn(
                text, got=got or None, do=_SHUFFLE_NOTE if self.wants_shuffle else do
            )
        return self.wants_shuffle

    @property
    def _has_local_steps(self) -> bool:
        """True when in any phase workers train alone between rounds."""
        return any(
            phase.strategy.worker().site not in AT_EVERY_STEP and self._spans(number)[0] < 1.0
            for number, phase in enumerate(self._plan.phases)
        )

    @property
    def _common_batch_size(self) -> int:
        """The smallest batch of the phases whose workers take each step together; 0 without."""
        halves = [(phase.config, phase.strategy.worker()) for phase in self._plan.phases]
        return min(
            (
                config.batch_size
                for config, worker in halves
                if worker.site in AT_EVERY_STEP and not getattr(worker, "whole_part", False)
            ),
            default=0,
        )

    # -- passes, where rows stream ---------------------------------------------------------------

    def rest(self) -> list[Frame]:
        """Ends a pass over the rows: keeps what the workers held alone, and lets them leave."""
        self.is_between_passes = True
        leases, snapshot = self._leases, self.snapshots.saved
        if self.owner.version > 0 and (snapshot is None or not snapshot.inner):
            close_frames = leases.close_frames.items()
            self.snapshots.save_from_workers(
                {
                    slot: frame.arrays
                    for slot, frame in close_frames
                    if self._is_at_agreed_point(frame)
                }
            )
        return [self.owner.frame("done", s.slot, s.lease) for s in leases.present_seats]

    def next_pass(self, now: float) -> None:
        """Lets all workers say hello again, each with a pass over its rows."""
        self.is_between_passes, self.has_begun = False, False
        if self.wants_shuffle:  # each worker gets other rows, on purpose
            for seat in self._leases:
                seat.digest = ""
        self._is_shuffled, self.wants_shuffle = self._is_shuffled or self.wants_shuffle, False
        self.snapshots.drop()
        self._leases.empty(now)

    def _is_at_agreed_point(self, close_frame: Frame) -> bool:
        """Returns whether a worker's own state fits the agreed point."""
        is_latest = bool(close_frame.header["version"] == self.owner.version)
        return self.owner.policy.holds_parameters or is_latest

    # -- validation ------------------------------------------------------------------------------

    def warn_of_bad_loss(self) -> None:
        """Warns, once a stage, of a loss that is not finite: a push is looked at by its numbers.

        Also of a first loss that shows labels far from all that a new model returns, or features
        that are not scaled.
        """
        name, loss = self.phase.config.name, self.owner.metrics.get("loss", 0.0)
        if self.owner.version == 1 and name not in self._tried_stages:
            self._tried_stages.add(name)
            if self.phase.config.far_loss < loss < math.inf:
                self._warn_of_far_loss(loss)
        if math.isfinite(loss) or name in self._warned_stages:
            return
        self._warned_stages.add(name)
        wrong = f"{name}: the loss is not finite, though the gradients are"
        do = "look for a log, a root or a quotient of 0 in it; the model may be of no use"
        self._callbacks.warn(wrong, got=f"{loss:g} in round {self.owner.version}", do=do)

    def _warn_of_far_loss(self, loss: float) -> None:
        """Warns of a first loss from which the usual learning rates take very long.

        It is that of a whole round: a rate that is too high, and rows' weights, are in it.
        """
        config, got = self.phase.config, f"{loss:.3g}"
        cause, do = "labels far from the outputs", "scale the labels, as (label - mean) / deviation"
        if config.is_far_by_features:
            cause = "features that are not scaled"
            do = "scale each feature, as Spark's StandardScaler does"
            if numbers := [number for seat in self._leases for number in seat.span]:
                if max(map(abs, numbers)) <= _SMALL_FEATURES:
                    return
                got += f", and features from {min(numbers):g} to {max(numbers):g}"
        self._callbacks.warn(
            f"{config.name}: the first loss is large, as that of {cause}",
            got=got,
            then="from there it learns slowly",
            do=f"{do}; if they are small, lower the rate",
        )

    def add_measurement(self, frame: Frame) -> None:
        """Takes what a worker measured."""
        sums = frame.header.get("measured")
        if sums is not None:
            self.early_stopping.add_sums(frame.slot, sums)
            self.decide_on_the_best()

    def decide_on_the_best(self) -> None:
        """Decides which point is best and whether to stop, once all measurements are here."""
        self.early_stopping.decide(self.owner.phase, self.phase.name, self._callbacks)


def _is_weightless(seat: SeatState) -> bool:
    """Returns whether the rows of a seat change no parameter, as far as its hello says."""
    hello = seat.pending_hello
    return seat.rows == 0 or bool(hello is not None and hello.header.get("is_weightless"))


def _fingerprint(point: Message) -> str:
    assert point.vector is not None
    return fingerprint(point.vector)
