"""The words of the report, each with its meaning; the page ends with them."""

from __future__ import annotations

from collections.abc import Mapping

WORDS = (
    ("step", "one mini-batch on one worker"),
    ("round", "one synchronisation of the workers: they agree on the parameters"),
    ("epoch, pass", "every row was used once"),
    (
        "phase",
        "a part of the job with one model and one way to agree: a layer, or its start by gradients",
    ),
    ("examples", "rows that were trained on; a row counts once in each epoch"),
    ("term", "a start of the run: each resume begins another one"),
    ("strategy", "how the workers agree: when, on what, and how it is merged"),
    ("merge", "the weights of a mean: uniform, by examples, or nova, by each worker's steps"),
    (
        "sgd, nesterov (lr, momentum)",
        "outer optimizers with their learning rate: how the mean moves the agreed parameters",
    ),
    ("one by one, exponential", "a worker sends to one other each time, in distances of 1, 2, 4"),
    ("fp32, bf16, int8, int4", "the numbers that vectors are sent in, of 32, 16, 8 or 4 bits"),
    ("quorum", "the share of the workers that a round waits for"),
    ("fragments", "parts of the parameters that are sent in turn"),
    ("fetch", "how often a worker takes the agreed parameters from the driver"),
    ("staleness", "what is done with a push if others moved the parameters meanwhile, or none"),
    (
        "alpha",
        "elastic: how strong its pull is; streaming: the share that a worker keeps of its own",
    ),
    ("exact", "a mean of all workers, after which they hold the same parameters"),
    ("by gradients", "the workers agree on the mean gradient of each step, as one process would"),
    ("push", "what a worker sends to the others: a gradient, or how far its parameters moved"),
    ("waits", "the share of its time that a worker waited for the others"),
    ("up, sent", "bytes from the workers; down, received: bytes to the workers"),
    ("applied", "pushes that moved the agreed parameters, each exactly once"),
    ("duplicate", "a push that arrived again, after an interrupted connection; it counted once"),
    ("fenced", "a push of a worker whose place another one had taken; it did not count"),
    ("dropped, refused", "a push that was not applied: its values were not finite, or too old"),
    (
        "missed",
        "a push for a round that was over; its worker keeps what it learnt, and sends it again",
    ),
    ("gap", "a push whose number did not follow on the one before; it is sent again, in order"),
    ("lost", "how often a worker stopped or was cut off; it came back, or its place was taken"),
    ("why", "in the table of workers: the reason of the worker's last loss"),
    ("left out", "the others continued without a worker: it was too late, or could not be reached"),
    ("lease", "the right of one worker to one place; a new lease ends the old one"),
    ("heal", "to bring a new or late worker to the agreed parameters"),
    ("checkpoint", "the whole state of the run in a folder, from which it can be resumed"),
    (
        "confusion",
        "a table of the test rows: a line is their true class, a column the class that the model "
        "said; mistakes are beside the diagonal",
    ),
    ("95 %", "in brackets: where the true error lies, with a probability of 95 %"),
)
"""The words of the page, explained at its end."""

SETTINGS: Mapping[str, str] = {
    "accumulate": "parts in which a worker computes its rows of a step, to save memory",
    "activation_bytes": "the memory that activations may take",
    "activation_memory": "whether activations are kept, computed again, or moved away",
    "arguments": "of the function that makes the module",
    "average": "of a moving average of the parameters, the share that stays in a step; 0: none",
    "bandwidth": "bytes that a worker may send in a second",
    "batch_size": "examples of one step of all workers together",
    "cd_steps": "Gibbs steps of contrastive divergence",
    "checkpoint_seconds": "between two checkpoints",
    "clip": "the most that the length of a gradient may be; 0: any",
    "collate": "a function that makes batches of rows",
    "contexts_per_step": "contexts of a word that take a step together; 0: all",
    "cpu_share": "processors that a worker may use on average",
    "cuda_graph": "whether a step on a CUDA device is recorded once, and repeated",
    "decays": "what weight decay acts on: weights (of two dimensions and more), or all",
    "deviation": "of the first weights, which are drawn from a normal distribution",
    "dtype": "the numbers that parameters are kept in",
    "example": "the shape of one row",
    "frozen": "parameters that are not trained",
    "gain": "safe: an outer gain at which training diverges is lowered; unsafe: it is not",
    "gradients_until": "the share of a model's training that agrees on the gradient of every step",
    "is_shared": "every worker reads all rows, and takes its share of each batch",
    "jobs_folder": "where runs of one machine or cluster see each other, to share its seats",
    "kind": "which model it is",
    "l2": "penalties on the squares of parameters",
    "lease_seconds": "after which a silent worker is lost; none: 5, or by a folder 60",
    "lr": "learning rate; of points, (progress from 0 to 1, rate)",
    "lr_scale": "how the learning rate follows the batch size",
    "max_steps": "steps after which training ends; 0: by epochs",
    "memory": "of a model: the order of an image's numbers; of a job: bytes of a worker's process",
    "most_corrupt": "the share of files that may be damaged, and are left out",
    "outer": "the optimizer that applies the merged pushes",
    "patience": "measurements without a better one after which a phase ends; 0: it does not",
    "per_tensor": "the optimizer is given each tensor in its shape",
    "precision": "the numbers that products and convolutions are computed in",
    "priority": "runs of higher priority are given the seats of lower ones",
    "reads": "a function that makes what the module reads, such as augmentation",
    "transport": "how messages travel: sockets, a folder that all see, torch or nccl",
    "seed": "decides first parameters, the order of the rows, and all draws",
    "settings": "of the optimizer",
    "sharded": "numbers in a row of sharded tables",
    "share": "rows: a worker trains on its own rows; fastest: a faster worker trains on more",
    "shuffle": "rows are redistributed before training, where workers' rows differ",
    "side": "pixels to which images are scaled",
    "start": "what training continues from",
    "threads": "with which a worker computes",
    "validation": "the share of the rows that is set aside, to measure on",
    "weight": "a column that says how much a row counts; of a job: its part of the seats",
}
"""Settings whose names do not say what they are, by the last part of their names."""


def words_for(settings: list[str]) -> list[tuple[str, str]]:
    """Returns all words, and those of the settings that a run has.

    Args:
        settings: their names, with dots.
    """
    used = {name.rpartition(".")[2] for name in settings}
    return [*WORDS, *((name, meaning) for name, meaning in SETTINGS.items() if name in used)]
