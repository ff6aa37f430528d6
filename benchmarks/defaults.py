"""Test error with nothing set but the model and the workers: every recipe beside one plain loop.

Usage: python benchmarks/defaults.py [--small] [--workers 3,7,16] [--seeds 5]
    [--data mnist,images:10,table:2:256] [--recipes averaging,diloco] [--jobs 2]
    [--out FILE.json] [--sorted]

`--data` names tables, each with its passes and its hidden width where they are not 2 and its own.

Plain is a loop of torch alone: the same module, loss, optimizer, rate, schedule, batch and epochs.
All others are `photinus.Job`s in the simulator, with nothing set but model, workers and recipe; the
first row names no recipe either. "averaging alone" is the recipe without its start by gradients. A
difference is paired by the seed. "averaging until 0.9" is the recipe with a start of that share.

With `--sorted`, instead: three workers on a real local Spark, one seed, the same rows once in any
order and once sorted by label, so that each partition holds other labels, with `shuffle="auto"`;
the last column is with `shuffle=False`. Starts by gradients take three quarters of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import begin
from recipe_named import UNTIL, recipe_named

from photinus.core.events import Event, PhaseEnded, Warned
from photinus.data import mnist
from photinus.engine.base import ArrayData
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.engine.spark.session import spark_session
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.data import TestRows
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import RECIPES

DEFAULT = "(none named)"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 10: 2.262}
"""Seeds -> Student's 97.5 % quantile with one degree of freedom fewer."""
AS_PUBLISHED = ("full_gradient", "iterative_reduce")


@dataclass(frozen=True)
class Task:
    """Rows to train and to test on, and what is trained on them."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    sizes: list[int]
    optimizer: str = "adamw"
    settings: tuple[tuple[str, float], ...] = ()
    norm: bool = False
    """With BatchNorm before each ReLU."""
    module: str = "defaults:network"
    """What makes the module; another one takes no arguments."""
    epochs: float = 2.0
    dbn: DBN | None = None
    """Trained in place of a module; "plain" is its run with one worker."""

    @property
    def model(self) -> ModuleConfig:
        """The module with nothing set but its optimizer and passes."""
        arguments, settings = {"sizes": self.sizes, "norm": self.norm}, dict(self.settings)
        return ModuleConfig(
            module=self.module,
            arguments=arguments if self.module == "defaults:network" else {},
            epochs=self.epochs,
            optimizer=self.optimizer,
            settings=settings,
        )


def network(sizes: list[int], *, norm: bool = False) -> torch.nn.Module:
    """Returns a plain network of these widths."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        norms = [torch.nn.BatchNorm1d(outputs)] if norm else []
        layers += [torch.nn.Linear(inputs, outputs), *norms, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(*sizes[-2:]))


def convolutions() -> torch.nn.Module:
    """Returns a network of five convolutions with BatchNorm, on images of 12x12."""
    layers: list[torch.nn.Module] = [torch.nn.Unflatten(1, (1, 12, 12))]
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)):
        convolution = torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        layers += [convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 6)
    )


