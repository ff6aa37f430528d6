"""Small tables with nothing set but the model: the usual number of passes, beside a plain loop.

    python benchmarks/small_tables.py [--tables iris wine breast_cancer digits] [--workers 1 4 16]
        [--epochs 0 1 10] [--seeds 0 1 2] [--dbn]

The tables are those of scikit-learn, of whose rows 30 % are set aside. Told are the test errors (%)
of a network of 64 hidden units by a plain loop of AdamW with as many passes at a rate of .001, and
of jobs with so many workers in the simulator; 0 epochs: nothing is set. With --dbn a deep belief
network of 64 and 64 units learns the digits instead, with nothing set, and with 20 passes a layer
and 60 of fine-tuning.
"""

import argparse
import tempfile
from types import SimpleNamespace

import numpy as np
import torch
from machine import begin
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

import photinus as ph


def net(features, classes):
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))


def rows_of(name, seed, scale=StandardScaler):
    """Returns the rows to train on, and those to measure on."""
    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        features, labels.astype(np.int64), test_size=0.3, random_state=seed, stratify=labels
    )
    scaler = scale().fit(x)
    x, x_test = (scaler.transform(part).astype(np.float32) for part in (x, x_test))
    return SimpleNamespace(train=(x, y), test=(x_test, y_test), sizes=(x.shape[1], y.max() + 1))


def plain_error(table, passes, batch, seed):
    """Returns the test error of a loop in plain PyTorch."""
    torch.manual_seed(seed)
    module = net(*map(int, table.sizes))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.001)
    x, y = map(torch.from_numpy, table.train)
    for _ in range(int(passes)):
        for at in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[at]), y[at]).backward()
            optimizer.step()
    x_test, y_test = map(torch.from_numpy, table.test)
    return (module(x_test).argmax(1) != y_test).float().mean().item()


def error(table, model, workers, seed):
    """Returns the test error of a job."""
    job = ph.Job(model=model, workers=workers, engine="simulate", seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        outcome = ph.train(job, table.train, test=table.test, folder=f"{folder}/run", verbose=False)
    return outcome.metrics["error"]


def belief_networks(options):
    """Prints the errors of deep belief networks."""
    few = {"pretraining": ph.Pretraining(epochs=20), "fine_tuning": ph.FineTuning(epochs=60)}
    tables = [rows_of("digits", seed, lambda: MinMaxScaler(clip=True)) for seed in options.seeds]
    for name, settings in {"nothing set": {}, "20 and 60 passes": few}.items():
        model = ph.DBN(inputs=64, hidden=(64, 64), classes=10, precision="float32", **settings)
        for workers in options.workers:
            errors = [
                error(table, model, workers, seed)
                for table, seed in zip(tables, options.seeds, strict=True)
            ]
            print(f"digits, {name}, {workers} workers: {100 * np.mean(errors):.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", nargs="+", default=["iris", "wine", "breast_cancer", "digits"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--epochs", type=float, nargs="+", default=[0, 1, 10])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dbn", action="store_true")
    options = parser.parse_args()
    if options.dbn:
        belief_networks(options)
        return
    for name in options.tables:
        tables = [rows_of(name, seed) for seed in options.seeds]
        rows = len(tables[0].train[0])
        arguments = dict(zip(("features", "classes"), map(int, tables[0].sizes), strict=True))
        for epochs in options.epochs:
            model = ph.ModuleConfig(
                module="small_tables:net", arguments=arguments, epochs=epochs or None
            )
            passes = model.passes(rows)
            ways = {
                "plain loop": [
                    plain_error(table, passes, model.batch_size, seed)
                    for table, seed in zip(tables, options.seeds, strict=True)
                ]
            }
            for workers in options.workers:
                ways[f"{workers} workers"] = [
                    error(table, model, workers, seed)
                    for table, seed in zip(tables, options.seeds, strict=True)
                ]
            errors = ", ".join(f"{way} {100 * np.mean(all_):.1f}" for way, all_ in ways.items())
            print(f"{name}, {rows:,} rows, {passes:g} passes: {errors}", flush=True)


if __name__ == "__main__":
    begin("--tables", "iris", "--workers", "2", "--epochs", "1", "--seeds", "0")
    main()
