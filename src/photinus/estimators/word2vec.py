"""Word2Vec for Spark ML: vectors of words, or of items, from sentences of a DataFrame."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol, HasSeed
from pyspark.ml.util import MLReadable, MLWritable, MLWriter
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import pandas_udf

from photinus.core.clock import Steps
from photinus.core.errors import CheckpointError
from photinus.core.events import Event
from photinus.core.parameters import Vector
from photinus.data.spark import once
from photinus.embeddings.blocks import tokens_in_block
from photinus.embeddings.vectors import Analogies, Similarity, WordVectors
from photinus.embeddings.word2vec import Word2VecStage
from photinus.engine.spark.engine import FrameData, SparkEngine, check_slots, free_slots
from photinus.engine.spark.session import is_connect
from photinus.estimators.model import Keywords
from photinus.estimators.param_table import RUN_ROWS, Row
from photinus.estimators.params import defaults, keyword_params, plain_job, with_params
from photinus.estimators.persist import ParamsReader, ParamsWriter, write_head
from photinus.estimators.sentences import counted, rows_of, sentences_of
from photinus.estimators.summary import TrainingSummary
from photinus.report.journal import read
from photinus.run.evaluate import Draft
from photinus.run.job import Job, Source
from photinus.run.train import train_draft
from photinus.strategies.agreement import Agreement
from photinus.strategies.outer import Sgd
from photinus.strategies.own import Own
from photinus.strategies.recipes import averaging, to_plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Word2Vec", "Word2VecModel"]

_ROUND_WORDS = 200_000
"""Words that each worker reads between two rounds."""
_LEAST_ROUNDS = 10
"""In a pass over the text."""
_STEP_ROWS = 8
"""Rows of text that a worker takes in one step."""
_MODEL_ROWS = (
    Row(
        name="inputCol",
        meaning="the column of sentences: text, or arrays of texts or of whole numbers",
        convert=TypeConverters.toString,
        default="text",
    ),
    Row(
        name="outputCol",
        meaning="the new column of a sentence's mean vector",
        convert=TypeConverters.toString,
        default="vector",
    ),
)


def _setting(name: str, meaning: str, kind: Callable[[Any], Any], place: str) -> Row:
    return Row(name=name, meaning=meaning, convert=kind, place=f"model.{place}" if place else "")


_Whole, _Number = TypeConverters.toInt, TypeConverters.toFloat
_TRAINING_ROWS = (
    Row(name="minCount", meaning="rarer words have no vector", convert=_Whole, default=5),
    Row(name="maxVocabulary", meaning="so many words at most; 0: all", convert=_Whole, default=0),
    _setting("vectorSize", "numbers in a vector", _Whole, "dims"),
    _setting("windowSize", "words to each side, at most", _Whole, "window"),
    _setting("negatives", "words drawn against each; 0: hierarchical softmax", _Whole, "negatives"),
    _setting("cbow", "a word from the mean of its context", TypeConverters.toBoolean, "cbow"),
    _setting("sample", "words above this share are thinned out; 0: never", _Number, "sample"),
    _setting("learningRate", "at the start; it falls over the whole run", _Number, "lr"),
    _setting("epochs", "passes over the sentences", _Number, "epochs"),
    _setting("kernel", "numba, or numpy: slow, without numba", TypeConverters.toString, "kernel"),
)
_ROWS = (*_MODEL_ROWS, *_TRAINING_ROWS, *RUN_ROWS)


@with_params(_MODEL_ROWS)
class Word2VecModel(Keywords, Model, HasInputCol, HasOutputCol, MLWritable, MLReadable[Any]):
    """Trained vectors; `Word2Vec.fit` returns it.

    Args:
        vectors: the words with their vectors.
    """

    _rows = _MODEL_ROWS

    def __init__(self, vectors: WordVectors) -> None:
        super().__init__()
        self.vectors = vectors
        self.summary: TrainingSummary | None = None
        """Of the fit that made this model; None for one that was loaded."""
        self._setDefault(**defaults(self._rows))

    def getVectors(self) -> DataFrame:
        """Returns words, counts and vectors as a DataFrame."""
        from pyspark.sql import SparkSession

        spark = SparkSession.active()
        held, counts = self.vectors, self.vectors.counts
        table: dict[str, Any] = {"word": list(held.words), "vector": list(held.vectors)}
        table["count"] = np.zeros(len(held), np.int64) if counts is None else counts
        made: DataFrame = spark.createDataFrame(
            pd.DataFrame(table)[["word", "count", "vector"]],
            "word string, count long, vector array<float>",
        )
        return made

    def findSynonyms(self, word: str | Vector, num: int) -> DataFrame:
        """Returns the words nearest to a word or a vector [D], as MLlib's does.

        Args:
            word: a word, or a vector.
            num: how many.

        Raises:
            UsageError: the word has no vector.
        """
        from pyspark.sql import SparkSession

        found = self.most_similar([word], count=num)
        made: DataFrame = SparkSession.active().createDataFrame(
            found, "word string, similarity double"
        )
        return made

    def most_similar(
        self,
        positive: list[str | Vector],
        negative: list[str | Vector] | tuple[()] = (),
        *,
        count: int = 10,
    ) -> list[tuple[str, float]]:
        """See `WordVectors.most_similar`."""
        return self.vectors.most_similar(positive, negative, count=count)

    def analogies(self, questions: str | Path, *, cutoff: int = 30_000) -> Analogies:
        """See `WordVectors.analogies`."""
        return self.vectors.analogies(questions, cutoff=cutoff)

    def similarity(self, pairs: str | Path) -> Similarity:
        """See `WordVectors.similarity`."""
        return self.vectors.similarity(pairs)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        column, new = self.getOrDefault("inputCol"), self.getOrDefault("outputCol")
        sentences_of(dataset, column, 1)  # says what is wrong with the column
        kind = dict(dataset.dtypes)[column]
        asked = F.col(f"`{column}`")
        words = F.split(F.trim(asked), r"\s+") if kind == "string" else asked.cast("array<string>")
        held = (list(self.vectors.words), self.vectors.vectors)
        spark = dataset.sparkSession
        sent = None if is_connect(spark) else spark.sparkContext.broadcast(held)
        load: Callable[[], Any] = (lambda: held) if sent is None else (lambda: sent.value)

        def mean(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
            known, vectors = load()
            index = pd.Index(known)
            for sentences in batches:
                yield pd.Series([_mean(index, vectors, sentence) for sentence in sentences])

        over: Any = pandas_udf  # its types tell no iterators
        return dataset.withColumn(new, array_to_vector(over(mean, "array<float>")(words)))

    def write(self) -> _VectorsWriter:
        """Returns the writer: `model.write().overwrite().save(path)`, as Parquet."""
        return _VectorsWriter(self)

    @classmethod
    def read(cls) -> _VectorsReader:
        """Returns the reader."""
        return _VectorsReader(cls)

    @classmethod
    def load(cls, path: str) -> Word2VecModel:
        """Returns a saved model."""
        return cls.read().load(path)


def _mean(index: pd.Index, vectors: Vector, sentence: Any) -> Vector:  # noqa: ANN401
    """Returns the mean of the words that have a vector [D]; zeros where none has."""
    rows = index.get_indexer(sentence) if sentence is not None else np.zeros(0, np.int64)
    found: Vector = vectors[rows[rows >= 0]]
    return found.mean(axis=0) if len(found) else np.zeros(vectors.shape[1], np.float32)


class _VectorsWriter(MLWriter):
    """Writes `metadata`, and the vectors as Parquet in `data`."""

    def __init__(self, model: Word2VecModel) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Writes both below `path`."""
        mode = "overwrite" if self.shouldOverwrite else "error"
        write_head(self._model, self.sparkSession, path, mode, {"vectors": True})
        self._model.getVectors().write.mode(mode).parquet(f"{path}/data")