def maps(rows: int, tested: int) -> Task:
    """Images of waves in six directions, of any phase, contrast and brightness, under noise."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:12, :12]

    def made(count: int) -> tuple[np.ndarray, np.ndarray]:
        kinds = rng.integers(0, 6, count)
        turn, phase, contrast, brightness = (
            value[:, None, None]
            for value in (
                kinds * np.pi / 6,
                rng.uniform(0, 2 * np.pi, count),
                rng.uniform(0.3, 3, count),
                rng.uniform(-2, 2, count),
            )
        )
        waves = np.sin(1.2 * (np.cos(turn) * x + np.sin(turn) * y) + phase) * contrast
        noise = 1.2 * rng.standard_normal(waves.shape)
        return (waves + noise + brightness).reshape(count, -1).astype(np.float32), kinds

    return Task(made(rows), made(tested), [144, 6], module="defaults:convolutions")


def images(rows: int, tested: int) -> Task:
    """14x14 images under noise."""
    digits, rng = mnist.load(), np.random.default_rng(0)

    def made(pixels: np.ndarray) -> np.ndarray:
        small = pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) / 255
        return (small + 0.5 * rng.standard_normal(small.shape)).astype(np.float32)

    return Task(
        (made(digits.train_images[:rows]), digits.train_labels[:rows].astype(np.int64)),
        (made(digits.test_images[:tested]), digits.test_labels[:tested].astype(np.int64)),
        [196, 64, 10],
    )


def digits(rows: int, tested: int) -> Task:
    """MNIST as it is, with momentum instead of Adam."""
    dataset = mnist.load()
    return Task(
        (
            dataset.train_images[:rows] / np.float32(255),
            dataset.train_labels[:rows].astype(np.int64),
        ),
        (
            dataset.test_images[:tested] / np.float32(255),
            dataset.test_labels[:tested].astype(np.int64),
        ),
        [784, 128, 10],
        "sgd",
        (("momentum", 0.9),),
    )


def table(rows: int, tested: int) -> Task:
    """40 numbers in six classes, which a network with noise tells apart."""
    rng = np.random.default_rng(7)
    first = rng.standard_normal((40, 60)) / 40**0.5
    second = rng.standard_normal((60, 6))

    def made(count: int) -> tuple[np.ndarray, np.ndarray]:
        features = rng.standard_normal((count, 40)).astype(np.float32)
        scores = np.tanh(2 * features @ first) @ second
        return features, (scores + 0.3 * rng.gumbel(size=scores.shape)).argmax(1)

    return Task(made(rows), made(tested), [40, 64, 6])


def curved(rows: int, tested: int) -> Task:
    """16 numbers in four classes with curved borders: a short training is far from its end."""
    rng = np.random.default_rng(4)

    def made(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((count, 16)).astype(np.float32)
        is_far = (x[:, :3] ** 2).sum(1) + 2 * x[:, 4] * x[:, 5] > 3
        return x, is_far.astype(np.int64) + 2 * (x[:, 6] > 0)

    return Task(made(rows), made(tested), [16, 48, 4])


def norms(rows: int, tested: int) -> Task:
    """The same table, and a larger network with BatchNorm."""
    same = table(rows, tested)
    return Task(same.train, same.test, [40, 128, 128, 6], norm=True)


def belief(rows: int, tested: int) -> Task:
    """A deep belief network on MNIST, with 3 passes a layer and 6 of fine-tuning."""
    same = digits(rows, tested)
    training = {"pretraining": Pretraining(epochs=3.0), "fine_tuning": FineTuning(epochs=6.0)}
    return replace(same, dbn=DBN(hidden=(100, 100), **training))


TASKS = {"images": (images, 30_000), "mnist": (digits, 20_000), "table": (table, 24_000)}
TASKS["norms"] = (norms, 24_000)
TASKS["maps"] = (maps, 3_200)
TASKS["dbn"] = (belief, 6_000)
TASKS["curved"] = (curved, 4_800)
TASKS["small"] = (table, 2_000)
TASKS["many"], TASKS["arcs"] = (table, 400_000), (curved, 400_000)  # long trainings of few passes
SORTED_ROWS, PARTITIONS = 12_000, 3
"""In 750 steps: where all of them agree on gradients, sorted rows are left alone."""


def task_of(name: str) -> Task:
    """Returns the task `TABLE[:PASSES[:WIDTH]]`."""
    kind, *more = name.split(":")
    make, rows = TASKS[kind]
    task = make(rows, 10_000)
    passes, *width = map(int, more or [2])
    ends, hidden = (task.sizes[0], task.sizes[-1]), task.sizes[1:-1]
    sizes = [ends[0], *(width * len(hidden) or hidden), ends[1]]
    return replace(task, epochs=float(passes), sizes=sizes)


def plain(task: Task, seed: int, schedule: Schedule | None = None) -> float:
    """Returns the test error (%) of a loop of torch alone, by the usual schedule or another."""
    config = task.model
    model = config.build((), seed)
    inner = config.inner(model.parameters.layout)
    features, labels = map(torch.from_numpy, task.train)
    module, rng, examples = model.module, np.random.default_rng(seed), 0
    optimizer = inner._optimizers[-1].__class__(module.parameters(), lr=0.1, **config.settings)
    schedule, total = schedule or config.rate(), config.epochs * len(features)
    module.train()
    for _ in range(int(config.epochs)):
        for index in torch.from_numpy(rng.permutation(len(features))).split(config.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = schedule.at(examples / total)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(features[index]), labels[index]).backward()
            optimizer.step()
            examples += len(index)
    with torch.no_grad():
        predictions = module.eval()(torch.from_numpy(task.test[0])).argmax(1).numpy()
    return 100 * float(np.mean(predictions != task.test[1]))


def job_of(task: Task, recipe: str, workers: int, seed: int, **parts: Any) -> Job:
    """Returns a job with nothing set but its model, its workers, its recipe and these parts."""
    if recipe != DEFAULT:
        parts["strategy"] = recipe_named(recipe)
    return Job(
        model=task.dbn or task.model, data=Source(name="given"), workers=workers, seed=seed, **parts
    )


def trained(task: Task, recipe: str, workers: int, seed: int) -> float:
    """Returns the test error (%) of a job."""
    job = job_of(task, recipe, workers, seed, engine="simulate")
    with tempfile.TemporaryDirectory() as folder:
        rows = TestRows(*task.test)
        outcome = train(job, ArrayData(*task.train), test=rows, folder=f"{folder}/run")
    return 100 * outcome.metrics["error"]


def measured(of: tuple[str, str, int, int]) -> tuple[tuple[str, str, int, int], float]:
    """Measures one cell of the table with one seed, in a process of its own."""
    name, recipe, workers, seed = of
    torch.set_num_threads(1)
    task = task_of(name)
    if recipe == "plain" and task.dbn is None:
        return of, plain(task, seed)
    return of, trained(task, DEFAULT if recipe == "plain" else recipe, workers, seed)


def show_sorted(recipes: list[str], seed: int = 0) -> None:
    """Prints the test error of each recipe on rows in any order, and sorted by label."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # the tasks import the network from here
    engine = SparkEngine(spark := spark_session(PARTITIONS, name="defaults"))
    task = table(SORTED_ROWS, 10_000)
    features, labels = task.train
    orders = np.arange(SORTED_ROWS), np.argsort(labels, kind="stable")

    def error(recipe: str, order: np.ndarray, shuffle: str | bool = "auto") -> tuple[float, bool]:
        events: list[Event] = []
        parts = [(features[n], labels[n]) for n in np.array_split(order, PARTITIONS)]
        data = FrameData(frame=frame_of(spark, parts), features="features", label="label")
        has_start = recipe in RECIPES and RECIPES[recipe].build().gradients_until == "auto"
        named = f"{recipe}{UNTIL}0.75" if has_start else recipe
        job = job_of(task, named, PARTITIONS, seed, shuffle=shuffle)
        with tempfile.TemporaryDirectory() as folder:
            rows, callbacks = TestRows(*task.test), (events.append,)
            place = f"{folder}/run"
            outcome = train(job, data, test=rows, folder=place, callbacks=callbacks, engine=engine)
        ended = [e for e in events if isinstance(e, PhaseEnded)][-1]
        assert set(ended.passes.values()) == {task.model.epochs}, ended.passes
        is_shuffled = any("redistributed" in e.text for e in events if isinstance(e, Warned))
        return 100 * outcome.metrics["error"], is_shuffled

    print("recipe | any order, error % | sorted | difference | redistributed | sorted, left so")
    print("--- | --- | --- | --- | --- | ---")
    for recipe in recipes:
        (plain, _), (apart, is_shuffled) = (error(recipe, order) for order in orders)
        left, _ = error(recipe, orders[1], shuffle=False)
        cells = f"{apart - plain:+.2f} | {'yes' if is_shuffled else 'no'}"
        print(f"{recipe} | {plain:.2f} | {apart:.2f} | {cells} | {left:.2f}", flush=True)
    spark.stop()


