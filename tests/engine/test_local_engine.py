import os
import re
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import DataError, RunFailedError, UsageError
from photinus.core.events import WorkerJoined
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits

pytestmark = pytest.mark.processes


def same_bits(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours.vectors, theirs.vectors, strict=True))


@pytest.mark.numerics
def test_every_recipe_gives_the_bits_of_the_simulator(tiny):
    events = []
    job = tiny.assignment(emit=events.append)
    assert same_bits(LocalEngine().run(job), SimulatedEngine().run(tiny.assignment()))
    ended = [e for e in events if type(e).__name__ == "PhaseEnded"]
    assert len(ended) == len(tiny.recipes)
    assert {e.slot for e in events if type(e).__name__ == "WorkerJoined"} == {0, 1}


def test_one_worker_in_clear_is_the_plain_loop(tiny):
    recipe = averaging(every=Steps(4), outer=Sgd(lr=1.0), codec="fp32")
    plan = tiny.plan(workers=1, recipes=(recipe,))
    result = LocalEngine().run(tiny.assignment(plan, security="none"))
    config = plan.phases[0].config
    model = config.build((), 0)
    inner = config.inner(model.parameters.layout)
    features, labels, _ = tiny.data.part(plan, 0)
    order = FeedOrder(batch_size=8, epochs=config.epochs, phase=config.name)
    for batch in PartitionFeed(Rows.of(features, labels), order):
        inner.step(model.parameters.trained, model.learn(batch, 0)[0], 0.0)
    assert np.allclose(result.vectors[0], model.parameters.trained, rtol=0, atol=1e-12)


def test_a_folder_in_memory_gives_the_bits_of_the_simulator_and_is_left_empty(tiny):
    plan = tiny.plan(recipes=tiny.recipes[:1])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as transport:
        ours = LocalEngine().run(tiny.assignment(plan, transport=transport))
        assert list(Path(transport).iterdir()) == []
    assert same_bits(ours, SimulatedEngine().run(tiny.assignment(plan)))


def test_shared_rows_give_the_bits_of_the_simulator(tiny):
    plan = tiny.plan(recipes=tiny.recipes[:1], is_shared=True)
    results = [e().run(tiny.assignment(plan)) for e in (LocalEngine, SimulatedEngine)]
    assert same_bits(*results)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
def test_what_a_callback_raises_and_is_no_error_ends_the_run_with_it(tiny, raised):
    def leaves(event):
        if isinstance(event, WorkerJoined):
            raise raised

    with pytest.raises(type(raised)) as ended:
        LocalEngine().run(tiny.assignment(emit=leaves))
    assert ended.value is raised


def test_a_model_that_fails_ends_the_run_once_in_its_own_words(tiny):
    """Without a check of its rows, a label out of range fails in the model."""
    labels = tiny.labels.copy()
    labels[80] = 10
    data = ArrayData(tiny.features, labels)
    before = threading.active_count()
    with pytest.raises(RunFailedError) as failed:
        LocalEngine().run(tiny.assignment(data=data))
    text = str(failed.value)
    assert text.startswith("worker ")
    assert "IndexError: index 10 is out of bounds" in text
    assert "in learn" in text, "the worker's traceback"
    assert text.count("Traceback") == 1
    place = r"\nin phase [\w-]+, partition (\d), in the batch of its examples \d+ to \d+$"
    assert re.search(place, text.strip())[1] == text.split()[1], "a slot trains on its partition"
    assert threading.active_count() == before


FAILS_AT_STEP_3 = """
import torch

class Net(torch.nn.Linear):
    calls = 0

    def forward(self, features):
        self.calls += 1
        if self.calls > 2:
            {what}
        return super().forward(features)
"""


@pytest.mark.parametrize(
    ("what", "kind", "told"),
    [
        ("raise ValueError('mine')", RunFailedError, ["failing.py", "line 10", "ValueError: mine"]),
        ("features = features[:, 1:]", DataError, ["does not take this batch", "failing.py"]),
    ],
)
def test_an_error_of_the_users_module_names_line_partition_and_batch(
    tmp_path, monkeypatch, what, kind, told
):
    (tmp_path / "failing.py").write_text(FAILS_AT_STEP_3.format(what=what))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    config = ModuleConfig(
        module="failing:Net",
        arguments={"in_features": 2, "out_features": 2},
        batch_size=8,
        epochs=1.0,
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(2)))
    plan = TrainingPlan(phases=(phase,), workers=1, seed=0)
    rows = ArrayData(np.eye(2, dtype=np.float32).repeat(16, 0), np.arange(2).repeat(16))
    with pytest.raises(kind) as failed:
        LocalEngine().run(RunSpec(plan=plan, data=rows, run=bytes(16)))
    for words in (*told, "partition 0, in the batch of its examples 16 to 23"):
        assert words in str(failed.value)
    assert str(failed.value) == str(failed.value).strip()  # what follows it begins no line


@dataclass(frozen=True, kw_only=True)
class Unsendable(LogisticConfig):
    """Holds what no pipe can carry."""

    lock: object = None


