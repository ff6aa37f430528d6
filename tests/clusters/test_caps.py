"""What a run may take of a machine, while another one runs beside it."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.engine.base import ArrayData
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits
from photinus.transport.rate_limit import BURST_BYTES

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RATE = 500e3
LOOK_SECONDS, LOOKS = 1.0, 12
CHANCE = np.random.default_rng(0)


def plan_of(config, workers, every=4, **caps):
    phase = Phase(config=config, strategy=averaging(every=Steps(every), codec="fp32"))
    return TrainingPlan(phases=(phase,), workers=workers, limits=WorkerLimits(**caps))


@pytest.fixture(scope="module")
def cluster(clusters):
    return clusters({"spark.scheduler.mode": "FAIR"}, installed=True)


@pytest.fixture
def driver(cluster, applications):
    """One application of four slots, with fair pools; its runs end with it."""
    made = applications(cluster)
    yield made
    made.close()


@pytest.fixture
def pair(driver, request):
    """Starts two runs in pools of their own; returns the processes of each."""

    def start(data, **programs):
        pids = {}
        for kind, plan in programs.items():
            name = f"{request.node.name}-{kind}"
            driver.start(name, plan, data, pool=kind)
        for kind, plan in programs.items():
            name = f"{request.node.name}-{kind}"
            driver.wait("RoundClosed", name, version=5)
            pids[kind] = [line["pid"] for line in driver.of("WorkerJoined", name)]
            assert len(pids[kind]) == plan.workers
        return pids

    return start


def sent_by(pids):
    """Bytes that the kernel has sent for each process, over the connections it holds."""
    completed = subprocess.run(["ss", "-tinpOH"], capture_output=True, text=True, check=True)
    sent = dict.fromkeys(pids, 0)
    for line in completed.stdout.splitlines():
        count = re.search(r"bytes_sent:(\d+)", line)
        for pid in set(map(int, re.findall(r"pid=(\d+)", line))) & set(pids):
            sent[pid] += int(count[1]) if count else 0
    return sent


def looked(look, pids):
    """What a look shows once a second: [look, process], and when it began and ended [look]."""
    begins, shown, ends = [], [], []
    for _ in range(LOOKS):
        begins.append(time.monotonic())
        shown.append([found for _, found in sorted(look(pids).items())])
        ends.append(time.monotonic())
        time.sleep(LOOK_SECONDS)  # what is measured is what happens in a stretch of time
    return np.array(begins), np.array(ends), np.array(shown)


@pytest.mark.skipif(shutil.which("ss") is None, reason="asks ss what the kernel has sent")
def test_a_capped_run_sends_no_more_than_its_cap_beside_one_that_has_none(
    driver, pair, tiny, record_property, request
):
    """In no stretch of the looks does any of its workers send more; its bits stay the same."""
    data = ArrayData(CHANCE.random((64, 5_000), dtype=np.float32), CHANCE.integers(0, 10, 64))

    def config(epochs):
        return LogisticConfig(features=5_000, classes=10, epochs=epochs, batch_size=8)

    capped = plan_of(config(60.0), 2, bandwidth=RATE)
    pids = pair(data, capped=capped, free=plan_of(config(50_000.0), 2))
    begins, ends, sent = looked(sent_by, pids["capped"] + pids["free"])
    is_capped = np.isin(sorted(pids["capped"] + pids["free"]), pids["capped"])
    rates = (sent[-1] - sent[0]) / (ends[-1] - ends[0])
    record_property("bytes a second of each capped worker", rates[is_capped].round().tolist())
    record_property("bytes a second of each free worker", rates[~is_capped].round().tolist())
    for i in range(LOOKS):
        for j in range(i + 1, LOOKS):
            # after a pause so much at once, and what the kernel holds when the cap begins to wait
            most = RATE * (ends[j] - begins[i]) + 2 * BURST_BYTES
            assert ((sent[j] - sent[i])[is_capped] < most).all()
    assert (rates[is_capped] > RATE / 2).all(), "it would send as much as it may"
    assert (rates[~is_capped] > 2 * RATE).all(), "the other one shows that there is room for more"
    vectors = driver.result(f"{request.node.name}-capped")
    expected = SimulatedEngine().run(tiny.assignment(capped, data=data)).vectors
    assert all(np.array_equal(a, b) for a, b in zip(vectors, expected, strict=True))


def used_by(pids):
    """Processor seconds of each process: all, and of its threads the two that used the most."""
    used = {}
    for pid in pids:
        threads = []
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            fields = stat.read_text().rpartition(")")[2].split()
            threads.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        used[pid] = (sum(threads), *sorted([*threads, 0.0], reverse=True)[:2])
    return used


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads processes as Linux shows them"
)
def test_a_run_of_one_thread_takes_one_processor_beside_one_that_has_two(
    driver, pair, record_property
):
    data = ArrayData(CHANCE.random((256, 1000), dtype=np.float32), CHANCE.integers(0, 10, 256))
    arguments = {"in_features": 1000, "out_features": 1000}
    config = ModuleConfig(module="torch.nn:Linear", arguments=arguments, epochs=1e5, batch_size=128)
    one, two = (plan_of(config, 1, every=20, threads=threads) for threads in (1, 2))
    pids = pair(data, one=one, two=two)
    order = sorted(pids["one"] + pids["two"])
    _, ends, used = looked(used_by, order)
    seconds = ends[-1] - ends[0]
    total, most, second = np.moveaxis((used[-1] - used[0]) / seconds, -1, 0)
    first, other = order.index(pids["one"][0]), order.index(pids["two"][0])
    for name, at in (("one", first), ("two", other)):
        shares = [round(float(share[at]), 2) for share in (total, most, second)]
        record_property(f"processors that the run of {name} used, and its two threads", shares)
    assert total[first] <= 1.05
    assert second[first] < 0.1 * total[first], "one thread computes"
    assert second[other] > 0.25 * total[other], "of the other run two do"


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads processes as Linux shows them"
)
def test_neither_of_two_runs_uses_more_than_its_share_of_the_processors(
    driver, pair, record_property
):
    """A machine that is busy with other work may leave them less: `benchmarks/shares.py`."""
    data = ArrayData(CHANCE.random((256, 500), dtype=np.float32), CHANCE.integers(0, 10, 256))
    arguments = {"in_features": 500, "out_features": 500}
    config = ModuleConfig(module="torch.nn:Linear", arguments=arguments, epochs=1e5, batch_size=128)
    shares = {"less": 0.25, "more": 0.5}
    plans = {name: plan_of(config, 1, every=50, cpu_share=share) for name, share in shares.items()}
    pids = pair(data, **plans)
    _, ends, used = looked(used_by, pids["less"] + pids["more"])
    order = sorted(pids["less"] + pids["more"])
    rates = (used[-1] - used[0])[:, 0] / (ends[-1] - ends[0])
    for name, share in shares.items():
        found = float(rates[order.index(pids[name][0])])
        record_property(f"processors that the run of {share:g} used", round(found, 3))
        assert 0 < found <= 1.1 * share
