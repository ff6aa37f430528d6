"""Images per second of training TensorFlow's CIFAR-10 tutorial network: plain PyTorch and ours.

    python benchmarks/cnn.py [CIFAR10] [--batch 128] [--steps 6] [--repeats 5]

One thread. The plain way is what one writes first: contiguous float32, torch's LocalResponseNorm,
images that were cut and whitened before. Ours cuts, mirrors and whitens each batch as it trains;
the share of the time in which the network waits for that is printed. All variants take turns, so
that a busy minute hits all; seconds are the CPU's. The ratio is the median over the rounds.
"""

import argparse
import os
import statistics
import time
from collections import OrderedDict
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from machine import begin
from torch import nn

from photinus.data import cifar
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.rows import Rows
from photinus.models.images import crops
from photinus.run.presets import preset


def plain_net():
    """The tutorial's layers in its own order, with what torch has."""

    def norm():
        return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 64, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
            norm1=norm(),
            conv2=nn.Conv2d(64, 64, 5, padding=2),
            relu2=nn.ReLU(),
            norm2=norm(),
            pool2=nn.MaxPool2d(3, 2, ceil_mode=True),
            flat=nn.Flatten(),
            local3=nn.Linear(2304, 384),
            relu3=nn.ReLU(),
            local4=nn.Linear(384, 192),
            relu4=nn.ReLU(),
            softmax_linear=nn.Linear(192, 10),
        )
    )


class Plain:
    """A training loop without photinus."""

    def __init__(self, feed):
        self.net = plain_net()
        decayed = [self.net.local3.weight, self.net.local4.weight]
        rest = [p for p in self.net.parameters() if all(p is not d for d in decayed)]
        groups = [{"params": decayed, "weight_decay": 0.004}, {"params": rest}]
        self.optimizer = torch.optim.SGD(groups, lr=0.01)
        batch = next(iter(feed))
        self.x = torch.from_numpy(crops(batch.features, batch.draws))
        self.y = torch.from_numpy(batch.labels)
        self.waited = 0.0

    def step(self):
        """Trains on the same batch again and again."""
        loss = nn.functional.cross_entropy(self.net(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Ours:
    """The loop's own parts: feed, model, inner optimizer; the time until the network starts."""

    def __init__(self, feed, config):
        self.feed, self.config = iter(feed), config
        self.model = config.build((), 0)
        self.inner = config.inner(self.model.parameters.layout)
        self.waited = 0.0
        read = self.model._read

        def timed(*arguments):
            start = time.process_time()
            x = read(*arguments)
            self.waited += time.process_time() - start
            return x

        self.model._read = timed

    def step(self):
        """Trains on the feed's next batch."""
        start = time.process_time()
        batch = next(self.feed)
        self.waited += time.process_time() - start
        gradient, _ = self.model.learn(batch, 0)
        self.inner.step(self.model.parameters.trained, gradient, 0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar10", nargs="?", help="a folder with CIFAR-10; else noise")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    rows, config = pictures(settings.cifar10), preset("cifar10", 1).model

    def feed():
        return PartitionFeed(rows, FeedOrder(batch_size=settings.batch))

    def ours(memory, precision):
        return Ours(feed(), replace(config, memory=memory, precision=precision))

    ways = {
        "plain PyTorch": Plain(feed()),
        "one-pass LRN": ours("contiguous", "float32"),
        "and channels_last": ours("channels_last", "float32"),
        "and bfloat16": ours("channels_last", "bfloat16"),
    }
    chosen = config.resolved()
    print(f"torch {torch.__version__}, one thread, batch {settings.batch},", end=" ")
    print(f"load {os.getloadavg()[0]:.1f}; chosen here: {chosen.memory}, {chosen.precision}")
    take_turns(ways, settings)


def pictures(folder):
    if folder:
        images, labels = cifar.load(folder)
    else:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (5000, 3072)).astype(np.uint8)
        labels = rng.integers(0, 10, 5000)
    return Rows.of(images, labels.astype(np.int64))


def take_turns(ways, settings):
    rates = {name: [] for name in ways}
    idle = {name: [] for name in ways}
    for repeat in range(settings.repeats + 1):
        for name, way in ways.items():
            way.waited, start = 0.0, time.process_time()
            for _ in range(settings.steps):
                way.step()
            spent = time.process_time() - start
            if repeat:
                rates[name].append(settings.batch * settings.steps / spent)
                idle[name].append(way.waited / spent)
    print(f"{'':>18} {'images/s':>9} {'ratio':>6} {'waits for images':>17}")
    for name, speeds in rates.items():
        pairs = zip(speeds, rates["plain PyTorch"], strict=True)
        ratio = statistics.median(first / second for first, second in pairs)
        waits = f"{statistics.median(idle[name]):17.1%}" if name != "plain PyTorch" else ""
        print(f"{name:>18} {statistics.median(speeds):9,.0f} {ratio:6.2f} {waits}")


if __name__ == "__main__":
    begin("--batch", "8", "--steps", "1", "--repeats", "1")
    main()
