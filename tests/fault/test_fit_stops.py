"""Ctrl-C in an estimator's `fit`: a script ends, a notebook continues, and the run resumes."""

import re
import signal
import subprocess
import sys

import pytest

from photinus.core.events import RoundClosed, RunEnded
from photinus.report.journal import read
from photinus.report.ledger import audit

pytestmark = [pytest.mark.fault, pytest.mark.spark]

MOST_SECONDS = 10.0
"""From the round in which Ctrl-C came, or a later one, to the run's end, by its journal."""

TABLE = """
import os
import signal
import numpy as np
import photinus
from photinus.core.events import RoundClosed
from photinus.engine.spark.engine import frame_of

def stop(event):
    if isinstance(event, RoundClosed) and event.version == 5:
        PRESSED

spark = photinus.spark_session(2)
chance = np.random.default_rng(0)
features = chance.normal(size=(64, 6)).astype(np.float32)
labels = (features @ np.arange(-3, 3) > 0).astype(np.int64)
table = frame_of(spark, list(zip(np.split(features, 2), np.split(labels, 2))))
"""
IN_THE_SCRIPT = "os.killpg(os.getpgrp(), signal.SIGINT)"
"""From a terminal the whole group of processes gets the signal, Java and the workers too."""
IN_THE_KERNEL = "os.kill(os.getpid(), signal.SIGINT)"

FIT = """
net = {"module": "torch.nn:Linear", "moduleArgs": {"in_features": 6, "out_features": 2}}
clf = photinus.TorchClassifier(**net, numWorkers=2, epochs=40, learningRate=0.05, runDir="runs")
clf.callbacks, clf.verbose = [stop], False
clf.fit(table)
"""
AGAIN = """
clf.callbacks = []
model = clf.fit(table)
print("error:", model.evaluate(table).metrics["error"], "rows:", model.transform(table).count())
"""
SAID = re.compile(
    r"stopped by Ctrl-C; continue with: (photinus\.resume\('(runs/TorchClassifier_[\w-]+)', )data\)"
)


def ends(folder):
    """How each term ended, and how long after its last round."""
    endings, at = [], 0.0
    for stamped in read(folder / "events.jsonl"):
        if isinstance(stamped.event, RoundClosed):
            at = stamped.at
        if isinstance(stamped.event, RunEnded):
            endings.append((stamped.event.state, stamped.at - at))
    return endings


def python(code, folder):
    file = folder / "script.py"
    file.write_text(code)
    command = [sys.executable, file]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, start_new_session=True
    )


@pytest.mark.slow
def test_ctrl_c_in_a_script_ends_fit_in_one_sentence_whose_command_continues(tmp_path):
    table = TABLE.replace("PRESSED", IN_THE_SCRIPT)
    completed = python(table + FIT, tmp_path)
    match = SAID.search(completed.stderr)
    assert match, completed.stderr
    assert completed.returncode == -signal.SIGINT
    assert completed.stderr.strip().splitlines()[-1] == f"KeyboardInterrupt: {match[0]}"
    folder = tmp_path / match[2]
    [(state, seconds)] = ends(folder)
    assert state == "stopped"
    assert seconds < MOST_SECONDS
    completed = python(f"{table}\noutcome = {match[1]}table)\nprint(outcome.model())", tmp_path)
    assert "Linear(in_features=6" in completed.stdout, completed.stderr
    assert [state for state, _ in ends(folder)] == ["stopped", "done"]
    assert audit(folder / "ledger.jsonl").is_exact


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ctrl_c_in_a_notebook_ends_fit_in_one_sentence_and_the_next_cell_fits(executed, tmp_path):
    cells = [TABLE.replace("PRESSED", IN_THE_KERNEL), FIT, AGAIN]

    def build(v4):
        notebook = v4.new_notebook(cells=[*map(v4.new_code_cell, cells)])
        notebook.cells[1].metadata["tags"] = ["raises-exception"]
        return notebook

    output = executed(build)
    stopped = SAID.search(output)
    assert stopped, output
    assert "rows: 64" in output
    [(state, seconds)] = ends(tmp_path / stopped[2])
    assert state == "stopped"
    assert seconds < MOST_SECONDS
