"""SparkNet's table: the speed-up over one worker, by steps between rounds and price of a round.

With C seconds a step, S seconds an exchange and R rounds of τ steps until a fixed error,

    speed-up = N·C / (R·(τC + S)),    N the steps of one worker alone.

R and N are counted in trainings; the formula is then tried on one whose links make a round dear.
Source: Moritz et al., SparkNet: Training Deep Networks in Spark, 2015.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from photinus.data.base import Batch
from photinus.engine.simulation.simulator import HEAD_BYTES
from photinus.models.base import Model
from photinus.report.markup import Markup, tag
from photinus.strategies.outer import Nesterov, OuterOptimizer, Sgd
from photinus.strategies.recipe_settings import outer_text
from strategies.claims import WORKERS, rounds
from strategies.trial import JITTER, STEP_SECONDS, Scale, Tape, Trial, digits, simulation

TAUS = (1, 2, 5, 10, 25, 50, 100)
PRICES = (0.0, 0.1, 1.0, 10.0, 100.0)
"""S/C."""
TRIED_PRICE, TRIED_TAU = 10.0, 50
LR = 0.02
MEAN = Sgd()
"""SparkNet's own: the plain mean."""
_SHOWN_ROWS = 4_000
_EVERY_STEPS = 5
_PARAMETERS = 784 * 64 + 64 + 64 * 10 + 10

