"""Cuts: which rounds are saved, what workers send for them, and which point a run returns to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from photinus.checkpoint.mapped import MappedFile
from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.early_stopping import EarlyStopping
from photinus.coordinator.leases import Leases
from photinus.coordinator.parameter_server import ParameterServer
from photinus.coordinator.sharded_table import ENOUGH, Shard, ShardFiles, Table, page_in
from photinus.core.errors import UsageError, message
from photinus.core.events import CheckpointFailed
from photinus.core.parameters import Vector
from photinus.models.base import Model, Stage
from photinus.protocol.messages import inner_of
from photinus.strategies.base import Message
from photinus.training.plan import TrainingPlan
from photinus.training.requests import Page, WorkerSnapshot
from photinus.training.snapshots import RunSnapshot, Shards
from photinus.transport.frames import Frame

_MOST_RETURNS = 10
"""How often in a row a run goes back to the same cut before it fails."""


class SnapshotCollector:
    """The last whole cut, and the one in the making: it waits for every worker of its round.

    Where a table is sharded over the workers it waits for their shards, too.

    Args:
        plan: what is trained.
        leases: the seats.
        owner: holds the agreed parameters.
        early_stopping: the rounds that it measures are cuts, too.
        callbacks: receive cuts.
        last: what to continue from, of an earlier term.

    Raises:
        UsageError: that cut belongs to another plan.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        leases: Leases,
        owner: ParameterServer,
        early_stopping: EarlyStopping,
        callbacks: Callbacks,
        last: RunSnapshot | None = None,
    ) -> None:
        if last is not None:
            _check(last, plan)
        self._plan, self._leases, self._callbacks = plan, leases, callbacks
        self._owner, self._early_stopping = owner, early_stopping
        self.last = last
        self.history: tuple[Vector, ...] = last.history if last else plan.start.get("", ())
        """What the earlier stages agreed on."""
        self.is_asked = False
        """The present round must be saved, however recent the last save is."""
        self._saved_at = 0.0
        self.holders = set[int]()
        """The slots that hold a shard of the present point, where nothing else holds it."""
        self._loading: dict[int, Shard] = {}
        """Slot -> what its worker loads, until it has sent a page of its own."""
        self._returns = 0
        """How often in a row the run went back and agreed on nothing in between."""
        self._applied = -1
        """The examples that were agreed on before the present round."""
        self._making: RunSnapshot | None = None
        self._missing: set[int] = set()
        self._snapshots: dict[int, WorkerSnapshot] = {}
        self._shards = ShardFiles(callbacks.scratch, self._no_shard)

    def enter_phase(self, now: float) -> None:
        """Begins to count the time until the next save."""
        self._saved_at = now

    def keep_stage(self, trained: Vector) -> None:
        """Keeps what a stage that is over agreed on [n]."""
        self.history = (*self.history, trained)

    def continue_from(self, cut: RunSnapshot) -> None:
        """Takes a cut as the last one: the run continues from there."""
        self.last = cut

    def ask(self, *, is_open: bool) -> bool:
        """Has the present round saved, however recent the last save is, where one is open."""
        self.is_asked = is_open
        return is_open

    # -- the present point -----------------------------------------------------------------------

    @property
    def saved(self) -> RunSnapshot | None:
        """The last cut, when nothing was agreed since."""
        cut = self.last
        return cut if cut is not None and (cut.phase, cut.version) == self._owner.point_id else None

    @property
    def is_in_workers_only(self) -> bool:
        """True when neither the owner nor a cut with inner states holds the present point."""
        cut, owner = self.saved, self._owner
        is_whole = cut is not None and bool(cut.inner)
        return not (owner.policy.keeps or owner.version == 0 or is_whole)

    def start_for(self, slot: int) -> tuple[Message, Mapping[str, Vector]]:
        """Returns the present point, and an inner state of a slot's worker to continue with.

        The inner state is its own; where those of all workers are the same, any worker's.
        """
        cut, owner = self.saved, self._owner
        point = owner.point if cut is None or owner.policy.keeps else cut.point
        if cut is None or not cut.inner:
            return point, {}
        is_own = owner.policy.keeps and cut.version > 0
        anybody = {} if is_own else cut.inner[min(cut.inner)]
        return point, cut.inner.get(slot, anybody)

    def here(self) -> RunSnapshot:
        """Returns the present point as a cut, without what the workers hold alone."""
        owner = self._owner
        return RunSnapshot(
            phase=owner.phase,
            version=owner.version,
            applied=owner.applied,
            budget=owner.budget,
            point=owner.point._replace(version=owner.version),
            **self._leases.positions(),
            history=self.history,
            row_size=owner.policy.rows if owner.has_shards else 0,
        )

    def start_of(self, phase: int) -> Message:
        """Returns the first point of a phase."""
        trained, floats, integers = self._plan.first(phase, self.history)
        vector = None if self._plan.is_sharded(phase) else trained
        return Message("heal", vector, floats=floats, integers=integers)

    # -- the cut in the making -------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Returns whether the present round must be saved."""
        every = self._callbacks.checkpoint_seconds
        return self.is_asked or (every is not None and now - self._saved_at >= every)

    def begin(self, members: frozenset[int], progress: float, now: float) -> bool:
        """Begins a cut of this round, if it is due or a trial needs it.

        Returns whether workers are asked for their state. A cut that is still not whole is given
        up: what it waits for was lost.

        Args:
            members: whose work was just agreed on.
            progress: of the stage.
            now: the time.
        """
        owner, seats = self._owner, self._leases.seats.values()
        has_trained, self._applied = owner.applied != self._applied, owner.applied
        # after a round of shards without steps workers leave, and others could read no rows of them
        is_all = bool(members) and (has_trained or not owner.has_shards)
        is_all = is_all and not any(seat.close_frame for seat in seats)
        is_all = is_all and (members == self._leases.members or not owner.policy.waits)
        is_trial = is_all and self._early_stopping.begin(
            progress, owner.version, self._leases.members
        )
        # an unfinished cut will be whole: with a worker that is lost it is given up
        is_unfinished = self._making is not None and len(self._told) < owner.policy.shards
        if not is_trial and (is_unfinished or not self.is_due(now)):
            return False
        # where workers do not wait, no two of them are at the same point: each starts fresh
        asked = members if owner.policy.waits else frozenset[int]()
        self._making, self._missing, self._snapshots = self.here(), set(asked), {}
        return bool(asked)

    def take(self, slot: int, version: int, snapshot: WorkerSnapshot, now: float) -> None:
        """Takes in the state that a worker sent, for the cut in the making."""
        if self._making is not None and version == self._making.version and slot in self._missing:
            self._snapshots[slot] = snapshot
            self._missing.discard(slot)
        self.save_if_whole(now)

    def save_if_whole(self, now: float) -> None:
        """Saves the cut in the making once no worker is waited for: it is then the last one.

        Where the owner does not hold the parameters, the lowest slot's are taken; without any
        there is no cut.
        """
        policy, shards = self._owner.policy, self._told
        if self._making is None or self._missing or len(shards) < policy.shards:
            return
        cut, self._making = self._making, None
        if not policy.keeps and not policy.shards:
            if not self._snapshots:
                return
            first = self._snapshots[min(self._snapshots)]
            cut = _held(cut, first.trained, first.floats, first.integers)
        inner = {slot: s.inner for slot, s in sorted(self._snapshots.items())}
        self.last = replace(cut, inner=inner, shards=shards)
        self._early_stopping.offer_candidate(self.last)
        if self.is_due(now):
            self._saved_at, self.is_asked = now, False
            self._callbacks.save(self.last)

    def drop(self) -> None:
        """Gives up the cut in the making."""
        self._making = None

    def without(self, slot: int) -> None:
        """A worker was lost: it can complete neither a cut nor a measurement."""
        self._missing.discard(slot)
        if self._owner.has_shards and slot not in self._told:
            self.drop()  # no worker can send that version of its shard any more
        self._early_stopping.drop_slot(slot)

    # -- shards of a table -----------------------------------------------------------------------

    @property
    def _told(self) -> Mapping[int, MappedFile]:
        """Slot -> its shard, of those that have arrived for the cut in the making."""
        return {} if self._making is None else self._shards.at(self._making.version)

    def shard(self, slot: int) -> Shard:
        """Returns what a worker's shard is loaded from; nothing where the worker makes it."""
        cut, owner = self.last, self._owner
        if cut is not None and cut.phase == owner.phase and cut.shards:
            return cut.shards[slot]
        given = self._plan.start.get(self._plan.phases[owner.phase].stage.name, ())
        if not given or not given[0].size:
            return {}
        return {"vector": given[0].reshape(-1, owner.policy.rows)[slot :: owner.policy.shards]}

    @property
    def kept(self) -> int:
        """The version of the shards that a lost worker's successor loads."""
        cut = self.last
        return cut.version if cut is not None and cut.phase == self._owner.phase else 0

    def loaded(self, slot: int) -> Shard:
        """Notes that a worker loads its shard, and returns what it is loaded from.

        That stays the same, though another cut is whole before the worker has asked for all of it.
        """
        self.holders.add(slot)
        self._loading[slot] = shard = self.shard(slot)
        return shard

    def page(self, slot: int, page: Page, now: float) -> Page:
        """Answers a page of a worker's shard that the worker sends, or asks for."""
        if page.numbers is None:
            shard = self._loading.get(slot) or self.shard(slot)
            return page._replace(numbers=page_in(shard[page.name], page.start))
        self._loading.pop(slot, None)
        is_for_cut = self._making is not None and page.version == self._making.version
        come = self._shards.take(slot, page) if page.is_last or is_for_cut else ENOUGH
        self.save_if_whole(now)
        return Page(page.version, page.name, come)

    def _no_shard(self, reason: str) -> None:
        """A shard could not be written: this round is not saved, and training continues."""
        self._callbacks.emit(CheckpointFailed(name=self.here().name, reason=reason))
        self.drop()

    def table(self, best: RunSnapshot | None) -> Table | None:
        """Returns the table that was sharded; the workers sent their shards before they closed.

        Args:
            best: the point to take instead of the last one.
        """
        if not self._owner.has_shards:
            return None
        closed = self._leases.close_frames.values()
        shards: Shards = self._shards.at(max(frame.header["version"] for frame in closed))
        shards = shards if best is None else best.shards
        self._shards.drop()  # the table alone keeps the files, and releases them once it is whole
        plan, owner = self._plan, self._owner
        stage, integers = plan.phases[owner.phase].stage, owner.point.integers
        start = partial(_start, stage, self.history, plan.seed, integers)
        return Table(shards, owner.policy.rows, self._callbacks.scratch, start, plan.seed)

    # -- what workers held alone -----------------------------------------------------------------

    def held_by(self, worker: WorkerSnapshot) -> Message:
        """Returns the present point as a worker holds it, where the owner does not."""
        return _held(self.here(), worker.trained, worker.floats, worker.integers).point

    def keep(self, held: Mapping[int, Mapping[str, Vector]]) -> None:
        """Saves a cut of what workers sent when they left, by slot."""
        cut = self.here()
        if self._owner.has_shards:
            cut = replace(cut, shards=self._shards.at(cut.version))
        elif not self._owner.policy.keeps:
            if not held:
                return
            cut = _held(cut, *_sections(held[min(held)]))
        self.last = replace(cut, inner={s: inner_of(a) for s, a in sorted(held.items())})
        self._callbacks.save(self.last)

    def remember(self, closed: Frame) -> None:
        """Keeps the parameters of a worker that is done, should all others be lost."""
        owner, version = self._owner, closed.header["version"]
        is_new = version == owner.version and self.saved is None
        if is_new and version > 0 and not (owner.policy.keeps or owner.has_shards):
            self.last = _held(self.here(), *_sections(closed.arrays))

    # -- going back ------------------------------------------------------------------------------

    def forget(self) -> None:
        """The run continues from elsewhere: what workers hold or send is of another point."""
        self.holders, self._loading = set(), {}
        self.drop()
        self._shards.drop()
        self._leases.reopen()

    def fall_back(self) -> None:
        """Goes back to the last cut or the phase's start: no worker is left with the parameters."""
        owner, leases, cut, lost = self._owner, self._leases, self.last, self._owner.version
        if cut is None or cut.phase != owner.phase:
            cut = replace(
                self.here(),
                version=0,
                applied=0,
                point=self.start_of(owner.phase),
                positions=dict.fromkeys(leases.seats, 0),
            )
        self._returns = self._returns + 1 if lost == cut.version else 0
        self.last = cut
        self.forget()
        owner.restore(cut.point, cut.applied)
        leases.restore(cut)
        self._callbacks.enter("back", owner.frame("stop", 0, 0, version=cut.version), {})
        do = "checkpoint more often to lose less"
        if owner.has_shards:
            wrong = "a worker was lost, and with it the rows that it owned"
        elif any(seat.is_yielding for seat in leases.seats.values()):
            wrong, do = "all seats were given up, and with them what the workers had agreed on", ""
        else:
            wrong = "all workers were lost, and with them what they had agreed on"
        then = f"the run went back from version {lost} to {cut.version} of phase {cut.phase}"
        self._callbacks.warn(wrong, then=then, do=do)
        if owner.has_shards and self._returns == _MOST_RETURNS:
            wrong = f"the workers agreed on nothing after version {lost}"
            got = f"{_MOST_RETURNS} times one was lost, or could not reach another"
            owner.failure = message(wrong, got=got, do="repair the network; resume the run")


