"""A Spark ML classifier that trains any torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from photinus.core.errors import UsageError
from photinus.estimators.base import NetworkClassificationModel, NetworkClassifier
from photinus.estimators.param_table import MODULE_ROWS
from photinus.estimators.params import keyword_params, with_params
from photinus.models.module import ModuleStage
from photinus.run.evaluate import Draft
from photinus.run.job import Job
from photinus.strategies.agreement import Agreement
from photinus.strategies.own import Own

__all__ = ["TorchClassificationModel", "TorchClassifier"]


class TorchClassificationModel(NetworkClassificationModel):
    """A trained torch module; `TorchClassifier.fit` returns it.

    Args:
        network: what was trained.
    """


@with_params(MODULE_ROWS)
class TorchClassifier(NetworkClassifier):
    """Trains a module that an importable function makes, on the tasks of a Spark session.

    Example:
        >>> clf = TorchClassifier(
        ...     module="torch.nn:Linear", moduleArgs={"in_features": 4, "out_features": 3}
        ... )
        >>> clf.getModule(), clf.getOptimizer()
        ('torch.nn:Linear', 'adamw')
        >>> model = clf.fit(train)  # doctest: +SKIP
    """

    _usual = ModuleStage(module="")
    _rows = MODULE_ROWS
    _model = TorchClassificationModel
    _counts_outputs = True
    _more_classes = "give the module {} outputs or more"

    @keyword_params
    def __init__(
        self,
        *,
        featuresCol: str = "features",
        labelCol: str | Sequence[str] = "label",
        predictionCol: str = "prediction",
        probabilityCol: str = "probability",
        rawPredictionCol: str = "rawPrediction",
        predictBatchSize: int = 1024,
        numClasses: int | None = None,
        scale: float | None = None,
        strategy: str | Mapping[str, Any] | Agreement | Own = "averaging",
        numWorkers: int = 0,
        shuffle: str | bool = "auto",
        share: str = "rows",
        numThreads: int = 1,
        device: str = "cpu",
        bandwidth: float | None = None,
        seed: int = 0,
        security: str = "tls",
        runDir: str = "",
        checkpointSeconds: float = 60.0,
        inputs: Mapping[str, str | Sequence[str]] | None = None,
        encoders: Mapping[str, str] | None = None,
        collate: str = "",
        weightCol: str = "",
        module: str | Callable[..., nn.Module] = "",
        moduleArgs: Mapping[str, Any] | None = None,
        loss: str = "cross_entropy",
        labelSmoothing: float = 0.0,
        optimizer: str = "adamw",
        optimizerArgs: Mapping[str, Any] | None = None,
        learningRate: float | None = None,
        learningRateScale: str = "none",
        batchSize: int = 32,
        epochs: float = 1.0,
        activationMemory: str = "keep",
        activationBytes: int | None = None,
        precision: str = "float32",
    ) -> None:
        super().__init__()

    def _sizes(self, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
        return {}

    def _outputs(self, job: Job, example: Any, classes: int | None) -> tuple[int, Draft]:  # noqa: ANN401
        """Puts two rows through the module, so that a wrong one is found before all."""
        draft = Draft(job.resolved())
        model: Any = draft.model()
        try:
            got: list[int] = list(model.outputs(example).shape)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            taken = f"rows of shape {example.shape[1:]}" if job.data.named is None else "its inputs"
            raise UsageError(
                f"the module {job.model.module} does not take {taken}",
                got=str(error).partition("\n")[0],
            ) from error
        if len(got) != 2 or got[1] < (classes or 2):
            raise UsageError(
                f"the module must return one number for each of {classes or 2} classes",
                got=f"outputs of shape {got[1:]}",
            )
        return got[1], draft
