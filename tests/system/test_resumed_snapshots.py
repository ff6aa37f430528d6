"""Runs that continue from a snapshot, in virtual time: the same bits, or a clear message."""

import json

import pytest

from photinus.coordinator.checkpoints import files_of, meta_of, snapshot_from
from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
)
from photinus.testing import Faults

BARRIERS = [
    name
    for name, strategy in ((name, recipe.build()) for name, recipe in RECIPES.items())
    if strategy.release == "rounds" and not strategy.is_without_owner
]


# -- cuts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*(n for n in BARRIERS if n != "full_gradient"), "owners"])
def test_a_run_that_is_resumed_ends_with_the_same_bits(field, name):
    configs = [field.config(name=n, epochs=5) for n in ("first", "second")]
    usual = {"configs": configs, "callbacks": {"checkpoint_seconds": 0.2}}
    whole = field.play(field.small[name], **usual).run()
    snapshots = whole.tape.snapshots
    assert len(snapshots) >= (2 if name == "iterative_reduce" else 4)
    for snapshot in (snapshots[0], snapshots[len(snapshots) // 2], snapshots[-1]):
        resumed = field.play(
            field.small[name], configs=configs, callbacks={"term": 2}, snapshot=snapshot
        ).run()
        assert len(resumed.result.vectors) == 2
        pairs = zip(whole.result.vectors, resumed.result.vectors, strict=True)
        assert all((a == b).all() for a, b in pairs), snapshot.name
        assert sum(resumed.simulation.steps) < sum(whole.simulation.steps)


def heavy(field):
    """A config with momentum inside: part of the bits that only a worker knows."""
    torch_inner = pytest.importorskip("photinus.models.optimizers")
    from photinus.models.schedules import Schedule

    class Heavy(type(field.config())):
        def inner(self, layout):
            lr = Schedule.constant(0.1)
            return torch_inner.TorchOptimizer(layout, "sgd", {"momentum": 0.9}, lr)

    return Heavy(features=6, classes=3, epochs=6, batch_size=8, dtype="float64")


@pytest.mark.parametrize("name", ["all_reduce", "averaging", "owners"])
def test_cuts_since_a_lost_worker_came_back_resume_to_the_same_bits(field, name):
    config = heavy(field)
    whole = field.play(field.small[name], configs=[config], callbacks={"checkpoint_seconds": 0.0})
    whole.simulation.at(0.25, whole.simulation.kill, 2, 0.2)
    whole.run()
    [lost] = whole.tape.of("WorkerLost")
    back = [e for e in whole.tape.events if type(e).__name__ in ("WorkerJoined", "RoundClosed")]
    joined = max(n for n, e in enumerate(back) if type(e).__name__ == "WorkerJoined")
    since = next(e.version for e in back[joined:] if lost.slot in getattr(e, "slots", ()))
    snapshots = [snapshot for snapshot in whole.tape.snapshots if snapshot.version >= since]
    for snapshot in (snapshots[0], snapshots[len(snapshots) // 2]):
        resumed = field.play(
            field.small[name], configs=[config], callbacks={"term": 2}, snapshot=snapshot
        ).run()
        assert (resumed.vector == whole.vector).all(), snapshot.name


@pytest.mark.parametrize("name", ["all_reduce", "averaging", "iterative_reduce"])
def test_a_resumed_run_continues_with_the_momentum_that_it_had(field, name):
    config = heavy(field)
    whole = field.play(
        field.small[name], configs=[config], callbacks={"checkpoint_seconds": 0.2}
    ).run()
    snapshot = whole.tape.snapshots[len(whole.tape.snapshots) // 2]
    assert {len(v) for v in snapshot.inner.values()} == {1}
    resumed = field.play(
        field.small[name], configs=[config], callbacks={"term": 2}, snapshot=snapshot
    ).run()
    assert (resumed.vector == whole.vector).all()
    fresh = field.play(
        field.small[name],
        configs=[config],
        callbacks={"term": 2},
        snapshot=type(snapshot)(**fields(snapshot) | {"inner": {}}),
    ).run()
    assert not (fresh.vector == whole.vector).all(), "the momentum matters"


@pytest.mark.parametrize(
    "strategy",
    [
        averaging(every=Steps(6), codec="int8"),
        averaging(every=Steps(6), codec="int4"),
        all_reduce(codec="int4"),
        all_reduce(codec="bf16", error_feedback=True, owners=4),
    ],
    ids=str,
)
def test_a_resumed_run_continues_with_what_its_codec_left_out(field, strategy):
    whole = field.play(strategy, epochs=6, callbacks={"checkpoint_seconds": 0.2}).run()
    snapshot = whole.tape.snapshots[len(whole.tape.snapshots) // 2]
    assert all("agreement.left" in state for state in snapshot.inner.values())
    assert strategy.recipe == "all_reduce" or snapshot.point.left.any()
    snapshot = snapshot_from(twin(snapshot), "")
    resumed = field.play(strategy, epochs=6, callbacks={"term": 2}, snapshot=snapshot).run()
    assert (resumed.vector == whole.vector).all()
    bare = type(snapshot)(**fields(snapshot) | {"inner": {}})
    fresh = field.play(strategy, epochs=6, callbacks={"term": 2}, snapshot=bare).run()
    assert not (fresh.vector == whole.vector).all(), "the feedback matters"


def twin(snapshot):
    """A cut as the checkpoint that is read again."""
    from photinus.checkpoint.store import Checkpoint

    return Checkpoint(
        snapshot.name, json.loads(json.dumps(meta_of(snapshot, ""))), files_of(snapshot), True
    )


def fields(snapshot):
    return {name: getattr(snapshot, name) for name in snapshot.__slots__}


def test_healing_carries_the_momentum_of_a_survivor(field):
    from photinus.models.optimizers import TorchOptimizer
    from photinus.models.schedules import Schedule

    class Heavy(type(field.config())):
        def inner(self, layout):
            return TorchOptimizer(layout, "sgd", {"momentum": 0.9}, Schedule.constant(0.1))

    config = Heavy(features=6, classes=3, epochs=6, batch_size=8, dtype="float64")
    played = field.play(all_reduce(), configs=[config])
    played.simulation.at(0.31, played.simulation.kill, 2, 0.2)
    played.run()
    assert not played.tape.warnings(), "all ended with the same bits"


@pytest.mark.parametrize("at", [0.31, 0.95])
def test_who_comes_back_among_owners_takes_the_same_outer_step(field, at):
    """Its momentum is a survivor's: else the workers would part, and end with different bits."""
    strategy = averaging(every=Steps(6), outer=Nesterov(0.7, 0.9), gain="unsafe", owners=4)
    played = field.play(strategy, epochs=8)
    played.simulation.at(at, played.simulation.kill, 2, 0.2)
    played.run()
    assert [e.slot for e in played.tape.of("WorkerJoined") if e.lease > 1] == [2]
    assert played.tape.warnings() == [], "all ended with the same bits"
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 8 * len(field.labels)


def test_a_cut_of_a_lossy_network_is_made_all_the_same(field):
    faults = {"faults": Faults().lose(0.2), "resend_seconds": 0.05}
    callbacks = {"checkpoint_seconds": 0.2}
    whole = field.play(
        field.small["averaging"], epochs=20, cluster=faults, callbacks=callbacks
    ).run()
    assert len(whole.tape.snapshots) > 1


def test_a_cut_of_other_workers_is_refused_within_a_phase(field):
    whole = field.play(
        field.small["averaging"], callbacks={"checkpoint_seconds": 0.1}, epochs=6
    ).run()
    with pytest.raises(UsageError, match="as many workers as it has, 4; got 3; resume with 4"):
        field.play(field.small["averaging"], 3, snapshot=whole.tape.snapshots[0])


def test_between_phases_a_run_continues_with_other_workers(field):
    configs = [field.config(name=n, epochs=2) for n in ("first", "second")]
    whole = field.play(field.small["averaging"], configs=configs).run()
    resumed = field.play(
        field.small["averaging"], 3, configs=configs, snapshot=whole.tape.snapshots[0]
    ).run()
    assert (resumed.result.vectors[0] == whole.result.vectors[0]).all()
    with pytest.raises(UsageError, match="this plan has fewer phases; got 1"):
        field.play(field.small["averaging"], configs=configs[:1], snapshot=whole.tape.snapshots[0])


def test_a_cut_of_other_rows_is_told(field):
    whole = field.play(
        field.small["averaging"], callbacks={"checkpoint_seconds": 0.1}, epochs=6
    ).run()
    parts = field.parts(4, [100, 100, 100, 180])
    resumed = field.play(
        field.small["averaging"], parts=parts, snapshot=whole.tape.snapshots[0], epochs=6
    ).run()
    assert "the workers hold other rows than at the checkpoint" in resumed.tape.warnings()[0]
