"""Item vectors of few baskets: what more passes over them teach.

    python benchmarks/short_baskets.py [--baskets 20000 100000] [--epochs 5 0 60] [--items 2000]
        [--seeds 0]

Items lie in groups of 20, and few of them are frequent. A basket has up to eight items, most of
them of two groups. Told is the share of the ten items nearest to each that are of its group, by the
settings of `Item2Vec` with 50 numbers in one process; 0 epochs: as many as it has by default.
"""

import argparse
import collections
from argparse import Namespace

import numpy as np
from machine import begin
from word2vec import trained

from photinus.embeddings.blocks import usual_passes

GROUP, OWN, MOST_ITEMS = 20, 0.7, 9


def baskets_of(items, count, chance):
    """Returns baskets of items, and the group of each item."""
    groups = np.arange(items) // GROUP
    frequency = chance.permutation(1 / np.arange(1, items + 1) ** 0.8)
    members = frequency.reshape(-1, GROUP)
    members = np.cumsum(members / members.sum(1, keepdims=True), 1)
    anywhere = np.cumsum(frequency / frequency.sum())
    baskets = []
    for _ in range(count):
        size = chance.integers(2, MOST_ITEMS)
        own = chance.integers(0, len(members), 2)[chance.integers(0, 2, size)]
        draws, is_own = chance.random(size), chance.random(size) < OWN
        picked = [
            group * GROUP + int(np.searchsorted(members[group], draw))
            if stays
            else int(np.searchsorted(anywhere, draw))
            for group, draw, stays in zip(own, draws, is_own, strict=True)
        ]
        baskets.append([str(min(item, items - 1)) for item in dict.fromkeys(picked)])
    return baskets, groups


def purity(vectors, groups):
    """Returns the share of the ten nearest to each that are of its group."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)  # not itself
    nearest = np.argpartition(-cosines, 10, axis=1)[:, :10]
    return (groups[nearest] == groups[:, None]).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baskets", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--epochs", type=float, nargs="+", default=[5, 0, 60])
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    settings = {"window": 1000, "contexts_per_step": 2, "sample": 0.0}
    for count in options.baskets:
        baskets, groups = baskets_of(options.items, count, np.random.default_rng(0))
        occurrences = collections.Counter(item for basket in baskets for item in basket)
        items = [item for item, n in occurrences.most_common() if n >= 5]
        index = {item: number for number, item in enumerate(items)}
        counts = np.array([occurrences[item] for item in items])
        text = [[item for item in basket if item in index] for basket in baskets], index, counts
        for epochs in options.epochs:
            how = Namespace(dims=[50], epochs=epochs, round_words=0)
            shares = [
                purity(trained(text, how, 1, seed=seed, **settings)[0], groups[[*map(int, items)]])
                for seed in options.seeds
            ]
            print(
                f"{count:,} baskets, {counts.mean():.0f} occurrences of an item, "
                f"{epochs or usual_passes(counts):.3g} passes: "
                f"of its group {', '.join(f'{100 * share:.1f} %' for share in shares)}",
                flush=True,
            )


if __name__ == "__main__":
    begin("--baskets", "500", "--epochs", "1", "--items", "60")
    main()
