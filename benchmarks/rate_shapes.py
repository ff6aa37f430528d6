"""Why the usual rate stays and then falls: test error of a plain loop by the shape of its rate.

Usage: python benchmarks/rate_shapes.py [--small] [--data table:1,mnist:5] [--seeds 2]

Each shape has the highest rate that is usual for the optimizer. `--data` is as of `defaults.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np
import torch
from defaults import plain, task_of
from machine import begin

from photinus.models.schedules import Schedule

SHAPES: Mapping[str, Callable[[float], Schedule]] = {
    "constant": Schedule.constant,
    "a cosine to 0": Schedule.cosine,
    "straight to 0": lambda peak: Schedule(((0.0, peak), (1.0, 0.0))),
    "usual": Schedule.usual,
}
TASKS = "small:1,small:5,table:1,table:2,table:10,table:30,mnist:1,mnist:2,mnist:5,mnist:15"
TASKS += ",images:1,images:2,images:5,norms:2,maps:2,maps:6"


def main() -> None:
    """Prints a row for each table of rows, and a column for each shape."""
    begin("--data", "small:1", "--seeds", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=TASKS)
    parser.add_argument("--seeds", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(1)
    print(f"rows and passes | {' | '.join(SHAPES)}\n{'--- | ' * len(SHAPES)}---")
    for name in a.data.split(","):
        task = task_of(name)
        peak = task.model.rate().at(0.0)
        errors = [
            np.mean([plain(task, seed, shape(peak)) for seed in range(a.seeds)])
            for shape in SHAPES.values()
        ]
        print(f"{name} | {' | '.join(f'{error:.2f} %' for error in errors)}", flush=True)


if __name__ == "__main__":
    main()
