"""Snapshots: which rounds are saved, what workers send, and which point a run returns to."""

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
from photinus.coordinator.sharded_table import NO_MORE_WANTED, Shard, ShardFiles, Table, page_in
from photinus.core.errors import UsageError, user_message
from photinus.core.events import CheckpointFailed
from photinus.core.parameters import Vector
from photinus.models.base import Model, ModelConfig
from photinus.protocol.messages import inner_of
from photinus.strategies.base import Message
from photinus.training.plan import TrainingPlan
from photinus.training.requests import Page, WorkerSnapshot
from photinus.training.snapshots import RunSnapshot, Shards
from photinus.transport.frames import Frame

_MAX_RETURNS = 10
"""How often in a row a run goes back to the same snapshot before it fails."""


class SnapshotCollector:
    """The last whole snapshot, and the one in the making: it waits for every worker of its round.

    Where a table is sharded over the workers it waits for their shards, too.

    Args:
        plan: what is trained.
        leases: the seats.
        owner: holds the agreed parameters.
        early_stopping: the rounds that it measures are snapshots, too.
        callbacks: receive snapshots.
        last: what to continue from, of an earlier term.

    Raises:
        UsageError: that snapshot belongs to another plan.
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
            _check_plan(last, plan)
        self._plan, self._leases, self._callbacks = plan, leases, callbacks
        self._owner, self._early_stopping = owner, early_stopping
        self.last = last
        """The one that the run continues from."""
        self.history: tuple[Vector, ...] = last.history if last else plan.start.get("", ())
        """What the earlier stages agreed on."""
        self.is_requested = False
        """The present round must be saved, however recent the last save is."""
        self._saved_at = 0.0
        self.holders = set[int]()
        """The slots that hold a shard of the present point, where nothing else holds it."""
        self._loading_shards: dict[int, Shard] = {}
        """Slot -> what its worker loads, until it has sent a page of its own."""
        self._returns = 0
        """How often in a row the run went back and agreed on nothing in between."""
        self._applied_before = -1
        """The examples that were agreed on before the present round."""
        self._pending: RunSnapshot | None = None
        self._slots_awaited: set[int] = set()
        self._worker_snapshots: dict[int, WorkerSnapshot] = {}
        self._shards = ShardFiles(callbacks.scratch, self._give_up_round)

    def enter_phase(self, now: float) -> None:
        """Begins to count the time until the next save."""
        self._saved_at = now

    def request(self, *, is_open: bool) -> bool:
        """Has the present round saved, however recent the last save is, where one is open."""
        self.is_requested = is_open
        return is_open

    # -- the present point -----------------------------------------------------------------------

    @property
    def saved(self) -> RunSnapshot | None:
        """The last snapshot, when nothing was agreed since."""
        snapshot = self.last
        return (
            snapshot
            if snapshot is not None and (snapshot.phase, snapshot.version) == self._owner.point_id
            else None
        )

    @property
    def is_in_workers_only(self) -> bool:
        """True when neither the owner nor a snapshot with inner states holds the present point."""
        snapshot, owner = self.saved, self._owner
        is_whole = snapshot is not None and bool(snapshot.inner)
        return not (owner.policy.holds_parameters or owner.version == 0 or is_whole)

    def start_for(self, slot: int) -> tuple[Message, Mapping[str, Vector]]:
        """Returns the present point, and an inner state of a slot's worker to continue with.

        The inner state is its own; where those of all workers are the same, any worker's.
        """
        snapshot, owner = self.saved, self._owner
        point = owner.point if snapshot is None or owner.policy.holds_parameters else snapshot.point
        if snapshot is None or not snapshot.inner:
            return point, {}
        is_own = owner.policy.holds_parameters and snapshot.version > 0
        fallback = {} if is_own else snapshot.inner[min(snapshot.inner)]
        return point, snapshot.inner.get(slot, fallback)

    def present_snapshot(self) -> RunSnapshot:
        """Returns the present point as a snapshot, without what the workers hold alone."""
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

    def first_point(self, phase: int) -> Message:
        """Returns the first point of a phase."""
        trained, floats, integers = self._plan.first(phase, self.history)
        vector = None if self._plan.is_sharded(phase) else trained
        return Message("heal", vector, floats=floats, integers=integers)

    # -- the snapshot in the making --------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Returns whether the present round must be saved."""
        interval = self._callbacks.checkpoint_seconds
        return self.is_requested or (interval is not None and now - self._saved_at >= interval)

    def begin(self, members: frozenset[int], progress: float, now: float) -> bool:
        """Begins a snapshot of this round, if it is due or a trial needs it.

        Returns whether workers are asked for their state. A snapshot that is still not whole is
        given up: what it waits for was lost.

        Args:
            members: whose work was just agreed on.
            progress: of the stage.
            now: the time.
        """
        owner, seats = self._owner, self._leases
        has_trained, self._applied_before = owner.applied != self._applied_before, owner.applied
        # after a round of shards without steps workers leave, and others could read no rows of them
        is_whole_round = bool(members) and (has_trained or not owner.has_shards)
        is_whole_round = is_whole_round and not any(seat.close_frame for seat in seats)
        is_whole_round = is_whole_round and (
            members == self._leases.members or not owner.policy.has_rounds
        )
        is_trial = is_whole_round and self._early_stopping.begin(
            progress, owner.version, self._leases.members
        )
        # an unfinished snapshot will be whole: with a worker that is lost it is given up
        is_unfinished = (
            self._pending is not None and len(self._arrived_shards) < owner.policy.shards
        )
        if not is_trial and (is_unfinished or not self.is_due(now)):
            return False
        # where workers do not wait, no two of them are at the same point: each starts fresh
        slots = members if owner.policy.has_rounds else frozenset[int]()
        self._pending = self.present_snapshot()
        self._slots_awaited, self._worker_snapshots = set(slots), {}
        return bool(slots)

    def take(self, slot: int, version: int, snapshot: WorkerSnapshot, now: float) -> None:
        """Takes in the state that a worker sent, for the snapshot in the making."""
        if (
            self._pending is not None
            and version == self._pending.version
            and slot in self._slots_awaited
        ):
            self._worker_snapshots[slot] = snapshot
            self._slots_awaited.discard(slot)
        self.save_if_whole(now)

    def save_if_whole(self, now: float) -> None:
        """Saves the snapshot in the making once no worker is waited for: it is then the last one.

        Where the owner does not hold the parameters, the lowest slot's are taken; without any
        there is no snapshot.
        """
        policy, shards = self._owner.policy, self._arrived_shards
        if self._pending is None or self._slots_awaited or len(shards) < policy.shards:
            return
        snapshot, self._pending = self._pending, None
        if not policy.holds_parameters and not policy.shards:
            if not self._worker_snapshots:
                return
            first = self._worker_snapshots[min(self._worker_snapshots)]
            snapshot = _at_worker_point(snapshot, first.trained, first.floats, first.integers)
        inner = {slot: s.inner for slot, s in sorted(self._worker_snapshots.items())}
        self.last = replace(snapshot, inner=inner, shards=shards)
        self._early_stopping.offer_candidate(self.last)
        if self.is_due(now):
            self._saved_at, self.is_requested = now, False
            self._callbacks.save(self.last)

    def drop(self) -> None:
        """Gives up the snapshot in the making."""
        self._pending = None

    def drop_slot(self, slot: int) -> None:
        """A worker was lost: it can complete neither a snapshot nor a measurement."""
        self._slots_awaited.discard(slot)
        if self._owner.has_shards and slot not in self._arrived_shards:
            self.drop()  # no worker can send that version of its shard any more
        self._early_stopping.drop_slot(slot)

    # -- shards of a table -----------------------------------------------------------------------

    @property
    def _arrived_shards(self) -> Mapping[int, MappedFile]:
        """Slot -> its shard, of those that have arrived for the snapshot in the making."""
        return {} if self._pending is None else self._shards.at(self._pending.version)

    def shard(self, slot: int) -> Shard:
        """Returns what a worker's shard is loaded from; nothing where the worker makes it."""
        snapshot, owner = self.last, self._owner
        if snapshot is not None and snapshot.phase == owner.phase and snapshot.shards:
            return snapshot.shards[slot]
        start = self._plan.start.get(self._plan.phases[owner.phase].config.name, ())
        if not start or not start[0].size:
            return {}
        return {"vector": start[0].reshape(-1, owner.policy.rows)[slot :: owner.policy.shards]}

    @property
    def restorable_version(self) -> int:
        """The version of the shards that a lost worker's successor loads."""
        snapshot = self.last
        return (
            snapshot.version if snapshot is not None and snapshot.phase == self._owner.phase else 0
        )

    def load_shard(self, slot: int) -> Shard:
        """Notes that a worker loads its shard, and returns what it is loaded from.

        That stays the same, though another snapshot is whole before the worker has asked for all
        of it.
        """
        self.holders.add(slot)
        self._loading_shards[slot] = shard = self.shard(slot)
        return shard

    def page(self, slot: int, page: Page, now: float) -> Page:
        """Answers a page of a worker's shard that the worker sends, or asks for."""
        if page.numbers is None:
            shard = self._loading_shards.get(slot) or self.shard(slot)
            return page._replace(numbers=page_in(shard[page.name], page.start))
        self._loading_shards.pop(slot, None)
        is_for_cut = self._pending is not None and page.version == self._pending.version
        arrived_count = (
            self._shards.take(slot, page) if page.is_last or is_for_cut else NO_MORE_WANTED
        )
        self.save_if_whole(now)
        return Page(page.version, page.name, arrived_count)

    def closing_shards(self) -> Shards:
        """Returns the shards that the workers sent before they closed; none without a table."""
        versions = [frame.header["version"] for frame in self._leases.close_frames.values()]
        return self._shards.at(max(versions, default=-1))

    def _give_up_round(self, reason: str) -> None:
        """A shard could not be written: this round is not saved, and training continues."""
        self._callbacks.emit(CheckpointFailed(name=self.present_snapshot().name, reason=reason))
        self.drop()

    def table(self, best: RunSnapshot | None) -> Table | None:
        """Returns the table that was sharded; the workers sent their shards before they closed.

        Args:
            best: the point to take instead of the last one.
        """
        if not self._owner.has_shards:
            return None
        shards = self.closing_shards() if best is None else best.shards
        self._shards.drop()  # the table alone keeps the files, and releases them once it is whole
        plan, owner = self._plan, self._owner
        config, integers = plan.phases[owner.phase].config, owner.point.integers
        start = partial(_blank_model, config, self.history, plan.seed, integers)
        return Table(shards, owner.policy.rows, self._callbacks.scratch, start, plan.seed)

    # -- what workers held alone -----------------------------------------------------------------

    def point_of(self, worker: WorkerSnapshot) -> Message:
        """Returns the present point as a worker holds it, where the owner does not."""
        return _at_worker_point(
            self.present_snapshot(), worker.trained, worker.floats, worker.integers
        ).point

    def save_from_workers(self, arrays_by_slot: Mapping[int, Mapping[str, Vector]]) -> None:
        """Saves a snapshot of what workers sent when they left, by slot."""
        snapshot = self.present_snapshot()
        if self._owner.has_shards:
            snapshot = replace(snapshot, shards=self._shards.at(snapshot.version))
        elif not self._owner.policy.holds_parameters:
            if not arrays_by_slot:
                return
            snapshot = _at_worker_point(
                snapshot, *_parameter_vectors(arrays_by_slot[min(arrays_by_slot)])
            )
        self.last = replace(
            snapshot,
            inner={slot: inner_of(arrays) for slot, arrays in sorted(arrays_by_slot.items())},
        )
        self._callbacks.save(self.last)

    def keep_closing_state(self, close_frame: Frame) -> None:
        """Keeps the parameters of a worker that is done, should all others be lost."""
        owner, version = self._owner, close_frame.header["version"]
        is_new = version == owner.version and self.saved is None
        if is_new and version > 0 and not (owner.policy.holds_parameters or owner.has_shards):
            self.last = _at_worker_point(
                self.present_snapshot(), *_parameter_vectors(close_frame.arrays)
            )

    # -- going back ------------------------------------------------------------------------------

    def forget(self) -> None:
        """The run continues from elsewhere: what workers hold or send is of another point."""
        self.holders, self._loading_shards = set(), {}
        self.drop()
        self._shards.drop()
        self._leases.reopen()

    def fall_back(self) -> None:
        """Goes back to the last snapshot or the phase's start: no worker has the parameters."""
        owner, leases, snapshot = self._owner, self._leases, self.last
        lost_version = owner.version
        if snapshot is None or snapshot.phase != owner.phase:
            snapshot = replace(
                self.present_snapshot(),
                version=0,
                applied=0,
                point=self.first_point(owner.phase),
                positions=dict.fromkeys((seat.slot for seat in leases), 0),
            )
        self._returns = self._returns + 1 if lost_version == snapshot.version else 0
        self.last = snapshot
        self.forget()
        owner.restore(snapshot.point, snapshot.applied)
        leases.restore(snapshot)
        self._callbacks.enter("back", owner.frame("stop", 0, 0, version=snapshot.version), {})
        do = "checkpoint more often to lose less"
        if owner.has_shards:
            wrong = "a worker was lost, and with it the rows that it owned"
        elif any(seat.is_yielding for seat in leases):
            wrong, do = "all seats were given up, and with them what the workers had agreed on", ""
        elif all(seat.strikes for seat in leases):
            wrong = "no worker's values were finite"
            do = "lower the learning rate, or look at the rows"
        else:
            wrong = "all workers were lost, and with them what they had agreed on"
        to = f"{snapshot.version} of phase {snapshot.phase}"
        then = f"the run went back from version {lost_version} to {to}"
        self._callbacks.warn(wrong, then=then, do=do)
        if owner.has_shards and self._returns == _MAX_RETURNS:
            wrong = f"the workers agreed on nothing after version {lost_version}"
            got = f"{_MAX_RETURNS} times one was lost, or could not reach another"
            owner.failure = user_message(wrong, got=got, do="repair the network; resume the run")


