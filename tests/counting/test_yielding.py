"""A run that gives its seats up to a more urgent one uses each row as often as it was asked to."""

import platform
import threading
from pathlib import Path

import cases
import counted
import pytest
from cases import BOTH_PARTS, RECIPES, Trial, simulated

from photinus.core.clock import Steps
from photinus.engine.seat_sharing import Urgency
from photinus.engine.seat_table import (
    CLAIMS_CHANGED,
    SeatClaim,
    announce_here,
    claims_here,
    forget_here,
)
from photinus.strategies import recipes
from photinus.strategies.outer import Sgd
from photinus.testing import Faults

KEEPS = [name for name in RECIPES if not name.endswith(("a table", "streaming"))]
"""The rest: a table's seats are not given up, and fragments lose what a lost worker loses."""


def texts_of(verdict, words):
    return [event.text for event in verdict.of("Warned") if words in event.text]


def assert_exact(verdict):
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences


@pytest.mark.parametrize("seats", [1, 3])
@pytest.mark.parametrize("recipe", [*KEEPS, *BOTH_PARTS])
def test_seats_that_are_given_up_and_taken_back_lose_no_row(recipe, seats, tmp_path):
    engine = simulated(urgent=((0.9, 2.0, seats),))
    verdict = Trial(recipe, tmp_path, epochs=20).train(engine)
    assert_exact(verdict)
    slots = [0, 1, 2][-seats:]
    assert len(texts_of(verdict, f"workers {slots} give their seats up")) == 1
    assert len(texts_of(verdict, f"workers {slots} take their seats back")) == 1


@pytest.mark.parametrize("recipe", ["averaging", "downpour", "averaging, both parts"])
def test_a_run_that_keeps_one_seat_for_good_trains_the_rows_of_all_by_turns(recipe, tmp_path):
    verdict = Trial(recipe, tmp_path, epochs=20).train(simulated(urgent=((0.9, 1e6, 2),)))
    assert_exact(verdict)
    assert texts_of(verdict, "workers [0] give their seats up")
    assert texts_of(verdict, "workers [2] take their seats back")
    assert not texts_of(verdict, "did not come back")


def test_a_table_among_the_workers_gives_no_seat_up(tmp_path):
    engine = simulated(urgent=((0.9, 2.0, 1),))
    verdict = Trial("averaging, a table", tmp_path, epochs=20).train(engine)
    assert_exact(verdict)
    assert not verdict.of("Warned")


@pytest.mark.parametrize("step", [7, 60, 100])
def test_a_worker_that_is_lost_around_a_yield_loses_no_row(step, tmp_path):
    engine = simulated(Faults().kill(2, step).kill(0, step + 1), urgent=((0.4, 2.0, 2),))
    verdict = Trial("averaging", tmp_path, epochs=20).train(engine)
    assert_exact(verdict)
    assert len(verdict.of("WorkerLost")) >= 1


class Watched(Trial):
    """Tells when a phase has begun."""

    def __post_init__(self):
        super().__post_init__()
        self.begun, self.order = threading.Event(), []
        self.fields |= {"emit": self._emit}

    def _emit(self, event):
        self.events.append(event)
        if type(event).__name__ == "RoundClosed":
            self.begun.set()


@pytest.mark.spark
@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seats", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_an_urgent_run_of_the_same_application_gets_slots_that_all_are_taken(
    spark, seats, tmp_path
):
    """The first run holds all four slots; the urgent one begins and ends before it."""
    from photinus.engine.spark.engine import SparkEngine

    for module in (counted, cases):
        spark.sparkContext.addPyFile(str(Path(module.__file__)))
    slowed, ended, quick = Faults(), [], tmp_path / "quick"
    for slot in range(4):
        slowed = slowed.slow(slot, 50.0, until=str(quick))
    recipe = recipes.averaging(
        every=Steps(3), outer=Sgd(), merge="uniform", codec="fp32", gradients_until=0.0
    )
    first = Watched(recipe, tmp_path / "first", 4, epochs=100)
    urgent = Watched(recipe, tmp_path / "urgent", seats, epochs=3)
    urgent.fields |= {"urgency": Urgency(priority=1)}
    verdicts = {}

    def run(name, trial, faults=None):
        verdicts[name] = trial.train(SparkEngine(spark, faults))
        ended.append(name)
        quick.touch()

    threads = [threading.Thread(target=run, args=("first", first, slowed))]
    threads[0].start()
    assert first.begun.wait(200)
    threads.append(threading.Thread(target=run, args=("urgent", urgent)))
    threads[1].start()
    for thread in threads:
        thread.join(300)
    assert ended == ["urgent", "first"]
    for verdict in verdicts.values():
        assert_exact(verdict)
    slots = [0, 1, 2, 3][-seats:]
    assert texts_of(verdicts["first"], f"workers {slots} give their seats up")
    assert texts_of(verdicts["first"], f"workers {slots} take their seats back")
    assert not verdicts["first"].of("WorkerLost")


