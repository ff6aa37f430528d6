"""MNIST test error of the deep belief network, by workers and seeds.

    python benchmarks/dbn_errors.py --workers 10 1 --seeds 0 1 2 3 4 --at-once 2
    python benchmarks/dbn_errors.py --workers 10 --seeds 0 --hidden 500 --hidden 500,500
    python benchmarks/dbn_errors.py --preset mnist-dbn-published --engine local ...
    python benchmarks/dbn_errors.py --table

Real training of all workers, in the simulator, so that the figures do not depend on how many
cores the machine has; with --engine local each worker is a process. Each run is added to
docs/results/dbn_errors.json; what is there is not run again. A run of ten workers takes some twenty
minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from machine import begin, processor

from photinus.core.events import Event, PhaseStarted, RoundClosed

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "dbn_errors.json"
SIZES, SIMULATED = "500,500,2000", "simulate"


class Bytes:
    """Counts what a run sent, and what all-reduce in float32 would have sent for its steps."""

    def __init__(self, workers: int) -> None:
        self.workers, self.sent, self.every_step = workers, 0, 0.0

    def __call__(self, event: Event) -> None:
        """Takes in one event of the run."""
        if isinstance(event, PhaseStarted):
            steps = event.budget / event.batch_size  # all workers take each step together
            self.every_step += 2 * 4 * event.parameters * steps * self.workers
        if isinstance(event, RoundClosed):
            self.sent += event.bytes_up + event.bytes_down


def one(a: argparse.Namespace, hidden: str) -> None:
    """Trains once, and adds the result to the file; on so many rows only, nothing is added."""
    from photinus.data import mnist
    from photinus.engine.base import ArrayData
    from photinus.run.presets import preset
    from photinus.run.train import train

    workers, seed, limit = a.workers[0], a.seeds[0], a.rows
    job = replace(preset(a.preset, workers), engine=a.engine, seed=seed)
    sizes = tuple(int(n) for n in hidden.split(","))
    *below, last = job.model.fine_tuning.dropout_hidden
    tuned = replace(job.model.fine_tuning, dropout_hidden=(*below[: len(sizes) - 1], last))
    job = replace(job, model=replace(job.model, hidden=sizes, fine_tuning=tuned))
    data = None
    if limit is not None:
        images = mnist.load()
        data = ArrayData(images.train_images[:limit], images.train_labels[:limit], 1 / 255)
    began, counted, is_here = time.process_time(), Bytes(workers), a.engine == SIMULATED
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(job, data, folder=Path(folder) / "run", callbacks=(counted,))
    if limit is not None:
        print(f"{limit} rows, {time.process_time() - began:.0f} CPU seconds", flush=True)
        return
    row = {
        "preset": a.preset,
        "engine": a.engine,
        "workers": workers,
        "seed": seed,
        "hidden": hidden,
        "error": round(100 * outcome.metrics["error"], 3),
        "seconds": round(time.monotonic() - started),
        "cpu_minutes": round((time.process_time() - began) / 60, 1) if is_here else None,
        "bytes_of_all_reduce": round(counted.sent / counted.every_step, 4),
        "precision": job.resolved().model.precision,
        "processor": processor().removeprefix("processor: "),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    rows = [*known(), row]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(row, flush=True)


def known() -> list[dict[str, object]]:
    """Returns the rows so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def hidden_of(row: dict[str, object]) -> object:
    """Returns a row's hidden sizes."""
    return row.get("hidden", SIZES)


def engine_of(row: dict[str, object]) -> object:
    """Returns a row's engine."""
    return row.get("engine", SIMULATED)


def table() -> None:
    """Prints one line for each preset and number of workers."""
    from photinus.report.interval import error_interval

    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in known():
        case = row["preset"], engine_of(row), row["workers"], hidden_of(row)
        groups.setdefault(case, []).append(row)
    print("job | engine | workers | hidden | errors by seed, % | median, % | 95 % interval | bytes")
    print("--- | --- | --- | --- | --- | --- | --- | ---")
    for (name, engine, workers, hidden), rows in groups.items():
        errors = [float(str(r["error"])) for r in sorted(rows, key=lambda r: str(r["seed"]))]
        middle = statistics.median(errors)
        low, high = error_interval(middle * 100, 10_000)
        share = statistics.median(float(str(r["bytes_of_all_reduce"])) for r in rows)
        listed = ", ".join(f"{e:.2f}" for e in errors)
        span = f"{100 * low:.2f} to {100 * high:.2f}"
        cells = name, engine, workers, hidden, listed, f"{middle:.2f}", span, f"{share:.3f}"
        print(*cells, sep=" | ")
    print("bytes: as a share of what float32 all-reduce sends for the same steps")


def main() -> None:
    """Runs what is missing, some at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="mnist-dbn")
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--hidden", action="append", help="sizes of the hidden layers")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--engine", choices=(SIMULATED, "local"), default=SIMULATED)
    parser.add_argument("--one", action="store_true", help="run the first of each, here")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--rows", type=int, help="with --one: of the first so many rows")
    a = parser.parse_args()
    hidden = a.hidden or [SIZES]
    if a.one:
        return one(a, hidden[0])
    finished = {(r["preset"], engine_of(r), r["workers"], r["seed"], hidden_of(r)) for r in known()}
    cases = [(w, s, h) for h in hidden for w in a.workers for s in a.seeds]
    todo = (
        [] if a.table else [case for case in cases if (a.preset, a.engine, *case) not in finished]
    )
    running: list[subprocess.Popen[bytes]] = []
    for workers, seed, sizes in todo:
        while len(running) >= a.at_once:
            running.pop(0).wait()
        command = [sys.executable, __file__, "--one", "--preset", a.preset]
        command += ["--workers", str(workers), "--seeds", str(seed), "--hidden", sizes]
        command += ["--engine", a.engine]
        running.append(subprocess.Popen(command))
    for process in running:
        process.wait()
    return table()


if __name__ == "__main__":
    begin("--one", "--workers", "2", "--hidden", "20,10", "--rows", "1000")
    main()
