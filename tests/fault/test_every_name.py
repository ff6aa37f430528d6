"""Faults that one object names, done to a run in the simulator, in processes and on Spark."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from photinus.coordinator import leases, reachability
from photinus.core.clock import Steps
from photinus.core.errors import DataError, RunFailedError, UsageError
from photinus.core.events import (
    CheckpointFailed,
    CheckpointSaved,
    RoundClosed,
    RunEnded,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run import job as jobs
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

pytestmark = [pytest.mark.fault, pytest.mark.processes]

ENGINES = ["simulate", "local", pytest.param("spark", marks=[pytest.mark.spark])]
SLOW_ENGINES = [
    "simulate",
    pytest.param("local", marks=pytest.mark.slow),
    pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow]),
]
WORKERS, ROWS, FEATURES, WIDE = 3, 300, 6, 6000
EPOCHS = 500.0
PATIENT_SECONDS = 120.0
"""On a machine that has much else to do nobody is lost or late: that would change the bits."""

DRIVER = """
import json, sys
import numpy as np
from photinus.engine.base import ArrayData
from photinus.testing.faults.fault import Fault, Selection
from photinus.testing import Faults
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import SparkEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.coordinator import leases
from photinus.coordinator import reachability
from photinus.run import job as jobs
from photinus.run.train import train

faults = {faults!r}
folder, plain, rows = sys.argv[1:]
jobs.LEASE_SECONDS = leases.RETURN_SECONDS = reachability.LATE_SECONDS = {patience}
held = np.load(rows)
job = jobs.Job.from_dict(json.loads(plain))
engine = dict(
    simulate=lambda: SimulatedEngine(SimulatedCluster(faults=faults)),
    local=lambda: LocalEngine(faults),
    spark=lambda: SparkEngine(faults=faults),
)[job.engine]()
train(job, ArrayData(held["features"], held["labels"]), folder=folder, engine=engine)
"""


@pytest.fixture
def rows():
    """What all train on: features [300, 6], labels [300]."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, ROWS)
    noise = rng.normal(size=(ROWS, FEATURES))
    return (noise + 2 * np.tile(np.eye(3)[labels], 2)).astype("f4"), labels


class Trained:
    """A run, and what was told of it."""

    def __init__(self, request, folder, rows, engine, faults, bytes_per_second=1e9):
        self.folder, self.events, self.rows = folder / "run", [], rows
        self.diary, faults = folder / "diary.jsonl", faults.noted_in(str(folder / "diary.jsonl"))
        self.engine = {
            "simulate": lambda: SimulatedEngine(
                SimulatedCluster(faults=faults, bytes_per_second=bytes_per_second)
            ),
            "local": lambda: LocalEngine(faults),
            "spark": lambda: self._spark(request, faults),
        }[engine]()
        self.job = job(engine=engine)

    def _spark(self, request, faults):
        from photinus.engine.spark.engine import SparkEngine

        return SparkEngine(request.getfixturevalue("spark"), faults)

    def run(self, **fields):
        features, labels = self.rows
        self.job = job(engine=self.job.engine, **fields)
        self.outcome = train(
            self.job,
            ArrayData(features, labels),
            folder=self.folder,
            engine=self.engine,
            callbacks=(self.events.append,),
        )
        assert np.isfinite(self.outcome.vector).all()
        assert audit(self.folder / "ledger.jsonl").is_exact
        return self

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def warnings(self):
        return [e.text for e in self.of(Warned) if not e.text.startswith("Spark gives a task")]


def job(**fields):
    usual = {
        "model": LogisticConfig(features=FEATURES, classes=3, epochs=4.0, batch_size=10 * WORKERS),
        "data": Source(name="given"),
        "strategy": averaging(every=Steps(5), codec="fp32", gradients_until=0.0),
        "workers": WORKERS,
        "checkpoint_seconds": 0.0,
    }
    return Job(**usual | fields)


def longer(epochs, features=FEATURES):
    return LogisticConfig(features=features, classes=3, epochs=epochs, batch_size=10 * WORKERS)


@pytest.fixture
def trained(request, tmp_path, rows):
    """Makes a run on an engine, in which something shall go wrong."""
    return lambda engine, faults, **fields: Trained(
        request, tmp_path, rows, engine, faults, **fields
    )


