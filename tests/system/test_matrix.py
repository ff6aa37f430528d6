"""The fault matrix of the docs: what each fault says; its rows name real tests."""

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

from photinus.core.clock import Steps
from photinus.report.event_text import line_of
from photinus.strategies.recipes import all_reduce, averaging, downpour, publish
from photinus.testing import Faults
from photinus.transport.credentials import Credentials

ROOT = Path(__file__).parents[2]
WAYS = {
    "averaging": averaging(every=Steps(5)),
    "all_reduce": all_reduce(),
    "downpour": downpour(every=Steps(5)),
    "publish": publish(every=Steps(5), exact_every=3),
}
"""One of each kind: deltas in rounds, gradients, no waiting, no owner."""

CLOSED = "worker 1 is lost: its connection closed and did not come back"
SILENT = "worker 1 is lost: no sign of life from it for 5 s"
BACK = "worker 1: 120 rows, lease 2"
NAN = re.compile(
    r"worker 1 pushed values that are not finite; the push was dropped \(1 of 3\); "
    r"look at its rows, or lower the learning rate"
)

MATRIX = {
    "F01, F02: a worker dies": (Faults().kill(slot=1, step=32), [CLOSED, BACK]),
    "F03: a worker stands still": (Faults().freeze(slot=1, step=32, seconds=8.0), [SILENT, BACK]),
    "F03: for less than a lease": (Faults().freeze(slot=1, step=32, seconds=2.0), []),
    "F05: a worker is cut off": (Faults().cut(slot=1, step=32, seconds=3.0), [CLOSED, BACK]),
    "F05: for a moment": (Faults().cut(slot=1, step=32, seconds=0.5), []),
    "F06, F15: a second attempt": (Faults().copy(slot=1, step=32), []),
    "F07: a network that loses and doubles": (Faults().lose(0.15).double(0.2), []),
    "F03: a worker four times as slow": (Faults().slow(slot=1, factor=4.0), []),
    "F14: a gradient that is no number": (Faults().nan(slot=1, step=32), [NAN]),
}
"""A row -> its fault, and all that a user is told."""


def output_lines(played):
    """Losses, returns and warnings in the words of the terminal."""
    events = [e for e in played.tape.events if type(e).__name__ in ("WorkerLost", "Warned")]
    events += [e for e in played.tape.of("WorkerJoined") if e.lease > 1]
    return [line_of(event) for event in events]


@pytest.mark.parametrize("row", MATRIX)
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_each_fault_is_told_in_these_words_and_the_run_continues(field, name, row):
    faults, lines = MATRIX[row]
    cluster = {"faults": faults, "step_seconds": 0.04, "resend_seconds": 0.1}
    played = field.play(WAYS[name], cluster=cluster, epochs=24).run(until=400)
    assert np.isfinite(played.vector).all()
    assert field.loss(played.vector) < 0.6
    assert played.simulation.happened == [f for f in faults.planned if f.kind != "slow"]
    output = output_lines(played)
    if NAN in lines:  # its lease ends, and it heals
        assert NAN.fullmatch(output[0]), output
        unused = [line for line in output[1:] if line != BACK]  # its rows are not done again
        assert len(unused) == (name != "all_reduce")  # there it is one mini-batch
        assert all("examples of worker 1 were not used" in line for line in unused)
    else:
        assert output == lines
    played.tape.assert_exact()


def test_faults_one_after_the_other_on_every_worker(field):
    """More than Spark's budget of four failures a task."""
    faults = Faults()
    for lease in range(1, 7):
        for slot in range(4):
            faults = faults.kill(slot=slot, step=5 + 3 * slot, lease=lease)
    played = field.play(WAYS["averaging"], cluster={"faults": faults}, epochs=12).run(until=400)
    assert len(played.simulation.happened) == 24
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 12 * len(field.labels)


TIME_OF_DAY = re.compile(
    r"\b(time\.(time|strftime|gmtime|ctime)\b|datetime\.\w|time_ns|localtime|CLOCK_REALTIME)"
    r"|\bst_[mca]time"
)


def test_f20_a_clock_that_is_wrong_by_hours_ends_no_lease_and_no_key():
    """Only what is shown to people, names folders or tells files apart knows the time of day."""
    knows = {
        path.relative_to(ROOT / "src/photinus").as_posix()
        for path in (ROOT / "src/photinus").rglob("*.py")
        if TIME_OF_DAY.search(path.read_text())
    }
    assert knows == {
        "checkpoint/mirror.py",  # a file whose stamp is another one was changed
        "deploy/class_archive.py",  # likewise
        "engine/spark/archives.py",  # likewise
        "testing/faults/process.py",  # the diary of faults
        "testing/faults/driver.py",  # which checkpoint shall be damaged
        "estimators/trainer.py",  # the name of a folder
        "report/journal.py",
        "report/page.py",
        "report/trackers/mlflow.py",  # when a metric was measured
        "run/train.py",  # the name of a folder
        "transport/credentials.py",  # dates in certificates, which nobody checks
    }
    key = Credentials.make(bytes(16)).worker()
    certificate = x509.load_pem_x509_certificate(key.certificate)
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now - timedelta(hours=23)
    assert certificate.not_valid_after_utc > now + timedelta(days=89)


# -- the page --------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "reliability" / "evidence.md"


def rows():
    return re.findall(r"^\| (F\d\d) \|.*$", PAGE.read_text(), re.MULTILINE)


def test_every_row_of_the_matrix_is_on_the_page_once():
    assert rows() == [f"F{n:02}" for n in range(1, 24)]


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 30
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{file}::{name}"


ROW = re.compile(r"^\| (F\d\d) \|.*$", re.MULTILINE)
UNTOLD = {
    "F01": "as F02",
    "F04": "fenced in silence",
    "F06": "as F02",
    "F15": "nothing is said",
    "F20": "nothing happens",
}
"""Rows without words of their own."""


def strings(file):
    """All texts of a test's file, without the backslashes of patterns."""
    tree = ast.parse((ROOT / file).read_text())
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(n.value for n in nodes if isinstance(n.value, str)).replace("\\", "")


@pytest.mark.parametrize("row", list(ROW.finditer(PAGE.read_text())), ids=lambda row: row[1])
def test_each_message_of_the_page_is_asserted_by_a_test_of_its_row(row):
    texts = "\n".join(strings(file) for file in set(re.findall(r"`(tests/[\w/]+\.py)::", row[0])))
    quoted = [part.strip("; ") for q in re.findall(r'"([^"]+)"', row[0]) for part in q.split("…")]
    assert bool(quoted) != (row[1] in UNTOLD)
    assert [part for part in quoted if part and part not in texts] == []
