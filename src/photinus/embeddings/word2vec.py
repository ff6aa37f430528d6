"""word2vec as a model of a job: two tables, and steps in place on the rows that a text touches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from photinus.core.errors import NotReadyError, UsageError
from photinus.core.malloc import release_freed_memory
from photinus.core.pages import Pages
from photinus.core.parameters import INTEGERS, TRAINED, Layout, Parameters, Vector
from photinus.core.seeds import generator
from photinus.core.settings import Limit, above, at_least, one_of, validate, whole
from photinus.embeddings import reference
from photinus.embeddings.draws import DrawTables, Subwords
from photinus.embeddings.reference import Rule, Tables
from photinus.embeddings.subwords import compose_vectors
from photinus.embeddings.vocabulary import NO_GRAMS, draw_tables, gains
from photinus.models.base import BatchLike, Model, ModelConfig
from photinus.models.optimizers import InnerOptimizer, InPlaceOptimizer
from photinus.models.placement import CPU, torch_device

KERNELS = ("numba", "torch", "numpy")
"""Names of the forms of the steps: the fast one, that of other devices, and the plain one."""
_SEED_COUNT = 1 << 48
_DRAWN = 1 << 20
"""How many numbers of a table are drawn at once."""


@dataclass(frozen=True, kw_only=True)
class Word2VecConfig(ModelConfig):
    """Skip-gram or CBOW over rows of text, with negative sampling or hierarchical softmax.

    A row is a piece of text as numbers of words, below 0 between and after sentences.

    Example:
        >>> Word2VecConfig(words=1000, dims=50).build((), seed=0).parameters.trained.size
        100000

    Reference: Mikolov et al., Efficient estimation of word representations in vector space (2013).
    """

    words: int
    """V, how many have a vector."""
    dims: int = 100
    """D, numbers in a vector."""
    window: int = 5
    """Words to each side that a centre is learnt with, at most."""
    negatives: int = 5
    """Words drawn against each centre; 0: hierarchical softmax."""
    cbow: bool = False
    """A centre is predicted from the mean of its context, not each word of it from the centre."""
    contexts_per_step: int = 0
    """Contexts of a centre that take a step together; 0: all of them, which is fastest. Where words
    are few, and each is met often, vectors are better by 2. The kernel "torch" has its own rule."""
    sample: float = 1e-3
    """Words above this share of the text are left out at random; 0: never."""
    lr: float | None = None
    """The learning rate at the start; it falls in a straight line over the whole run. Left out, .05
    for CBOW and .025 for skip-gram, as the authors' word2vec has them."""
    least_lr: float = 1e-4
    """The rate at its end."""
    name: str = "word2vec"
    """Of the phase."""
    epochs: float = 5.0
    """Passes over the text."""
    batch_size: int = 8
    """Rows of one step of all workers together."""
    workers: int = 1
    """K, whose mean is taken."""
    round_words: float = 0.0
    """Words that a worker reads between two rounds; 0: all rows move by plain steps."""
    buckets: int = 0
    """B, rows of inputs that the n-grams of words share; 0: none."""
    grams: int = 0
    """n-grams of all words together; their rows come with the first parameters."""
    kernel: str = "numba"
    """"numba"; "torch", which any other device has: it needs numba, too; or "numpy": the same steps
    as "numba", much slower, where numba is missing."""
    LIMITS = {  # noqa: RUF012
        "words": whole(2),
        "dims": whole(8),
        "window": whole(1),
        "negatives": whole(0),
        "contexts_per_step": whole(0),
        "sample": at_least(0),
        "lr": Limit.optional(above(0)),
        "least_lr": above(0),
        "epochs": above(0),
        "batch_size": whole(1),
        "workers": whole(1),
        "round_words": at_least(0),
        "buckets": whole(0),
        "grams": whole(0),
        "kernel": one_of(*KERNELS),
    }

    def __post_init__(self) -> None:
        validate(self)

    @property
    def takes_gradients(self) -> bool:
        """A batch's steps are taken one after the other, in place."""
        return False

    def build(self, history: tuple[Vector, ...], seed: int) -> WordTables:  # noqa: ARG002
        """Small random inputs, outputs of 0, and counts that come with the first parameters."""
        model = WordTables(self)
        shape = (self.input_rows, self.dims)
        noise = generator(seed, self.name).random(shape, np.float32)
        model.parameters.view("inputs")[...] = (noise - np.float32(0.5)) / np.float32(self.dims)
        return model

    def blank(self, history: tuple[Vector, ...], seed: int) -> WordTables:  # noqa: ARG002
        """All zeros; a row takes memory only when it is used."""
        pages = Pages((self.input_rows + self.words) * self.dims, "float32")
        return WordTables(self, pages.vector, pages)

    def over(self, trained: Vector) -> WordTables:
        """Tables that are read where they lie."""
        return WordTables(self, trained)

    @property
    def input_rows(self) -> int:
        """V + B: a row for each word and for each bucket of n-grams."""
        return self.words + self.buckets

    @property
    def row_size(self) -> int:
        """A vector: what is drawn follows from the text and the seed."""
        return self.dims

    @property
    def rule(self) -> Rule:
        """The settings that decide a step."""
        return Rule(self.window, self.negatives, self.cbow, self.contexts_per_step)

    def preload(self) -> None:
        """Compiles the kernel, or loads it where it was compiled before."""
        if self.kernel == "numba":
            _compiled_kernel(self)

    @property
    def has_numba(self) -> bool:
        """Whether numba draws."""
        return self.kernel != "numpy"

    def inner(self, layout: Layout) -> RowDescent:  # noqa: ARG002
        """Returns the steps in place."""
        return RowDescent(self)


