"""A Spark ML classifier that trains a deep belief network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from photinus.data.spark import classes_in
from photinus.estimators.base import NetworkClassifier, Plan, SelectedRows, count_classes
from photinus.estimators.model import NetworkClassificationModel
from photinus.estimators.param_table import DBN_ROWS
from photinus.estimators.params import keyword_params, with_params
from photinus.models.dbn import DBN
from photinus.models.heads import CLASSES
from photinus.run.evaluate import LazyModel
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.spec import StrategySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from torch import Tensor
    from torch.optim import Optimizer


class DBNClassificationModel(NetworkClassificationModel):
    """A trained deep belief network; `DBNClassifier.fit` returns it.

    Args:
        network: what was trained.
    """

    _kind = "dbn"


@with_params(DBN_ROWS)
class DBNClassifier(NetworkClassifier):
    """Pre-trains a stack of RBMs and fine-tunes it, on the tasks of a Spark session.

    Example:
        >>> dbn = DBNClassifier(hiddenSizes=[500, 500, 2000], numWorkers=4, strategy="averaging")
        >>> dbn.getHiddenSizes(), dbn.getStrategy()
        ([500, 500, 2000], '{"recipe": "averaging"}')
        >>> model = dbn.fit(train)  # doctest: +SKIP
        >>> model.transform(test).select("prediction", "probability")  # doctest: +SKIP

    Reference: Hinton, Osindero and Teh, A fast learning algorithm for deep belief nets (2006).
    """

    _default_settings = DBN()
    _param_rows = DBN_ROWS
    _model_class = DBNClassificationModel
    _large_label_advice = "set numClasses to {} or more"

    @keyword_params
    def __init__(
        self,
        *,
        featuresCol: str | Sequence[str] = "features",
        labelCol: str = "label",
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
        hiddenSizes: Sequence[int] = (500, 500, 2000),
        preTrainEpochs: float | None = None,
        preTrainBatchSize: int = 100,
        preTrainLearningRate: float | None = None,
        visibleUnits: str = "bernoulli",
        fineTuneEpochs: float | None = None,
        batchSize: int = 250,
        optimizer: str | type[Optimizer] = "adam",
        learningRate: float | None = None,
        weightDecay: float = 0.0,
        inputDropout: float = 0.2,
        hiddenDropout: Sequence[float] = (0.2, 0.2, 0.3),
        labelSmoothing: float = 0.1,
        preTrainStrategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy | None = None,
        fineTuneStrategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy | None = None,
        preTrainDevice: str = "",
        fineTuneDevice: str = "",
        precision: str = "auto",
    ) -> None:
        super().__init__()

    def _known_outputs(self, dataset: DataFrame) -> int | None:
        return self._num_classes() or classes_in(dataset, self.getOrDefault("labelCol"))

    def _plan(self, rows: SelectedRows, workers: int, known_outputs: int | None) -> Plan:
        if known_outputs is None:
            known_outputs = count_classes(rows.frame, str(rows.spec.label))
        sizes = {"inputs": math.prod(rows.spec.shape), "classes": max(2, known_outputs)}
        draft = LazyModel(self._job(sizes, workers).resolved())
        classes = sizes["classes"]
        return Plan(draft=draft, outputs=classes, head=CLASSES, checks=self._row_checks(classes))
