"""Models of trained vectors on Spark: neighbours, means of sequences, and their files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.ml.util import MLReadable, MLWritable, MLWriter
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import pandas_udf

from photinus.checkpoint.mapped import MappedFile, is_mapped, write_arrays
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.data.spark import quoted, stream_batches
from photinus.embeddings.neighbours import build_index
from photinus.embeddings.subwords import Ngrams, SubwordVectors
from photinus.embeddings.vectors import Analogies, Similarity, WordVectors
from photinus.embeddings.words import MappedWords, row_finder
from photinus.engine.spark.session import application_of, is_connect
from photinus.estimators.model import KeywordParams, check_new_columns
from photinus.estimators.neighbours import neighbours_udf, query_column
from photinus.estimators.param_table import ParamRow
from photinus.estimators.params import defaults, with_params
from photinus.estimators.persistence import (
    ParamsReader,
    explain_read,
    explain_write,
    write_metadata,
)
from photinus.estimators.sentences import baskets_of, id_of, words_of
from photinus.estimators.summary import TrainingSummary

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_Loader = Callable[[], Any]


def input_output_rows(column: str, meaning: str, output: str) -> tuple[ParamRow, ...]:
    """Returns the Params that a model shares with its estimator.

    Args:
        column: the default of inputCol.
        meaning: of inputCol.
        output: meaning of outputCol.
    """
    to_string = TypeConverters.toString
    return (
        ParamRow(name="inputCol", meaning=meaning, convert=to_string, default=column),
        ParamRow(name="outputCol", meaning=output, convert=to_string, default="vector"),
    )


_PART_SIZE = 1 << 22
"""How many numbers of vectors are saved as one part: a Java of 1 GB has no room for many more."""
WORD_ROWS = input_output_rows(
    "text",
    "the column of sentences: text, or arrays of texts or of whole numbers",
    "the new column of a sentence's mean vector",
)
ITEM_ROWS = input_output_rows(
    "items",
    "the column of baskets: arrays of texts or of whole numbers",
    "the new column of a basket's mean vector",
)
NODE_ROWS = input_output_rows("node", "the column of nodes", "the new column of a node's vector")
ID_ROW = ParamRow(
    name="idType",
    meaning="the type of the ids in what is returned: string or bigint",
    convert=TypeConverters.toString,
    default="string",
)


class VectorsModel(KeywordParams, Model, HasInputCol, HasOutputCol, MLWritable, MLReadable[Any]):
    """Trained vectors of words, items or nodes.

    Args:
        vectors: each with its text.
    """

    of: ClassVar[str] = "word"
    """What has a vector: the name of the column in `getVectors` and `findSynonyms`."""

    def __init__(self, vectors: WordVectors) -> None:
        super().__init__()
        self.vectors = vectors
        self.summary: TrainingSummary | None = None
        """Of the fit that made this model; None for one that was loaded."""
        self._loaders: dict[tuple[str, str], _Loader] = {}  # copies share it
        self._setDefault(**defaults(self._param_rows))

    @property
    def _id_type(self) -> str:
        return str(self.getOrDefault("idType")) if self.hasParam("idType") else "string"

    def _send_once(
        self, spark: SparkSession, name: str, send_value: Callable[[], _Loader]
    ) -> _Loader:
        """Returns what was sent to a session under this name; sends it the first time."""
        key = (application_of(spark), name)
        if key not in self._loaders:
            self._loaders[key] = send_value()
        return self._loaders[key]

    def _ids(self, words: Sequence[str]) -> list[Any]:
        """Returns words as ids of their own type."""
        return list(words) if self._id_type == "string" else [int(word) for word in words]

    def getVectors(self) -> DataFrame:
        """Returns words, counts and vectors as a DataFrame."""
        return self._rows_of(slice(None))

    def _rows_of(self, rows: slice, *, is_numbered: bool = False) -> DataFrame:
        """Returns some of the vectors as `getVectors` returns all.

        Args:
            rows: which.
            is_numbered: add their places as `position`.
        """
        from pyspark.sql import SparkSession

        spark = SparkSession.active()
        words, counts = self.vectors.words[rows], self.vectors.counts
        table: dict[str, Any] = {self.of: self._ids(words)}
        table["count"] = np.zeros(len(words), np.int64) if counts is None else counts[rows]
        table["vector"] = [row.tobytes() for row in self.vectors.vectors[rows]]
        schema = f"{self.of} {self._id_type}, count long, vector array<float>"
        if is_numbered:
            table["position"] = np.arange(rows.start, rows.start + len(words))
            schema += ", position long"
        return _frame_of_vectors(spark, table, schema)

    def findSynonyms(self, word: str | int | Vector, num: int) -> DataFrame:
        """Returns the words nearest to a word or a vector [D], as MLlib's `findSynonyms` does.

        Args:
            word: a word, the id of an item or a node, or a vector.
            num: how many.

        Raises:
            UsageError: it has no vector.
        """
        from pyspark.sql import SparkSession

        neighbours = self.most_similar([word], count=num)
        schema = f"{self.of} {self._id_type}, similarity double"
        frame: DataFrame = SparkSession.active().createDataFrame(neighbours, schema)
        return frame

    def withSynonyms(
        self,
        dataset: DataFrame,
        num: int,
        *,
        column: str = "",
        outputCol: str = "synonyms",
        exact: bool = False,
    ) -> DataFrame:
        """Returns the rows with a new column of each row's nearest words, an array of structs.

        The tasks find them. A struct holds the word and its `similarity`. Where the word of a row
        has no vector, or the vector is all zeros, the array is null. Neighbours are approximate: a
        few of them may be missed.

        Args:
            dataset: rows with a column of words, of ids, or of vectors.
            num: how many neighbours; a word is not its own neighbour.
            column: its name; "" for what has a vector: word, item or node.
            outputCol: the new column.
            exact: compares with all vectors, which is slower where there are many, and needs no
                usearch.

        Raises:
            UsageError: the column is unknown or holds something else, `num` is below 1, or the
                table has such a new column.
            NotReadyError: usearch is missing.
        """
        if num < 1:
            raise UsageError("num must be at least 1", got=num)
        check_new_columns(dataset, {"outputCol": outputCol})
        column = column or self.of
        query, is_vector = query_column(dataset, column, self.vectors.vectors.shape[1])
        spark = dataset.sparkSession
        load_words, load_vectors = self._word_and_vector_loaders(spark, is_unit=exact)
        load_index = (
            None if exact else self._send_once(spark, "index", lambda: self._send_index(spark))
        )

        def load() -> tuple[Any, Vector, Any]:
            return load_words(), load_vectors(), load_index() if load_index else None

        find_neighbours = neighbours_udf(load, num, is_vector=is_vector)
        with_neighbours = dataset.withColumn(outputCol, find_neighbours(query))
        found = quoted(outputCol)
        ids = found["word"].cast(f"array<{self._id_type}>").alias(self.of)
        neighbours = F.arrays_zip(ids, found["similarity"].alias("similarity"))
        return with_neighbours.withColumn(
            outputCol,
            neighbours.cast(f"array<struct<{self.of}:{self._id_type},similarity:double>>"),
        )

    def _send_index(self, spark: SparkSession) -> _Loader:
        # no lazy attribute: where Spark looks for Params, it reads all attributes
        return send(spark, build_index(self.vectors.vectors))

    def most_similar(
        self,
        positive: Sequence[str | int | Vector],
        negative: Sequence[str | int | Vector] = (),
        *,
        count: int = 10,
    ) -> list[tuple[Any, float]]:
        """See `WordVectors.most_similar`; ids of items and nodes may be whole numbers."""
        sides = [_term_texts(side) for side in (positive, negative)]
        for term in (term for side in sides if isinstance(side, list) for term in side):
            self._check_known(term)
        pairs = self.vectors.most_similar(*sides, count=count)
        return list(zip(self._ids([word for word, _ in pairs]), [x for _, x in pairs], strict=True))

    def _check_known(self, term: Any) -> None:  # noqa: ANN401 - what a user may give
        """Refuses a word without a vector by what this model calls it."""
        if not isinstance(term, str):
            return
        try:
            self.vectors.vector(term)
        except UsageError as error:
            do = "`getVectors()` has all that have one"
            raise UsageError(f"the {self.of} has no vector", got=repr(term), do=do) from error

    def _word_and_vector_loaders(
        self, spark: SparkSession, *, is_unit: bool = False
    ) -> tuple[_Loader, _Loader]:
        """Returns what gives the words and their vectors [V, D] in a task of this session."""
        name = "unit" if is_unit else "vectors"
        load_vectors = self._send_once(
            spark, name, lambda: send_vectors(spark, getattr(self.vectors, name))
        )
        return self._send_once(
            spark, "words", lambda: send_words(spark, self.vectors.words)
        ), load_vectors

    def _sequences(self, dataset: DataFrame) -> Column:
        """Returns the input column as sequences, arrays of texts."""
        return words_of(dataset, self.getOrDefault("inputCol"))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        output_column = self.getOrDefault("outputCol")
        check_new_columns(dataset, {"outputCol": output_column})
        sequences = self._sequences(dataset)
        spark, trained_subwords = dataset.sparkSession, self.vectors.subwords
        load_words, load_vectors = self._word_and_vector_loaders(spark)
        load_subwords = self._send_once(spark, "subwords", lambda: send(spark, trained_subwords))

        def mean(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
            find, vectors, subwords = row_finder(load_words()), load_vectors(), load_subwords()
            for sentences in batches:
                yield pd.Series(
                    [_mean(find, vectors, subwords, sentence) for sentence in sentences]
                )

        udf: Any = pandas_udf  # its types do not cover iterators
        return dataset.withColumn(
            output_column, array_to_vector(udf(mean, "array<float>")(sequences))
        )

    def write(self) -> _VectorsWriter:
        """Returns the writer: `model.write().overwrite().save(path)`, as Parquet."""
        return _VectorsWriter(self)

    @classmethod
    def read(cls) -> _VectorsReader:
        """Returns the reader."""
        return _VectorsReader(cls)

    @classmethod
    def load(cls, path: str) -> Any:  # noqa: ANN401 - one of this class
        """Returns a saved model."""
        return cls.read().load(path)


@with_params(WORD_ROWS)
class Word2VecModel(VectorsModel):
    """Trained vectors of words; `Word2Vec.fit` returns it.

    Args:
        vectors: the words with their vectors.
    """

    _param_rows = WORD_ROWS

    def analogies(self, questions: str | Path, *, cutoff: int = 30_000) -> Analogies:
        """See `WordVectors.analogies`."""
        return self.vectors.analogies(questions, cutoff=cutoff)

    def similarity(self, pairs: str | Path, *, cutoff: int = 300_000) -> Similarity:
        """See `WordVectors.similarity`."""
        return self.vectors.similarity(pairs, cutoff=cutoff)


@with_params((*ITEM_ROWS, ID_ROW))
class Item2VecModel(VectorsModel):
    """Trained vectors of items; `Item2Vec.fit` returns it.

    Args:
        vectors: the items' ids as texts, with their vectors.
    """

    _param_rows = (*ITEM_ROWS, ID_ROW)
    of = "item"

    def _sequences(self, dataset: DataFrame) -> Column:
        return baskets_of(dataset, self.getOrDefault("inputCol"))


@with_params((*NODE_ROWS, ID_ROW))
class NodeVectorsModel(VectorsModel):
    """Trained vectors of nodes; `NodeVectors.fit` returns it.

    Args:
        vectors: the nodes' ids as texts, with their vectors.
    """

    _param_rows = (*NODE_ROWS, ID_ROW)
    of = "node"

    def _sequences(self, dataset: DataFrame) -> Column:
        return F.array(id_of(dataset, self.getOrDefault("inputCol")))


def id_type(data_type: T.DataType) -> str:
    """Returns the type of ids in a column: "bigint" for whole numbers, or arrays of them."""
    element_type = data_type.elementType if isinstance(data_type, T.ArrayType) else data_type
    return "bigint" if isinstance(element_type, T.IntegralType) else "string"


def send(spark: SparkSession, value: Any) -> Callable[[], Any]:  # noqa: ANN401 - what is sent
    """Returns a function that gets it in a task: by a broadcast, on Connect by the closure."""
    if is_connect(spark):
        return lambda: value
    broadcast = spark.sparkContext.broadcast(value)
    return lambda: broadcast.value


def send_vectors(spark: SparkSession, vectors: Vector) -> Callable[[], Vector]:
    """Returns what gives vectors [V, D] in a task; those in a file are mapped."""
    if not is_mapped(vectors):
        return send(spark, vectors)
    load = send_arrays(spark, {"vectors": vectors})
    return lambda: load()["vectors"]


def send_words(spark: SparkSession, words: Sequence[str]) -> Callable[[], Sequence[str]]:
    """Returns what gives words in a task, as `send_vectors` does vectors."""
    if not isinstance(words, MappedWords):
        return send(spark, words)
    arrays = {"letters": words.letters, "ends": words.ends, "order": words.order}
    load = send_arrays(spark, arrays)
    return lambda: MappedWords(**load())


def send_arrays(
    spark: SparkSession, arrays: Mapping[str, Vector]
) -> Callable[[], Mapping[str, Vector]]:
    """Returns what maps arrays in a task: Spark brings their file once to each executor.

    On Spark Connect they are a part of the closure.
    """
    if is_connect(spark):
        return send(spark, {name: np.asarray(array) for name, array in arrays.items()})
    folder = tempfile.mkdtemp(prefix="photinus-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, f"{Path(folder).name}.safetensors")
    write_arrays(path, arrays)
    spark.sparkContext.addFile(str(path))
    name = path.name

    def load() -> Mapping[str, Vector]:
        from pyspark import SparkFiles

        return MappedFile(Path(SparkFiles.get(name)))

    return load


def _term_texts(terms: Any) -> Any:  # noqa: ANN401 - what a user may give
    """Returns words and ids as texts, vectors as they are; what is no list as it is, too."""
    if isinstance(terms, str) or not np.iterable(terms):
        return terms
    return [str(term) if np.isscalar(term) else term for term in terms]


def _mean(
    find: Callable[[Sequence[str]], Vector],
    vectors: Vector,
    subwords: SubwordVectors | None,
    sentence: Any,  # noqa: ANN401 - as pandas gives it
) -> Vector:
    """Returns the mean of the words that have a vector [D]; zeros where none has."""
    words = [] if sentence is None else sentence
    rows = find(words) if len(words) else np.zeros(0, np.int64)
    known_vectors: Vector = vectors[rows[rows >= 0]]
    if subwords is not None:
        unknown_words = [word for word, row in zip(words, rows, strict=True) if row < 0]
        known_vectors = np.concatenate([known_vectors, subwords.vectors(unknown_words)])
    return (
        known_vectors.mean(axis=0) if len(known_vectors) else np.zeros(vectors.shape[1], np.float32)
    )


def _frame_of_vectors(spark: SparkSession, table: dict[str, Any], schema: str) -> DataFrame:
    """Returns a table whose column `vector` holds bytes of float32 as one of arrays.

    Without Arrow, as Spark has it, each number on its way to Java would be an object of Python's.
    """
    stored = schema.replace("vector array<float>", "vector binary")
    frame: DataFrame = spark.createDataFrame(pd.DataFrame(table), stored)
    return frame.mapInArrow(_bytes_as_arrays, schema)


def _bytes_as_arrays(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in filter(len, batches):
        position, rows = batch.schema.get_field_index("vector"), batch["vector"].to_pylist()
        numbers = np.frombuffer(b"".join(rows), np.float32)
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(len(numbers) // len(rows))
        arrays = pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers))
        yield batch.set_column(position, "vector", arrays)


class _VectorsWriter(MLWriter):
    """Writes `metadata`, and the vectors as Parquet in `data`."""

    def __init__(self, model: VectorsModel) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Writes both below `path`; the driver reads some vectors at a time.

        Raises:
            UsageError: the path cannot be written; or, without `overwrite()`, something is there.
        """
        mode = "overwrite" if self.shouldOverwrite else "error"
        subwords = self._model.vectors.subwords
        lengths = [] if subwords is None else [subwords.ngrams.shortest, subwords.ngrams.longest]
        extra = {"vectors": True, "subwords": lengths}
        with explain_write(path):
            write_metadata(self._model, self.sparkSession, path, mode, extra)
            self._write_vectors(path, mode)

    def _write_vectors(self, path: str, mode: str) -> None:
        vectors, subwords = self._model.vectors.vectors, self._model.vectors.subwords
        rows = max(1, _PART_SIZE // max(1, vectors.shape[1]))
        for start in range(0, len(vectors), rows):
            frame = self._model._rows_of(slice(start, start + rows), is_numbered=True)
            frame.write.mode("append" if start else mode).parquet(f"{path}/data")
        for start in range(0, 0 if subwords is None else len(subwords.rows), rows):
            part = subwords.rows[start : start + rows]  # type: ignore[union-attr]
            buckets = np.arange(start, start + len(part))
            table = {"bucket": buckets, "vector": [row.tobytes() for row in part]}
            schema = "bucket long, vector array<float>"
            frame = _frame_of_vectors(self.sparkSession, table, schema)
            frame.write.mode("append" if start else mode).parquet(f"{path}/subwords")


class _VectorsReader(ParamsReader[Any]):
    """Reads what `_VectorsWriter` wrote."""

    def load(self, path: str) -> Any:  # noqa: ANN401 - of the class that reads
        """Returns the model.

        Raises:
            CheckpointError: something else is there, or it is damaged.
        """
        metadata = self._read_metadata(path)
        with explain_read(path):
            return self._read_model(path, metadata)

    def _read_model(self, path: str, metadata: dict[str, Any]) -> Any:  # noqa: ANN401 - likewise
        table, vectors = _rows_in_parts(self.sparkSession.read.parquet(f"{path}/data"))
        table = table.assign(words=table[self._cls.of].astype(str))
        if "position" in table:
            table = table.sort_values("position")
        else:  # a model of an older release
            table = table.sort_values(["count", "words"], ascending=[False, True])
        vectors = vectors[table.index.to_numpy()]
        subwords = None
        if metadata.get("subwords"):
            shortest, longest = metadata["subwords"]
            grams, rows = _rows_in_parts(self.sparkSession.read.parquet(f"{path}/subwords"))
            rows = rows[grams.sort_values("bucket").index.to_numpy()]
            subwords = SubwordVectors(Ngrams(shortest, longest, len(rows)), rows)
        word_vectors = WordVectors(
            table["words"].tolist(), vectors, table["count"].to_numpy(), subwords
        )
        return self._with_saved_params(self._cls(word_vectors), metadata)


def _rows_in_parts(frame: DataFrame) -> tuple[pd.DataFrame, Vector]:
    """Returns a table without its column `vector`, and the vectors [n, D].

    The rows come some at a time: a Java of Spark's usual 1 GB has no room for a table of many.
    """
    names = [name for name in frame.columns if name != "vector"]
    tables, parts = [], []
    for batch in stream_batches(frame):
        if batch.num_rows:
            numbers = batch["vector"].flatten().to_numpy(zero_copy_only=False)
            parts.append(numbers.astype(np.float32, copy=False).reshape(batch.num_rows, -1))
            tables.append(batch.select(names).to_pandas())
    return pd.concat(tables, ignore_index=True), np.concatenate(parts)
