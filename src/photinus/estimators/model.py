"""What all trained models share: they score, measure, and are saved."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from pyspark.ml import Model
from pyspark.ml.classification import ClassificationModel
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import DenseVector
from pyspark.ml.param.shared import HasProbabilityCol
from pyspark.ml.regression import RegressionModel
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.addresses import is_address, on_disk
from photinus.core.errors import UsageError, user_message
from photinus.core.settings import from_dict, unknown_name
from photinus.core.threads import use_threads
from photinus.data.base import Array
from photinus.data.checks import RowChecks
from photinus.data.inputs import SEQUENCE_LABELS
from photinus.data.spark import one_column, refuse_stream, selected
from photinus.engine.spark.job import run_query
from photinus.engine.spark.session import application_of, whole_setting
from photinus.estimators.from_run import SavedRun, open_run, tried, with_shape
from photinus.estimators.inputs import input_columns, one_row, spec_and_example
from photinus.estimators.network import HEADS, Network, predictor
from photinus.estimators.param_table import MODEL_ROWS, OUTPUT_ROWS, ParamRow
from photinus.estimators.params import defaults, with_params
from photinus.estimators.persistence import NetworkReader, NetworkWriter
from photinus.estimators.scoring import measurer, scorer
from photinus.estimators.summary import Evaluation, TrainingSummary
from photinus.estimators.thresholds import check_thresholds
from photinus.models.heads import BINARY, CLASSES, LABELS, LOGS, NUMBERS, TOKENS
from photinus.run.job import MODELS, Source
from photinus.run.onnx import export_onnx

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from torch import nn


_OUTPUT_TYPES = {
    "raw": T.ArrayType(T.DoubleType()),
    "probability": T.ArrayType(T.DoubleType()),
    "prediction": T.DoubleType(),
    "layer": T.ArrayType(T.FloatType()),
}
_HEAD_TEXTS = {
    CLASSES: "classes",
    BINARY: "two classes",
    LABELS: "several labels a row",
    LOGS: "numbers",
    NUMBERS: "numbers",
    TOKENS: "a label for each token",
}
_KIND_TEXTS = {"dbn": "a DBN", "logistic": "a LogisticConfig", "module": "a torch module"}
_CLASS_OF_HEAD = {
    CLASSES: "TorchClassificationModel",
    BINARY: "TorchClassificationModel",
    LABELS: "TorchMultiLabelModel",
    LOGS: "TorchRegressionModel",
    NUMBERS: "TorchRegressionModel",
    TOKENS: "TorchTokenModel",
}
_OUTPUT_OF_PARAM = {
    "rawPredictionCol": "raw",
    "probabilityCol": "probability",
    "predictionCol": "prediction",
}


def check_new_columns(dataset: DataFrame, columns: Mapping[str, str]) -> None:
    """Refuses new columns that would replace one of the table, or one another.

    Args:
        dataset: the table.
        columns: by what sets their names.

    Raises:
        UsageError: there is such a column, two have one name, or it is no table.
    """
    if not hasattr(dataset, "sparkSession"):
        do = "spark.createDataFrame makes one"
        raise UsageError("the rows must be a Spark DataFrame", got=type(dataset).__name__, do=do)
    is_case_sensitive = dataset.sparkSession.conf.get("spark.sql.caseSensitive", "false")
    fold = str if str(is_case_sensitive).lower() == "true" else str.lower
    old_names = {fold(name) for name in dataset.columns}
    setter_of: dict[str, str] = {}
    for setter, name in columns.items():
        if fold(name) in old_names:
            wrong = f"column {name} exists already"
            raise UsageError(wrong, do=f"drop it, or set {setter}")
        if fold(name) in setter_of:
            wrong = f"{setter_of[fold(name)]} and {setter} name the same column"
            raise UsageError(wrong, got=name, do=f"set {setter} to another name")
        setter_of[fold(name)] = setter


class KeywordParams:
    """Params that are set together, by their names."""

    _param_rows: ClassVar[tuple[ParamRow, ...]] = ()

    def setParams(self, **values: Any) -> Any:  # noqa: ANN401
        """Sets Params by their names.

        Raises:
            UsageError: a name is unknown.
        """
        known_names = [row.name for row in self._param_rows]
        for name in values:
            if name not in known_names:
                raise unknown_name(f"Param of {type(self).__name__}", name, known_names)
        instance: Any = self
        return instance._set(**{name: v for name, v in values.items() if v is not None})


@with_params(OUTPUT_ROWS)
class NetworkModel(KeywordParams, Model, MLWritable, MLReadable[Any]):
    """A trained network: `predictionCol` holds what it returns for a row.

    Args:
        network: what was trained.
    """

    _param_rows: ClassVar[tuple[ParamRow, ...]] = OUTPUT_ROWS
    _heads: ClassVar[tuple[str, ...]] = (NUMBERS, LOGS)
    """What its network's outputs may stand for."""
    _kind: ClassVar[str] = ""
    """Of the networks of runs that it takes; left empty, any."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.summary: TrainingSummary | None = None
        """Of the fit that made this model; None for one that was loaded."""
        self._score_functions: dict[tuple[Any, ...], Callable[..., Any]] = {}  # copies share it
        self._setDefault(**defaults(self._param_rows))

    def module(self) -> nn.Module:
        """Returns the network as a plain torch module in evaluation mode."""
        return self.network.module()

    @property
    def numFeatures(self) -> int:
        """Numbers in one row."""
        return math.prod(self.network.shape)

    def predict(self, value: Any) -> Any:  # noqa: ANN401 - a vector or an array
        """Returns what is predicted for one row: a number, or several.

        Args:
            value: the features; of a model with `inputs` that of its one input, or a dict of all.
        """
        predict = predictor(self.network, ["prediction"], thresholds=self._thresholds())
        prediction = predict(one_row(value, self.network.input_spec))["prediction"][0]
        return prediction if prediction.ndim else float(prediction)

    def evaluate(self, dataset: DataFrame) -> Evaluation:
        """Returns the metrics on rows with labels: the loss's own, and those that `metrics` names.

        The executors measure; only sums are sent to the driver.

        Raises:
            UsageError: a column is unknown.
            DataError: there are no rows, or a label is no number.
        """
        refuse_stream(dataset)
        label = self.getOrDefault("labelCol") or None
        spark, features = dataset.sparkSession, self.getOrDefault("featuresCol")
        input_spec = self.network.input_spec
        if self.network.head == TOKENS and input_spec is not None and label is not None:
            columns = {**input_spec.columns, SEQUENCE_LABELS: label}
            input_spec, label = replace(input_spec, columns=columns), None
        frame, spec = selected(dataset, features, label, inputs=input_spec)
        spec = replace(spec, shape=self.network.shape)
        metrics = self._metrics()
        classes = self.network.classes if self.network.head in (CLASSES, TOKENS) else None
        checks = RowChecks(classes=classes)
        thresholds = self._thresholds()
        task = measurer(self.network.on(spark), _threads(spark), spec, checks, metrics, thresholds)
        rows: Any = run_query(spark, frame.mapInArrow(task, "sums string").collect)
        settings: Any = from_dict(MODELS[self.network.kind], self.network.settings)
        return Evaluation.of(settings, [row["sums"] for row in rows], metrics)

    def _metrics(self) -> list[str]:
        """Returns which metrics to report; warns which are left out.

        Of the user's own metrics the network itself computes those that it was trained with; the
        user trusted no others with its code.
        """
        requested = self.getOrDefault("metrics")
        trained_with = self.network.settings.get("metrics", ())
        if left_out := [name for name in requested if ":" in name and name not in trained_with]:
            warning = user_message(
                "evaluate leaves metrics of your own out that fit was not given",
                got=", ".join(left_out),
            )
            logging.getLogger("photinus").warning(warning)
        return [name for name in requested if ":" not in name]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        columns = {
            param: str(self.getOrDefault(param))
            for param in _OUTPUT_OF_PARAM
            if self.hasParam(param) and self.getOrDefault(param)
        }
        check_new_columns(dataset, columns)
        if not columns:
            return dataset
        outputs = {column: _OUTPUT_OF_PARAM[param] for param, column in columns.items()}
        return self._with_scores(dataset, outputs)

    def withLayer(self, dataset: DataFrame, layer: str, outputCol: str) -> DataFrame:
        """Returns the rows with a new column: the outputs of a named layer, flattened.

        Args:
            dataset: rows with the features' column.
            layer: a submodule's name, as in `module().state_dict()`.
            outputCol: the new column, an array of float32.

        Raises:
            UsageError: the network has no such layer, or the table has such a column.
        """
        check_new_columns(dataset, {"outputCol": outputCol})
        self.network.outputs(layer)  # a wrong name is refused before any row is read
        return self._with_scores(dataset, {outputCol: "layer"}, layer)

    def _with_scores(
        self, dataset: DataFrame, output_of_column: dict[str, str], layer: str = ""
    ) -> DataFrame:
        features, is_bytes = self._features_column(dataset)
        score_function = self._score_function(
            dataset.sparkSession, list(output_of_column.values()), layer, is_bytes=is_bytes
        )
        scores = f"{self.uid}__scores"
        columns = {
            column: self._as_column(F.col(f"{scores}.{output}"), output)
            for column, output in output_of_column.items()
        }
        return (
            dataset.withColumn(scores, score_function(features)).withColumns(columns).drop(scores)
        )

    def _features_column(self, dataset: DataFrame) -> tuple[Column, bool]:
        """Returns what is scored as one column, and whether its rows are bytes."""
        input_spec = self.network.input_spec
        if input_spec is not None:
            return input_columns(dataset, input_spec), False
        return one_column(dataset, self.getOrDefault("featuresCol"), self.network.shape)

    def _as_column(self, column: Column, output: str) -> Column:
        return array_to_vector(column) if output in ("raw", "probability") else column

    def _output_type(self, output: str) -> T.DataType:
        is_several = output == "prediction" and self.network.predicts_several
        return T.ArrayType(T.DoubleType()) if is_several else _OUTPUT_TYPES[output]

    def _score_function(
        self, spark: SparkSession, outputs: list[str], layer: str = "", *, is_bytes: bool = False
    ) -> Callable[..., Any]:
        """Returns the function of columns; the weights are sent once a session."""
        thresholds = self._thresholds()
        batch_size = self.getOrDefault("predictBatchSize")
        features = self.getOrDefault("featuresCol")
        column_name = features if isinstance(features, str) else tuple(features)
        key = (
            *(application_of(spark), batch_size, is_bytes, column_name, layer),
            *(tuple(thresholds or ()), *outputs),
        )
        if key not in self._score_functions:
            open_network, threads = self.network.on(spark), _threads(spark)
            fields = T.StructType(
                [T.StructField(output, self._output_type(output)) for output in outputs]
            )

            def make() -> Callable[[Any], dict[str, Any]]:
                use_threads(threads)
                return predictor(open_network(), outputs, layer, thresholds)

            width = self.network.input_spec or (None if is_bytes else self.numFeatures)
            self._score_functions[key] = scorer(make, fields, batch_size, width, column_name)
        return self._score_functions[key]

    def _thresholds(self) -> list[float] | None:
        """Returns a number for each class, where they are set.

        Raises:
            UsageError: they do not fit the classes.
        """
        if not self.hasParam("thresholds") or not self.isSet("thresholds"):
            return None
        thresholds: list[float] = self.getOrDefault("thresholds")
        check_thresholds(thresholds, self.network.head, self.network.classes)
        return thresholds

    def registerFunction(self, name: str, spark: SparkSession) -> None:
        """Makes the model a function of SQL: `SELECT name(features).prediction FROM table`.

        It takes a column of arrays or ML vectors, or of bytes; of a model with `inputs` the column
        of its one input, or `named_struct('tokens', ids, 'price', amount)`. It returns a structure
        with what `transform` adds: prediction; of a classifier also raw and probability, as arrays.

        Args:
            name: of the function.
            spark: the session in which it is known.
        """
        outputs = [output for param, output in _OUTPUT_OF_PARAM.items() if self.hasParam(param)]
        spark.udf.register(name, self._score_function(spark, outputs))

    def toOnnx(self, path: str) -> None:
        """Writes the network as an ONNX file: features [B, ...] as they are stored, to outputs.

        Args:
            path: of the file, on this machine.

        Raises:
            NotReadyError: `photinus[onnx]` is not installed.
            UsageError: torch cannot export the module, it takes `inputs`, or the file cannot be
                written.
        """
        if (input_spec := self.network.input_spec) is not None:
            wrong = "toOnnx writes a module of one array of features"
            do = "call torch.onnx.export(model.module(), kwargs=...) with a batch of your own"
            raise UsageError(wrong, got=f"the inputs {', '.join(input_spec.columns)}", do=do)
        network = self.network
        export_onnx(self.module(), network.input_shape, path, network.scale, network.loss)

    def write(self) -> NetworkWriter:
        """Returns the writer: `model.write().overwrite().save(path)`."""
        return NetworkWriter(self)

    @classmethod
    def read(cls) -> NetworkReader[Any]:
        """Returns the reader."""
        return NetworkReader(cls)

    @classmethod
    def load(cls, path: str, *, trust_code: bool = False) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns a saved model; of a run's folder on this machine what `fromRun` returns.

        Args:
            path: where it was saved.
            trust_code: run the code that it names, though this user did not save it here.

        Raises:
            UsageError: another user saved it, and it names code.
        """
        if not is_address(path) and (on_disk(path) / "job.json").is_file():
            return cls.fromRun(path, trust_code=trust_code)
        return NetworkReader(cls, trust_code=trust_code).load(path)

    @classmethod
    def fromRun(
        cls, folder: Path | str, rows: DataFrame | None = None, *, trust_code: bool = False
    ) -> Self:
        """Returns the model that `photinus.train` or `photinus train` left in a run's folder.

        It reads the columns that the run read, and can be saved like any other.

        Args:
            folder: of the run; a path or an address.
            rows: a table with these columns. Its first rows show how long a row is, where the run
                did not note it: where it had `inputs`, or was an earlier version's.
            trust_code: run the code that the folder names, though no run of this user made it.

        Raises:
            UsageError: there is no model, it is one of another kind, or rows are needed.
            CheckpointError: it is damaged.

        Example:
            >>> model = TorchClassificationModel.fromRun("runs/first")  # doctest: +SKIP
            >>> model.transform(table).select("prediction")  # doctest: +SKIP
        """
        run = open_run(folder, trust_code)
        if cls._kind not in ("", run.network.kind):
            wrong, do = f"{folder} holds no {cls.__name__}", "TorchClassificationModel.fromRun"
            raise UsageError(wrong, got=f"a run of {_KIND_TEXTS[run.network.kind]}", do=do)
        network, example = _example(run, folder, rows)
        network = tried(network, example, cls._heads)
        if network.head not in cls._heads:
            wrong = f"{folder} holds no {cls.__name__}"
            do = f"{_CLASS_OF_HEAD[network.head]}.fromRun"
            raise UsageError(wrong, got=f"a network of {_HEAD_TEXTS[network.head]}", do=do)
        return cls(network)._with_columns_of(run.source)

    def _with_columns_of(self, source: Source) -> Self:
        features = list(source.features)
        self._set(
            featuresCol=features[0] if len(features) == 1 else features,
            labelCol=source.labels or "",
        )
        return self


