"""The trained model: saves, loads and measures it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from photinus.checkpoint.export import load_model, save_model, tensors_from_state_dict
from photinus.checkpoint.origin import Trust
from photinus.coordinator.coordinator import Result
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import to_dict
from photinus.data.base import Batch
from photinus.data.inputs import Inputs
from photinus.embeddings.word2vec import WordTables
from photinus.models.base import Model, Stage
from photinus.models.dbn import DBN
from photinus.models.module import ModuleModel
from photinus.report.interval import error_interval
from photinus.report.picture import pack
from photinus.run.data import TestRows, check_fit, check_test
from photinus.run.job import MODELS, Job, classes_of

__all__ = [
    "Draft",
    "Trained",
    "first_parameters",
    "load_trained",
    "measure",
    "measured",
    "save_adapter",
    "save_trained",
]

_CHUNK_ROWS = 1000
_FILTERS = 100
"""How many units of the first layer the report shows."""


class Draft:
    """The model of a job's last phase, made when it is first needed, and only once.

    Args:
        job: whose model it is.
        made: the model with its first parameters, where it exists already.
    """

    def __init__(self, job: Job, made: Model | None = None) -> None:
        self.job, self._made = job, made

    def model(self) -> Model:
        """Returns the model."""
        if self._made is None:
            self._made = _stage(self.job.model).build((), self.job.seed)
        return self._made

    def trained(self, result: Result) -> Trained:
        """Returns it as a run trained it."""
        made = None if isinstance(self.job.model, DBN) else self.model()
        return Trained(self.job.model, result.vectors[-1], result.floats, result.integers, made)


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model: its settings, and its parameters."""

    settings: Any
    """One of `MODELS`."""
    vector: Vector
    """[n]"""
    floats: Vector
    integers: Vector
    made: Model | None = None
    """A model of these settings, if there is one: its numbers are then replaced."""

    def model(self) -> Model:
        """Returns it as what `measure` can be asked of."""
        # the history only decides first parameters, and those are replaced
        model = self.made or _stage(self.settings).build((), 0)
        model.load(self.vector, self.floats, self.integers)
        return model

    def module(self) -> nn.Module:
        """Returns it as a plain torch module in evaluation mode, with parameters of its own.

        A moving average of the weights, where the job keeps one, stands in their place.
        """
        if isinstance(self.settings, DBN):
            return self.settings.module(self.vector).eval()
        model = self.model()
        if isinstance(model, ModuleModel):
            with model.shown():
                return copy.deepcopy(model.module).eval()
        if isinstance(model, WordTables):
            vectors = torch.from_numpy(model.parameters.view("inputs").copy())  # [V, D]
            return nn.Embedding(len(vectors), vectors.shape[1], _weight=vectors)
        tensors = model.parameters.tensors()  # of softmax regression: W [features, classes], b
        features, classes = tensors["W"].shape
        linear = nn.Linear(features, classes)
        linear.weight.data = torch.from_numpy(tensors["W"].T.copy())
        linear.bias.data = torch.from_numpy(tensors["b"].copy())
        return linear.eval()

    def tensors(self) -> dict[str, Vector]:
        """Returns the parameters as a plain `state_dict`, arrays by name."""
        if isinstance(self.settings, DBN):
            return tensors_from_state_dict(self.settings.module(self.vector).state_dict())
        return {name: np.array(t) for name, t in self.model().parameters.tensors().items()}


def _stage(settings: Any) -> Stage:  # noqa: ANN401
    """Returns the last phase's definition."""
    is_dbn = isinstance(settings, DBN)
    stage: Stage = settings.resolved().stages()[-1] if is_dbn else settings
    return stage


def save_trained(draft: Draft, result: Result, folder: Path) -> Path:
    """Writes a run's model as safetensors and JSON: `model.safetensors` is a plain state_dict."""
    job, trained = draft.job, draft.trained(result)
    kind = next(name for name, cls in MODELS.items() if type(job.model) is cls)
    meta = {
        "kind": kind,
        "settings": to_dict(job.model),
        "data": to_dict(job.data),
        "threads": job.threads,  # with which a later measurement gives the same bits
    }
    return save_model(folder, trained.tensors(), meta, is_own=True)


