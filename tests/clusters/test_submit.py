"""`photinus submit` to a standalone cluster whose Python has neither photinus nor torch."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from photinus.core.events import RoundClosed, RunEnded, RunStarted, WorkerJoined
from photinus.report.journal import read
from photinus.report.ledger import audit

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.mnist,
    pytest.mark.timeout(900),
]

JOB = """
name = "digits"
strategy = "iterative_reduce"
checkpoint_seconds = 0.0
workers = 2

[data]
name = "mnist"

[model]
kind = "dbn"
inputs = 784
hidden = [64, 32]
classes = 10

[model.pretraining]
epochs = 1.0
batch_size = 100

[model.fine_tuning]
epochs = 10.0
batch_size = 100
"""
PHOTINUS = (sys.executable, "-c", "from photinus.cli.main import main; main()")


@pytest.fixture(scope="module")
def cluster(clusters):
    return clusters(workers=2)


@pytest.fixture
def submit(cluster, tmp_path):
    """Starts `photinus submit` with the cluster's settings, and ends it with the test."""
    (tmp_path / "job.toml").write_text(JOB)
    usual = {n: v for n, v in os.environ.items() if not n.startswith(("PYSPARK", "SPARK"))}
    usual |= {"SPARK_CONF_DIR": str(cluster.folder / "conf"), "OMP_NUM_THREADS": "1"}
    started = []

    def start(*options):
        command = [*PHOTINUS, "submit", "--master", cluster.url, *options]
        with (tmp_path / "said").open("w") as output:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=usual, stdout=output, stderr=output)
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def of(folder, kind):
    journal = folder / "events.jsonl"
    return [s for s in (read(journal) if journal.exists() else []) if isinstance(s.event, kind)]


def trains(cluster, process, place):
    """Waits until four rounds are closed."""

    def closed():
        assert process.poll() is None, (place / "said").read_text()
        return len(of(place / "run", RoundClosed)) >= 4

    cluster.until(closed, "four rounds", 500)


def test_a_job_trains_from_what_travelled_and_continues_when_its_driver_was_killed(
    cluster, submit, python, tmp_path, record_property
):
    folder, output = tmp_path / "run", tmp_path / "said"
    began = time.time()
    first = submit("job.toml", "--python", python, "--folder", "run")

    trains(cluster, first, tmp_path)
    joined = of(folder, WorkerJoined)
    record_property("seconds to the first worker", round(joined[0].wall - began, 1))
    for pid in {stamped.event.pid for stamped in joined}:
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "/environment/site/torch/" in maps, "its libraries have travelled"
        assert os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(python)
    first.kill()
    first.wait()

    second = submit("--resume", "run", "--python", python)
    assert second.wait(timeout=500) == 0, output.read_text()
    starts = [stamped.event for stamped in of(folder, RunStarted)]
    assert [start.term for start in starts] == [1, 2]
    assert starts[1].resumed_from
    assert [stamped.event.state for stamped in of(folder, RunEnded)] == ["done"]
    report = audit(folder / "ledger.jsonl")
    assert report.is_exact, report.offences
    assert "there already" in output.read_text()


def test_executors_to_which_an_environment_travelled_end_when_their_driver_stands_still(
    cluster, submit, python, tmp_path, record_property
):
    first = submit("job.toml", "--python", python, "--folder", "run")
    trains(cluster, first, tmp_path)
    driver = [first.pid, *cluster.below(first.pid)]
    java = {pid for executors in cluster.executors().values() for pid in executors}
    assert len(java) == 2
    began = time.time()
    for pid in driver:
        os.kill(pid, signal.SIGSTOP)
    try:
        cluster.until(lambda: cluster.are_over(java), "the executors of a frozen driver end", 60)
        seconds = round(time.time() - began, 1)
    finally:
        for pid in driver:
            os.kill(pid, signal.SIGKILL)
    record_property("seconds until the executors of a frozen driver ended", seconds)
    assert 10 < seconds < 30


def test_a_driver_on_a_node_is_refused_before_anything_starts(submit, tmp_path):
    process = submit("job.toml", "--deploy-mode", "cluster")
    assert process.wait(timeout=60) == 2
    [line] = (tmp_path / "said").read_text().splitlines()
    assert "only YARN runs a Python driver on a node" in line
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.toml", "said"]
