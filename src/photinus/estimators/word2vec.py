"""Word2Vec for Spark ML: vectors of words from sentences of a DataFrame."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.sql.functions import size

from photinus.core.clock import Steps
from photinus.core.errors import DataError, UsageError
from photinus.core.parameters import Vector
from photinus.data.kept_rows import run_plan_once
from photinus.data.wikipedia import is_dump
from photinus.embeddings.blocks import (
    tokens_in_block,
    usual_passes,
    words_in_round,
    words_in_sharded_round,
)
from photinus.embeddings.subwords import Ngrams, SubwordVectors
from photinus.embeddings.vectors import WordVectors
from photinus.embeddings.word2vec import Word2VecConfig, WordTables
from photinus.engine.spark.engine import FrameData, check_slots, free_slots
from photinus.engine.spark.job import run_query
from photinus.engine.spark.session import spark_session
from photinus.estimators.param_table import RUN_ROWS, ParamRow
from photinus.estimators.params import defaults, keyword_params, plain_job, with_params
from photinus.estimators.sentences import (
    counted,
    rows_of,
    rows_with_pairs,
    sentences_of,
    words_in,
)
from photinus.estimators.trainer import TrainingEstimator
from photinus.estimators.vector_models import WORD_ROWS, VectorsModel, Word2VecModel
from photinus.estimators.wikipedia import wikipedia_sentences
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job, Source
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.outer import Sgd
from photinus.strategies.phase_defaults import PhaseFacts
from photinus.strategies.recipes import averaging, to_plain
from photinus.strategies.shards import READS
from photinus.strategies.spec import StrategySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_STEP_ROWS = 8
"""Rows of text that a worker takes in one step."""
_ANY_COUNTS = np.array([500, 500])


def _config_row(name: str, meaning: str, convert: Callable[[Any], Any], setting: str) -> ParamRow:
    return ParamRow(
        name=name, meaning=meaning, convert=convert, job_path=f"model.{setting}" if setting else ""
    )


_to_int, _to_float = TypeConverters.toInt, TypeConverters.toFloat


def _to_lengths(value: Any) -> list[int]:  # noqa: ANN401 - what a user may give
    try:
        lengths: list[int] = TypeConverters.toListInt(value)
    except TypeError as error:
        raise _wrong_lengths(value) from error
    return lengths


def _wrong_lengths(value: Any) -> UsageError:  # noqa: ANN401 - likewise
    do = "name the shortest and the longest, as (3, 6)"
    return UsageError("subwords must be two lengths of n-grams", got=repr(value), do=do)


COUNTED_ROWS = (
    ParamRow(name="minCount", meaning="least occurrences of a word", convert=_to_int, default=5),
    ParamRow(
        name="maxVocabulary", meaning="most words with a vector; 0: all", convert=_to_int, default=0
    ),
    ParamRow(
        name="wordsInMemory",
        meaning="the driver holds so many words in memory; a larger vocabulary lies in a file",
        convert=_to_int,
        default=2_000_000,
    ),
)
_VOCABULARY = ParamRow(
    name="vocabulary",
    meaning="only these words have vectors: a list, or the path of a file of analogy questions; "
    "none: all words",
    convert=words_in,
    default=(),
)
TRAINING_ROWS = (
    _config_row("vectorSize", "numbers in a vector", _to_int, "dims"),
    _config_row("windowSize", "words to each side, at most", _to_int, "window"),
    _config_row(
        "negatives", "negative samples of each; 0: hierarchical softmax", _to_int, "negatives"
    ),
    _config_row("cbow", "CBOW instead of skip-gram", TypeConverters.toBoolean, "cbow"),
    _config_row(
        "contextsPerStep",
        "contexts of a word that take a step together; 0: all, which is fastest",
        _to_int,
        "contexts_per_step",
    ),
    _config_row("sample", "words above this share are subsampled; 0: never", _to_float, "sample"),
    _config_row(
        "learningRate",
        "the initial rate, which falls over the whole run; default: 0.05 with cbow, else 0.025",
        _to_float,
        "lr",
    ),
    _config_row(
        "epochs",
        "passes over the sentences; default: 5, and up to 20 where words occur seldom",
        _to_float,
        "epochs",
    ),
    ParamRow(
        name="table",
        meaning="whole: every worker holds all vectors; sharded: each holds a part of them",
        convert=TypeConverters.toString,
        default="whole",
    ),
    _config_row(
        "kernel",
        "numba; torch: the steps that other devices take; numpy: slow, without numba",
        TypeConverters.toString,
        "kernel",
    ),
)
_SUBWORD_ROWS = (
    ParamRow(
        name="subwords",
        meaning="the shortest and the longest n-grams of a word, as (3, 6); empty: none",
        convert=_to_lengths,
        default=[],
    ),
    ParamRow(
        name="buckets", meaning="rows that all n-grams share", convert=_to_int, default=200_000
    ),
)
_ROWS = (
    *WORD_ROWS,
    *COUNTED_ROWS,
    _VOCABULARY,
    *TRAINING_ROWS,
    *_SUBWORD_ROWS,
    *RUN_ROWS,
)


class VectorEstimator(TrainingEstimator, HasInputCol, HasOutputCol):
    """Learns vectors from sequences; subclasses define which sequences."""

    _config_defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings of the config that differ from its own defaults."""
    _reads_twice = True
    """Whether sequences cost so little that they are computed twice: to count, and to train."""
    _sequence_terms: ClassVar[tuple[str, str, str]] = (
        "sentence",
        "words",
        "put the words of a sentence into one row",
    )
    """What a sequence and its parts are called, and what to do where each has one part only."""

    def __init__(self) -> None:
        super().__init__()
        values = defaults(self._param_rows, Word2VecConfig(words=2, **self._config_defaults))
        if "epochs" not in self._config_defaults:  # they follow from the text
            del values["epochs"]
        self._setDefault(**values)

    def fit(self, dataset: Any, params: Any = None) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns the trained model.

        Args:
            dataset: a DataFrame; or an RDD of texts or of lists of words; or the path of text
                files, compressed or not, or of a folder of them: a line is a sentence; or the path
                of a Wikipedia dump, .xml or .xml.bz2.
            params: Params that hold for this call only.

        Raises:
            UsageError: the sentences or a Param are wrong.
            DataError: fewer than two words are frequent enough, or no sentence has two of them.
            NotReadyError: the cluster lacks slots, or numba is missing.
        """
        if isinstance(dataset, (str, Path)) and is_dump(dataset):
            return self._fit_dump(str(dataset), params)
        if not hasattr(dataset, "sparkSession"):
            workers, (name, parts, _) = self.getOrDefault("numWorkers"), self._sequence_terms
            dataset = sentences_of(dataset, "", workers, (f"{name}s", parts))
            self = self.copy({self.getParam("inputCol"): dataset.columns[0]})
        return super().fit(dataset, params)

    def _fit_dump(self, path: str, params: Any) -> Any:  # noqa: ANN401 - as of `fit`
        self._job(_ANY_COUNTS, self.getOrDefault("numWorkers") or 2)  # as in `_fit`
        spark = spark_session(max(1, self.getOrDefault("numWorkers")))
        with run_plan_once(wikipedia_sentences(spark, path), always=True) as sentences:
            row: Any = run_query(spark, sentences.agg({"corrupt": "sum"}).first)
            if row[0]:
                log = logging.getLogger("photinus")
                log.warning("%d corrupt pages of %s were left out", row[0], path)
            return self.copy({self.getParam("inputCol"): "words"}).fit(sentences, params)

    def _fit(self, dataset: DataFrame) -> VectorsModel:
        spark, num_workers = dataset.sparkSession, self.getOrDefault("numWorkers")
        # a wrong Param is refused before any sentence is read
        self._job(_ANY_COUNTS, num_workers or 2)
        ngrams, allowed_words = self._ngrams(), self._allowed_words()
        if num_workers:
            check_slots(spark, num_workers)
        workers = num_workers or free_slots(spark)
        sentences = self._sentences(dataset)
        with (
            self._reserve_seats(spark, workers),
            run_plan_once(sentences, always=not self._reads_twice) as cached_sentences,
        ):
            limits, parts = self._vocabulary_limits(), self._sequence_terms[1]
            vocabulary = counted(cached_sentences, *limits, allowed_words, parts)
            words, counts = vocabulary.words, vocabulary.counts
            self._check_pairs(cached_sentences)
            job = self._job(counts, workers)
            length = tokens_in_block(int(counts.sum()), workers)
            rows = rows_of(cached_sentences, vocabulary, length)
            if vocabulary.numbered is None:  # a join would move every word once more
                self._check_frequent_pairs(rows)
            data = FrameData(frame=rows, features=rows.columns[0], shape=(4 * length,))
            with self._run_folder() as folder:
                outcome, summary = self._run(_draft(job, words, counts, ngrams), data, folder)
        assert outcome.trained is not None
        tables = outcome.trained.model()
        assert isinstance(tables, WordTables)
        vectors, subword_vectors = tables.vectors, tables.parameters.view("inputs")[len(words) :]
        if not outcome.trained.is_mapped:
            vectors, subword_vectors = vectors.copy(), subword_vectors.copy()
        subwords = None if ngrams is None else SubwordVectors(ngrams, subword_vectors)
        model = self._make_model(dataset, WordVectors(words, vectors, counts, subwords))
        return self._fitted(model, summary)

    def _check_pairs(self, sentences: DataFrame) -> None:
        """Refuses sequences of one word each: nothing is learnt from them.

        Raises:
            DataError: no sequence has two.
        """
        pairs = sentences.where(size("words") > 1).limit(1)
        if not run_query(sentences.sparkSession, pairs.collect):
            sequence, parts, do = self._sequence_terms
            raise DataError(f"no {sequence} has two {parts}: there is no pair to learn from", do=do)

    def _check_frequent_pairs(self, rows: DataFrame) -> None:
        """Refuses sequences of which only one part each is frequent: the vectors stay random.

        Args:
            rows: as of `rows_of`.

        Raises:
            DataError: no sequence has two parts that have a vector.
        """
        pairs = rows.mapInArrow(rows_with_pairs, rows.schema).limit(1)
        if not run_query(rows.sparkSession, pairs.collect):
            sequence, parts, _ = self._sequence_terms
            wrong = f"no {sequence} has two {parts} with a vector: there is no pair to learn from"
            raise DataError(wrong, do="set minCount lower, or maxVocabulary higher")

    @abstractmethod
    def _sentences(self, dataset: DataFrame) -> DataFrame:
        """Returns the sequences as one column `words array<string>`."""

    @abstractmethod
    def _make_model(self, dataset: DataFrame, vectors: WordVectors) -> VectorsModel:
        """Returns the model of trained vectors."""

    def _allowed_words(self) -> Sequence[str]:
        """Returns the words that may have vectors; none: all.

        Raises:
            UsageError: an empty list was set.
        """
        return ()

    def _vocabulary_limits(self) -> tuple[int, int, int]:
        """Returns the least occurrences of a word, and the most words: 0 for all, and in memory."""
        min_count, max_words = (self.getOrDefault(name) for name in ("minCount", "maxVocabulary"))
        if max_words < 0 or max_words == 1:
            do = "0 is no limit"
            raise UsageError("maxVocabulary must be 0 or at least 2", got=max_words, do=do)
        return min_count, max_words, self._words_in_memory

    @property
    def _words_in_memory(self) -> int:
        """How many words the driver holds in memory.

        Raises:
            UsageError: the number is below 0.
        """
        words: int = self.getOrDefault("wordsInMemory")
        if words < 0:
            raise UsageError("wordsInMemory must be at least 0", got=words)
        return words

    def _job(self, counts: Vector, workers: int) -> Job:
        """Returns the job for a vocabulary with these counts [V]."""
        values = {p.name: self.getOrDefault(p) for p in self.params if self.isSet(p)}
        return self._job_of(lambda values: self._make_job(values, counts, workers), values)

    def _make_job(self, values: Mapping[str, Any], counts: Vector, workers: int) -> Job:
        job_dict = plain_job(self._param_rows, {**values, "numWorkers": workers})
        tokens = int(counts.sum())
        words_in_step = _STEP_ROWS * tokens_in_block(tokens, workers)
        round_words = words_in_round(tokens, workers)
        config_settings = {**self._config_defaults, **job_dict.get("model", {})}
        width = config_settings.get("dims", Word2VecConfig.dims)
        if self._is_sharded:
            negatives = config_settings.get("negatives", Word2VecConfig.negatives)
            round_words = words_in_sharded_round(round_words, counts, negatives, 4 * width)
        steps = max(1, round(round_words / words_in_step))
        default_strategy = averaging(
            every=Steps(steps), outer=Sgd(), merge="uniform", gradients_until=0.0
        )
        if self._is_sharded:
            default_strategy = replace(default_strategy, codec="fp32", owners=workers, rows=width)
        model = {
            "kind": "word2vec",
            "words": len(counts),
            "workers": workers,
            "batch_size": _STEP_ROWS * workers,
            "epochs": usual_passes(counts),
            **config_settings,
        }
        job = Job.from_dict({"strategy": to_plain(default_strategy), **job_dict, "model": model})
        if self._is_sharded:
            job = replace(job, strategy=_sharded(job.strategy, default_strategy))
        if self._is_sharded and not getattr(job.strategy, "is_sharded", False):
            wrong, do = "the strategy leaves the whole table with every worker", "leave it out"
            raise UsageError(wrong, got=f'{job.strategy}, and table="sharded"', do=do)
        words_read = _round_words(job, tokens) or float(steps * words_in_step)
        source = Source(name="given", features=("tokens",), label="")
        model = replace(job.model, round_words=words_read)
        return replace(job, model=model, data=source, name=self.uid)

    def _ngrams(self) -> Ngrams | None:
        """Returns which n-grams words have.

        Raises:
            UsageError: a Param is wrong.
        """
        lengths = self.getOrDefault("subwords") if self.hasParam("subwords") else []
        if not lengths:
            return None
        if len(lengths) != 2:
            raise _wrong_lengths(lengths)
        shortest, longest = lengths
        return Ngrams(shortest, longest, self.getOrDefault("buckets"))

    @property
    def _is_sharded(self) -> bool:
        table = self.getOrDefault("table")
        if table not in ("whole", "sharded"):
            raise UsageError('table must be "whole" or "sharded"', got=repr(table))
        return bool(table == "sharded")


def _sharded(
    strategy: StrategySpec | CustomStrategy, default: StrategySpec
) -> StrategySpec | CustomStrategy:
    """Returns a strategy with a shard of the tables at each worker, where its recipe can have one.

    Args:
        strategy: the user's.
        default: what a part is where the user did not set it.
    """
    if not isinstance(strategy, StrategySpec) or strategy.is_sharded:
        return strategy
    if strategy.payload != "delta" or not {"owners", "rows"} <= strategy.known:
        return strategy
    names = {"every", "merge", "codec", "gradients_until"}
    names |= {"outer"} if strategy.recipe == default.recipe else set()
    settings = {n: getattr(default, n) for n in (*(strategy.usual & names), "owners", "rows")}
    if strategy.is_immediate and default.owners == 1:  # alone it reads each row of all that do
        settings["merge"] = READS
    return strategy.with_settings(settings)


def _round_words(job: Job, tokens: int) -> float:
    """Returns how many words a worker reads between two rounds; 0 where only a clock decides.

    Args:
        job: how the workers agree; its config need not know it yet.
        tokens: words of the whole text.
    """
    config, workers = job.model, job.workers
    assert isinstance(config, Word2VecConfig)
    strategy = job.strategy_of(config.name)
    if isinstance(strategy, CustomStrategy):  # it decides in code when to agree
        return 0.0
    length = tokens_in_block(tokens, workers)
    steps = math.ceil(config.epochs * tokens / (length * _STEP_ROWS * workers))
    # a recipe's own trigger becomes shorter where the run would have few rounds
    facts = PhaseFacts(workers=workers, steps=max(1, steps), epochs=config.epochs)
    every = strategy.settled(facts)[0].every
    words_per_unit = {
        "steps": float(_STEP_ROWS * length),
        "examples": float(length),
        "epochs": tokens / workers,
    }
    limits = [(getattr(every, unit), words) for unit, words in words_per_unit.items()]
    return min((limit * words for limit, words in limits if limit is not None), default=0.0)


def _draft(job: Job, words: Sequence[str], counts: Vector, ngrams: Ngrams | None) -> LazyModel:
    """Returns the start of a job: the words' counts, and which rows their n-grams have."""
    grams = None if ngrams is None else ngrams.of(words, first=len(words))
    if ngrams is not None and grams is not None:
        assert isinstance(job.model, Word2VecConfig)
        config = replace(job.model, buckets=ngrams.buckets, grams=len(grams.rows))
        job = replace(job, model=config)
    draft = LazyModel(job)
    parameters = draft.model().parameters
    parameters.view("counts")[:] = counts
    if grams is not None:
        parameters.view("gram_starts")[:], parameters.view("gram_rows")[:] = grams
    return draft