class _VectorsReader(ParamsReader[Any]):
    """Reads what `_VectorsWriter` wrote."""

    def load(self, path: str) -> Word2VecModel:
        """Returns the model.

        Raises:
            CheckpointError: something else is there.
        """
        metadata = self._head(path)
        if "vectors" not in metadata:
            raise CheckpointError(f"{path} holds no Word2VecModel", got=metadata["class"])
        table: Any = self.sparkSession.read.parquet(f"{path}/data").toPandas()
        table = table.sort_values(["count", "word"], ascending=[False, True])
        vectors = np.stack([np.asarray(row, np.float32) for row in table["vector"]])
        made = Word2VecModel(
            WordVectors(table["word"].tolist(), vectors, table["count"].to_numpy())
        )
        filled: Word2VecModel = self._filled(made, metadata)
        return filled


@with_params(_ROWS)
class Word2Vec(
    Keywords,
    Estimator[Word2VecModel],
    HasInputCol,
    HasOutputCol,
    HasSeed,
    MLWritable,
    MLReadable[Any],
):
    """Learns a vector for each word, on the tasks of a Spark session; the driver sees no sentence.

    The workers agree by the mean of their tables. A rare word's steps are made as many times larger
    as there are workers, so that the mean learns as one process does.

    Example:
        >>> word2vec = Word2Vec(vectorSize=200, minCount=5, cbow=True)
        >>> word2vec.getVectorSize(), word2vec.getEpochs()
        (200, 5.0)
        >>> model = word2vec.fit(sentences)  # doctest: +SKIP
        >>> model.most_similar(["king", "woman"], ["man"])  # doctest: +SKIP
    """

    _rows = _ROWS
    callbacks: Sequence[Callable[[Event], None]] = ()
    """Called with every event of a fit; no Param, and not saved."""
    verbose: bool | None = None
    """Shows a fit as it goes on; None: on a screen and in a notebook."""

    @keyword_params
    def __init__(
        self,
        *,
        inputCol: str = "text",
        outputCol: str = "vector",
        minCount: int = 5,
        maxVocabulary: int = 0,
        vectorSize: int = 100,
        windowSize: int = 5,
        negatives: int = 5,
        cbow: bool = False,
        sample: float = 1e-3,
        learningRate: float = 0.025,
        epochs: float = 5.0,
        kernel: str = "numba",
        strategy: str | Mapping[str, Any] | Agreement | Own | None = None,
        numWorkers: int = 0,
        numThreads: int = 1,
        bandwidth: float | None = None,
        seed: int = 0,
        security: str = "tls",
        runDir: str = "",
        checkpointSeconds: float = 60.0,
    ) -> None:
        super().__init__()
        self._setDefault(**defaults(self._rows, Word2VecStage(words=2)))

    def write(self) -> ParamsWriter:
        """Returns the writer: `estimator.write().overwrite().save(path)`."""
        return ParamsWriter(self)

    @classmethod
    def read(cls) -> ParamsReader[Any]:
        """Returns the reader."""
        return ParamsReader(cls)

    def fit(self, dataset: Any, params: Any = None) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns the trained model.

        Args:
            dataset: a DataFrame; or an RDD of texts or of lists of words; or the path of text
                files, compressed or not, or of a folder of them: a line is a sentence.
            params: Params that hold for this call only.

        Raises:
            UsageError: the sentences or a Param are wrong.
            DataError: fewer than two words are frequent enough.
            NotReadyError: the cluster lacks slots, or numba is missing.
        """
        if not hasattr(dataset, "sparkSession"):
            dataset = sentences_of(dataset, "", self.getOrDefault("numWorkers"))
            self = self.copy({self.getParam("inputCol"): dataset.columns[0]})
        return super().fit(dataset, params)

    def _fit(self, dataset: DataFrame) -> Word2VecModel:
        spark, asked = dataset.sparkSession, self.getOrDefault("numWorkers")
        self._job(2, 2, 1000)  # a wrong Param is told of before any sentence is read
        sentences = sentences_of(dataset, self.getOrDefault("inputCol"), asked)
        if asked:
            check_slots(spark, asked)
        workers = asked or free_slots(spark, 1 << 20)
        with once(sentences) as kept:
            least, most = self.getOrDefault("minCount"), self.getOrDefault("maxVocabulary")
            words, counts = counted(kept, least, most)
            job = self._job(len(words), workers, int(counts.sum()))
            length = tokens_in_block(int(counts.sum()), workers)
            rows = rows_of(kept, words, length)
            data = FrameData(frame=rows, features=rows.columns[0], shape=(4 * length,))
            draft = Draft(job)
            draft.model().parameters.view("counts")[:] = counts
            with self._folder() as folder:
                outcome = train_draft(
                    draft,
                    data,
                    folder=folder,
                    callbacks=self.callbacks,
                    verbose=self.verbose,
                    engine=SparkEngine(spark),
                    is_kept=bool(self.getOrDefault("runDir")),
                )
                history = outcome.folder if self.getOrDefault("runDir") else None
                summary = TrainingSummary.of(read(outcome.folder / "events.jsonl"), history)
        assert outcome.trained is not None
        vectors = outcome.trained.model().parameters.view("inputs").copy()
        made = self._copyValues(Word2VecModel(WordVectors(words, vectors, counts)))
        made.summary = summary
        return made

    def _job(self, words: int, workers: int, tokens: int) -> Job:
        """Returns the job for a vocabulary and a text of so many words."""
        values = {p.name: self.getOrDefault(p) for p in self.params if self.isSet(p)}
        plain = plain_job(self._rows, values | {"numWorkers": workers})
        step = _STEP_ROWS * tokens_in_block(tokens, workers)
        round_words = min(_ROUND_WORDS, max(step, tokens // (workers * _LEAST_ROUNDS)))
        steps = max(1, round(round_words / step))
        usual = averaging(every=Steps(steps), outer=Sgd(), merge="uniform", gradients_until=0.0)
        model = {
            "kind": "word2vec",
            "words": words,
            "workers": workers,
            "batch_size": _STEP_ROWS * workers,
            "round_words": float(steps * step),
            **plain.get("model", {}),
        }
        job = Job.from_dict({"strategy": to_plain(usual), **plain, "model": model})
        source = Source(name="given", features=("tokens",), label="")
        return replace(job, data=source, name=self.uid)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """A run folder of its own for every fit."""
        if kept := self.getOrDefault("runDir"):
            stamp = time.strftime("%Y%m%d-%H%M%S")
            yield Path(kept) / f"{self.uid}-{stamp}-{secrets.token_hex(2)}"
            return
        with tempfile.TemporaryDirectory(prefix="photinus-") as folder:
            yield Path(folder) / "run"