Table = Mapping[tuple[float, int], float]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is trained until when."""

    rows: int = 20_000
    error: float = 6.0
    """In percent of the first 4,000 test images."""
    seeds: tuple[int, ...] = (0,)


class _ReachedError(Exception):
    pass


@functools.cache
def _shown() -> Batch:
    data = digits()
    features = data.test_images[:_SHOWN_ROWS] * np.float32(1 / 255)
    return Batch(features, data.test_labels[:_SHOWN_ROWS].astype(np.int64))


def _error(model: Model) -> float:
    return 100 * model.measure(_shown())["errors"] / _SHOWN_ROWS


@dataclass(frozen=True)
class Reached:
    """When the error was reached first."""

    rounds: int
    seconds: float
    """Virtual ones."""


@functools.cache
def reached(trial: Trial, goal: Goal, tau: int, seed: int = 0) -> Reached:
    """Trains until a round's agreed point makes no more than the goal's error."""
    tape = Tape()
    run = simulation(trial, goal.rows, 60.0, seed, tape)
    model = run.plan.build(0, ())
    every = max(1, _EVERY_STEPS // tau)
    count = 0

    def look(_: object) -> None:
        nonlocal count
        count += 1
        if count % every:
            return
        model.load(run.coordinator.owner.point.vector)
        if _error(model) <= goal.error:
            raise _ReachedError

    tape.each_round = look
    try:
        run.run()
    except _ReachedError:
        return Reached(count, run.now)
    raise RuntimeError(f"{goal.error} % was not reached at {tau} steps a round")


def _trial(tau: int, workers: int = WORKERS, outer: OuterOptimizer = MEAN) -> Trial:
    return Trial(strategy=rounds(tau, outer), workers=workers, lr=LR, falls=False)


def _mean_rounds(
    tau: int, goal: Goal, workers: int = WORKERS, outer: OuterOptimizer = MEAN
) -> float:
    trial = _trial(tau, workers, outer)
    counts = [reached(trial, goal, tau, seed).rounds for seed in goal.seeds]
    return sum(counts) / len(counts)


def speed_ups(
    goal: Goal,
    taus: tuple[int, ...] = TAUS,
    workers: int = WORKERS,
    outer: OuterOptimizer = MEAN,
) -> Table:
    """Returns (S/C, τ) -> speed-up over one worker that trains alone."""
    alone = _EVERY_STEPS * _mean_rounds(_EVERY_STEPS, goal, 1)
    needed = {tau: _mean_rounds(tau, goal, workers, outer) for tau in taus}
    return {(p, tau): alone / (needed[tau] * (tau + p)) for p in PRICES for tau in taus}


def tried(goal: Goal, tau: int = TRIED_TAU) -> tuple[float, float]:
    """Returns the virtual seconds of a training with dear rounds, and those of the formula."""
    exchange, frame = TRIED_PRICE * STEP_SECONDS, HEAD_BYTES + 4 * _PARAMETERS
    latency = 1e-3
    line = frame / (exchange / 2 - latency)  # a frame up, and one down
    dear = replace(_trial(tau), bytes_per_second=line, latency_seconds=latency)
    result = reached(dear, goal, tau)
    slowest = STEP_SECONDS * (1 + JITTER * (WORKERS - 1))
    return result.seconds, result.rounds * (tau * slowest + exchange)


def best(table: Table, price: float) -> int:
    """Returns the number of steps that is fastest at a price."""
    return max((tau for p, tau in table if p == price), key=lambda tau: table[price, tau])


def lines(table: Table) -> list[str]:
    """Returns the table as text."""
    taus = sorted({tau for _, tau in table})
    rows = [
        f"| S/C | {' | '.join(f'{tau} steps' for tau in taus)} |",
        "|---" * (1 + len(taus)) + "|",
    ]
    for price in sorted({p for p, _ in table}):
        top = best(table, price)
        cells = [f"{table[price, t]:.2f}" for t in taus]
        shown = [f"**{c}**" if t == top else c for t, c in zip(taus, cells, strict=True)]
        rows.append(f"| {price:g} | {' | '.join(shown)} |")
    return rows


_WIDE, _HIGH, _LEFT, _TOP = 64, 34, 60, 44


def picture(table: Table, workers: int) -> Markup:
    """Returns the table as a heat map: the darker, the faster; the best of a row has a frame."""
    taus, prices = sorted({t for _, t in table}), sorted({p for p, _ in table})
    width, height = _LEFT + _WIDE * len(taus) + 8, _TOP + _HIGH * len(prices) + 8
    parts = [
        tag("text", f"speed-up of {workers} workers, by steps between rounds", x=_LEFT, y=16),
        tag("text", "S/C", x=_LEFT - 10, y=_TOP - 8, text_anchor="end"),
    ]
    for column, tau in enumerate(taus):
        x = _LEFT + _WIDE * column
        parts.append(tag("text", f"{tau}", x=x + _WIDE / 2, y=_TOP - 8, text_anchor="middle"))
        for row, price in enumerate(prices):
            parts += _cell(table, (price, tau), x, _TOP + _HIGH * row)
    for row, price in enumerate(prices):
        y = _TOP + _HIGH * row + _HIGH / 2 + 4
        parts.append(tag("text", f"{price:g}", x=_LEFT - 10, y=y, text_anchor="end"))
    page = tag("rect", x=0, y=0, width=width, height=height, fill="#ffffff")
    return tag(
        "svg",
        page,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        font_family="system-ui, sans-serif",
        font_size=12,
        role="img",
        aria_label=f"SparkNet's table for {workers} workers",
    )


def _cell(table: Table, at: tuple[float, int], x: float, y: float) -> list[Markup]:
    value, most = table[at], max(table.values())
    share = value / most
    # from near white to a dark blue
    shade = [
        round(a + (b - a) * share) for a, b in zip((240, 245, 250), (16, 78, 139), strict=True)
    ]
    is_best = best(table, at[0]) == at[1]
    return [
        tag(
            "rect",
            x=x + 2,
            y=y + 2,
            width=_WIDE - 4,
            height=_HIGH - 4,
            fill=f"rgb({shade[0]},{shade[1]},{shade[2]})",
            stroke="#d9480f" if is_best else "none",
            stroke_width=2,
        ),
        tag(
            "text",
            f"{value:.2f}",
            x=x + _WIDE / 2,
            y=y + _HIGH / 2 + 4,
            text_anchor="middle",
            fill="#ffffff" if share > 0.5 else "#1f2933",
        ),
    ]


def sparknet(scale: Scale, folder: str, *, is_short: bool) -> bool:
    """Prints the table, writes the figure, and tells whether the claims hold."""
    goal = Goal(rows=scale.rows, error=10.0 if is_short else 6.0, seeds=scale.seeds)
    print(f"\n## E12: SparkNet's table; {goal.error:g} % of the test images wrong\n")
    for workers in (4, WORKERS):
        table = speed_ups(goal, workers=workers)
        print(f"{workers} workers:\n", *lines(table), "", sep="\n", flush=True)
        path = Path(folder) / f"sparknet-{workers}.svg"
        path.write_text(f"{picture(table, workers)}\n")
        print(path)
    usual = Nesterov()
    print(f"\n{WORKERS} workers, {outer_text(usual)}, the outer step of `averaging`:\n")
    print(*lines(speed_ups(goal, outer=usual)), sep="\n", flush=True)
    measured, formula = tried(goal)
    print(f"\nS/C {TRIED_PRICE:g}, {TRIED_TAU} steps: {measured:.2f} s, by formula {formula:.2f} s")
    top = best(table, 10.0)
    claims = {
        "a dear round wants more steps": top > best(table, 0.1),
        "at S/C 10 rounds of one step lose to one worker": table[10.0, 1] < 0.5,
        "at S/C 10 the best is five times as fast, and beats one worker": table[10.0, top]
        > max(1.2, 5 * table[10.0, 1]),
        "the formula is the simulator's time": abs(measured / formula - 1) < 0.1,
    }
    for says, holds in claims.items():
        print(f"- {'holds' if holds else 'DOES NOT HOLD'}: {says}")
    return all(claims.values())
