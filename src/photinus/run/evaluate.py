"""The trained model: saved for the user to take away, loaded again, and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from photinus.checkpoint.export import load_model, save_model, tensors_from_state_dict
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import to_dict
from photinus.feed.base import Batch
from photinus.models.base import Model
from photinus.models.dbn import DBN
from photinus.nodes.coordinator import Result
from photinus.report.interval import error_interval
from photinus.report.picture import pack
from photinus.run.data import TestRows, check_fit, check_test
from photinus.run.job import MODELS, Job, classes_of

__all__ = ["Trained", "first_parameters", "load_trained", "measure", "measured", "save_trained"]

_CHUNK_ROWS = 1000
_FILTERS = 100
"""How many units of the first layer the report shows."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model: its settings, and its parameters."""

    settings: Any
    """A DBN, a ModuleStage or a LogisticStage."""
    vector: Vector
    """[n]"""
    floats: Vector
    integers: Vector

    def model(self) -> Model:
        """Returns it as what `measure` can be asked of."""
        is_dbn = isinstance(self.settings, DBN)
        stage = self.settings.resolved().stages()[-1] if is_dbn else self.settings
        # the history only decides first parameters, and those are replaced
        model: Model = stage.build((), 0)
        model.load(self.vector, self.floats, self.integers)
        return model

    def tensors(self) -> dict[str, Vector]:
        """Returns the parameters as a plain `state_dict`, arrays by name."""
        if isinstance(self.settings, DBN):
            return tensors_from_state_dict(self.settings.module(self.vector).state_dict())
        return {name: np.array(t) for name, t in self.model().parameters.tensors().items()}


def save_trained(job: Job, result: Result, folder: Path) -> Path:
    """Writes a run's model as safetensors and JSON: `model.safetensors` is a plain state_dict."""
    trained = Trained(job.model, result.vectors[-1], result.floats, result.integers)
    kind = next(name for name, cls in MODELS.items() if type(job.model) is cls)
    meta = {"kind": kind, "settings": to_dict(job.model), "data": to_dict(job.data)}
    return save_model(folder, trained.tensors(), meta)


def load_trained(folder: Path | str) -> tuple[Trained, dict[str, Any]]:
    """Returns a saved model, and what was saved beside it.

    Raises:
        CheckpointError: the folder holds no whole model.
    """
    from photinus.core.settings import from_dict

    saved = load_model(folder)
    kind = str(saved.meta.get("kind", ""))
    if kind not in MODELS:
        raise UsageError(f"{folder} holds no model of photinus", got=repr(kind))
    settings: Any = from_dict(MODELS[kind], saved.meta["settings"])
    return Trained(settings, *_vectors(settings, saved.tensors)), dict(saved.meta)


def first_parameters(job: Job) -> dict[str, tuple[Vector, ...]]:
    """Returns what the last phase of a job starts from, if it names a saved model.

    Raises:
        UsageError: there is none, or it is of another shape than the job's.
        CheckpointError: it is damaged.
    """
    if not job.start:
        return {}
    is_dbn = isinstance(job.model, DBN)
    stage = job.model.resolved().stages()[-1] if is_dbn else job.model
    return {stage.name: _vectors(job.model, load_model(job.start).tensors)}


def _vectors(settings: Any, tensors: Mapping[str, Vector]) -> tuple[Vector, Vector, Vector]:  # noqa: ANN401
    """Returns trained parameters, floats and integers in a model's own order."""
    if isinstance(settings, DBN):
        return settings.trained(tensors), np.zeros(0, np.float32), np.zeros(0, np.int64)
    model: Model = settings.build((), 0)
    for name, view in model.parameters.tensors().items():
        found = tensors.get(name)
        if found is None or found.shape != view.shape:
            raise UsageError(
                f"the saved model's {name} must have the shape {list(view.shape)}",
                got="none of that name" if found is None else list(found.shape),
                do="name a model that was made with the same settings",
            )
        np.copyto(view, found)
    p = model.parameters
    return p.trained, p.floats, p.integers


def measured(job: Job, result: Result, test: TestRows) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the metrics on rows that were not trained on, and what a report shows of them."""
    trained = Trained(job.model, result.vectors[-1], result.floats, result.integers)
    metrics, extra = measure(trained, test)
    if isinstance(job.model, DBN):
        extra |= _first_layer(job.model, trained)
    return metrics, extra


def measure(trained: Trained, test: TestRows) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns error and loss on test rows, with the error's 95 % interval and the confusion.

    Raises:
        DataError: a label is one that the model does not know.
    """
    check_test(test, classes_of(trained.settings))
    check_fit(trained.settings, test)
    model, sums = trained.model(), dict[str, float]()
    for start in range(0, len(test.features), _CHUNK_ROWS):
        batch = Batch(
            test.features[start : start + _CHUNK_ROWS], test.labels[start : start + _CHUNK_ROWS]
        )
        for name, value in model.measure(batch).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    count = sums.pop("examples")
    extra: dict[str, Any] = {}
    if "errors" in sums:
        extra["interval"] = list(error_interval(sums["errors"], count))
        sums["error"] = sums.pop("errors")
    metrics = {name: value / count for name, value in sums.items()}
    if classes_of(trained.settings) is not None and isinstance(trained.settings, DBN):
        extra["confusion"] = _confusion(trained.settings, trained.vector, test)
    return metrics, extra


def _confusion(dbn: DBN, vector: Vector, test: TestRows) -> list[list[int]]:
    """Rows are true classes, columns what was said."""
    said = np.concatenate(
        [
            dbn.predict(vector, test.features[start : start + _CHUNK_ROWS]).argmax(axis=1)
            for start in range(0, len(test.features), _CHUNK_ROWS)
        ]
    )
    pairs = test.labels.astype(np.int64) * dbn.classes + said
    counts = np.bincount(pairs, minlength=dbn.classes**2)
    table: list[list[int]] = counts.reshape(dbn.classes, dbn.classes).tolist()
    return table


def _first_layer(dbn: DBN, trained: Trained) -> dict[str, Any]:
    """The first units' weights as pictures, where the inputs are a square."""
    side = round(dbn.inputs**0.5)
    if side * side != dbn.inputs:
        return {}
    weights = trained.vector[: dbn.inputs * dbn.hidden[0]].reshape(dbn.inputs, dbn.hidden[0])
    return {"filters": pack(weights.T[:_FILTERS].reshape(-1, side, side))}
