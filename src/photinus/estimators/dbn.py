"""The deep belief network as a classifier of Spark ML."""

from __future__ import annotations

import math
from typing import Any

from photinus.data.arrow import ColumnSpec
from photinus.estimators.base import NetworkClassificationModel, NetworkClassifier
from photinus.estimators.param_table import DBN_ROWS
from photinus.estimators.params import with_params
from photinus.models.dbn import DBN
from photinus.run.evaluate import Draft
from photinus.run.job import Job

__all__ = ["DBNClassificationModel", "DBNClassifier"]


class DBNClassificationModel(NetworkClassificationModel):
    """A trained deep belief network."""


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

    _usual = DBN()
    _rows = DBN_ROWS
    _model = DBNClassificationModel
    _counts_outputs = False
    _more_classes = "set numClasses to {} or more"

    def _sizes(self, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
        return {"inputs": math.prod(shape), "classes": classes}

    def _outputs(self, job: Job, spec: ColumnSpec, classes: int | None) -> tuple[int, Draft]:  # noqa: ARG002
        assert classes is not None
        return classes, Draft(job.resolved())