class NetworkRegressionModel(NetworkModel, RegressionModel[Any]):
    """A trained regression: `predictionCol` holds a number, or an array of them."""


@with_params(MODEL_ROWS)
class NetworkClassificationModel(NetworkModel, ClassificationModel, HasProbabilityCol):
    """A trained classifier.

    Args:
        network: what was trained.
    """

    _param_rows = MODEL_ROWS
    _heads: ClassVar[tuple[str, ...]] = (CLASSES, BINARY)

    @property
    def numClasses(self) -> int:
        """Classes."""
        return max(2, self.network.classes)

    def predictRaw(self, value: Any) -> DenseVector:  # noqa: ANN401 - a vector or an array
        """Returns one row's outputs before the softmax."""
        return DenseVector(
            predictor(self.network, ["raw"])(one_row(value, self.network.input_spec))["raw"][0]
        )


def model_of_run(run: SavedRun, folder: str, rows: DataFrame) -> NetworkModel:
    """Returns the model of a run, whatever its outputs stand for; as of `fromRun`.

    Args:
        run: of `open_run`.
        folder: what the user calls it.
        rows: a table with the columns that the run read.
    """
    network = tried(*_example(run, folder, rows))
    has_probability = "probability" in HEADS[network.head]
    model = (NetworkClassificationModel if has_probability else NetworkModel)(network)
    return model._with_columns_of(run.source)


def _example(
    run: SavedRun, folder: Path | str, rows: DataFrame | None
) -> tuple[Network, dict[str, Array] | Array]:
    """Returns a run's network with its shape, and two rows that it reads.

    Raises:
        UsageError: only rows show how long they are, and there are none.
    """
    network, source = run.network, run.source
    if rows is not None:
        frame, spec = selected(rows, list(source.features), inputs=network.input_spec)
        spec, example = run_query(
            rows.sparkSession, lambda: spec_and_example(frame, spec, network.scale)
        )
        return with_shape(network, spec.shape), example
    if network.inputs is not None or not network.shape:
        wrong = f"{folder} does not say how long a row is"
        raise UsageError(wrong, do="fromRun(FOLDER, rows) looks at the first rows of a table")
    return network, np.zeros((2, *network.shape), np.float32)


def _threads(spark: SparkSession) -> int:
    return whole_setting(spark.conf, "spark.task.cpus", 1)
