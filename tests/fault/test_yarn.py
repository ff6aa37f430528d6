"""`photinus submit` on a real YARN with a real HDFS, and what is killed there.

The nodes get a Python interpreter and Java, nothing else: the packages come from the archive that
the first submit sends.
"""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.mirror import Mirror
from photinus.core.addresses import cache_folder, filesystem
from photinus.core.clock import Steps
from photinus.core.errors import FencedError
from photinus.core.events import (
    RoundClosed,
    RunEnded,
    RunStarted,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from photinus.data import mnist
from photinus.deploy import packaging
from photinus.engine.base import ArrayData
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.run.job import Job, Source
from photinus.run.remote_resume import fetched
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fault,
    pytest.mark.processes,
    pytest.mark.mnist,
    pytest.mark.timeout(900),
]

JOB = """
name = "digits"
strategy = "iterative_reduce"
checkpoint_seconds = 2.0
workers = 2

[data]
{data}

[model]
kind = "dbn"
inputs = 784
hidden = [64, 32]
classes = 10

[model.pretraining]
epochs = 1.0
batch_size = 100

[model.fine_tuning]
epochs = {epochs}
batch_size = 100
"""
MNIST = 'name = "mnist"'
SMALL = ("spark.executor.memory=512m", "spark.executor.memoryOverhead=1g")
PHOTINUS = (sys.executable, "-c", "from photinus.cli.main import main; main()")
# Measured with a load of 8 to 13 on two processors. The first worker came after 240 and 433 s: a
# node unpacks 1.5 GB before its first container starts, for 90 to 100 s, one after the other.
FIRST_SECONDS = 600
# A killed executor's seat was taken again after 34 to 64 s (12 s of it until Java's first word, 11
# until it knows the driver, 30 until PyTorch is loaded); all seats of a killed master after 132 s.
BACK_SECONDS = 240
NOTICED_SECONDS = 60
HOME = "hdfs://127.0.0.1:9820/user/test"


def parquet(name, images, labels):
    """Writes images and labels to HDFS, a Parquet file for each worker; returns the address."""
    address = f"{HOME}/{name}.parquet"
    system, path = filesystem(address)
    system.makedirs(path, exist_ok=True)
    for slot in range(2):
        rows, digits = images[slot::2], labels[slot::2].astype("i8")
        table = pa.table({"pixels": [row.tobytes() for row in rows], "digit": digits})
        with pa.BufferOutputStream() as sink:
            pq.write_table(table, sink)
            system.pipe_file(f"{path}/{slot}.parquet", sink.getvalue().to_pybytes())
    return address


@pytest.fixture(scope="module")
def on_hdfs(hadoop):
    """A job whose rows lie on HDFS."""
    digits = mnist.load()
    train = parquet("train", digits.train_images[:20_000], digits.train_labels[:20_000])
    test = parquet("test", digits.test_images, digits.test_labels)
    return (
        f'name = "parquet"\npath = "{train}"\ntest = "{test}"\nfeatures = ["pixels"]\n'
        'label = "digit"\nscale = 0.00392156862745098\nclasses = 10'
    )


@pytest.fixture(scope="module")
def archives(hadoop):
    """What a first submit sends."""
    folder = f"{HOME}/.photinus"
    for archive in (packaging.environment(), packaging.jars()):
        packaging.sent(archive, cache_folder("archives"), folder)


@pytest.fixture
def submit(hadoop, archives, python, tmp_path, monkeypatch):
    """Starts `photinus submit`, and ends it with the test."""
    monkeypatch.setenv("HADOOP_CONF_DIR", hadoop.environment["HADOOP_CONF_DIR"])
    started = []

    def start(data="", *options, epochs=0):
        (tmp_path / "job.toml").write_text(JOB.format(data=data, epochs=float(epochs)))
        job = [] if "--resume" in options else ["job.toml"]
        command = [*PHOTINUS, "submit", *job, *options]
        command += ["--python", python]
        for setting in SMALL:
            command += ["--conf", setting]
        environment = hadoop.environment | {
            "HADOOP_USER_NAME": HOME.rpartition("/")[2],
            "OMP_NUM_THREADS": "1",
        }
        output = (tmp_path / "said").open("w")
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
        output.close()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for kind in (hadoop.DRIVER, hadoop.MASTER, hadoop.EXECUTOR):
        for pid in hadoop.programs(kind):
            os.kill(pid, signal.SIGKILL)