def show(cells: dict[tuple[str, str, int, int], float], seeds: int) -> None:
    """Prints the medians, and the paired differences from the plain loop with their interval."""
    names = sorted({name for name, *_ in cells})
    for name in names:
        alone = [cells[name, "plain", 1, seed] for seed in range(seeds)]
        print(f"\n{name}: plain loop {statistics.median(alone):.2f} %, by seed {alone}")
        print(f"| {'recipe':16} | workers | error % | difference (95 %) |")
        shown = {(r, k) for n, r, k, _ in cells if n == name and r != "plain"}
        for recipe, workers in sorted(shown):
            errors = [cells[name, recipe, workers, seed] for seed in range(seeds)]
            apart = np.subtract(errors, alone)
            quantile = STUDENT.get(seeds, float("nan"))
            wide = quantile * apart.std(ddof=1) / seeds**0.5 if seeds > 1 else float("nan")
            middle = float(np.median(apart))
            print(
                f"| {recipe:16} | {workers:7} | {statistics.median(errors):7.2f} "
                f"| {middle:+.2f} ({apart.mean() - wide:+.2f} to {apart.mean() + wide:+.2f}) |"
            )


def main() -> None:
    """Measures and prints the table."""
    begin("--workers", "3", "--seeds", "1", "--data", "small", "--recipes", "averaging")
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--workers", default="1,3,7,16")
    reader.add_argument("--seeds", type=int, default=5)
    reader.add_argument("--data", default="images,mnist,table")
    reader.add_argument("--recipes", default=",".join([DEFAULT, *RECIPES]))
    reader.add_argument("--jobs", type=int, default=2)
    reader.add_argument("--out", type=Path, help="cells in this file are not measured again")
    reader.add_argument("--sorted", action="store_true")
    options: Any = reader.parse_args()
    if options.sorted:
        return show_sorted(options.recipes.split(","))
    todo = [
        (name, recipe, int(workers), seed)
        for seed in range(options.seeds)
        for name in options.data.split(",")
        for recipe in options.recipes.split(",")
        for workers in options.workers.split(",")
        if recipe not in AS_PUBLISHED
    ]
    todo += [(n, "plain", 1, seed) for n, seed in {(n, s) for n, _, _, s in todo}]
    cells = {}
    if options.out and options.out.exists():
        cells = {tuple(key): value for *key, value in json.loads(options.out.read_text())}
    with ProcessPoolExecutor(options.jobs) as pool:
        for cell, error in pool.map(measured, [cell for cell in todo if cell not in cells]):
            cells[cell] = error
            if options.out:
                saved = [[*key, value] for key, value in cells.items()]
                options.out.write_text(json.dumps(saved))
    show({cell: cells[cell] for cell in todo}, options.seeds)


if __name__ == "__main__":
    main()
