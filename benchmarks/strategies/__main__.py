"""The experiments, by name: `PYTHONPATH=benchmarks python -m strategies E4 E12`.

Without names all of them. A line for each trial, then each claim and whether it holds; ends with 1
where one does not.
"""

from __future__ import annotations

import argparse
import sys

from machine import begin

from strategies.experiments import EXPERIMENTS
from strategies.sparknet import sparknet
from strategies.trial import SHORT, Scale


def _shown(name: str, scale: Scale, *, is_short: bool) -> bool:
    experiment = EXPERIMENTS[name]
    print(f"\n## {name}: {experiment.title}\n")
    print("| trial | test error, % | virtual seconds | MB sent | apart |")
    print("|---|---|---|---|---|")
    names = experiment.short_names() if is_short else set(experiment.trials)
    outcomes = {}
    for trial in experiment.trials:
        if trial not in names:
            continue
        outcomes |= experiment.outcomes({trial}, scale)
        o = outcomes[trial]
        apart = "" if o.spread != o.spread else f"{o.spread:.4f}"
        print(
            f"| {trial} | {o.error:.2f} | {o.seconds:.2f} | {o.megabytes:.0f} | {apart} |",
            flush=True,
        )
    print()
    all_hold = True
    for claim in experiment.claims:
        if is_short and not claim.is_short:
            continue
        holds = claim.holds(*(outcomes[trial] for trial in claim.of))
        all_hold &= holds
        print(f"- {'holds' if holds else 'DOES NOT HOLD'}: {claim.says}", flush=True)
    return all_hold


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*EXPERIMENTS, "E12"])
    parser.add_argument("--short", action="store_true", help="as the test runs them")
    parser.add_argument("--seeds", type=int, default=1, help="means over so many [1]")
    parser.add_argument("--folder", default=".", help="where E12's figure is written [.]")
    a = parser.parse_args()
    scale = SHORT if a.short else Scale(seeds=tuple(range(a.seeds)))
    outcomes = []
    for name in a.names:
        if name == "E12":
            outcomes.append(sparknet(scale, a.folder, is_short=a.short))
        else:
            outcomes.append(_shown(name, scale, is_short=a.short))
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    begin("--short", "E1")
    sys.exit(main())
