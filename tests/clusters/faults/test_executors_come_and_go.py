"""Executors arrive while tasks wait, are copied, and are decommissioned in a run."""

import signal

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]
SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.decommission.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "500ms",
    "spark.speculation.task.duration.threshold": "3s",
}
"""Copies are made of as many tasks as one executor holds, or fewer: not in a run of four."""


@pytest.fixture(scope="module")
def field(clusters, applications):
    cluster = clusters(SETTINGS, workers=3, installed=True)
    return cluster, applications(cluster)


def test_executors_arrive_while_tasks_wait_and_copies_on_another_host_take_over_at_once(
    field, runs, record_property
):
    """Each of two workers gets a copy, which sits down when its worker dies."""
    assert sum(map(len, field[0].executors().values())) == 0, "none before there are tasks"
    run = runs(steps=4_000, workers=2)

    def are_copied():
        return run.cluster.waiting((run.pid(0), run.pid(1))) >= 2

    run.cluster.until(are_copied, "two copies wait beside two workers")
    first = run.pid(1), run.executor_of(1)
    run.driver.wait("RoundClosed", run.name, version=run.version + 20)
    assert run.of("WorkerLost") == [], "copies change nothing"
    assert len(run.of("WorkerJoined")) == 2
    run.hit(signal.SIGKILL, first[0])
    run.back([1])
    assert run.executor_of(1)[0] != first[1][0], "on the other host"
    run.ended(record_property, [1])
    assert run.gap < 5


def test_a_decommissioned_executor_is_left_after_a_push_and_another_one_replaces_it(
    runs, record_property
):
    run = runs(steps=4_000)
    places = {run.executor_of(slot) for slot in range(4)}
    assert len(places) == 2
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    run.hit(signal.SIGPWR, run.cluster.processes[place].pid)
    run.back(slots)
    assert run.executor_of(1)[0] != place
    run.ended(record_property, slots)
    assert run.reasons() == set(), "no lease had to end by itself"
    expected = {f"worker {slot} leaves it after its next push" for slot in slots}
    assert expected <= {text.partition("; ")[2] for text in run.warnings}, run.warnings
    assert run.gap < 5