class WordTables(Model):
    """A row for each word as an input, and one as an output; and the words' counts.

    Args:
        config: the settings.
        trained: where both tables lie [n]; None: in memory of their own.
        pages: the owner of that memory, which can return it.
    """

    def __init__(
        self, config: Word2VecConfig, trained: Vector | None = None, pages: Pages | None = None
    ) -> None:
        words, dims, inputs = config.words, config.dims, config.input_rows
        tensors: list[tuple[str, tuple[int, ...], str]]
        tensors = [("inputs", (inputs, dims), TRAINED), ("outputs", (words, dims), TRAINED)]
        tensors.append(("counts", (words,), INTEGERS))
        if config.buckets:
            tensors.append(("gram_starts", (words + 1,), INTEGERS))
            tensors.append(("gram_rows", (config.grams,), INTEGERS))
        layout = Layout.of(tensors, sparse=("inputs", "outputs"))
        self._pages, self._integers = pages, Pages(layout.size(INTEGERS), "int64")
        self.parameters = Parameters(layout, trained, None, self._integers.vector)
        self._marks = np.zeros(inputs + words, np.bool_)
        self._config = config
        self._gains: tuple[Vector, Vector] | None = None

    @cached_property
    def _gradient(self) -> Parameters:
        return Parameters(
            replace(self.parameters.layout, entries=self.parameters.layout.entries[:2])
        )

    @cached_property
    def chances(self) -> DrawTables:
        """What is drawn with these counts."""
        counts, config = self.parameters.view("counts"), self._config
        fill = _kernel().fill_alias_table if config.has_numba else None
        chances = draw_tables(counts, config.sample, config.negatives, self.grams, fill)
        release_freed_memory()
        return chances

    @property
    def grams(self) -> Subwords:
        """The rows of each word's n-grams."""
        view = self.parameters.view
        return (
            Subwords(view("gram_starts"), view("gram_rows")) if self._config.buckets else NO_GRAMS
        )

    @property
    def vectors(self) -> Vector:
        """Of the words [V, D]; a view where there are no n-grams."""
        inputs = self.parameters.view("inputs")
        return compose_vectors(inputs, self.grams) if self._config.buckets else inputs

    @property
    def gains(self) -> tuple[Vector, Vector]:
        """By what the steps of the inputs and of the outputs are multiplied [V + b], [V]."""
        config = self._config
        if self._gains is None and config.workers > 1 and config.round_words:
            counts, chances = self.parameters.view("counts"), self.chances
            round_words = config.round_words
            self._gains = gains(
                counts, chances.keep, config.workers, round_words, config.negatives, chances.grams
            )
            release_freed_memory()
        elif self._gains is None:
            self._gains = (np.ones(config.input_rows, np.float32),) * 2
        return self._gains

    @property
    def tables(self) -> Tables:
        """What is trained, as views, with the gains of its rows."""
        view = self.parameters.view
        return Tables(view("inputs"), view("outputs"), *self.gains)

    def rows(self, batch: BatchLike, seed: int) -> Vector:
        """Returns the inputs and, V + B further on, the outputs that the batch's steps read [r]."""
        texts, config, marks = texts_of(batch.features), self._config, self._marks
        rule = config.rule
        seeds = (seed + np.arange(len(texts))) % _SEED_COUNT
        mark = _kernel().mark if config.has_numba else reference.mark
        mark(texts, self.chances, rule, seeds, *np.split(marks, [config.input_rows]))
        rows = np.flatnonzero(marks)
        marks[rows] = False
        return rows

    def first_rows(self, shard: Vector, slot: int, seed: int, shards: int) -> None:
        """Draws the inputs, some rows at a time, and keeps the worker's own.

        The kernel passes over the rows of others.
        """
        config = self._config
        rng, block_rows = generator(seed, config.name), max(1, _DRAWN // (config.dims * shards))
        inputs, draw_rows = (
            shard[: len(range(slot, config.input_rows, shards))],
            _row_drawer(config),
        )
        for start in range(0, len(inputs), block_rows):
            block, first_row = inputs[start : start + block_rows], start * shards
            if draw_rows is None or not draw_rows(block, rng, first_row + slot, shards):
                count = min(block_rows * shards, config.input_rows - first_row)
                block[...] = rng.random((count, config.dims), np.float32)[slot::shards]
            block -= np.float32(0.5)
            block /= np.float32(config.dims)
        # zeros too: a file that is written here and there lies in pieces, which are slow to free
        shard[len(inputs) :] = 0

    @property
    def device_bytes(self) -> int:
        """None: a device holds the rows of a batch alone."""
        return 0

    def place(self, device: str, inner: InnerOptimizer) -> InnerOptimizer:
        """Returns the steps of a device; the tables stay in the host's memory.

        Raises:
            UsageError: the plain form is asked for.
        """
        if not self._config.has_numba:
            do = 'leave kernel out, or set device="cpu"'
            raise UsageError('kernel="numpy" computes on the processor only', got=device, do=do)
        assert isinstance(inner, RowDescent)
        return RowDescent(self._config, device)

    def forget(self) -> None:
        """Gives the memory of both tables back, and of the counts, once the gains follow from them.

        Rows of n-grams lie beside the counts, which then stay.
        """
        if self._pages is not None:
            self._pages.forget()
            if self._gains is not None and not self._config.buckets:
                self._integers.forget()

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient of the pairs' mean loss; a job takes steps in place instead."""
        config, texts = self._config, texts_of(batch.features)
        rule = config.rule
        self._gradient.trained[...] = 0
        gradients = self._gradient.view("inputs"), self._gradient.view("outputs")
        loss, pairs = 0.0, 0
        for index, text in enumerate(texts):
            examples = reference.centres(text, self.chances, rule, (seed + index) % _SEED_COUNT)
            row_loss, count = reference.add_gradient(
                examples, self.tables, gradients, self.grams, rule
            )
            loss, pairs = loss + row_loss, pairs + count
        self._gradient.trained[...] /= max(1, pairs)
        return self._gradient.trained, {"loss": loss / max(1, pairs)}

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns the sums of rows, and of the mean loss of a pair in them."""
        _, metrics = self.learn(batch, 0)
        rows = float(len(batch.features))
        return {"examples": rows, "loss": metrics["loss"] * rows}


class RowDescent(InPlaceOptimizer):
    """word2vec's own steps: each moves the rows of one centre, its contexts and its negatives.

    Args:
        config: the settings.
        device: where they are computed.
    """

    def __init__(self, config: Word2VecConfig, device: str = CPU) -> None:
        self._config = config
        self._take_steps = _steps_for(config, device)

    def rate(self, progress: float) -> float:
        """Returns the learning rate at a share of the run."""
        config = self._config
        start = (0.05 if config.cbow else 0.025) if config.lr is None else config.lr
        return max(config.least_lr, start - (start - config.least_lr) * progress)

    def descend(
        self, model: Model, batch: BatchLike, seed: int, progress: float
    ) -> Mapping[str, float]:
        """Learns the batch's rows one after the other."""
        assert isinstance(model, WordTables)
        config, texts = self._config, texts_of(batch.features)
        rule = config.rule
        seeds = (seed + np.arange(len(texts))) % _SEED_COUNT
        loss, pairs = self._take_steps(
            texts, model.tables, model.chances, rule, self.rate(progress), seeds
        )
        return {"loss": loss / pairs} if pairs else {}

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        """Takes a plain step by a gradient: θ ← θ − rate·g."""
        trained -= np.float32(self.rate(progress)) * gradient

    def state(self) -> dict[str, Vector]:
        """Nothing is remembered."""
        return {}

    def load(self, state: Mapping[str, Vector]) -> None:
        """Nothing is remembered."""


def texts_of(features: Vector) -> Vector:
    """Returns rows of text as numbers of words [B, T] int32.

    Args:
        features: them, or their bytes [B, 4T].
    """
    rows = np.ascontiguousarray(features.reshape(len(features), -1))
    return rows.view("<i4") if rows.dtype == np.uint8 else rows.astype(np.int32, copy=False)


def _steps_for(config: Word2VecConfig, device: str) -> Callable[..., tuple[float, int]]:
    """Returns what takes the steps on rows of text [B, T].

    Raises:
        NotReadyError: numba is missing.
    """
    if device != CPU or config.kernel == "torch":
        _kernel()
        torch_steps = importlib.import_module("photinus.embeddings.torch_steps").TorchSteps
        descend: Callable[..., tuple[float, int]] = torch_steps(torch_device(device)).descend
        return descend
    return _compiled_kernel(config) if config.kernel == "numba" else _numpy_steps


def _numpy_steps(
    texts: Vector, tables: Tables, chances: DrawTables, rule: Rule, rate: float, states: Vector
) -> tuple[float, int]:
    """Does with numpy what the kernel does."""
    results = [
        reference.descend(text, tables, chances, rule, rate, int(state))
        for text, state in zip(texts, states, strict=True)
    ]
    return sum(loss for loss, _ in results), sum(pairs for _, pairs in results)


def _compiled_kernel(config: Word2VecConfig) -> Callable[..., Any]:
    """Returns the kernel for a config's vectors, compiled.

    Raises:
        NotReadyError: numba is missing.
    """
    descent: Callable[..., Any] = _kernel().descent(
        config.dims, config.cbow, has_grams=config.buckets > 0
    )
    return descent


def _row_drawer(config: Word2VecConfig) -> Callable[..., bool] | None:
    """Returns what draws a worker's own rows alone, where there is a kernel."""
    if not config.has_numba:
        return None
    draw: Callable[..., bool] = importlib.import_module(
        "photinus.embeddings.random_rows"
    ).draw_spaced
    return draw


def _kernel() -> Any:  # noqa: ANN401 - a module that needs numba
    try:
        return importlib.import_module("photinus.embeddings.kernel")
    except ImportError as error:
        do = 'pip install "photinus[words]", or set kernel="numpy", which is much slower'
        raise NotReadyError("word vectors need numba", got=str(error), do=do) from error