def of(journal, kind, after=0.0):
    """The moments and events of a kind in a journal."""
    stamped = read(journal) if journal.exists() else []
    return [(s.wall, s.event) for s in stamped if isinstance(s.event, kind) and s.wall > after]


def photinus(hadoop, *words):
    command = [*PHOTINUS, *words]
    completed = subprocess.run(command, env=hadoop.environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


class Faults:
    """What is killed under a run, and what its journal says of it."""

    def __init__(self, hadoop, journal, process, record):
        self.hadoop, self.journal, self.process, self.record = hadoop, journal, process, record

    def rounds(self, number, after=0.0):
        """Waits for so many rounds of both workers."""

        def look():
            assert self.process.poll() is None, "the run ended before its faults"
            closed = of(self.journal, RoundClosed, after)
            return [wall for wall, event in closed if len(event.slots) == 2][number - 1 :]

        return self.hadoop.until(look, 180, f"{number} rounds")[0]

    def suffer(self, name, act, lost=True):
        """Lets one thing happen; measures how long no round closes, and until both are in one."""
        at = time.time()
        act()
        if lost:
            found = self.hadoop.until(
                lambda: of(self.journal, WorkerLost, at), NOTICED_SECONDS, f"{name}: the loss"
            )
            self.record(f"{name}: noticed", round(found[0][0] - at, 2))
            self.hadoop.until(
                lambda: of(self.journal, WorkerJoined, found[0][0]),
                BACK_SECONDS,
                f"{name}: the return",
            )
            at_least = of(self.journal, WorkerJoined, found[0][0])[0][0]
        else:
            at_least = at
        whole = self.rounds(1, at_least)
        closed = [at, *(wall for wall, _ in of(self.journal, RoundClosed, at) if wall <= whole)]
        still = max(after - before for before, after in pairwise(closed))
        self.record(f"{name}: longest without a round", round(still, 2))
        self.record(f"{name}: both again", round(whole - at, 2))


class Stopped(SimulatedEngine):
    """Ends after some rounds, as Ctrl-C would end it."""

    def run(self, assignment):
        emit = assignment.emit

        def emit_then_interrupt(event):
            emit(event)
            if isinstance(event, RoundClosed) and event.version == 12:
                raise KeyboardInterrupt

        object.__setattr__(assignment, "emit", emit_then_interrupt)
        return super().run(assignment)


def test_a_run_that_is_kept_on_hdfs_continues_to_the_same_bits_and_fences_the_older_driver(
    hadoop, tmp_path, monkeypatch
):
    monkeypatch.setenv("HADOOP_CONF_DIR", hadoop.environment["HADOOP_CONF_DIR"])
    rng = np.random.default_rng(0)
    data = ArrayData(rng.normal(size=(240, 6)).astype("f4"), rng.integers(0, 3, 240))
    job = Job(
        model=LogisticConfig(features=6, classes=3, epochs=4, batch_size=8, dtype="float64"),
        data=Source(name="given"),
        strategy=averaging(every=Steps(3), codec="fp32"),
        workers=3,
        engine="simulate",
        checkpoint_seconds=0.0,
    )
    address = "hdfs:///user/test/runs/first"  # the host stands in the cluster's settings
    with pytest.raises(KeyboardInterrupt):
        train(job, data, folder=address, engine=Stopped())
    old = Mirror(address, tmp_path / "old")
    old.fetch()
    old.term = old.newest_term()
    outcome = resume(address, data)
    assert np.array_equal(outcome.vector, train(job, data, folder=tmp_path / "whole").vector)
    with pytest.raises(FencedError, match="the newest at hdfs"):
        old.push()
    RunFolder(tmp_path / "late").claim_term()
    with pytest.raises(FencedError, match="another coordinator has taken this run"):
        Mirror(address, tmp_path / "late").claim(1)
    system, path = filesystem(address)
    modes = [system.info(place)["permission"] for place in (path, path.rpartition("/")[0], "/user")]
    assert modes == [0o700, 0o755, 0o755]
    assert not [found for found in system.find(path) if ".tmp-" in found]
    assert "each exactly once" in photinus(hadoop, "audit", f"{HOME}/runs/first")


def test_who_has_used_hdfs_can_start_java_as_pyspark_does(hadoop, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", hadoop.environment["HADOOP_CONF_DIR"])
    assert filesystem(HOME)[0].exists("/")
    subprocess.run(["true"], preexec_fn=int, check=True)


def test_a_driver_that_is_killed_on_its_node_continues_as_attempt_two(
    hadoop, submit, on_hdfs, tmp_path, record_property
):
    folder = f"{HOME}/runs/second"
    process = submit(on_hdfs, "--deploy-mode", "cluster", "--folder", folder, epochs=80)

    def saved():
        assert process.poll() is None, (tmp_path / "said").read_text()
        with fetched(folder, "events.jsonl") as copy:
            return of(copy / "events.jsonl", RoundClosed)[3:]

    hadoop.until(saved, FIRST_SECONDS, "a checkpoint after four rounds")
    [[pid, place]] = hadoop.programs(hadoop.DRIVER).items()
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=400) == 0, (tmp_path / "said").read_text()
    with fetched(folder, "events.jsonl", "ledger.jsonl") as copy:
        journal = copy / "events.jsonl"
        (_, first), (again, second) = of(journal, RunStarted)
        assert (first.term, second.term) == (1, 2)
        assert second.resumed_from
        assert [e.state for _, e in of(journal, RunEnded)] == ["done"]
        assert any(e.text.startswith("attempt 2 of application_") for _, e in of(journal, Warned))
        next_round = of(journal, RoundClosed, again)[0][0]
        record_property("driver killed: again", round(again - at, 2))
        record_property("driver killed: next round", round(next_round - at, 2))
        found_exact = audit(copy / "ledger.jsonl")
        assert found_exact.is_exact, found_exact
    last = place.name.replace("_01_0", "_02_0")
    assert "attempt 2 of application_" in hadoop.said(last)
    output = (tmp_path / "said").read_text()
    assert f"photinus evaluate {folder}" in output
    assert "10,000 rows" in photinus(hadoop, "evaluate", folder)
    assert "each exactly once" in photinus(hadoop, "audit", folder)
    page = tmp_path / "page.html"
    photinus(hadoop, "report", folder, "-o", str(page))
    assert "attempt 2 of application_" in page.read_text()


@pytest.mark.timeout(1500)  # 750 s with a load of 11, and half of them again
def test_with_the_driver_here_a_run_outlives_executor_managers_and_master(
    hadoop, submit, tmp_path, record_property
):
    process = submit(MNIST, "--folder", "run", epochs=1000)
    journal = tmp_path / "run" / "events.jsonl"
    hadoop.until(
        lambda: of(journal, WorkerJoined) or process.poll() is not None, FIRST_SECONDS, "a worker"
    )
    faults = Faults(hadoop, journal, process, record_property)
    faults.rounds(4)

    victim = min(hadoop.programs(hadoop.EXECUTOR))
    faults.suffer("executor killed", lambda: os.kill(victim, signal.SIGKILL))

    before, nodes, at = hadoop.registered(), hadoop.registered(hadoop.NODE), time.time()
    faults.suffer("ResourceManager killed", lambda: hadoop.kill("resourcemanager"), lost=False)
    faults.rounds(20, at)
    hadoop.again("resourcemanager")
    hadoop.until(lambda: hadoop.registered() > before, 120, "the master, again")
    record_property("ResourceManager killed: it has the run again", round(time.time() - at, 2))
    # one that is lost before it is known again is missed by nobody, and its containers live on
    hadoop.until(lambda: hadoop.registered(hadoop.NODE) >= nodes + 2, 120, "both nodes, again")
    faults.rounds(3, time.time())

    [[_, master]] = hadoop.programs(hadoop.MASTER).items()
    nodes = {hadoop.node_of(place) for place in hadoop.programs(hadoop.EXECUTOR).values()}
    others = nodes - {hadoop.node_of(master)}
    node = min(others or nodes)
    faults.suffer(
        f"NodeManager killed{'' if others else ', the master, too'}", lambda: hadoop.kill(node)
    )
    hadoop.again(node)

    [master] = hadoop.programs(hadoop.MASTER)
    faults.suffer("ApplicationMaster killed", lambda: os.kill(master, signal.SIGKILL))

    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, (tmp_path / "said").read_text()
    [(_, ended)] = of(journal, RunEnded)
    assert ended.state == "stopped"
    assert audit(tmp_path / "run" / "ledger.jsonl").is_exact
    assert len(of(journal, RunStarted)) == 1, "the driver went through all of it"
    assert (tmp_path / "said").read_text().count("there already") == 2, "nothing is sent again"


def test_with_the_driver_here_executors_end_when_it_stands_still(
    hadoop, submit, tmp_path, record_property
):
    """Their Java processes; Spark's master in its container lives on, and is told nothing."""
    process = submit(MNIST, "--folder", "run", epochs=1000)
    journal = tmp_path / "run" / "events.jsonl"

    def trains():
        assert process.poll() is None, (tmp_path / "said").read_text()
        return len({e.slot for _, e in of(journal, WorkerJoined)}) == 2 and of(journal, RoundClosed)

    hadoop.until(trains, FIRST_SECONDS, "a round of both")
    executors = set(hadoop.programs(hadoop.EXECUTOR))
    assert len(executors) == 2
    [java] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    at = time.time()
    for pid in (process.pid, int(java)):
        os.kill(pid, signal.SIGSTOP)
    try:
        hadoop.until(
            lambda: executors.isdisjoint(hadoop.programs(hadoop.EXECUTOR)), 60, "their end"
        )
        seconds = time.time() - at
    finally:
        os.kill(int(java), signal.SIGKILL)  # which stands still, and would not hear of its parent
    record_property("driver frozen: its executors had ended", round(seconds, 1))
    assert 10 < seconds < 30


def test_an_application_that_yarn_ends_continues_from_its_newest_checkpoint(
    hadoop, submit, on_hdfs, tmp_path
):
    """However long YARN waits for SIGKILL: it removes the container's folder at SIGTERM."""
    hadoop.have_nodes_wait(10)
    folder = f"{HOME}/runs/third"
    process = submit(on_hdfs, "--deploy-mode", "cluster", "--folder", folder, epochs=80)

    def saved():
        assert process.poll() is None, (tmp_path / "said").read_text()
        with fetched(folder, "events.jsonl") as copy:
            return of(copy / "events.jsonl", RoundClosed)[3:]

    hadoop.until(saved, FIRST_SECONDS, "a checkpoint after four rounds")
    [place] = hadoop.programs(hadoop.DRIVER).values()
    hadoop.end("_".join(["application", *place.name.split("_")[-4:-2]]))
    assert process.wait(timeout=120) == 1
    last = (tmp_path / "said").read_text().splitlines()[-1]
    assert last.startswith("photinus: the application was ended by YARN, or by somebody")
    assert last.endswith(f"continue with: photinus submit --resume {folder} --deploy-mode cluster")
    process = submit("", "--deploy-mode", "cluster", "--resume", folder)
    assert process.wait(timeout=FIRST_SECONDS) == 0, (tmp_path / "said").read_text()
    with fetched(folder, "events.jsonl", "ledger.jsonl") as copy:
        journal = copy / "events.jsonl"
        assert of(journal, RunStarted)[-1][1].resumed_from
        assert of(journal, RunEnded)[-1][1].state == "done"
        assert audit(copy / "ledger.jsonl").is_exact
