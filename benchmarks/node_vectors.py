"""Node vectors beside gensim on the same walks: the AUC of links that nobody walked over.

    python benchmarks/node_vectors.py [--nodes 1000000] [--degree 12] [--length 20] [--walks 1]
        [--epochs 1] [--dims 32] [--rate 0.2] [--together 2 0]

The graph is generated: nodes lie in groups of 50, and four of five edges stay within a group. One
edge in fifty is held out. The AUC is the chance that a held-out edge has a higher cosine than a
pair of nodes drawn at random. The purity is the share of the ten nodes nearest to a node that are
of its group (up to 20,000 nodes). All learn from the same walks, window 10, in one thread;
photinus with so many contexts of a centre at once (`contextsPerStep`; 0: all).
"""

import argparse
import functools
import time

import numpy as np
from gensim.models import Word2Vec
from machine import begin

from photinus.data.base import Batch
from photinus.embeddings.blocks import blocks
from photinus.embeddings.walks import END, Bias, graph_of, walks
from photinus.embeddings.word2vec import Word2VecConfig

GROUP, WITHIN, HELD_OUT, WINDOW, STEP_ROWS = 50, 0.8, 0.02, 10, 8


def generated(nodes, degree, chance):
    """Returns the edges that are walked over, and those that are held out [2, e] each."""
    sources = np.repeat(np.arange(nodes), degree // 2)
    near = sources // GROUP * GROUP + chance.integers(0, GROUP, len(sources))
    anywhere = chance.integers(0, nodes, len(sources))
    is_near = (chance.random(len(sources)) < WITHIN) & (near < nodes)
    edges = np.stack([sources, np.where(is_near, near, anywhere)])
    edges = edges[:, edges[0] != edges[1]]
    is_test = chance.random(edges.shape[1]) < HELD_OUT
    return edges[:, ~is_test], edges[:, is_test]


def auc(vectors, links, chance):
    negatives = chance.integers(0, len(vectors), links.shape)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    near, far = ((unit[a] * unit[b]).sum(axis=1) for a, b in (links, negatives))
    below = np.searchsorted(np.sort(far), near)
    return below.mean() / len(far)


def purity(vectors):
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    groups, own = np.arange(len(unit)) // GROUP, 0
    for start in range(0, len(unit), 1000):
        near = unit[start : start + 1000] @ unit.T
        near[np.arange(len(near)), np.arange(start, start + len(near))] = -2  # not itself
        nearest = np.argpartition(-near, 10, axis=1)[:, :10]
        own += (groups[nearest] == groups[start : start + len(near), None]).sum()
    return own / (10 * len(unit))


def gensims(paths, counts, dims, epochs, rate):
    settings = {"negative": 5, "window": WINDOW, "sample": 0, "min_count": 1, "workers": 1}
    model = Word2Vec(vector_size=dims, sg=1, seed=1, alpha=rate, **settings)
    model.build_vocab_from_freq({str(node): int(n) for node, n in enumerate(counts)})
    names = [str(node) for node in range(len(counts))]
    texts = [[names[node] for node in path if node != END] for path in paths.tolist()]
    began = time.process_time()
    model.train(texts, total_examples=len(texts), epochs=epochs)
    seconds = time.process_time() - began
    return model.wv.vectors[
        [model.wv.key_to_index[str(node)] for node in range(len(counts))]
    ], seconds


def ours(paths, counts, dims, epochs, rate, together=2):
    ended = np.concatenate([paths, np.full((len(paths), 1), END, np.int32)], axis=1)
    rows = np.concatenate(list(blocks(iter([ended.reshape(-1)]), 1000)))
    config = Word2VecConfig(
        words=len(counts),
        dims=dims,
        window=WINDOW,
        contexts_per_step=together,
        sample=0.0,
        lr=rate,
    )
    model, inner = config.build((), 1), config.inner(None)
    model.parameters.view("counts")[:] = counts
    inner.descend(model, Batch(rows[:1], None), 0, 0.0)  # compiled, and its draws prepared
    began, steps = time.process_time(), np.arange(0, epochs * len(rows), STEP_ROWS)
    for start in steps:
        some = rows[np.arange(start, min(start + STEP_ROWS, epochs * len(rows))) % len(rows)]
        inner.descend(model, Batch(some, None), int(start), start / (epochs * len(rows)))
    return model.parameters.view("inputs"), time.process_time() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=int, default=12)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--walks", type=int, default=1, help="from each node")
    parser.add_argument("--together", type=int, nargs="+", default=[2, 0], help="contexts")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dims", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.2, help="at the start")
    options = parser.parse_args()
    nodes, chance = options.nodes, np.random.default_rng(0)
    edges, links = generated(nodes, options.degree, chance)
    graph = graph_of(nodes, np.concatenate(edges), np.concatenate(edges[::-1]))
    starts = np.concatenate([chance.permutation(nodes) for _ in range(options.walks)])
    paths = walks(graph, starts, options.length, Bias(1.0, 1.0), chance)
    counts = np.bincount(paths[paths != END], minlength=nodes)
    sizes = f"{nodes} nodes, {len(graph.keys)} edges, {counts.sum()} nodes in walks"
    print(f"{sizes}, {links.shape[1]} links held out, {options.dims} dims", flush=True)
    ways = {
        f"photinus, {count or 'all'} contexts": functools.partial(ours, together=count)
        for count in options.together
    }
    for name, train in {**ways, "gensim": gensims}.items():
        vectors, seconds = train(paths, counts, options.dims, options.epochs, options.rate)
        area = auc(vectors, links, np.random.default_rng(1))
        pure = f"purity {purity(vectors):.3f}, " if nodes <= 20_000 else ""
        print(f"{name}: AUC {area:.4f}, {pure}{seconds:.1f} CPU seconds", flush=True)


if __name__ == "__main__":
    begin("--nodes", "20000", "--length", "10")
    main()