@pytest.mark.spark
@pytest.mark.fault
@pytest.mark.timeout(600)
def test_two_runs_of_one_application_share_its_slots_by_their_weights(spark, tmp_path):
    """Each wants all four slots: with weights 1 and 3 they come to hold one and three."""
    from photinus.engine.spark.engine import SparkEngine

    for module in (counted, cases):
        spark.sparkContext.addPyFile(str(Path(module.__file__)))
    quick, verdicts, threads = tmp_path / "quick", {}, []
    slowed = Faults()
    for slot in range(4):
        slowed = slowed.slow(slot, 50.0, until=str(quick))

    def run(trial, weight):
        trial.fields |= {"urgency": Urgency(weight=weight)}
        verdicts[weight] = trial.train(SparkEngine(spark, slowed))

    def shares():
        claims = claims_here(spark.sparkContext.applicationId).values()
        return {standing.weight: standing.held for standing in claims}

    for weight in (1.0, 3.0):
        trial = Watched("post_local", tmp_path / str(weight), 4, epochs=100)
        threads.append(threading.Thread(target=run, args=(trial, weight)))
        threads[-1].start()
        assert trial.begun.wait(200)
    with CLAIMS_CHANGED:
        assert CLAIMS_CHANGED.wait_for(lambda: shares() == {1.0: 1, 3.0: 3}, 200), shares()
    quick.touch()
    for thread in threads:
        thread.join(300)
    for weight in (1.0, 3.0):
        assert_exact(verdicts[weight])
        assert texts_of(verdicts[weight], "give their seats up")
        assert texts_of(verdicts[weight], "take their seats back")


@pytest.mark.processes
@pytest.mark.fault
@pytest.mark.timeout(600)
def test_processes_that_give_their_seats_up_wait_and_go_on(tmp_path, monkeypatch):
    """The machine has two processors: both workers wait, train no round, and are not restarted."""
    from photinus.engine.local import engine

    monkeypatch.setattr(engine, "processors", lambda: 2)
    quick, verdicts = tmp_path / "quick", {}
    slowed = Faults().slow(0, 50.0, until=str(quick)).slow(1, 50.0, until=str(quick))
    first = Watched("averaging", tmp_path / "first", 2, epochs=100)

    def run():
        verdicts["first"] = first.train(engine.LocalEngine(slowed))

    thread = threading.Thread(target=run)
    thread.start()
    assert first.begun.wait(200)
    place = {"place": platform.node(), "slots": 2, "workers": 2, "priority": 1}
    announce_here(SeatClaim(run="urgent", held=2, **place))
    try:
        with CLAIMS_CHANGED:
            assert CLAIMS_CHANGED.wait_for(lambda: claims_here()[first.run.hex()].held == 0, 100)
        rounds = len([e for e in first.events if type(e).__name__ == "RoundClosed"])
        with CLAIMS_CHANGED:  # looks several times more
            assert not CLAIMS_CHANGED.wait_for(lambda: claims_here()[first.run.hex()].held, 3)
        assert len([e for e in first.events if type(e).__name__ == "RoundClosed"]) == rounds
    finally:
        forget_here("urgent")
        quick.touch()
    thread.join(300)
    assert_exact(verdicts["first"])
    assert texts_of(verdicts["first"], "workers [0, 1] give their seats up")
    assert texts_of(verdicts["first"], "workers [0, 1] take their seats back")
    assert not verdicts["first"].of("WorkerLost")
    leases = [event.lease for event in verdicts["first"].of("WorkerJoined")]
    pids = {event.pid for event in verdicts["first"].of("WorkerJoined")}
    assert sorted(leases) == [1, 1, 2, 2]
    assert len(pids) == 2
