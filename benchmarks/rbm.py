"""Images per second of CD-1 on MNIST, 784 x 500: scikit-learn, float32, bfloat16, in one run.

    python benchmarks/rbm.py [MNIST] [--images 20000] [--repeats 3]

One thread; seconds are its CPU's, so that other load on the machine counts little. The error is
that of the mean field's reconstruction of 2,000 other images after one pass. The peak is the best
rate of three matrix products, measured in the same run.
"""

import argparse
import os
import statistics
import time
import warnings
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from machine import begin
from sklearn.neural_network import BernoulliRBM

from photinus.core.seeds import derive
from photinus.data import mnist
from photinus.models.matmul import choose, gigaflops
from photinus.models.optimizers import Momentum
from photinus.models.rbm import RBM, ContrastiveDivergence, first_parameters
from photinus.models.schedules import Schedule

V, H, RATE = 784, 500, 0.05
FLOP_PER_IMAGE = 2 * V * H * 5  # up, down, up, and the two statistics


def ours(images, batch_size, products):
    rbm = RBM(first_parameters(V, H, 1, 0.01), ContrastiveDivergence(products=products))
    steady, still = Schedule.constant(RATE), Schedule.constant(0.0)
    inner = Momentum(rbm.parameters.layout, steady, still)
    start = time.process_time()
    for number, low in enumerate(range(0, len(images), batch_size)):
        batch = SimpleNamespace(features=images[low : low + batch_size])
        gradient, _ = rbm.learn(batch, derive(1, number))
        inner.step(rbm.parameters.trained, gradient, 0.0)
    return len(images) / (time.process_time() - start), rbm


def sklearns(images, batch_size):
    theirs = BernoulliRBM(
        n_components=H, learning_rate=RATE, batch_size=batch_size, n_iter=1, random_state=0
    )
    start = time.process_time()
    theirs.fit(images)
    rate = len(images) / (time.process_time() - start)
    rbm = RBM(first_parameters(V, H, 1))
    rbm.parameters.view("W")[...] = theirs.components_.T
    rbm.parameters.view("a")[...] = theirs.intercept_visible_
    rbm.parameters.view("b")[...] = theirs.intercept_hidden_
    return rate, rbm


def error(rbm, images):
    return rbm.measure(SimpleNamespace(features=images))["reconstruction"] / len(images)


def peak(products):
    shapes = [(1000, V, H), (1000, H, 2000), (2048, 2048, 2048)]
    return max(gigaflops(products, shape, seconds=0.5) for shape in shapes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mnist", nargs="?", help="a folder or file with MNIST; else downloaded")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    pixels = mnist.load(settings.mnist).train_images
    images = pixels.reshape(len(pixels), V).astype(np.float32) / 255
    held_out, images = images[-2000:], images[: settings.images]
    single = choose([(100, V, H)])
    peaks = {products: peak(products) for products in (single, "bfloat16")}
    print(
        f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}, peaks in GFLOP/s:"
    )
    print("  " + ", ".join(f"{name} {rate:.0f}" for name, rate in peaks.items()))
    print(f"{'batch':>6} {'':>14} {'images/s':>9} {'ratio':>6} {'of peak':>8} {'error':>7}")
    warnings.simplefilter("ignore")
    for batch_size in (10, 100, 1000):
        part = images[: min(len(images), 400 * batch_size)]
        runs = {
            "scikit-learn": lambda b=batch_size, p=part: sklearns(p, b),
            f"float32 {single}": lambda b=batch_size, p=part: ours(p, b, single),
            "bfloat16": lambda b=batch_size, p=part: ours(p, b, "bfloat16"),
        }
        rates = {name: [] for name in runs}
        last = {}
        for _ in range(settings.repeats):  # in turn, so that a busy minute hits all three
            for name, run in runs.items():
                rate, last[name] = run()
                rates[name].append(rate)
        base = statistics.median(rates["scikit-learn"])
        for name in runs:
            rate = statistics.median(rates[name])
            top = peaks[single if name.startswith("float32") else "bfloat16"]
            share = (
                f"{rate * FLOP_PER_IMAGE / 1e9 / top:8.0%}" if name != "scikit-learn" else " " * 8
            )
            print(
                f"{batch_size:6d} {name:>14} {rate:9,.0f} {rate / base:6.2f} {share}"
                f" {error(last[name], held_out):7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    begin("--images", "2000", "--repeats", "1")
    main()
