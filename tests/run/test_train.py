import json
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from photinus.checkpoint.store import Store
from photinus.core.clock import Steps
from photinus.core.errors import (
    CheckpointError,
    DataError,
    PhotinusError,
    RunFailedError,
    UsageError,
)
from photinus.core.events import CheckpointSaved, Log, RoundClosed
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.report.ledger import audit
from photinus.run.data import TestRows
from photinus.run.evaluate import load_trained, measure
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.strategies.outer import DelayedNesterov, Descent, Sgd
from photinus.strategies.recipes import (
    all_reduce,
    averaging,
    downpour,
    elastic,
    gossip,
    iterative_reduce,
    publish,
    streaming,
)
from photinus.testing import Faults


def test_a_run_leaves_journal_ledger_model_and_report(small, tmp_path, events):
    outcome = train(small.job(), small.data(), test=small.test, folder=tmp_path / "run")
    assert outcome.metrics["error"] < 0.2
    low, high = outcome.interval
    assert low <= outcome.metrics["error"] <= high
    assert audit(tmp_path / "run" / "ledger.jsonl").is_exact
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    kinds = [type(e).__name__ for e in events(outcome.folder)]
    assert kinds[0] == "RunStarted"
    assert kinds[-3:] == ["PhaseEnded", "Evaluated", "RunEnded"]


def test_the_end_counts_what_became_of_the_pushes(small, tmp_path, events):
    outcome = train(small.job(), small.data(), folder=tmp_path / "run")
    [ended] = events(outcome.folder, "RunEnded")
    assert ended.state == "done"
    assert ended.counts["applied"] == audit(outcome.folder / "ledger.jsonl").applied > 0
    assert ended.counts["fenced"] == ended.counts["gap"] == 0


def test_the_saved_model_measures_as_the_run_did(small, tmp_path):
    outcome = train(small.job(), small.data(), test=small.test, folder=tmp_path / "run")
    trained, _ = load_trained(outcome.folder / "model")
    assert np.array_equal(trained.vector, outcome.vector)
    assert measure(trained, small.test)[0] == outcome.metrics


