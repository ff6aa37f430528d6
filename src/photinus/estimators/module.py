"""Spark ML estimators that train any torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pyspark.ml.regression import Regressor
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, PhotinusError, UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.masks import mask_of
from photinus.core.settings import unknown_column
from photinus.data.arrow import unequal_rows_advice
from photinus.data.base import Array, Batch
from photinus.data.checks import RowChecks
from photinus.data.spark import classes_in
from photinus.estimators.base import NetworkClassifier, NetworkEstimator, Plan, SelectedRows
from photinus.estimators.inputs import first_length, is_ragged
from photinus.estimators.model import (
    NetworkClassificationModel,
    NetworkModel,
    NetworkRegressionModel,
)
from photinus.estimators.param_table import CLASSIFIER_ROWS, ESTIMATOR_ROWS
from photinus.estimators.params import keyword_params, with_params
from photinus.models.base import Model
from photinus.models.heads import BINARY, CLASSES, LABELS, LOGS, NUMBERS, TOKENS
from photinus.models.losses import CLASSES as CLASS_LOSSES
from photinus.models.losses import SEQUENCE_LOSS, no_token_labels
from photinus.models.module import ModuleConfig
from photinus.models.reading import advice_for_input
from photinus.models.schedules import Schedule
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.module_check import output_advice
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.spec import StrategySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from torch import Tensor, nn
    from torch.optim import Optimizer


_ONE_OUTPUT = ", or set loss='binary_cross_entropy', which tells two classes apart by one"


class TorchModel(NetworkModel):
    """A trained torch module; `TorchEstimator.fit` returns it.

    Args:
        network: what was trained.
    """


class TorchRegressionModel(NetworkRegressionModel):
    """A trained regression; `TorchRegressor.fit` returns it.

    Args:
        network: what was trained.
    """


class TorchClassificationModel(NetworkClassificationModel):
    """A trained classifier; `TorchClassifier.fit` returns it.

    Args:
        network: what was trained.
    """


class TorchMultiLabelModel(NetworkClassificationModel):
    """A trained classifier of rows with several labels each; `TorchClassifier.fit` returns it.

    Args:
        network: what was trained.
    """

    _heads: ClassVar[tuple[str, ...]] = (LABELS,)


class TorchTokenModel(NetworkModel):
    """A trained classifier of each token of a row; `TorchClassifier.fit` returns it.

    `predictionCol` holds an array: the class of each token.

    Args:
        network: what was trained.
    """

    _heads: ClassVar[tuple[str, ...]] = (TOKENS,)


class _ModuleEstimator(NetworkEstimator):
    """What the estimators of modules share."""

    _default_settings = ModuleConfig(module="", loss="mse")

    def _make_job(self, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Job:
        if not values.get("module"):
            do = "module='mynets:Net' names a class, or a function that returns a torch module"
            raise UsageError(f"{type(self).__name__} needs a module", do=do)
        rate, settings = values.get("learningRate"), values.get("optimizerArgs") or {}
        if rate is not None and "lr" in settings:
            got = f"learningRate={rate}, and optimizerArgs with lr={settings['lr']}"
            raise UsageError("two learning rates are set", got=got, do="leave one of them out")
        return super()._make_job(values, sizes)

    def _draft_and_shape(
        self, rows: SelectedRows, workers: int
    ) -> tuple[LazyModel, tuple[int, ...]]:
        """Returns what is trained, and the shape of its outputs [B, ...] for two rows.

        So a module that does not take these rows is found before all else.
        """
        example, reads = rows.example, self.getOrDefault("reads")
        choices = {self.getOrDefault(name) for name in ("precision", "memoryFormat")}
        sizes: dict[str, Any] = {}
        if "auto" in choices and not isinstance(example, Mapping):
            network_input = (
                np.asarray(resolve_user_code(reads, "function")(example, None))
                if reads
                else example
            )
            sizes["example"] = list(network_input.shape[1:])
        draft = LazyModel(self._job(sizes, workers).resolved())
        model: Any = draft.model()
        if isinstance(model, Model) and not hasattr(model, "outputs"):
            return draft, (2, 1)
        try:
            return draft, tuple(np.shape(model.outputs(example)))
        except PhotinusError:
            raise
        except Exception as error:  # whatever the user's module raises
            raise self._refused_rows_error(draft.job.model.module, rows, error) from error

    def _refused_rows_error(self, module: str, rows: SelectedRows, error: Exception) -> UsageError:
        """Returns the error of a module that does not take the first rows."""
        has_named_inputs, spec = isinstance(rows.example, Mapping), rows.spec
        description = "its inputs" if has_named_inputs else f"rows of shape {spec.shape}"
        do = "compare the columns with what its forward takes"
        if is_ragged(rows.frame, spec):
            description += f", and other rows of {spec.features[0]} have other lengths"
            do = unequal_rows_advice(spec.features[0])
        elif (
            not has_named_inputs
            and isinstance(error, RuntimeError)
            and "scalar types" in str(error)
        ):
            do = "numbers of featuresCol are float32: set inputs={'parameter of forward': "
            do += f"{spec.features[0]!r}}}, where whole numbers stay whole"
        elif has_named_inputs and "scalar types" in str(error):
            do = _scalar_types_advice(spec.inputs.columns if spec.inputs else {})
        else:
            do = advice_for_input(rows.example, error) or do
        wrong = f"the module {module} does not take {description}"
        return UsageError(wrong, got=_error_text(error), do=do)

    def _try_loss(self, draft: LazyModel, rows: SelectedRows, labels: Array | None) -> None:
        """Measures two rows with labels of zeros: a loss that returns no number is found here.

        What may be wrong with the outputs is noted in the draft.
        """
        try:
            draft.model().measure(Batch(rows.example, labels))
        except DataError as error:
            raise UsageError(str(error)) from error
        except PhotinusError:
            raise
        except Exception as error:  # whatever the user's loss raises
            wrong = f"the loss {draft.job.model.loss} does not take two rows with labels of zeros"
            raise UsageError(wrong, got=_error_text(error)) from error
        draft.advice = output_advice(draft, rows.example)


def _scalar_types_advice(columns: Mapping[str, str | tuple[str, ...]]) -> str:
    """Returns what to do where a layer wants whole numbers, and an input holds others."""
    stacked = [name for name, column in columns.items() if not isinstance(column, str)]
    advice = ["cast columns of whole numbers to integers, as with SQLTransformer in a Pipeline"]
    if stacked:  # a cast changes nothing there
        names = " or ".join(stacked)
        advice.append(
            f"several columns of one input, as of {names}, are float32 whatever they hold"
        )
        advice.append(f"name each alone, or use {stacked[0]}.long() in forward")
    return "; ".join(advice[len(stacked) == len(columns) :])


def _error_text(error: Exception) -> str:
    """Returns the first line of an error, with its class where the line alone says too little."""
    line = str(error).partition("\n")[0]
    is_clear_alone = isinstance(error, (RuntimeError, IndexError, ValueError, TypeError))
    return line if is_clear_alone else f"{type(error).__name__}: {line}".removesuffix(": ")


def _width(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[1:], dtype=int))


@with_params(ESTIMATOR_ROWS)
class TorchEstimator(_ModuleEstimator):
    """Trains any module under any loss, on the tasks of a Spark session.

    The loss reads the module's outputs and the label column. Without a label column (`labelCol=""`)
    the features are the target: an autoencoder.

    Example:
        >>> rank = TorchEstimator(module="mynets:score", loss="mylosses:pairwise")
        >>> rank.getLoss(), rank.getOptimizer()
        ('mylosses:pairwise', 'adamw')
        >>> model = rank.fit(train)  # doctest: +SKIP
    """

    _param_rows = ESTIMATOR_ROWS
    _model_class: ClassVar[type[NetworkModel]] = TorchModel

    @keyword_params
    def __init__(
        self,
        *,
        featuresCol: str | Sequence[str] = "features",
        labelCol: str | Sequence[str] = "label",
        predictionCol: str = "prediction",
        predictBatchSize: int = 512,
        metrics: Sequence[str | Callable[..., Any]] = (),
        scale: float | None = None,
        strategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy = "averaging",
        numWorkers: int = 0,
        shuffle: str | bool = "auto",
        share: str = "rows",
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
        validation: float = 0.0,
        validationIndicatorCol: str = "",
        patience: int = 0,
        start: str | Mapping[str, Tensor] = "",
        inputs: Mapping[str, str | Sequence[str]] | None = None,
        encoders: Mapping[str, str | Callable[..., Any]] | None = None,
        collate: str | Callable[..., Any] = "",
        weightCol: str = "",
        module: str | Callable[..., nn.Module] = "",
        moduleArgs: Mapping[str, Any] | None = None,
        loss: str | Callable[..., Tensor] = "mse",
        optimizer: str | type[Optimizer] = "adamw",
        optimizerArgs: Mapping[str, Any] | None = None,
        decays: str = "all",
        perTensor: bool = False,
        learningRate: float | Schedule | None = None,
        learningRateScale: str = "none",
        batchSize: int = 32,
        accumulate: int = 1,
        epochs: float | None = None,
        activationMemory: str = "keep",
        activationBytes: int | None = None,
        cudaGraph: bool = False,
        maxSteps: int = 0,
        clip: float = 0.0,
        l2: Mapping[str, float] | None = None,
        movingAverage: float = 0.0,
        frozen: Sequence[str] = (),
        reads: str | Callable[..., Any] = "",
        precision: str = "float32",
        memoryFormat: str = "contiguous",
        phase: str = "train",
    ) -> None:
        super().__init__()

    def _check_label(self, columns: Sequence[str]) -> None:
        label, features = self.getOrDefault("labelCol"), self.getOrDefault("featuresCol")
        do = 'set labelCol="" where the features are the target'
        if label and isinstance(label, str) and label not in columns:
            raise UsageError(str(unknown_column(label, columns)), do=do)
        if label and label == features and not self.getOrDefault("inputs"):
            raise UsageError("a column cannot be taken twice", got=repr(label), do=do)

    def _plan(self, rows: SelectedRows, workers: int, known_outputs: int | None) -> Plan:
        draft, shape = self._draft_and_shape(rows, workers)
        loss = draft.job.model.loss
        if loss == SEQUENCE_LOSS:
            got = type(self).__name__
            raise UsageError(f"{loss} is of classes", got=got, do="use TorchClassifier")
        self._try_loss(draft, rows, _zero_labels(rows))
        checks = RowChecks().under(loss)
        head = LOGS if loss == "poisson" else NUMBERS
        return Plan(draft=draft, outputs=_width(shape), head=head, checks=checks)


class TorchRegressor(TorchEstimator, Regressor[Any]):
    """Trains a module that predicts a number, or several, on the tasks of a Spark session.

    Example:
        >>> regressor = TorchRegressor(
        ...     module="torch.nn:Linear", moduleArgs={"in_features": 4, "out_features": 1}
        ... )
        >>> regressor.getLoss()
        'mse'
        >>> print(regressor.fit(train).evaluate(test))  # doctest: +SKIP
        rmse 0.3151, mae 0.2414, r2 0.9012, loss 0.0993 on 1000 rows
    """

    _model_class = TorchRegressionModel


@with_params(CLASSIFIER_ROWS)
class TorchClassifier(_ModuleEstimator, NetworkClassifier):
    """Trains a classifier that an importable function makes, on the tasks of a Spark session.

    Under `loss="binary_cross_entropy"` a module with one output tells two classes apart. Where the
    label column holds arrays of zeros and ones, a row has several labels. Under
    `loss="token_cross_entropy"` it holds arrays with a class for each token of a row, as long as
    the row's tokens are, and the module returns [B, T, classes].

    Example:
        >>> clf = TorchClassifier(
        ...     module="torch.nn:Linear", moduleArgs={"in_features": 4, "out_features": 3}
        ... )
        >>> clf.getModule(), clf.getOptimizer()
        ('torch.nn:Linear', 'adamw')
        >>> model = clf.fit(train)  # doctest: +SKIP
    """

    _default_settings = ModuleConfig(module="")
    _param_rows = CLASSIFIER_ROWS
    _model_class = TorchClassificationModel
    _large_label_advice = "give the module {} outputs or more"

    @keyword_params
    def __init__(
        self,
        *,
        featuresCol: str | Sequence[str] = "features",
        labelCol: str | Sequence[str] = "label",
        predictionCol: str = "prediction",
        probabilityCol: str = "probability",
        rawPredictionCol: str = "rawPrediction",
        thresholds: Sequence[float] | None = None,
        predictBatchSize: int = 512,
        metrics: Sequence[str | Callable[..., Any]] = (),
        numClasses: int | None = None,
        scale: float | None = None,
        strategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy = "averaging",
        numWorkers: int = 0,
        shuffle: str | bool = "auto",
        share: str = "rows",
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
        validation: float = 0.0,
        validationIndicatorCol: str = "",
        patience: int = 0,
        start: str | Mapping[str, Tensor] = "",
        inputs: Mapping[str, str | Sequence[str]] | None = None,
        encoders: Mapping[str, str | Callable[..., Any]] | None = None,
        collate: str | Callable[..., Any] = "",
        weightCol: str = "",
        module: str | Callable[..., nn.Module] = "",
        moduleArgs: Mapping[str, Any] | None = None,
        loss: str | Callable[..., Tensor] = "cross_entropy",
        optimizer: str | type[Optimizer] = "adamw",
        optimizerArgs: Mapping[str, Any] | None = None,
        decays: str = "all",
        perTensor: bool = False,
        learningRate: float | Schedule | None = None,
        learningRateScale: str = "none",
        batchSize: int = 32,
        accumulate: int = 1,
        epochs: float | None = None,
        activationMemory: str = "keep",
        activationBytes: int | None = None,
        cudaGraph: bool = False,
        maxSteps: int = 0,
        clip: float = 0.0,
        l2: Mapping[str, float] | None = None,
        movingAverage: float = 0.0,
        frozen: Sequence[str] = (),
        reads: str | Callable[..., Any] = "",
        precision: str = "float32",
        memoryFormat: str = "contiguous",
        phase: str = "train",
        labelSmoothing: float = 0.0,
    ) -> None:
        super().__init__()

    def _known_outputs(self, dataset: DataFrame) -> int | None:
        label = self.getOrDefault("labelCol")
        column_classes = classes_in(dataset, label) if isinstance(label, str) and label else None
        return self._num_classes() or column_classes or 0

    def _plan(self, rows: SelectedRows, workers: int, known_outputs: int | None) -> Plan:
        draft, shape = self._draft_and_shape(rows, workers)
        model: Any = draft.model()
        if hasattr(model, "returns_one") and not model.returns_one(rows.example):
            wrong = "a classifier returns one tensor, with a number for each class"
            raise UsageError(wrong, got="several tensors", do="use TorchEstimator for several")
        outputs, loss = _width(shape), draft.job.model.loss
        if loss == SEQUENCE_LOSS:
            return self._token_plan(draft, shape, rows)
        labels = _zero_labels(rows)
        if loss in CLASS_LOSSES:
            _check_one_label(labels, loss, rows.spec.label)
        if labels is not None and labels.ndim > 1:
            self._try_loss(draft, rows, labels)
            # a loss of the user's own may mean something else by them
            checks = RowChecks().under(loss)
            model_class = TorchMultiLabelModel
            return Plan(
                draft=draft, outputs=outputs, head=LABELS, checks=checks, model_class=model_class
            )
        is_single_logit = outputs == 1 and loss not in CLASS_LOSSES
        if not is_single_logit and (len(shape) != 2 or outputs < max(2, known_outputs or 0)):
            wrong = f"the module must return one number for each of {known_outputs or 2} classes"
            do = "give its last layer that many outputs"
            do += _ONE_OUTPUT if outputs == 1 and (known_outputs or 2) == 2 else ""
            raise UsageError(wrong, got=f"outputs of shape {list(shape[1:])}", do=do)
        self._try_loss(draft, rows, labels)
        head = BINARY if is_single_logit else CLASSES
        checks = self._row_checks(2 if is_single_logit else outputs)
        return Plan(draft=draft, outputs=outputs, head=head, checks=checks)

    def _token_plan(self, draft: LazyModel, shape: tuple[int, ...], rows: SelectedRows) -> Plan:
        """Returns what is trained where each token has a label: outputs are of `shape` [2, T, C].

        How many tokens a row has is compared where it is read.
        """
        if not self.getOrDefault("labelCol"):
            raise no_token_labels("labelCol=''")
        if len(shape) < 3:
            wrong = f"under {SEQUENCE_LOSS} the module must return one number for each class, "
            wrong += "of each token"
            do = "return [B, T, classes]; set another loss for one label a row"
            raise UsageError(wrong, got=f"outputs of shape {list(shape)}", do=do)
        if shape[-1] < (classes := self._num_classes() or 2):
            wrong = (
                f"the module must return one number for each of {classes} classes, of each token"
            )
            do = "give its last layer that many outputs"
            raise UsageError(wrong, got=f"outputs of shape {list(shape)}", do=do)
        inputs = rows.example if isinstance(rows.example, Mapping) else {}
        sequences = [array.shape[:2] for name, array in inputs.items() if mask_of(name) in inputs]
        if sequences and shape[:2] not in sequences and not self.getOrDefault("collate"):
            wrong = f"under {SEQUENCE_LOSS} the module must return as many tokens as a row has"
            got = f"outputs of shape {list(shape)} for {sequences[0][1]} tokens"
            raise UsageError(wrong, got=got, do="return [B, T, classes], the classes last")
        self._try_loss(draft, rows, np.zeros(shape[:-1], np.int64))
        return Plan(
            draft=draft,
            outputs=shape[-1],
            head=TOKENS,
            checks=self._row_checks(shape[-1]),
            model_class=TorchTokenModel,
        )


def _check_one_label(labels: Array | None, loss: str, column: str | None) -> None:
    if labels is None:  # the features would be the target: probabilities of the classes
        do = "name it; TorchEstimator trains without labels"
        raise UsageError(f"{loss} needs a column of labels", got="labelCol=''", do=do)
    if labels.ndim > 1:
        do = "set loss='binary_cross_entropy' for several, or loss='token_cross_entropy' "
        do += "for one of each token"
        raise UsageError(f"{loss} takes one label for each row", got=f"several in {column}", do=do)


def _zero_labels(rows: SelectedRows) -> Array | None:
    """Returns labels of two rows, all zeros: as many for each as the first row has."""
    label = rows.spec.label
    if label is None:
        return None
    data_type: Any = rows.frame.schema[label].dataType
    is_array = isinstance(data_type, T.ArrayType)
    element_type = data_type.elementType if is_array else data_type
    dtype = np.int64 if isinstance(element_type, (T.IntegralType, T.BooleanType)) else np.float64
    return np.zeros((2, first_length(rows.frame, label)) if is_array else 2, dtype)