# -- rows and slots --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_partition_is_told_of_and_holds_nobody_up(trained, engine):
    run = trained(engine, Faults().few_rows(slot=1)).run()
    expected = "1 of 3 partitions are empty; repartition the data, or use fewer workers"
    assert run.warnings == [expected]
    assert run.of(RoundClosed)[-1].examples >= 4 * 200
    assert [e.examples for e in run.of(WorkerJoined) if e.slot == 1] == [0]


@pytest.mark.parametrize("engine", ENGINES)
def test_partitions_of_a_hundred_to_one_are_told_of_and_trained_to_the_end(trained, engine):
    run = trained(engine, Faults().few_rows(slot=1, rows=1).few_rows(slot=2, rows=1)).run()
    expected = "worker 0 holds 98% of the rows; got 3 workers; "
    assert run.warnings == [expected + "repartition the data, or use fewer workers"]
    assert run.of(RoundClosed)[-1].examples >= 4 * 100


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_row_ends_the_run_before_a_step_and_is_named(trained, engine):
    run = trained(engine, Faults().bad_row(slot=2, row=7))
    if engine == "spark":
        says = "partition 2 row 7 column features: null; mend the row, or leave it out"
    else:
        says = r"row \d+ column features: nan at 0, expected finite numbers; mend the row"
    with pytest.raises(DataError, match=says):
        run.run()
    assert run.of(RoundClosed) == []


@pytest.mark.parametrize("engine", SLOW_ENGINES)
def test_slots_that_others_hold_are_waited_for_and_told_of(trained, engine):
    run = trained(engine, Faults().take_slots(2, seconds=35.0))
    if engine == "spark":  # of its four
        run = trained(engine, Faults().take_slots(3, seconds=45.0))
    run.run()
    do = {
        "spark": "other jobs hold 3 of 4 slots: end them, or ask for fewer workers",
        "local": "wait: their processes are starting on this machine, which is busy or slow",
    }
    advice = do.get(engine, "wait, or look at the logs of those that are missing")
    assert f"1 of 3 workers came within 30 s; {advice}" in run.warnings
    assert run.of(RoundClosed)[-1].examples >= 4 * ROWS


@pytest.mark.parametrize("engine", SLOW_ENGINES)
def test_more_faults_than_sparks_retry_budget_end_no_run(trained, engine):
    """Of a task that Spark was told to try four times."""
    faults = Faults()
    for lease in range(1, 8):
        faults = faults.kill(slot=1, step=15, lease=lease)
    run = trained(engine, faults).run(model=longer(40.0))
    assert [e.lease for e in run.of(WorkerJoined) if e.slot == 1] == list(range(1, 9))
    assert run.of(RoundClosed)[-1].examples >= 40 * ROWS


# -- memory and links ------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_that_runs_out_ends_the_run_with_worker_batch_and_advice(trained, engine):
    run = trained(engine, Faults().no_memory(slot=1, step=6))
    error = MemoryError if engine == "simulate" else RunFailedError
    with pytest.raises(error) as failed:
        run.run()
    message = "\n".join([str(failed.value), *getattr(failed.value, "__notes__", [])])
    assert "memory ran out: use a smaller batch, or fewer workers" in message
    assert "partition 1, in the batch of its examples 50 to 59" in message
    assert "Unable to allocate 1.00 GiB" in message


@pytest.fixture
def wide():
    """Rows of a model whose pushes take 72 kB."""
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, WIDE), dtype=np.float32)
    return features, rng.integers(0, 3, ROWS)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_slow_link_is_told_of_with_what_to_do(trained, wide, engine):
    run = trained(engine, Faults().slow_link(slot=1, bytes_per_second=200e3))
    run.rows = wide
    run.run(model=longer(5.0, features=WIDE))
    [warning] = [text for text in run.warnings if "sends for" in text]
    assert re.match(r"worker 1 sends for \d+% of its time; got .* after every 5 steps; ", warning)
    assert "agree less often, as averaging(every=Steps(" in warning


def test_a_slow_link_costs_the_simulators_seconds(trained, wide, tmp_path):
    took = []
    for faults in (Faults(), Faults().slow_link(slot=1, bytes_per_second=200e3)):
        run = trained("simulate", faults)
        run.rows, run.folder = wide, tmp_path / str(len(took))
        run.run(model=longer(4.0, features=WIDE))
        took.append(run.engine.seconds)
    assert took[1] > took[0] + 8 * 72e3 / 200e3, "of eight pushes"


