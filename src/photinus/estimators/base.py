"""What all estimators share: Params become a job, and the result becomes a model."""

from __future__ import annotations

import math
import re
import secrets
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pyspark.ml.classification import ClassificationModel, Classifier
from pyspark.ml.functions import array_to_vector, predict_batch_udf
from pyspark.ml.linalg import DenseVector
from pyspark.ml.param.shared import HasProbabilityCol, HasSeed
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, UsageError
from photinus.core.events import Event
from photinus.core.settings import to_dict, unknown_name
from photinus.data.checks import RowChecks
from photinus.data.spark import as_frame, classes_in, columns, once, one_column, selected
from photinus.engine.spark.engine import FrameData, SparkEngine, check_slots, free_slots
from photinus.engine.spark.executor_python import check_python
from photinus.engine.spark.job import queried
from photinus.engine.spark.session import is_connect
from photinus.estimators.inputs import exampled, input_columns
from photinus.estimators.network import Network, layer_reader, named_layer, predictor
from photinus.estimators.param_table import MODEL_ROWS, Row
from photinus.estimators.params import defaults, plain_job, with_params
from photinus.estimators.persist import NetworkReader, NetworkWriter, ParamsReader, ParamsWriter
from photinus.estimators.scoring import scorer
from photinus.estimators.summary import Evaluation, TrainingSummary
from photinus.models.dbn import DBN
from photinus.report.interval import error_interval
from photinus.report.journal import read
from photinus.run.job import MODELS, Job
from photinus.run.train import train_draft

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from torch import nn

    from photinus.run.evaluate import Draft

__all__ = ["Keywords", "NetworkClassificationModel", "NetworkClassifier"]

_SCORES = {
    "rawPredictionCol": T.StructField("raw", T.ArrayType(T.DoubleType())),
    "probabilityCol": T.StructField("probability", T.ArrayType(T.DoubleType())),
    "predictionCol": T.StructField("prediction", T.DoubleType()),
}

_MOST_FUNCTION_BYTES = 96 << 20
"""Of what a function holds: a message of Spark Connect's takes 128 MiB."""


class Keywords:
    """Params that are set together, by their names."""

    _rows: ClassVar[tuple[Row, ...]] = ()

    def setParams(self, **values: Any) -> Any:  # noqa: ANN401
        """Sets Params by their names.

        Raises:
            UsageError: a name is unknown.
        """
        known = [row.name for row in self._rows]
        for name in values:
            if name not in known:
                raise unknown_name(f"Param of {type(self).__name__}", name, known)
        me: Any = self
        return me._set(**{name: v for name, v in values.items() if v is not None})