def _at_worker_point(
    snapshot: RunSnapshot, trained: Vector | None, floats: Vector, integers: Vector
) -> RunSnapshot:
    """Returns a snapshot at the point that a worker held."""
    point = snapshot.point._replace(vector=trained, floats=floats, integers=integers)
    return replace(snapshot, point=point)


def _blank_model(
    config: ModelConfig, history: tuple[Vector, ...], seed: int, integers: Vector | None
) -> Model:
    """Returns a model whose first rows are those with which all workers began."""
    model = config.blank(history, seed)
    if integers is not None:
        np.copyto(model.parameters.integers, integers)
    return model


def _parameter_vectors(arrays: Mapping[str, Vector]) -> tuple[Vector, Vector, Vector]:
    return arrays["vector"], arrays["floats"], arrays["integers"]


def _check_plan(snapshot: RunSnapshot, plan: TrainingPlan) -> None:
    if snapshot.phase >= len(plan.phases):
        wrong = f"the checkpoint is of phase {snapshot.phase}, and this plan has fewer phases"
        raise UsageError(wrong, got=len(plan.phases), do="resume with the plan it is of")
    workers = len(snapshot.positions)
    if not snapshot.is_phase_start and workers != plan.workers:
        wrong = f"a checkpoint within a phase continues with as many workers as it has, {workers}"
        raise UsageError(wrong, got=plan.workers, do=f"resume with {workers} workers")
