"""A driver that is killed, or stands still: its executors and their workers end by themselves."""

import os
import signal
import time

import pytest

from photinus.testing import Faults

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]

PROMISED_SECONDS = 30
SEATS = 4


@pytest.fixture(scope="module")
def cluster(clusters):
    return clusters({"spark.cores.max": str(SEATS)}, installed=True)


@pytest.fixture
def trained(cluster, applications, long_job):
    """A driver whose workers train, and their processes."""
    driver = applications(cluster)
    plan, data = long_job(steps=20_000, workers=SEATS)
    driver.start("run", plan, data, faults=Faults())
    driver.wait("RoundClosed", "run", version=20)
    pids = {line["pid"] for line in driver.of("WorkerJoined", "run")}
    assert len(pids) == SEATS
    return driver, pids


def seconds_to_the_end(cluster, pids, began):
    cluster.until(lambda: cluster.are_over(pids), "the workers end", 2 * PROMISED_SECONDS)
    return round(time.time() - began, 1)


def test_a_killed_drivers_workers_end_within_thirty_seconds(cluster, trained, record_property):
    """Spark's Java ends with its Python, and Spark's master then ends the executors."""
    driver, pids = trained
    began = time.time()
    driver.process.kill()
    seconds = seconds_to_the_end(cluster, pids, began)
    record_property("seconds until the workers of a killed driver ended", seconds)
    assert seconds < PROMISED_SECONDS


def test_workers_whose_driver_stands_still_end_by_themselves(cluster, trained, record_property):
    """Nothing is closed, Spark's executors live on, and nobody tells the workers."""
    driver, pids = trained
    everyone = [driver.process.pid, *cluster.below(driver.process.pid)]
    began = time.time()
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    try:
        seconds = seconds_to_the_end(cluster, pids, began)
        assert sum(map(len, cluster.executors().values())) == 2, "they outlive the workers"
    finally:
        for pid in everyone:
            os.kill(pid, signal.SIGKILL)
    record_property("seconds until the workers of a frozen driver ended", seconds)
    assert 10 < seconds < PROMISED_SECONDS


def failed_heartbeats(cluster):
    logs = (file.read_text() for file in cluster.folder.glob("work*/app-*/*/stderr"))
    return sum(text.count("Issue communicating with driver in heartbeater") for text in logs)


def test_executors_of_a_submitted_run_end_when_its_driver_stands_still_for_long(
    cluster, submitted, record_property
):
    """Java's processes too, as `photinus submit` sets it; a short pause ends none.

    A driver that wakes after that finds new ones, and the run continues.
    """
    run = submitted(cluster)
    run.trains_on()
    executors, before = run.executors(), failed_heartbeats(cluster)
    run.hit(signal.SIGSTOP)
    cluster.until(lambda: failed_heartbeats(cluster) >= before + 4, "heartbeats fail")
    run.hit(signal.SIGCONT)
    run.trains_on()
    assert run.executors() == executors
    run.hit(signal.SIGSTOP)
    seconds = run.ends_without_its_driver()
    record_property("seconds until the executors of a frozen driver ended", seconds)
    assert 10 < seconds < PROMISED_SECONDS
    run.hit(signal.SIGCONT)
    cluster.until(lambda: run.is_seated_apart_from(executors[0]), "others take the seats")
    run.trains_on()
