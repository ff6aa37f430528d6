"""Four hosts with links of a set rate: what a slow link costs, and a host that is cut off.

    python benchmarks/hosts.py (rates | cut | slow) [ways ...]  (root; Linux with unshare, ip, tc)

Each worker lives in a network namespace with an address of its own, behind a bridge; the driver
stands at the bridge. All of it is in a namespace of this script's, and gone when it ends. A rate
holds for what a host sends and for what is sent to it. With `rates` a job with a fixed seed is
trained at each rate and must give the same bits; with `cut` the cable of host 1 is pulled out
for 15 s, which no connection reports: nothing is closed, packets vanish; with `slow` its link
alone is slow. These two are faults by name, which a worker does to the host that it lives on.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from machine import begin, cannot

from photinus.core.clock import Steps
from photinus.core.events import (
    Event,
    PhaseEnded,
    PhaseStarted,
    RoundClosed,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import all_reduce, averaging, publish
from photinus.strategies.spec import StrategySpec
from photinus.testing import Faults
from photinus.training.plan import Phase, TrainingPlan

HOSTS, RATES = 4, ("1gbit", "100mbit", "10mbit")
BURSTS = {"1gbit": "1250kb", "100mbit": "125kb", "10mbit": "13kb"}
DRIVER = "10.77.0.1"
WAYS = {
    "averaging every 20 steps, int8": averaging(every=Steps(20)),
    "averaging every 5 steps, fp32": averaging(every=Steps(5), codec="fp32"),
    "all_reduce, fp32": all_reduce(codec="fp32"),
}
CUT_SECONDS = 15.0
CUT_STEPS = 30_000
"""So many that the others still have rows of their own when the cut host is back."""


def sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def isolated() -> None:
    """Begins again in namespaces of its own, which vanish with it."""
    if os.environ.get("PHOTINUS_HOSTS") == "inside":
        return
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if missing:
        cannot(f"shaped links need Linux with unshare, ip and tc; got no {', '.join(missing)}")
    os.environ["PHOTINUS_HOSTS"] = "inside"
    apart = ["unshare", "--net", "--mount"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        cannot("shaped links need root; try --small")
    command = [*apart, sys.executable, *sys.argv]
    sys.exit(subprocess.run(command, check=False).returncode)


def built() -> None:
    """A bridge, and hosts behind it."""
    sh("mount -t tmpfs none /run && ip link set lo up")
    sh(f"ip link add br0 type bridge && ip addr add {DRIVER}/24 dev br0 && ip link set br0 up")
    for host in range(HOSTS):
        inside = f"ip netns exec h{host}"
        sh(f"ip netns add h{host} && ip link add v{host} type veth peer name eth0 netns h{host}")
        sh(f"ip link set v{host} master br0 up && {inside} ip link set lo up")
        sh(f"{inside} ip addr add 10.77.0.{10 + host}/24 dev eth0 && {inside} ip link set eth0 up")


def shaped(rate: str) -> None:
    """Every host's link carries no more than a rate, each way."""
    # 10 ms of the rate: in a larger bucket a whole push fits, and comes as if the link were fast
    shape = f"root tbf rate {rate} burst {BURSTS[rate]} latency 500ms"
    for host in range(HOSTS):
        sh(f"ip netns exec h{host} tc qdisc replace dev eth0 {shape}")
        sh(f"tc qdisc replace dev v{host} {shape}")


def plan(
    way: StrategySpec, *, features: int, rows: int, steps: int
) -> tuple[TrainingPlan, ArrayData]:
    rng = np.random.default_rng(0)
    data = ArrayData(rng.random((rows, features), dtype=np.float32), rng.integers(0, 10, rows))
    epochs = steps * 20 * HOSTS / rows
    batch = 20 * HOSTS
    config = LogisticConfig(features=features, classes=10, epochs=epochs, batch_size=batch, lr=0.01)
    return TrainingPlan(phases=(Phase(config=config, strategy=way),), workers=HOSTS), data