@with_params(_ROWS)
class Word2Vec(VectorEstimator):
    """Learns a vector for each word, on the tasks of a Spark session; the driver sees no sentence.

    The workers agree by the mean of their tables. A rare word's steps are made as many times larger
    as there are workers, so that the mean learns as one process does.

    Example:
        >>> word2vec = Word2Vec(vectorSize=200, minCount=5, cbow=True)
        >>> word2vec.getVectorSize(), word2vec.getWindowSize()
        (200, 5)
        >>> model = word2vec.fit(sentences)  # doctest: +SKIP
        >>> model.most_similar(["king", "woman"], ["man"])  # doctest: +SKIP
    """

    _param_rows = _ROWS

    @keyword_params
    def __init__(
        self,
        *,
        inputCol: str = "text",
        outputCol: str = "vector",
        minCount: int = 5,
        maxVocabulary: int = 0,
        wordsInMemory: int = 2_000_000,
        vocabulary: str | Sequence[str] = (),
        vectorSize: int = 100,
        windowSize: int = 5,
        negatives: int = 5,
        cbow: bool = False,
        contextsPerStep: int = 0,
        sample: float = 1e-3,
        learningRate: float | None = None,
        epochs: float | None = None,
        table: str = "whole",
        kernel: str = "numba",
        subwords: Sequence[int] = (),
        buckets: int = 200_000,
        strategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy | None = None,
        numWorkers: int = 0,
        shuffle: str | bool = "auto",
        numThreads: int = 1,
        device: str | Sequence[str] = "cpu",
        bandwidth: float | None = None,
        cpuShare: float | None = None,
        memory: int | None = None,
        priority: int = 0,
        weight: float | None = None,
        jobsFolder: str = "",
        deadlineSeconds: float | None = None,
        seed: int = 0,
        security: str = "tls",
        runDir: str = "",
        checkpointSeconds: float = 60.0,
        leaseSeconds: float | None = None,
    ) -> None:
        super().__init__()

    def _sentences(self, dataset: DataFrame) -> DataFrame:
        return sentences_of(dataset, self.getOrDefault("inputCol"), 1)

    def _allowed_words(self) -> Sequence[str]:
        words: Sequence[str] = self.getOrDefault("vocabulary")
        if self.isSet("vocabulary") and not words:
            raise UsageError("vocabulary holds no words", do="leave it out to learn all words")
        return words

    def _make_model(self, dataset: DataFrame, vectors: WordVectors) -> Word2VecModel:
        return Word2VecModel(vectors)