class NetworkClassifier(
    Keywords,
    Classifier[Any],
    HasProbabilityCol,
    HasSeed,
    MLWritable,
    MLReadable[Any],
):
    """Trains on the tasks of the DataFrame's own session; a subclass says what."""

    _usual: ClassVar[Any]
    """The model's settings if nothing is set."""
    _model: ClassVar[type[NetworkClassificationModel]]
    _counts_outputs: ClassVar[bool]
    """Whether the model says how many classes there are, if nobody else does."""
    _more_classes: ClassVar[str]
    """What to do where a label is too large."""
    callbacks: Sequence[Callable[[Event], None]] = ()
    """Called with every event of a fit; no Param, and not saved."""
    verbose: bool | None = None
    """Shows a fit as it goes on; None: on a screen and in a notebook."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**defaults(self._rows, self._usual))

    def write(self) -> ParamsWriter:
        """Returns the writer: `estimator.write().overwrite().save(path)`."""
        return ParamsWriter(self)

    @classmethod
    def read(cls) -> ParamsReader[Any]:
        """Returns the reader."""
        return ParamsReader(cls)

    @classmethod
    def load(cls, path: str, *, trust_code: bool = False) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns a saved estimator.

        Args:
            path: where it was saved.
            trust_code: let `fit` run the code that it names, though this user did not save it here.

        Raises:
            UsageError: somebody else saved it, and it names code.
        """
        return ParamsReader(cls, trust_code=trust_code).load(path)

    def _fit(self, dataset: DataFrame) -> NetworkClassificationModel:
        features, label = self.getOrDefault("featuresCol"), self.getOrDefault("labelCol")
        dataset = as_frame(dataset)
        if not hasattr(dataset, "sparkSession"):
            got = f"{type(dataset).__module__.partition('.')[0]}'s {type(dataset).__name__}"
            do = "spark.createDataFrame(...) makes one"
            raise UsageError("fit takes a DataFrame of Spark", got=got, do=do)
        spark, workers = dataset.sparkSession, self.getOrDefault("numWorkers")
        job = self._job({}, workers)  # the Params alone, before any row is looked at
        if not is_connect(spark):
            check_python(spark.sparkContext)
        if workers:
            check_slots(spark, workers)
        else:
            workers = free_slots(spark, _batch_size(job.model))
        frame, spec = selected(
            dataset, features, label, inputs=job.data.named, weight=job.data.weight or None
        )
        asked = self.getOrDefault("numClasses") if self.isSet("numClasses") else None
        known = asked or classes_in(dataset, label)
        with once(frame, always=known is None and not self._counts_outputs) as rows:
            spec, example = queried(spark, lambda: exampled(rows, spec, job.data.scale))
            if known is None and not self._counts_outputs:
                known = _classes(rows, str(spec.label))
            classes = None if known is None else max(2, known)
            job = self._job(self._sizes(spec.shape, classes or 2), workers)
            outputs, draft = self._outputs(job, example, classes)
            more = "set numClasses to {} or more" if asked else self._more_classes
            data = FrameData(
                frame=rows,
                label=spec.label,
                scale=job.data.scale,
                checks=RowChecks(classes=asked or outputs, more_classes=more),
                shape=spec.shape,
                spec=spec,
            )
            network, summary = self._trained(draft, data, outputs)
        made = self._copyValues(self._model(network))
        made.summary = summary
        return made

    def _trained(
        self, draft: Draft, data: FrameData, outputs: int
    ) -> tuple[Network, TrainingSummary]:
        """Trains on the session's tasks."""
        job = draft.job
        with self._folder() as folder:
            engine = SparkEngine(data.frame.sparkSession)
            outcome = train_draft(
                draft,
                data,
                folder=folder,
                callbacks=self.callbacks,
                verbose=self.verbose,
                engine=engine,
                is_kept=bool(self.getOrDefault("runDir")),
            )
            kept = outcome.folder if self.getOrDefault("runDir") else None
            summary = TrainingSummary.of(read(outcome.folder / "events.jsonl"), kept)
            network = Network.saved(
                outcome.folder / "model",
                shape=data.shape,
                classes=outputs,
                scale=job.data.scale,
                seed=job.seed,
                inputs=None if job.data.named is None else to_dict(job.data.named),
            )
        return network, summary

    def _job(self, sizes: Mapping[str, Any], workers: int = 0) -> Job:
        """Returns the job that the Params ask for.

        Args:
            sizes: the model's settings from data.
            workers: how many; 0 while that is not known.

        Raises:
            UsageError: names the Param that is wrong.
        """
        values = {p.name: self.getOrDefault(p) for p in self.params if self.isSet(p)}
        workers = workers or values.pop("numWorkers", 0)
        values |= {"numWorkers": workers} if workers else {}
        try:
            return self._made(values, sizes)
        except UsageError as error:
            raise self._in_params(error, values, sizes) from error

    def _in_params(
        self, error: UsageError, values: Mapping[str, Any], sizes: Mapping[str, Any]
    ) -> UsageError:
        """Returns the error of a job's setting as the Param's without which it goes away."""
        suspects: list[tuple[bool, Row]] = []
        for row in self._rows:
            if row.place and row.name in values:
                rest = {name: value for name, value in values.items() if name != row.name}
                left = self._wrong(rest, sizes)
                suspects += [(left == "", row)] if left != str(error) else []
        if not suspects:
            return error
        _, row = max(suspects, key=lambda suspect: suspect[0])
        setting = rf"^{row.place.rpartition('.')[2]} of \w+ "
        said, is_its = re.subn(setting, f"{row.name} ", str(error))
        return UsageError(said if is_its else f"{row.name}: {error}")

    def _wrong(self, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
        """Returns what is wrong with a job of these Params; empty if nothing is."""
        try:
            self._made(values, sizes)
        except UsageError as error:
            return str(error)
        return ""

    def _made(self, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Job:
        plain = plain_job(self._rows, values)
        kind = next(name for name, cls in MODELS.items() if isinstance(self._usual, cls))
        plain["model"] = {"kind": kind, **plain.get("model", {}), **sizes}
        source = {"name": "given", "features": [self.getOrDefault("featuresCol")]}
        source["label"] = self.getOrDefault("labelCol")
        plain["data"] = {**plain.get("data", {}), **source}
        return Job.from_dict({**plain, "engine": "spark", "name": self.uid})

    @abstractmethod
    def _sizes(self, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
        """Returns the model's settings that the rows decide."""

    @abstractmethod
    def _outputs(self, job: Job, example: Any, classes: int | None) -> tuple[int, Draft]:  # noqa: ANN401
        """Returns how many outputs the job's model has for rows of this kind, and the model.

        Args:
            job: what is trained.
            example: two rows as the model reads them: [2, ...], or a dict of arrays by input.
            classes: so many are known to be needed; None where the model says it.
        """

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """A run folder of its own for every fit."""
        kept = self.getOrDefault("runDir")
        if kept:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            yield Path(kept) / f"{self.uid}-{stamp}-{secrets.token_hex(2)}"
            return
        with tempfile.TemporaryDirectory(prefix="photinus-") as folder:
            yield Path(folder) / "run"


@with_params(MODEL_ROWS)
class NetworkClassificationModel(
    Keywords, ClassificationModel, HasProbabilityCol, MLWritable, MLReadable[Any]
):
    """A trained classifier.

    Args:
        network: what was trained.
    """

    _rows = MODEL_ROWS

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.summary: TrainingSummary | None = None
        """Of the fit that made this model; None for one that was loaded."""
        self._sent: dict[tuple[Any, ...], Callable[..., Any]] = {}  # copies share it
        self._setDefault(**defaults(self._rows))

    def module(self) -> nn.Module:
        """Returns the network as a plain torch module in evaluation mode."""
        return self.network.module()

    @property
    def numFeatures(self) -> int:
        """Numbers in one row."""
        return math.prod(self.network.shape)

    @property
    def numClasses(self) -> int:
        """Classes."""
        return self.network.classes

    def predictRaw(self, value: Any) -> DenseVector:  # noqa: ANN401 - a vector or an array
        """Returns one row's outputs before the softmax."""
        row = np.asarray(value.toArray() if hasattr(value, "toArray") else value, np.float32)
        return DenseVector(self.network.outputs()(row[None])[0].astype(np.float64))

    def predict(self, value: Any) -> float:  # noqa: ANN401 - a vector or an array
        """Returns one row's likeliest class."""
        return float(np.argmax(self.predictRaw(value).toArray()))

    def evaluate(self, dataset: DataFrame) -> Evaluation:
        """Returns the error on rows with labels, with its 95 % interval.

        Raises:
            UsageError: a column is unknown.
            DataError: there are no rows, or a label is no number.
        """
        label = self.getOrDefault("labelCol")
        spark, features = dataset.sparkSession, self.getOrDefault("featuresCol")
        if self.network.named is not None:
            named, frame, scored = str(label), dataset, self
        else:
            frame, spec = queried(spark, lambda: columns(dataset, features, label))
            scored = self.copy({self.getParam("featuresCol"): frame.columns[0]})
            named = str(spec.label)
        wrong = F.col(f"`{named}`") != F.col(self.getOrDefault("predictionCol"))
        counts = scored.transform(frame).agg(F.count("*"), F.sum(wrong.cast("long")))
        first: Any = queried(spark, counts.first)
        examples, errors = int(first[0]), int(first[1] or 0)
        return Evaluation(errors / examples, error_interval(errors, examples), examples)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        features, is_bytes = self._features(dataset)
        fields = {
            str(self.getOrDefault(param)): field
            for param, field in _SCORES.items()
            if self.getOrDefault(param)
        }
        if not fields:
            return dataset
        kinds = T.StructType(list(fields.values()))
        score = self._score(dataset.sparkSession, kinds, is_bytes)
        scores = f"{self.uid}__scores"
        named = {}
        for name, field in fields.items():
            column = F.col(f"{scores}.{field.name}")
            is_array = isinstance(field.dataType, T.ArrayType)
            named[name] = array_to_vector(column) if is_array else column
        return dataset.withColumn(scores, score(features)).withColumns(named).drop(scores)

    def _features(self, dataset: DataFrame) -> tuple[Column, bool]:
        """Returns what is scored as one column, and whether its rows are bytes."""
        named = self.network.named
        if named is not None:
            return input_columns(dataset, named), False
        features = one_column(dataset, self.getOrDefault("featuresCol"), self.network.shape)
        return features, dict(dataset.select(features.alias("x")).dtypes)["x"] == "binary"

    def _score(
        self, spark: SparkSession, fields: T.StructType, is_bytes: bool
    ) -> Callable[..., Any]:
        """Returns the function of columns; the weights are sent once a session."""
        threads = int(str(spark.conf.get("spark.task.cpus", "1")))
        batch = self.getOrDefault("predictBatchSize")
        application = "" if is_connect(spark) else str(spark.sparkContext.applicationId)
        key = (application, batch, is_bytes, *fields.names)
        if key not in self._sent:
            sent = self._network_on(spark)
            self._sent[key] = scorer(
                lambda: predictor(sent, threads, fields.names),
                fields,
                batch,
                self.network.named or (None if is_bytes else [self.numFeatures]),
            )
        return self._sent[key]

    def _network_on(self, spark: SparkSession) -> Callable[[], tuple[dict[str, Any], bytes]]:
        """Returns what reads the network on a worker: of a broadcast, or of the function itself."""
        network = self.network.meta(), self.network.weights()
        if not is_connect(spark):
            sent = spark.sparkContext.broadcast(network)
            return lambda: sent.value
        if len(network[1]) > _MOST_FUNCTION_BYTES:
            wrong = f"Spark Connect takes models of at most {_MOST_FUNCTION_BYTES >> 20} MiB"
            got = f"{len(network[1]) >> 20} MiB"
            raise UsageError(wrong, got=got, do="use a classic session, or module() in the client")
        return lambda: network

    def withLayer(self, dataset: DataFrame, layer: str, outputCol: str) -> DataFrame:
        """Returns the rows with what a named layer makes of them, flattened: features to use on.

        Args:
            dataset: rows with the features' column.
            layer: a submodule's name, as in `state_dict`.
            outputCol: the new column, an array of float32.

        Raises:
            UsageError: the network has no such layer, or is a DBN.
        """
        self.network.outputs(layer)
        features, is_bytes = self._features(dataset)
        spark = dataset.sparkSession
        threads = int(str(spark.conf.get("spark.task.cpus", "1")))
        sent = self._network_on(spark)
        if self.network.named is not None:
            fields = T.StructType([T.StructField("layer", T.ArrayType(T.FloatType()))])
            read = scorer(
                lambda: named_layer(sent, threads, layer),
                fields,
                self.getOrDefault("predictBatchSize"),
                self.network.named,
            )
            return dataset.withColumn(outputCol, read(features)["layer"])
        read = predict_batch_udf(
            lambda: layer_reader(sent, threads, layer),
            return_type=T.ArrayType(T.FloatType()),
            batch_size=self.getOrDefault("predictBatchSize"),
            input_tensor_shapes=None if is_bytes else [[self.numFeatures]],
        )
        return dataset.withColumn(outputCol, read(features))

    def write(self) -> NetworkWriter:
        """Returns the writer: `model.write().overwrite().save(path)`."""
        return NetworkWriter(self)

    @classmethod
    def read(cls) -> NetworkReader[Any]:
        """Returns the reader."""
        return NetworkReader(cls)

    @classmethod
    def load(cls, path: str, *, trust_code: bool = False) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns a saved model.

        Args:
            path: where it was saved.
            trust_code: run the code that it names, though this user did not save it here.

        Raises:
            UsageError: somebody else saved it, and it names code.
        """
        return NetworkReader(cls, trust_code=trust_code).load(path)


def _batch_size(model: Any) -> int:  # noqa: ANN401 - one of MODELS
    """Returns the examples of a model's smallest step: more workers have nothing to do in it."""
    stages = (model.pretraining, model.fine_tuning) if isinstance(model, DBN) else (model,)
    return min(int(stage.batch_size) for stage in stages)


def _classes(frame: DataFrame, label: str) -> int:
    """Returns how many classes there are, by one pass over the labels.

    Raises:
        DataError: a label is null, negative or a fraction.
    """
    y = F.col(f"`{label}`")
    is_bad = y.isNull() | (y < 0) | (y != F.floor(y))
    asking = frame.agg(
        F.sum(is_bad.cast("long")),
        F.min(F.when(is_bad, y)),
        F.max(y),
    )
    first: Any = queried(frame.sparkSession, asking.first)
    bad, example, most = first
    if bad:
        raise DataError(
            f"column {label}: labels must be whole numbers from 0",
            got=f"{'null' if example is None else example} and {bad - 1} more such",
            do="turn them into indices first, e.g. with StringIndexer",
        )
    return int(most) + 1