class Watch:
    """Keeps all events with their moments."""

    def __init__(self) -> None:
        self.events = list[tuple[float, Event]]()

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        self.events.append((time.monotonic(), event))

    def at(self, kind: type[Event]) -> list[float]:
        """Returns the moments of one kind."""
        return [at for at, event in self.events if isinstance(event, kind)]

    def of(self, kind: type[Event]) -> list[Event]:
        """Returns the events of one kind."""
        return [event for _, event in self.events if isinstance(event, kind)]


def trained(
    way: StrategySpec,
    folder: Path,
    watch: Watch,
    faults: Faults | None = None,
    *,
    features: int,
    steps: int,
) -> dict[str, object]:
    """Runs once on the hosts; returns what to print of it."""
    run = secrets.token_bytes(16)
    book = LedgerWriter(folder / "ledger.jsonl", run)
    work, data = plan(way, features=features, rows=800, steps=steps)
    inside = LocalEngine(
        faults, host=DRIVER, before=lambda slot: ("ip", "netns", "exec", f"h{slot}")
    )
    result = inside.run(RunSpec(plan=work, data=data, run=run, emit=watch.emit, enter=book.enter))
    book.close()
    rounds = [e for e in watch.of(RoundClosed) if isinstance(e, RoundClosed)]
    return {
        "seconds": round(watch.at(PhaseEnded)[-1] - watch.at(PhaseStarted)[0], 2),
        "MB": round(sum(e.bytes_up + e.bytes_down for e in rounds) / 1e6, 1),
        "bits": hashlib.sha256(result.vectors[-1].tobytes()).hexdigest()[:12],
        "audit": str(audit(folder / "ledger.jsonl")),
        "told": [e.text for e in watch.of(Warned) if isinstance(e, Warned)],
    }


def rates(names: Sequence[str]) -> None:
    """Prints a line for each way and rate."""
    for name in names or WAYS:
        for rate in RATES:
            shaped(rate)
            with tempfile.TemporaryDirectory() as folder:
                result = trained(WAYS[name], Path(folder), Watch(), features=4000, steps=60)
            print(json.dumps({"way": name, "rate": rate, **result}), flush=True)


def cut(names: Sequence[str]) -> None:
    """Prints what happened to a host that was cut off, and to the others."""
    ways = {"averaging": averaging(every=Steps(10)), "publish": publish()}
    for name in names or ways:
        shaped("100mbit")
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({"way": name, **_cut_off(ways[name], Path(folder))}), flush=True)


def _cut_off(way: StrategySpec, folder: Path) -> dict[str, object]:
    watch, diary = Watch(), folder / "diary.jsonl"
    faults = Faults().cut(slot=1, step=300, seconds=CUT_SECONDS, host=True)
    result = trained(way, folder, watch, faults.noted_in(str(diary)), features=400, steps=CUT_STEPS)
    [note] = map(json.loads, diary.read_text().splitlines())
    down = note["unix_seconds"] - time.time() + time.monotonic()
    up = down + CUT_SECONDS
    lost = [at for at, e in watch.events if isinstance(e, WorkerLost) and e.slot == 1]
    joined = [at for at, e in watch.events if isinstance(e, WorkerJoined) and e.slot == 1]
    closed = [down, *(at for at in watch.at(RoundClosed) if at > down)]
    return result | {
        "noticed after s": round(lost[0] - down, 2),
        "back after s": round(joined[-1] - up, 2),
        "leases": len(joined),
        "longest gap s": round(float(np.diff(closed).max()), 2),
        "rounds while cut": sum(down < at < up for at in closed),
        "others lost": len(watch.at(WorkerLost)) - len(lost),
    }


def slow(names: Sequence[str]) -> None:
    """Prints what became of a run in which the link of host 1 carries 1 MB a second."""
    for name in names or WAYS:
        shaped("1gbit")
        faults = Faults().slow_link(slot=1, bytes_per_second=1e6, host=True)
        with tempfile.TemporaryDirectory() as folder:
            result = trained(WAYS[name], Path(folder), Watch(), faults, features=4000, steps=60)
        print(json.dumps({"way": name, **result}), flush=True)


if __name__ == "__main__":
    begin("slow", "averaging every 20 steps, int8")
    isolated()
    built()
    {"rates": rates, "cut": cut, "slow": slow}[sys.argv[1]](sys.argv[2:])
