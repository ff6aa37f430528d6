"""Any torch module as a classifier of Spark ML."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.data.arrow import ColumnSpec
from photinus.estimators.base import NetworkClassificationModel, NetworkClassifier
from photinus.estimators.param_table import MODULE_ROWS
from photinus.estimators.params import with_params
from photinus.models.module import ModuleStage
from photinus.run.evaluate import Draft
from photinus.run.job import Job

__all__ = ["TorchClassificationModel", "TorchClassifier"]


class TorchClassificationModel(NetworkClassificationModel):
    """A trained torch module."""


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

    def _sizes(self, shape: tuple[int, ...], classes: int) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def _outputs(self, job: Job, spec: ColumnSpec, classes: int | None) -> tuple[int, Draft]:
        """Puts two rows of zeros through the module, so that a wrong one is found before all."""
        draft = Draft(job.resolved())
        module: nn.Module = draft.model().module.eval()  # type: ignore[attr-defined]
        is_byte = spec.dtype == "uint8" and job.data.scale is None
        kind = torch.uint8 if is_byte else next(module.parameters()).dtype
        try:
            with torch.inference_mode():
                got: list[int] = list(module(torch.zeros(2, *spec.shape, dtype=kind)).shape)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise UsageError(
                f"the module {job.model.module} does not take rows of shape {spec.shape}",
                got=str(error).partition("\n")[0],
            ) from error
        if len(got) != 2 or got[1] < (classes or 2):
            raise UsageError(
                f"the module must return one number for each of {classes or 2} classes",
                got=f"outputs of shape {got[1:]}",
            )
        return got[1], draft