def _held(
    cut: RunSnapshot, trained: Vector | None, floats: Vector, integers: Vector
) -> RunSnapshot:
    """Returns a cut at the point that a worker held."""
    point = cut.point._replace(vector=trained, floats=floats, integers=integers)
    return replace(cut, point=point)


def _start(stage: Stage, history: tuple[Vector, ...], seed: int, integers: Vector | None) -> Model:
    """Returns a model whose first rows are those with which all workers began."""
    model = stage.blank(history, seed)
    if integers is not None:
        np.copyto(model.parameters.integers, integers)
    return model


def _sections(arrays: Mapping[str, Vector]) -> tuple[Vector, Vector, Vector]:
    return arrays["vector"], arrays["floats"], arrays["integers"]


def _check(cut: RunSnapshot, plan: TrainingPlan) -> None:
    if cut.phase >= len(plan.phases):
        wrong = f"the checkpoint is of phase {cut.phase}, and this plan has fewer phases"
        raise UsageError(wrong, got=len(plan.phases), do="resume with the plan it is of")
    workers = len(cut.positions)
    if not cut.is_phase_start and workers != plan.workers:
        wrong = f"a checkpoint within a phase continues with as many workers as it has, {workers}"
        raise UsageError(wrong, got=plan.workers, do=f"resume with {workers} workers")