def test_a_host_that_is_cut_off_is_missed_by_its_silence(trained):
    """On real hosts: tests/fault/test_hosts.py."""
    run = trained("simulate", Faults().cut(slot=1, step=12, seconds=9.0, host=True))
    run.run(model=longer(300.0))
    assert [e.reason for e in run.of(WorkerLost)] == ["no sign of life from it for 5 s"]
    assert [e.lease for e in run.of(WorkerJoined) if e.slot == 1] == [1, 2]


@pytest.mark.parametrize("kind", ["cut", "slow_link"])
def test_a_machine_that_is_no_host_of_the_worker_is_left_alone_and_no_step_is_made(trained, kind):
    faults = {
        "cut": Faults().cut(slot=1, at_seconds=99.0, seconds=1.0, host=True),
        "slow_link": Faults().slow_link(slot=1, bytes_per_second=1e6, host=True),
    }[kind]
    run = trained("local", faults)
    with pytest.raises(UsageError, match="namespace of its own; got one without a name; use"):
        run.run()
    assert run.of(RoundClosed) == []


# -- the driver ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    ["simulate", "local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])],
)
def test_a_killed_driver_resumes_past_a_flipped_bit_to_the_same_bits(
    engine, rows, tmp_path, monkeypatch
):
    features, labels = rows
    np.savez(tmp_path / "rows.npz", features=features, labels=labels)
    faults = Faults().flip_bit(150).kill_driver(150)
    # so rarely that none is being saved between the two faults; a simulated round takes .052 s
    seconds = 2.0 if engine == "simulate" else 0.3
    if (
        engine != "simulate"
    ):  # two checkpoints on a fast machine, too: each pause is followed by one
        faults = faults.freeze(0, 250, seconds=0.5).freeze(0, 500, seconds=0.5)
    faults = faults.noted_in(str(tmp_path / "diary"))
    original = job(engine=engine, model=longer(150.0), checkpoint_seconds=seconds)
    script = DRIVER.format(faults=faults, patience=PATIENT_SECONDS)
    command = [sys.executable, "-c", script, tmp_path / "run", json.dumps(original.to_dict())]
    died = subprocess.run([*command, tmp_path / "rows.npz"], capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    notes = [json.loads(line)["kind"] for line in (tmp_path / "diary").read_text().splitlines()]
    assert [kind for kind in notes if kind != "freeze"] == ["flip_bit", "kill_driver"]

    for module, name in ((jobs, "LEASE_SECONDS"), (leases, "RETURN_SECONDS")):
        monkeypatch.setattr(module, name, PATIENT_SECONDS)
    monkeypatch.setattr(reachability, "LATE_SECONDS", PATIENT_SECONDS)
    data, events = ArrayData(features, labels), []
    outcome = resume(tmp_path / "run", data, callbacks=(events.append,), engine=SimulatedEngine())
    refused = [e.text for e in events if isinstance(e, Warned) and "is refused" in e.text]
    assert re.match(
        r"checkpoint \S+ is refused: \S+\.safetensors: sha256 mismatch; got", refused[0]
    )
    assert audit(tmp_path / "run" / "ledger.jsonl").is_exact
    whole = train(
        Job.from_dict(original.to_dict() | {"engine": "simulate"}), data, folder=tmp_path / "w"
    )
    assert np.array_equal(outcome.vector, whole.vector)


@pytest.mark.parametrize(
    "engine",
    [
        "simulate",
        pytest.param("local", marks=pytest.mark.slow),  # so does test_disk_full, always
        pytest.param("spark", marks=pytest.mark.spark),
    ],
)
def test_a_full_disk_costs_checkpoints_for_a_while_and_no_run(trained, engine, disk):
    seconds = 1.0 if engine != "simulate" else 20.0
    run = trained(engine, Faults().fill_disk(100, seconds=seconds))
    run.folder = disk / "run"
    features, labels = run.rows
    outcome = train(
        job(engine=engine, model=longer(EPOCHS)),
        ArrayData(features, labels),
        folder=run.folder,
        engine=run.engine,
        callbacks=(run.events.append,),
    )
    failed = run.of(CheckpointFailed)
    assert failed
    assert "No space left on device" in failed[0].reason
    saved = [run.events.index(e) for e in run.of(CheckpointSaved)]
    assert saved[-1] > run.events.index(failed[-1]), "saved again once there is room"
    assert [e.state for e in run.of(RunEnded)] == ["done"]
    assert np.isfinite(outcome.vector).all()