def test_a_program_that_cannot_be_sent_is_refused(tiny):
    plan = tiny.plan(recipes=tiny.recipes[:1])
    config = Unsendable(features=6, classes=3, lock=threading.Lock())
    object.__setattr__(plan.phases[0], "config", config)
    with pytest.raises(UsageError, match="cannot be sent to a process"):
        LocalEngine().run(tiny.assignment(plan))


def test_a_program_that_no_process_can_import_is_refused(tiny):
    """As a class of the user's own script is: only __main__ there knows it."""
    plan = tiny.plan(recipes=tiny.recipes[:1])
    import __main__

    @dataclass(frozen=True, kw_only=True)
    class Mine(LogisticConfig):
        pass

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    __main__.Mine = Mine
    try:
        object.__setattr__(plan.phases[0], "config", Mine(features=6, classes=3))
        with pytest.raises(UsageError, match="not in __main__"):
            LocalEngine().run(tiny.assignment(plan))
    finally:
        del __main__.Mine


def test_a_dataframe_is_refused(tiny):
    with pytest.raises(UsageError, match="reads arrays; got dict; use the Spark engine"):
        LocalEngine().run(tiny.assignment(data={}))


@pytest.mark.processes
def test_what_stands_before_a_workers_command_is_asked_for_each_slot(tiny, tmp_path):
    def before(slot):
        return (
            "/bin/sh",
            "-c",
            'echo "$0" >> "$1"; shift; exec "$@"',
            str(slot),
            tmp_path / "said",
        )

    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=1.0)
    LocalEngine(before=before).run(tiny.assignment(plan))
    assert sorted((tmp_path / "said").read_text().split()) == ["0", "1"]


@pytest.mark.slow
def test_a_cap_on_bandwidth_holds_for_every_worker_and_changes_no_bit(tiny):
    """Rounds of 200 kB from each of two workers that may send 500 kB a second."""
    rng = np.random.default_rng(0)
    features = rng.random((64, 5_000), dtype=np.float32)
    config = LogisticConfig(features=5_000, classes=10, epochs=16.0, batch_size=8)
    phase = Phase(config=config, strategy=averaging(every=Steps(4), codec="fp32"))
    data = ArrayData(features, rng.integers(0, 10, 64))
    rate, rounds, results = 500e3, [], []

    def note(event):
        if type(event).__name__ == "RoundClosed":
            rounds.append((time.monotonic(), event.bytes_up))

    for bandwidth, emit in ((rate, note), (None, lambda event: None)):
        plan = TrainingPlan(phases=(phase,), workers=2, limits=WorkerLimits(bandwidth=bandwidth))
        results.append(LocalEngine().run(tiny.assignment(plan, data=data, emit=emit)))
    assert same_bits(*results)
    seconds = rounds[-1][0] - rounds[0][0]
    sent = sum(size for _, size in rounds[1:]) / 2
    assert sent > 5 * 200e3
    # a burst of 64 KiB, and what the system's buffers held at the first round's end
    assert sent / rate < seconds + 0.3


def used_seconds(pid):
    """The processor time of a process, and how many threads it has."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[17])


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads processes as Linux shows them"
)
def test_a_worker_computes_in_as_many_threads_as_it_is_told(tiny):
    """With one thread it never takes more than one processor's time."""
    rng = np.random.default_rng(0)
    data = ArrayData(rng.random((256, 500), dtype=np.float32), rng.integers(0, 10, 256))
    arguments = {"in_features": 500, "out_features": 500}
    config = ModuleConfig(
        module="torch.nn:Linear", arguments=arguments, epochs=30.0, batch_size=128
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(4), codec="fp32"))
    measured = {}

    def run(threads):
        looks, pids = [], []

        def note(event):
            if type(event).__name__ == "WorkerJoined":
                pids.append(event.pid)
            if type(event).__name__ == "RoundClosed" and pids:
                looks.append((time.monotonic(), *used_seconds(pids[0])))

        plan = TrainingPlan(phases=(phase,), workers=1, limits=WorkerLimits(threads=threads))
        LocalEngine().run(tiny.assignment(plan, data=data, emit=note))
        (began, before, _), (ended, after, many) = looks[1], looks[-1]
        measured[threads] = many, after - before, ended - began

    run(1)
    run(3)
    # each of its own threads that computes has two helpers then
    assert measured[3][0] >= measured[1][0] + 2
    _, used, passed = measured[1]
    assert used <= passed + 0.03, "the clock of processor time ticks each hundredth of a second"


def test_a_worker_imports_what_the_driver_can(tmp_path, monkeypatch):
    """As a module beside a script that was started by its path from elsewhere."""
    (tmp_path / "beside.py").write_text("from torch.nn import Linear as net")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = ModuleConfig(
        module="beside:net",
        arguments={"in_features": 2, "out_features": 2},
        batch_size=8,
        epochs=1.0,
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(2)))
    plan = TrainingPlan(phases=(phase,), workers=1, seed=0)
    rows = ArrayData(np.eye(2, dtype=np.float32).repeat(16, 0), np.arange(2).repeat(16))
    result = LocalEngine().run(RunSpec(plan=plan, data=rows, run=bytes(16)))
    assert result.vectors[0].size == 6
