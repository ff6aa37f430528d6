"""Test error by tokens of a tagger: a plain loop, and jobs of several workers with six passes.

Usage: python benchmarks/token_labels.py [--small] [--workers 1,4,16] [--rows 4000] [--tested 1000]
    [--epochs 6] [--seeds 3]

Sentences of 3 to 20 words are generated. A word's class follows from it and from the one before it,
and a tenth of the classes are drawn: an error of 7.5 % is the best there is. The net is a GRU in
both directions. The loop takes rows as they come and pads each batch to its longest row.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from machine import begin
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.job import Job, Source
from photinus.run.train import train

WORDS, CLASSES, BATCH, NONE = 60, 4, 32, -100
Rows = tuple[list[Any], list[Any]]
"""Words and classes: of each row an array [T]."""


class Tagger(nn.Module):
    """One number for each class of each word: words int64 [B, T] to [B, T, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.memory = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.memory(self.table(words))[0])
        return scores


def sentences(rows: int, seed: int) -> Rows:
    """Returns rows of words and of their classes."""
    rng = np.random.default_rng(seed)
    words = [rng.integers(0, WORDS, rng.integers(3, 21)) for _ in range(rows)]
    classes = []
    for row in words:
        right = (row + np.roll(row, 1) // 7) % CLASSES
        drawn = rng.integers(0, CLASSES, len(row))
        classes.append(np.where(rng.random(len(row)) < 0.1, drawn, right))
    return words, classes


def plain_error(data: Rows, test: Rows, epochs: int, seed: int) -> float:
    """Returns the test error (%) after a loop of torch alone, by AdamW at the usual rate."""
    torch.manual_seed(seed)
    net, rng = Tagger(), np.random.default_rng(seed)
    optimizer, schedule = torch.optim.AdamW(net.parameters()), Schedule.usual(1e-3)
    words, classes = ([torch.from_numpy(row) for row in rows] for rows in data)
    order = np.concatenate([rng.permutation(len(words)) for _ in range(epochs)])
    batches = np.split(order, range(BATCH, len(order), BATCH))
    for step, some in enumerate(batches):
        optimizer.param_groups[0]["lr"] = schedule.at(step / len(batches))
        scores = net(pad_sequence([words[i] for i in some], batch_first=True))
        targets = pad_sequence([classes[i] for i in some], batch_first=True, padding_value=NONE)
        optimizer.zero_grad()
        cross_entropy(scores.transpose(1, 2), targets).backward()
        optimizer.step()
    wrong = [
        (net(torch.from_numpy(row)[None])[0].argmax(1).numpy() != truth)
        for row, truth in zip(*test, strict=True)
    ]
    return 100 * float(np.concatenate(wrong).mean())


def error_of_workers(data: Rows, test: Rows, epochs: int, seed: int, workers: int) -> float:
    """Returns the test error (%) of a job without further settings."""
    model = ModuleConfig(
        module="token_labels:Tagger", loss="token_cross_entropy", epochs=float(epochs)
    )
    source = Source(name="given")
    job = Job(model=model, data=source, workers=workers, seed=seed, engine="simulate")
    with tempfile.TemporaryDirectory() as place:
        rows = [({"words": words}, classes) for words, classes in (data, test)]
        outcome = train(job, rows[0], test=rows[1], folder=f"{place}/run")
    return 100 * float(outcome.metrics["error"])


def main() -> None:
    """Prints a line for the loop, and one for each number of workers."""
    begin("--workers", "2", "--rows", "200", "--tested", "50", "--epochs", "1", "--seeds", "1")
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--workers", default="1,4,16")
    reader.add_argument("--rows", type=int, default=4000)
    reader.add_argument("--tested", type=int, default=1000)
    reader.add_argument("--epochs", type=int, default=6)
    reader.add_argument("--seeds", type=int, default=3)
    options = reader.parse_args()
    torch.set_num_threads(1)
    data, test = sentences(options.rows, 0), sentences(options.tested, 1)
    seeds = range(options.seeds)
    errors = [round(plain_error(data, test, options.epochs, seed), 2) for seed in seeds]
    print(f"a plain loop: {np.median(errors):.2f} % {errors}", flush=True)
    for workers in map(int, options.workers.split(",")):
        errors = [
            round(error_of_workers(data, test, options.epochs, seed, workers), 2) for seed in seeds
        ]
        print(f"workers {workers}: {np.median(errors):.2f} % {errors}", flush=True)


if __name__ == "__main__":
    main()
