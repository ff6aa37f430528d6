"""Executors are killed and frozen, hosts are lost: others continue, and each push counts once."""

import json
import signal
import time

import pytest

from photinus.testing import Faults

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]

SETTINGS = {
    "spark.cores.max": "4",
    "spark.task.maxFailures": "2",
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10000",
    "spark.executor.heartbeatInterval": "2s",
}
"""Spark takes a silent executor for lost soon (its default is two minutes), and forgives once."""


@pytest.fixture(scope="module")
def field(clusters, applications):
    """Three hosts, two of which have an executor."""
    cluster = clusters(SETTINGS, workers=3, installed=True)
    return cluster, applications(cluster)


def test_a_killed_executor_costs_its_seats_for_a_while_and_nobody_elses(runs, record_property):
    run = runs(steps=4_000)
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    assert len(slots) == 2
    run.hit(signal.SIGKILL, executor)
    run.back(slots)
    assert run.executor_of(1)[1] != executor
    run.ended(record_property, slots)
    assert run.gap < 5
    assert run.reasons() == {"its connection closed and did not come back"}
    lost = {line["slot"] for line in run.of("WorkerLost")}
    assert lost == slots


def test_an_executor_is_frozen_and_killed_by_name(field, long_job, tmp_path):
    """Its workers live beside a frozen one, and die with a killed one; each fault is noted."""
    _, driver = field
    faults = Faults().freeze(slot=1, step=100, seconds=3.0, executor=True)
    faults = faults.kill(slot=1, step=400, executor=True).noted_in(str(tmp_path / "diary"))
    for slot in range(4):
        faults = faults.slow(slot, 15.0)
    driver.start("by name", *long_job(2_000, 4), faults=faults)
    driver.result("by name", seconds=400)
    noted = [json.loads(line) for line in (tmp_path / "diary").read_text().splitlines()]
    assert [(n["kind"], n["executor"], n["step"]) for n in noted] == [
        ("freeze", True, 100),
        ("kill", True, 400),
    ]
    lost = driver.of("WorkerLost", "by name")
    assert len({line["slot"] for line in lost}) == len(lost) == 2, "both of the killed executor"
    assert {line["reason"] for line in lost} == {"its connection closed and did not come back"}
    assert 1 in {line["slot"] for line in lost}
    assert min(line["at"] for line in lost) >= noted[1]["unix_seconds"]


def test_a_frozen_executor_whose_python_lives_is_a_zombie_that_counts_once(runs, record_property):
    """Spark replaces it, and 10 s later ends it; until then its workers sit, and count."""
    run = runs(steps=8_000)
    zombie = run.executor_of(1)
    slots = run.slots_on(zombie)
    run.hit(signal.SIGSTOP, zombie[1])
    given_up = "requests to kill executors"
    run.cluster.until(lambda: given_up in run.cluster.log("master"), "Spark replaces the zombie")
    replaced = time.time()
    run.back(slots)
    assert run.executor_of(1) != zombie
    run.ended(record_property, slots)
    record_property("seconds until Spark replaced it", round(replaced - run.at, 1))
    lost = run.of("WorkerLost")
    rounds = [r for r in run.of("RoundClosed") if replaced < r["at"] < lost[0]["at"]]
    assert any(slots <= set(r["slots"]) for r in rounds), "zombies that sit count"
    assert {line["slot"] for line in lost} == slots
    assert run.gap < 5


def test_more_lost_executors_than_spark_forgives_end_no_run(runs):
    """Its second failure ends Spark's job; ours is submitted again, within the same term."""
    run = runs(steps=10_000)
    for lease in (2, 3, 4):
        executor = run.executor_of(1)[1]
        run.hit(signal.SIGKILL, executor)
        run.back([1], lease)
    run.result()
    assert any("it is submitted again" in text for text in run.warnings), run.warnings
    run.assert_whole()
    assert {line["lease"] for line in run.of("WorkerJoined")} >= {1, 2, 3, 4}


def test_a_worker_that_the_system_kills_again_and_again_ends_the_run_in_words(field, tiny):
    """As when memory runs out: the kernel sends the same signal."""
    faults, (_, driver) = Faults(), field
    for lease in range(1, 20):
        faults = faults.kill(slot=1, step=5, lease=lease)
    driver.start("killed", tiny.plan(workers=2, epochs=300.0), tiny.data, faults=faults)
    failed = driver.wait("Failed", "killed", seconds=400)
    assert failed["kind"] == "RunFailedError"
    assert failed["text"] == (
        "Spark gave the job up; got the Python process of task 1 was killed, or crashed; "
        "if nobody killed it, memory ran out: raise spark.executor.memoryOverhead, "
        "use a smaller batch, or fewer workers"
    )


def test_a_host_that_is_lost_for_good_is_replaced_by_another_executor(runs, record_property):
    run = runs(steps=4_000)
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    run.hit(signal.SIGKILL, run.cluster.processes[place].pid, executor)
    run.back(slots)
    assert place not in {run.executor_of(slot)[0] for slot in range(4)}
    run.ended(record_property, slots)
    assert run.gap < 5
