"""Two applications of one cluster: the less urgent one gives executors up, and has them back."""

import pytest

from photinus.core.clock import Steps
from photinus.engine.seat_sharing import Urgency
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_urgent_application_gets_the_cores_that_another_one_holds(
    clusters, applications, tiny, tmp_path
):
    """The first application holds all four cores; the urgent one begins and ends before it."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    cluster = clusters({"spark.scheduler.mode": "FIFO"}, cores=2)
    first, urgent = applications(cluster), applications(cluster)
    quick, slowed = tmp_path / "quick", Faults()
    for slot in range(4):
        slowed = slowed.slow(slot, 300.0, until=str(quick))
    recipe = averaging(every=Steps(4), codec="fp32", gradients_until=0.0)
    plan = tiny.plan(workers=4, recipes=(recipe,), epochs=300.0)
    common = {"folder": str(jobs)}
    first.start("first", plan, tiny.data, faults=slowed, urgency=Urgency(**common))
    first.wait("RoundClosed", "first")
    few = tiny.plan(workers=2, recipes=(recipe,), epochs=3.0)
    urgent.train("urgent", few, tiny.data, urgency=Urgency(priority=1, **common))
    assert not first.of("Done")
    quick.touch()
    urgent.close()
    first.result("first")
    warnings = [line["text"] for line in first.of("Warned", "first")]
    given_up = [text for text in warnings if "give their seats up" in text]
    assert len(given_up) == 1, "the seats of one executor"
    assert len([text for text in warnings if "take their seats back" in text]) == 1
    assert not first.of("WorkerLost", "first")
    ended = first.of("PhaseEnded", "first")[-1]
    assert set(ended["passes"].values()) == {300.0}
