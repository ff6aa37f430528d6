"""How many uses of rows faults lose or double, by a count that asks neither ledger nor audit.

    python benchmarks/counting.py [--small] [simulator | processes | spark ...] [recipes ...]

The model has one weight a row, and a step adds 1 to the weight of each of its rows; so the trained
parameters say how often each row is in them (`tests/counting/counted.py`). A cell is what is lost
and what is doubled, of all uses that the epochs ask for. With --small three recipes run in the
simulator alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parents[1] / "tests" / "counting"
sys.path.insert(0, str(HOME))

import cases  # noqa: E402 - lies there, where every worker finds it, too
from cases import BOTH_PARTS, RECIPES, SIMULATED, Trial, Verdict, epochs_of, real  # noqa: E402

from photinus.engine.local.engine import LocalEngine  # noqa: E402
from photinus.testing import Faults  # noqa: E402

ENGINES = {"simulator", "processes", "spark"}
FEW = ("averaging", "all_reduce", "downpour")
SEEDS = 20
TRANSPORT = ("averaging", "iterative_reduce", "downpour")
"""Of those that need no link between workers, and no round a step."""

Column = tuple[str, Callable[[str, Path], Iterator[Verdict]]]


def plain(recipe: str, folder: Path) -> Iterator[Verdict]:
    """One to seven workers to whom nothing happens."""
    for workers in range(1, 8):
        yield Trial(recipe, folder / f"{workers}", workers).train(cases.simulated())


def harmed(name: str) -> Callable[[str, Path], Iterator[Verdict]]:
    """Three simulated workers, and one fault by name."""

    def run(recipe: str, folder: Path) -> Iterator[Verdict]:
        engine = cases.simulated(SIMULATED[name])
        yield Trial(recipe, folder, epochs=epochs_of(recipe)).train(engine)

    return run


def by_chance(recipe: str, folder: Path) -> Iterator[Verdict]:
    """Schedules of faults by chance, for one to seven workers."""
    for seed in range(SEEDS):
        workers = 1 + seed % 7
        trial = Trial(recipe, folder / f"{seed}", workers, epochs=epochs_of(recipe))
        yield trial.train(cases.simulated(cases.chances(seed, workers)))


def resumed(recipe: str, folder: Path) -> Iterator[Verdict]:
    """The driver is lost, and its run is resumed from a checkpoint some rounds older."""
    trial = Trial(recipe, folder, epochs=8)
    cases.stopped(trial, cases.simulated())
    yield trial.resumed(cases.simulated())


def processes(recipe: str, folder: Path) -> Iterator[Verdict]:
    """Real processes: one is killed twice, one freezes, one is cut off."""
    faults = real(recipe).cut(0, 6, seconds=2.0)
    yield Trial(recipe, folder, epochs=epochs_of(recipe)).train(LocalEngine(faults))


def transport(recipe: str, folder: Path) -> Iterator[Verdict]:
    """The same over a folder: silence alone tells there."""
    if recipe in TRANSPORT:
        with tempfile.TemporaryDirectory() as place:
            trial = Trial(recipe, folder, epochs=3, lease_seconds=4.0, fields={"transport": place})
            yield trial.train(LocalEngine(Faults().kill(1, 5).freeze(2, 4, seconds=6.0)))


def driver(recipe: str, folder: Path) -> Iterator[Verdict]:
    """The driver's process is killed, and the run is resumed by another."""
    yield cases.killed_driver(recipe, folder).resumed(LocalEngine())


def spark() -> Callable[[str, Path], Iterator[Verdict]]:
    """Tasks of a local Spark: one is killed twice, one freezes."""
    from photinus.engine.spark.engine import SparkEngine
    from photinus.engine.spark.session import spark_session

    session = spark_session(4, name="counting")
    for name in ("counted.py", "cases.py"):
        session.sparkContext.addPyFile(str(HOME / name))

    def run(recipe: str, folder: Path) -> Iterator[Verdict]:
        engine = SparkEngine(session, real(recipe))
        yield Trial(recipe, folder, epochs=epochs_of(recipe)).train(engine)

    return run


def columns(engines: set[str]) -> list[Column]:
    """What is run, engine by engine."""
    result: list[Column] = []
    if "simulator" in engines:
        result += [("1 to 7 workers, no fault", plain)]
        result += [(name, harmed(name)) for name in SIMULATED]
        result += [(f"{SEEDS} schedules by chance", by_chance), ("driver lost, resumed", resumed)]
    if "processes" in engines:
        result += [("processes: killed twice, frozen, cut off", processes)]
        result += [("on a folder transport", transport), ("driver killed, resumed", driver)]
    if "spark" in engines:
        result += [("Spark: killed twice, frozen", spark())]
    return result


def cell(runs: Iterator[Verdict]) -> tuple[str, int]:
    """Returns lost / doubled, and how many uses were asked for."""
    lost = doubled = wanted = 0
    for verdict in runs:
        lost, doubled = lost + verdict.lost, doubled + verdict.doubled
        wanted += int(verdict.count.times.sum()) + verdict.lost - verdict.doubled
    return (f"{lost} / {doubled}" if wanted else ""), wanted


def main(words: list[str]) -> None:
    """Prints the table."""
    is_small = "--small" in words
    engines = {"simulator"} if is_small else ENGINES & set(words) or ENGINES
    known = [*RECIPES, *BOTH_PARTS]
    named = [recipe for recipe in known if recipe in words]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])
    table = columns(engines)
    print(f"| recipe | uses of rows | {' | '.join(name for name, _ in table)} |")
    print(f"|---|---|{'---|' * len(table)}")
    for recipe in named or (FEW if is_small else known):
        cells, uses = list[str](), 0
        for _, run in table:
            with tempfile.TemporaryDirectory() as folder:
                text, wanted = cell(run(recipe, Path(folder)))
            cells, uses = [*cells, text], uses + wanted
        print(f"| {recipe} | {uses:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