def test_rows_that_cannot_be_written_to_are_measured_without_a_warning(small, tmp_path):
    np.save(tmp_path / "labels.npy", small.test.labels)
    mapped = np.load(tmp_path / "labels.npy", mmap_mode="r")  # as a column of Arrow's
    trained = train(small.job(), small.data(), folder=tmp_path / "run").trained
    torch.set_warn_always(True)  # else torch warns once in a process
    try:
        metrics = measure(trained, TestRows(small.test.features, mapped))
    finally:
        torch.set_warn_always(False)
    assert metrics == measure(trained, small.test)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(small, tmp_path):
    runs = [
        train(small.job(seed=seed), small.data(), folder=tmp_path / str(n)).vector
        for n, seed in enumerate((0, 0, 1))
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_a_job_survives_the_trip_through_its_folder(small, tmp_path):
    job = small.job()
    outcome = train(job, small.data(), folder=tmp_path / "run")
    saved = json.loads((outcome.folder / "job.json").read_text())
    assert Job.from_dict(saved["job"]) == job


def test_hundreds_of_rounds_are_journaled_as_few_without_losing_any(small, tmp_path, events):
    job = small.job(strategy=all_reduce(codec="fp32"))
    emitted = []
    outcome = train(job, small.data(), folder=tmp_path / "run", callbacks=(emitted.append,))
    rounds = [e for e in emitted if type(e).__name__ == "RoundClosed"]
    written = events(outcome.folder, "RoundClosed")
    assert len(written) <= len(rounds) == sum(e.rounds for e in written)
    assert sum(e.bytes_up for e in written) == sum(e.bytes_up for e in rounds)
    assert written[-1].version == rounds[-1].version


def test_a_wrong_row_ends_the_run_before_the_first_step(small, tmp_path, events):
    features = small.features.copy()
    features[7, 2] = np.nan
    with pytest.raises(DataError, match="row 7"):
        train(small.job(), small.data(features), folder=tmp_path / "run")
    [ended] = events(tmp_path / "run", "RunEnded")
    assert ended.state == "failed"
    assert "row 7" in ended.reason
    assert not events(tmp_path / "run", "RoundClosed")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_number_that_what_is_trained_on_cannot_hold_is_a_wrong_row(small, tmp_path, dtype):
    features = small.features.astype(np.float64)
    features[7, 2] = 1e300
    model = LogisticConfig(features=6, classes=3, epochs=1, batch_size=8, lr=1e-9, dtype=dtype)
    job = small.job(model=model)
    if dtype == "float32":
        with pytest.raises(DataError, match=r"row 7 column features: 1e\+300 at 2 is infinite in"):
            train(job, small.data(features), folder=tmp_path / "run")
        return
    features[7, 2] = 1e39
    assert train(job, small.data(features), folder=tmp_path / "run").vector.dtype == np.float64


@pytest.mark.parametrize("order", [">", "<"])
def test_arrays_in_another_order_of_bytes_give_the_same_bits(small, tmp_path, order):
    config = ModuleConfig(
        module="torch.nn:Linear", arguments={"in_features": 6, "out_features": 3}, epochs=1
    )
    job, vectors = small.job(model=config), []
    for name in (order, "="):
        rows = small.data(small.features.astype(f"{name}f4"), small.labels.astype(f"{name}i8"))
        test = TestRows(small.test.features.astype(f"{name}f4"), small.test.labels)
        outcome = train(job, rows, test=test, folder=tmp_path / f"run{len(vectors)}")
        vectors.append((outcome.vector, outcome.metrics))
    assert np.array_equal(vectors[0][0], vectors[1][0])
    assert vectors[0][1] == vectors[1][1]


def test_a_run_whose_every_push_was_refused_has_failed(small, tmp_path, events):
    """Each worker pushes once: too seldom to be left out for good."""
    faults = Faults()
    for slot in range(3):
        faults = faults.nan(slot=slot, step=1)
    model = LogisticConfig(features=6, classes=3, epochs=1, batch_size=40, dtype="float64")
    job = small.job(model=model, strategy=iterative_reduce())
    engine = SimulatedEngine(SimulatedCluster(faults=faults))
    with pytest.raises(RunFailedError, match=r"nothing was learnt in .*: no push was applied"):
        train(job, small.data(), folder=tmp_path / "run", engine=engine)
    [ended] = events(tmp_path / "run", "RunEnded")
    assert (ended.state, ended.counts["applied"]) == ("failed", 0)
    assert ended.counts["refused"] > 0
    assert not (tmp_path / "run" / "model").exists()


def test_a_label_out_of_range_is_named(small, tmp_path):
    labels = small.labels.copy()
    labels[3] = 10
    with pytest.raises(DataError, match="10"):
        train(small.job(), small.data(labels=labels), folder=tmp_path / "run")


@pytest.mark.parametrize("loss", ["cross_entropy", "multi_margin"])
def test_a_label_that_a_dbn_has_no_output_for_ends_the_run_before_the_first_layer(
    small, tmp_path, events, loss
):
    dbn = DBN(inputs=6, hidden=(4,), classes=2, fine_tuning=FineTuning(loss=loss), precision="mkl")
    unchecked = ArrayData(small.features, small.labels)
    with pytest.raises(DataError, match=r"label 2 outside 0\.\.1"):
        train(small.job(model=dbn), unchecked, folder=tmp_path / "run")
    assert not events(tmp_path / "run", "RoundClosed")


def test_numbers_to_predict_are_no_classes(small, tmp_path):
    fine = FineTuning(epochs=1, batch_size=20, loss="mse")
    dbn = DBN(inputs=6, hidden=(4,), classes=1, fine_tuning=fine, precision="mkl")
    job = small.job(model=replace(dbn, pretraining=Pretraining(epochs=0)))
    rows = ArrayData(small.features, small.labels.astype(np.float32)[:, None] + 0.5)
    assert train(job, rows, folder=tmp_path / "run").vector.size


def test_a_wrong_label_to_measure_on_is_named_before_training(small, tmp_path):
    test = TestRows(small.features[:4], np.array([0, 1, 2, 3]))
    with pytest.raises(DataError, match=r"rows to measure on: partition 0 row 3 .* outside 0\.\.2"):
        train(small.job(), small.data(), test=test, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_is_journaled_as_a_stop(small, tmp_path, events, breaking):
    with pytest.raises(KeyboardInterrupt):
        train(small.job(), small.data(), folder=tmp_path / "run", engine=breaking(3))
    [ended] = events(tmp_path / "run", "RunEnded")
    assert (ended.state, ended.reason) == ("stopped", "Ctrl-C")


def test_a_stop_says_how_to_go_on_and_leaves_a_report(small, tmp_path, breaking, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = r"^stopped by Ctrl-C; continue with: photinus.resume\('run', data\)$"
    with pytest.raises(KeyboardInterrupt, match=message):
        train(small.job(), small.data(), folder="run", engine=breaking(3))
    assert "stopped" in (tmp_path / "run" / "report.html").read_text()
    resume("run", small.data())
    assert "done" in (tmp_path / "run" / "report.html").read_text()


def test_a_failed_run_leaves_a_report(small, tmp_path):
    features = small.features.copy()
    features[7, 2] = np.nan
    with pytest.raises(DataError):
        train(small.job(), small.data(features), folder=tmp_path / "run")
    assert "row 7" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("verbose", [True, False, None])
def test_a_run_is_shown_where_that_is_asked_for_and_not_in_a_pipe(small, tmp_path, capsys, verbose):
    train(small.job(), small.data(), folder=tmp_path / "run", verbose=verbose)
    assert ("done" in capsys.readouterr().out) == bool(verbose)


def test_a_callback_is_told_where_the_run_is_kept_and_when_it_is_over(small, tmp_path, breaking):
    calls = []

    class Recorder:
        def open(self, folder):
            calls.append(folder)

        def __call__(self, event):
            calls.append(type(event).__name__)

        def close(self):
            calls.append((tmp_path / "run" / "report.html").is_file())

    fields = {"callbacks": [Recorder()], "engine": breaking(3)}
    with pytest.raises(KeyboardInterrupt):
        train(small.job(), small.data(), folder=tmp_path / "run", **fields)
    assert calls[:2] == [tmp_path / "run", "RunStarted"]
    assert calls[-2:] == ["RunEnded", True]


def test_the_workers_log_lines_are_kept_by_slot(small, tmp_path):
    from photinus.engine.simulation.engine import SimulatedEngine

    class Talking(SimulatedEngine):
        def run(self, assignment):
            assignment.emit(Log(slot=2, level="WARNING", text="a slow disk"))
            return super().run(assignment)

    outcome = train(small.job(), small.data(), folder=tmp_path / "run", engine=Talking())
    assert (outcome.folder / "logs" / "worker-002.log").read_text() == "WARNING a slow disk\n"


def test_a_log_line_that_cannot_be_written_ends_no_run_and_is_told(small, tmp_path, events):
    from photinus.engine.simulation.engine import SimulatedEngine

    class Talking(SimulatedEngine):
        def run(self, assignment):
            (tmp_path / "run" / "logs").rmdir()
            assignment.emit(Log(slot=2, level="WARNING", text="a full disk"))
            return super().run(assignment)

    train(small.job(), small.data(), folder=tmp_path / "run", engine=Talking())
    short, warned = events(tmp_path / "run", "Warned")
    assert "none is of averaging" in short.text
    assert warned.text.endswith("lines of the journal, the ledger or the logs are missing")


# -- the folder --------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_not_trained_into(small, tmp_path):
    train(small.job(), small.data(), folder=tmp_path / "run")
    with pytest.raises(UsageError, match="holds a run already; resume it"):
        train(small.job(), small.data(), folder=tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(small, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        train(small.job(), small.data(), folder=tmp_path / "run")


def test_a_file_in_the_folders_place_is_refused(small, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written"):
        train(small.job(), small.data(), folder=tmp_path / "file" / "run")


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(UsageError, match="holds no run to resume"):
        resume(tmp_path)
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no run to resume"):
        resume(tmp_path)


# -- resume ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 9, 13])
def test_a_resumed_run_ends_in_the_same_bits(small, tmp_path, events, breaking, version):
    job = small.job(checkpoint_seconds=0.0)
    whole = train(job, small.data(), folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=tmp_path / "run", engine=breaking(version))
    outcome = resume(tmp_path / "run", small.data())
    assert np.array_equal(outcome.vector, whole.vector)
    assert audit(tmp_path / "run" / "ledger.jsonl").is_exact
    first, second = events(tmp_path / "run", "RunStarted")
    assert (first.term, second.term) == (1, 2)
    assert bool(second.resumed_from) == (version > 1)


WAYS = {
    "averaging": averaging(every=Steps(3)),
    "averaging at once": averaging(every=Steps(3), release="immediate", outer=DelayedNesterov()),
    "all_reduce": all_reduce(),
    "all_reduce by owners": all_reduce(owners=3),
    "downpour": downpour(every=Steps(3)),
    "downpour dropped": downpour(every=Steps(2), fetch=Steps(9), staleness=4),
    "elastic": elastic(every=Steps(3)),
    "gossip": gossip(every=Steps(3), exact_every=3),
    "publish": publish(every=Steps(3), exact_every=3),
    "streaming": streaming(every=Steps(12)),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_audit_counts_what_a_resume_gave_up(small, tmp_path, breaking, way):
    """The rounds that were told, which know no ledger, say how many pushes the model holds."""
    seconds = 0.0 if way in ("gossip", "publish") else 0.04  # those meet seldom
    job, closed = small.job(strategy=WAYS[way], checkpoint_seconds=seconds), [[], []]
    folder = tmp_path / "run"

    def recorders(term):
        def record(event):
            if isinstance(event, RoundClosed):
                closed[term].append((event.version, len(event.slots)))

        return (record,)

    last_version = {
        "averaging at once": 23,
        "downpour": 23,
        "elastic": 23,
        "downpour dropped": 33,
        "gossip": 3,
        "publish": 3,
    }
    with pytest.raises(KeyboardInterrupt):
        train(
            job,
            small.data(),
            folder=folder,
            engine=breaking(last_version.get(way, 9)),
            callbacks=recorders(0),
        )
    names = sorted(p.name for p in (folder / "checkpoints").iterdir() if p.is_dir())
    saved_version = int(names[-1].rpartition("version")[2]) if names else 0
    resume(folder, small.data(), callbacks=recorders(1))
    report = audit(folder / "ledger.jsonl")
    assert report.offences == []
    held_pushes = sum(pushes for version, pushes in closed[0] if version <= saved_version)
    assert report.held == held_pushes + sum(pushes for _, pushes in closed[1])
    assert (report.undone > 0) == (saved_version < closed[0][-1][0])
    assert saved_version > 0


def test_a_run_without_a_checkpoint_begins_anew(small, tmp_path, breaking):
    with pytest.raises(KeyboardInterrupt):
        train(small.job(), small.data(), folder=tmp_path / "run", engine=breaking(2))
    outcome = resume(tmp_path / "run", small.data())
    whole = train(small.job(), small.data(), folder=tmp_path / "whole")
    assert np.array_equal(outcome.vector, whole.vector)


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(small, tmp_path, events, breaking):
    job, writes = small.job(checkpoint_seconds=0.0), threading.Semaphore(0)

    def wait_for_writes(event):
        if isinstance(event, CheckpointSaved):
            writes.release()
        if isinstance(event, RoundClosed) and event.version in (4, 8):
            assert writes.acquire(timeout=60)

    with pytest.raises(KeyboardInterrupt):
        train(
            job,
            small.data(),
            folder=tmp_path / "run",
            engine=breaking(9),
            callbacks=(wait_for_writes,),
        )
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir() if p.is_dir())
    damaged = tmp_path / "run" / "checkpoints" / names[-1] / "agreed.safetensors"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    outcome = resume(tmp_path / "run", small.data())
    started = events(tmp_path / "run", "RunStarted")[-1]
    assert started.resumed_from == names[-2]
    warnings = [e.text for e in events(tmp_path / "run", "Warned")]
    message = f"checkpoint {names[-1]} is refused: agreed.safetensors: sha256 mismatch; got "
    assert any(text.startswith(message) and "; expected " in text for text in warnings)
    whole = train(job, small.data(), folder=tmp_path / "whole")
    assert np.array_equal(outcome.vector, whole.vector)


def test_when_no_checkpoint_is_whole_nothing_is_trained(small, tmp_path, events, breaking):
    job = small.job(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=tmp_path / "run", engine=breaking(9))
    for manifest in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint of this run is complete"):
        resume(tmp_path / "run", small.data())
    assert events(tmp_path / "run", "RunEnded")[-1].state == "failed"


def test_a_changed_job_is_refused_by_name(small, tmp_path, breaking):
    job = small.job(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=tmp_path / "run", engine=breaking(9))
    path = tmp_path / "run" / "job.json"
    saved = json.loads(path.read_text())
    saved["job"]["seed"] = 5
    path.write_text(json.dumps(saved))
    with pytest.raises(CheckpointError, match="belongs to another job"):
        resume(tmp_path / "run", small.data())


def test_where_it_runs_may_change_at_a_resume(small, tmp_path, breaking):
    job = small.job(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=tmp_path / "run", engine=breaking(9))
    path = tmp_path / "run" / "job.json"
    saved = json.loads(path.read_text())
    saved["job"] |= {"checkpoint_seconds": 60.0, "security": "none"}
    path.write_text(json.dumps(saved))
    resume(tmp_path / "run", small.data())


def test_a_second_signal_while_the_last_checkpoint_is_written_is_journaled_too(
    small, tmp_path, events, breaking, monkeypatch
):
    def raise_interrupt(self):
        raise KeyboardInterrupt("SIGTERM")

    monkeypatch.setattr("photinus.run.train.Checkpoints.close", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(small.job(), small.data(), folder=tmp_path / "run", engine=breaking(9))
    [ended] = events(tmp_path / "run", "RunEnded")
    assert (ended.state, ended.reason) == ("stopped", "Ctrl-C")


def test_training_in_another_thread_takes_no_signal(small, tmp_path):
    usual_handler, handlers = signal.getsignal(signal.SIGTERM), []

    def record_handler(event):
        handlers.append(signal.getsignal(signal.SIGTERM))

    fields = {"folder": tmp_path / "run", "callbacks": (record_handler,)}
    thread = threading.Thread(target=train, args=(small.job(), small.data()), kwargs=fields)
    thread.start()
    thread.join()
    assert set(handlers) == {usual_handler}
    handlers.clear()
    train(small.job(), small.data(), folder=tmp_path / "main", callbacks=(record_handler,))
    assert usual_handler not in handlers
    assert signal.getsignal(signal.SIGTERM) is usual_handler


def test_other_rows_at_a_resume_are_told(small, tmp_path, events, breaking):
    job = small.job(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=tmp_path / "run", engine=breaking(9))
    fewer = small.data(small.features[:210], small.labels[:210])
    resume(tmp_path / "run", fewer)
    warnings = [e.text for e in events(tmp_path / "run", "Warned")]
    assert any("other rows than at the checkpoint" in text for text in warnings)


def test_as_many_other_rows_at_a_resume_are_told(small, tmp_path, events, breaking):
    job = small.job(checkpoint_seconds=0.0)
    for name, features in (("same", small.features), ("other", small.features[::-1] + 1)):
        with pytest.raises(KeyboardInterrupt):
            train(job, small.data(), folder=tmp_path / name, engine=breaking(9))
        resume(tmp_path / name, small.data(features, small.labels))
        warnings = [e.text for e in events(tmp_path / name, "Warned")]
        row_warnings = [text for text in warnings if "other rows than at the checkpoint" in text]
        assert len(row_warnings) == (name == "other")


# -- warm start --------------------------------------------------------------------------------


def test_a_run_may_start_from_a_saved_model(small, tmp_path):
    first = train(small.job(), small.data(), folder=tmp_path / "first")
    plain = averaging(every=Steps(3), outer=Sgd(lr=1.0), codec="fp32")
    model = LogisticConfig(features=6, classes=3, epochs=1e-9, batch_size=8, dtype="float64")
    for start in ("", "model", "model/model.safetensors"):
        job = small.job(model=model, strategy=plain, start=str(first.folder / start))
        folder = tmp_path / f"again-{start.replace('/', '-')}"
        again = train(job, small.data(), test=small.test, folder=folder)
        assert again.metrics["error"] < 0.2, "without a step, only a warm start is this good"


def test_a_model_of_another_shape_is_refused_by_name(small, tmp_path):
    first = train(small.job(), small.data(), folder=tmp_path / "first")
    model = LogisticConfig(features=6, classes=4)
    job = small.job(model=model, start=str(first.folder / "model"))
    with pytest.raises(UsageError, match=r"W must have the shape \[6, 4\]; got \[6, 3\]"):
        train(job, small.data(), folder=tmp_path / "run")


def test_a_start_that_is_no_model_is_refused(small, tmp_path):
    with pytest.raises(UsageError, match="no model at that path"):
        train(small.job(start=str(tmp_path / "no")), small.data(), folder=tmp_path / "run")


@pytest.mark.parametrize("engine", ["simulate", pytest.param("local", marks=pytest.mark.processes)])
def test_the_best_point_on_rows_set_aside_is_kept(small, events, tmp_path, engine):
    job = small.job(validation=0.2, engine=engine, workers=2)
    outcome = train(job, small.data(), folder=tmp_path / "run")
    evaluations = events(outcome.folder, "Evaluated")
    best = [e for e in evaluations if e.extra.get("best")]
    assert best
    store = Store(outcome.folder / "checkpoints")
    assert store.load(store.pinned()).is_finite
    page = (outcome.folder / "report.html").read_text()
    assert "validation" in page


def test_patience_without_rows_set_aside_is_refused(small):
    with pytest.raises(UsageError, match="patience needs rows set aside; got patience=3"):
        small.job(patience=3)


def test_a_stack_unrolled_into_an_autoencoder_is_trained_saved_and_measured(small, tmp_path):
    squashed = 1 / (1 + np.exp(-small.features))
    model = DBN(
        inputs=6,
        hidden=(5, 3),
        output="reconstruction",
        pretraining=Pretraining(epochs=2, batch_size=10),
        fine_tuning=FineTuning(epochs=20, batch_size=10, lr=Schedule.constant(0.02)),
        precision="mkl",
    )
    job = small.job(model=model)
    test = TestRows(squashed[:60], small.labels[:60])
    outcome = train(job, ArrayData(squashed), test=test, folder=tmp_path / "run")
    means = squashed.mean(0)
    blind = -(squashed[:60] * np.log(means) + (1 - squashed[:60]) * np.log(1 - means)).sum(1).mean()
    assert set(outcome.metrics) == {"loss"}
    assert outcome.metrics["loss"] < blind
    loaded, _ = load_trained(tmp_path / "run" / "model")
    assert np.array_equal(loaded.vector, outcome.vector)
    assert loaded.settings.codes(loaded.vector, squashed).shape == (240, 3)


def test_a_run_that_is_done_is_not_resumed(small, tmp_path):
    train(small.job(), small.data(), folder=tmp_path / "run")
    tensor_file = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="is done: there is nothing to resume"):
        resume(tmp_path / "run", small.data())
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == tensor_file


def halved(vector, delta):
    """A descent of the user's own."""
    return vector - 0.5 * delta


def test_a_function_of_the_users_is_the_outer_step_and_is_found_again(small, tmp_path):
    ours = small.job(strategy=downpour(outer=Descent(halved)))
    assert Job.from_dict(ours.to_dict()) == ours
    theirs = small.job(strategy=downpour(outer=Sgd(lr=0.5)))
    vectors = [
        train(job, small.data(), folder=tmp_path / name).vector
        for name, job in (("ours", ours), ("theirs", theirs))
    ]
    np.testing.assert_allclose(*vectors, rtol=1e-5, atol=1e-6)


def test_a_callback_that_cannot_open_ends_the_run_as_failed(small, tmp_path, events):
    class Broken:
        is_closed = False

        def __call__(self, event):
            """Hears nothing."""

        def open(self, folder):
            raise OSError("the tracker is away")

        def close(self):
            self.is_closed = True

    broken = Broken()
    with pytest.raises(OSError, match="the tracker is away"):
        train(small.job(), small.data(), folder=tmp_path / "run", callbacks=[broken])
    [ended] = events(tmp_path / "run", "RunEnded")
    assert (ended.state, broken.is_closed) == ("failed", True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s, at: train(DBN(), s.data(), folder=at), "must be a Job; got DBN; make one"),
        (lambda s, at: train(s.job(), s.data(), folder=5), "a folder must be a path"),
        (lambda s, at: train(s.job(), s.data(), folder=at, engine="local"), "must be an Engine"),
        (
            lambda s, at: train(s.job(), s.data(), folder=at, callbacks=print),
            "callbacks must be a list",
        ),
    ],
)
def test_wrong_arguments_are_told(small, tmp_path, call, said):
    with pytest.raises(UsageError, match=said):
        call(small, tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "wrong", "said"),
    [
        ({"fine_tuning": FineTuning(loss="photinus:none")}, {}, "photinus has no 'none'"),
        (
            {"fine_tuning": FineTuning(optimizer="photinus:none", lr=Schedule.constant(0.1))},
            {},
            "photinus has no 'none'",
        ),
        ({}, {"labels": None}, "the rows have no labels"),
    ],
)
def test_what_only_the_last_phase_meets_is_told_before_the_first(
    small, tmp_path, fields, wrong, said
):
    model = DBN(inputs=6, hidden=(4,), classes=3, precision="mkl", **fields)
    data = ArrayData(**{"features": small.features, "labels": small.labels} | wrong)
    with pytest.raises(PhotinusError, match=said):
        train(small.job(model=model), data, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_test_rows_of_another_width_are_told_before_training(small, tmp_path):
    narrow = TestRows(small.features[:, :5], small.labels)
    with pytest.raises(DataError, match="rows of 6 numbers"):
        train(small.job(), small.data(), test=narrow, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "source", "said"),
    [
        ({"module": "nowhere:net"}, {}, "the module 'nowhere:net' cannot be imported"),
        ({"arguments": {"width": 3}}, {}, "cannot be made from its arguments"),
        ({"loss": "nowhere:loss"}, {}, "the loss 'nowhere:loss' cannot be imported"),
        ({}, {"path": "nowhere.parquet"}, "there is no nowhere.parquet"),
        ({}, {"features": ("x", "z")}, "unknown column; got 'z'; known: label, x, y"),
        (
            {},
            {"features": ("x,y",)},
            r"unknown column; got 'x,y'; one name is one column: write \['x', 'y'\]",
        ),
    ],
    ids=["module", "arguments", "loss", "path", "column", "joined"],
)
def test_what_needs_no_rows_is_told_before_a_run_folder_is_made(tmp_path, model, source, said):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"x": [0.0, 1.0], "y": [1.0, 0.0], "label": [0, 1]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    linear = {"module": "torch.nn:Linear", "arguments": {"in_features": 2, "out_features": 2}}
    place = {"path": str(tmp_path / "rows.parquet"), "features": ("x", "y")}
    job = Job(
        model=ModuleConfig(**{**linear, **model}),
        data=Source(name="parquet", **{**place, **source}),
        engine="simulate",
        workers=2,
    )
    with pytest.raises(PhotinusError, match=said):
        train(job, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