def save_adapter(draft: Draft, result: Result, folder: Path) -> bool:
    """Has a module with `save_pretrained` write itself, as whoever made it reads it.

    Args:
        draft: the job.
        result: of its run.
        folder: where to.

    Returns:
        Whether the module has that function.
    """
    if isinstance(draft.job.model, DBN):
        return False
    model = draft.trained(result).model()
    save = getattr(getattr(model, "module", None), "save_pretrained", None)
    if save is None or not isinstance(model, ModuleModel):
        return False
    with model.shown():
        save(folder)
    return True


def load_trained(
    folder: Path | str, *, trust_code: Trust = False
) -> tuple[Trained, dict[str, Any]]:
    """Returns a saved model, and what was saved beside it.

    Args:
        folder: of the model.
        trust_code: run the code that the folder names, though no run of this user made it.

    Raises:
        CheckpointError: the folder holds no whole model.
        UsageError: it comes from elsewhere and names code, or names what is no model.
    """
    from photinus.core.settings import from_dict

    saved = load_model(folder)
    saved.check_code(f"the model in {folder}", trust_code)
    kind = str(saved.meta.get("kind", ""))
    if kind not in MODELS:
        raise UsageError(f"{folder} holds no model of photinus", got=repr(kind))
    settings: Any = from_dict(MODELS[kind], saved.meta["settings"])
    made = None if isinstance(settings, DBN) else settings.build((), 0)
    vectors = _vectors(settings, saved.tensors, made)
    return Trained(settings, *vectors, made), dict(saved.meta)


def first_parameters(draft: Draft) -> dict[str, tuple[Vector, ...]]:
    """Returns what the last phase of a job starts from, where that is known before the others.

    It is of a saved model, if the job names one, or of the model as it is made.

    Raises:
        UsageError: there is none, or it is of another shape than the job's.
        CheckpointError: it is damaged.
    """
    job, is_dbn = draft.job, isinstance(draft.job.model, DBN)
    if not job.start and is_dbn:
        return {}  # the layers below decide
    made = None if is_dbn else draft.model()
    tensors = load_model(job.start).tensors if job.start else {}
    return {_stage(job.model).name: _vectors(job.model, tensors, made)}


def _vectors(
    settings: Any,  # noqa: ANN401
    tensors: Mapping[str, Vector],
    model: Model | None,
) -> tuple[Vector, Vector, Vector]:
    """Returns trained parameters, floats and integers in a model's own order.

    Args:
        settings: of the model.
        tensors: what to fill it with; without any its own numbers are returned.
        model: of these settings, whose numbers are replaced; None of a DBN.
    """
    if model is None:
        return settings.trained(tensors), np.zeros(0, np.float32), np.zeros(0, np.int64)
    for name, view in model.parameters.tensors().items() if tensors else ():
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


def measured(
    draft: Draft, result: Result, test: TestRows
) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the metrics on rows that were not trained on, and what a report shows of them."""
    trained = draft.trained(result)
    metrics, extra = measure(trained, test)
    if isinstance(draft.job.model, DBN):
        extra |= _first_layer(draft.job.model, trained)
    return metrics, extra


def measure(trained: Trained, test: TestRows) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns error and loss on test rows, with the error's 95 % interval and the confusion.

    Args:
        trained: as `load_trained` returns it.
        test: the rows.

    Raises:
        DataError: a label is one that the model does not know.
    """
    check_test(test, classes_of(trained.settings))
    check_fit(trained.settings, test)
    model, sums = trained.model(), dict[str, float]()
    for start in range(0, len(test.features), _CHUNK_ROWS):
        some = slice(start, start + _CHUNK_ROWS)
        features = test.features[some]
        if isinstance(features, Inputs):
            features = features.batch(np.arange(len(features)))
        batch = Batch(features, test.labels[some])
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
