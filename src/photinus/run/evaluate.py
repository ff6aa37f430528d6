"""The trained model: saves, loads and measures it."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from photinus.checkpoint.export import load_model, save_model, tensors_from_state_dict
from photinus.checkpoint.initial_parameters import load_initial_tensors
from photinus.checkpoint.mapped import ScratchFolder
from photinus.checkpoint.signatures import Trust
from photinus.coordinator.phases import RunResult
from photinus.core.addresses import on_disk
from photinus.core.errors import (
    CheckpointError,
    DataError,
    RunFailedError,
    UsageError,
    reason_of,
)
from photinus.core.parameters import Vector
from photinus.core.settings import from_dict, to_dict
from photinus.data.base import Batch
from photinus.data.inputs import Inputs
from photinus.embeddings.word2vec import WordTables
from photinus.models.base import Model, ModelConfig
from photinus.models.dbn import DBN
from photinus.models.heads import (
    CLASSES,
    errors_of,
    evaluation_sums,
    head_of,
    head_under,
    label_counts,
)
from photinus.models.logistic import LogisticModel
from photinus.models.losses import NUMBERS, labelled_tokens, predicted
from photinus.models.metrics import REGRESSION, confusion, counted, finished
from photinus.models.module import ModuleConfig, numbers_of
from photinus.models.module_model import ModuleModel
from photinus.models.sharded import ShardedModel
from photinus.models.tensors import tensor_of
from photinus.report.interval import error_interval
from photinus.report.weight_images import pack
from photinus.run.data import TestRows, check_fit, check_test, kind_of_rows
from photinus.run.job import MODELS, Job, classes_of
from photinus.run.remote_resume import fetched

_CHUNK_ROWS = 1000
_FILTERS = 100
"""How many units of the first layer the report shows."""
_SPARK_CLASS = re.compile(r'"class": ?"([\w.]+\.)(\w+)"')
"""In the metadata of what Spark ML saved: the module of its class, and the class."""


class LazyModel:
    """The model of a job's last phase, made when it is first needed, and only once.

    Args:
        job: whose model it is.
        model: the model with its first parameters, where it exists already.
        advice: warnings about its outputs; None where they were not looked at.
    """

    def __init__(
        self, job: Job, model: Model | None = None, advice: list[str] | None = None
    ) -> None:
        self.job, self._model, self.advice = job, model, advice

    def model(self) -> Model:
        """Returns the model; a sharded table in it is blank: each worker makes its own rows."""
        if self._model is None:
            config = _config_of(self.job.model)
            is_unknown = isinstance(config, ModuleConfig) and not config.sharded
            is_blank = self.is_sharded or is_unknown  # only a made module shows such tables
            build = config.blank if is_blank else config.build
            self._model = build((), self.job.seed)
        return self._model

    @property
    def is_sharded(self) -> bool:
        """True where the job's table is sharded over the workers."""
        plan = self.job.plan()
        return plan.is_sharded(len(plan.phases) - 1)

    def trained(self, result: RunResult) -> TrainedModel:
        """Returns it as a run trained it."""
        is_dbn = isinstance(self.job.model, DBN)
        model = None if is_dbn else self._over_table(result) or self.model()
        return TrainedModel(
            self.job.model, result.vectors[-1], result.floats, result.integers, model
        )

    def _over_table(self, result: RunResult) -> Model | None:
        """Returns the model over a trained table where it lies, if it can be."""
        if result.table is None:
            return None
        own_model, table_model = self.model(), _config_of(self.job.model).over(result.table.vector)
        if isinstance(own_model, ShardedModel):
            own_model.attach(result.table.vector)
            table_model = own_model
        if table_model is not None:
            np.copyto(table_model.parameters.integers, result.integers)
        return table_model


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained model: its settings, and its parameters."""

    settings: Any
    """One of `MODELS`."""
    vector: Vector
    """[n]"""
    floats: Vector
    """Float buffers, such as those of BatchNorm."""
    integers: Vector
    """Integer buffers."""
    made: Model | None = None
    """A model of these settings, if there is one: its numbers are then replaced."""

    def model(self) -> Model:
        """Returns it as what `measure` can be asked of."""
        # the history only decides first parameters, and those are replaced
        model = self.made or _config_of(self.settings).blank((), 0)
        if model.parameters.trained is not self.vector:
            model.load(self.vector, self.floats, self.integers)
        return model

    def module(self) -> nn.Module:
        """Returns it as a plain torch module in evaluation mode, with parameters of its own.

        A moving average of the weights, where the job keeps one, stands in their place.
        """
        if isinstance(self.settings, DBN):
            return self.settings.module(self.vector).eval()
        model = self.model()
        if isinstance(model, ShardedModel):
            return model.filled().eval()
        if isinstance(model, ModuleModel):
            with model.shown():
                return copy.deepcopy(model.module).eval()
        if isinstance(model, WordTables):
            vectors = torch.from_numpy(model.vectors.copy())  # [V, D]
            return nn.Embedding(len(vectors), vectors.shape[1], _weight=vectors)
        if not isinstance(model, LogisticModel):
            wrong = "a photinus.Model of one's own is no torch module"
            raise UsageError(wrong, got=type(model).__name__, do="use trained.model()")
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
        arrays = named_arrays(self.model())
        return arrays if self.is_mapped else {name: np.array(a) for name, a in arrays.items()}

    @property
    def is_mapped(self) -> bool:
        """True where it is a table in a file, which is read where it lies."""
        return self.made is not None and self.made.parameters.trained is self.vector


def named_arrays(model: Model) -> dict[str, Vector]:
    """Returns all parameters and buffers of a model by name, the frozen ones too, as its own."""
    arrays = model.tensors() if isinstance(model, ShardedModel) else model.parameters.tensors()
    return {**arrays, **getattr(model, "frozen", {})}


def _config_of(settings: Any) -> ModelConfig:  # noqa: ANN401
    """Returns the last phase's definition."""
    is_dbn = isinstance(settings, DBN)
    config: ModelConfig = settings.resolved().configs()[-1] if is_dbn else settings
    return config


def save_trained(draft: LazyModel, result: RunResult, folder: Path, data: Any) -> Path:  # noqa: ANN401
    """Writes a run's model as safetensors and JSON: `model.safetensors` is a plain state_dict.

    Args:
        draft: the job.
        result: of its run.
        folder: where to.
        data: the rows that it was trained on, as engines take them.

    Raises:
        RunFailedError: it could not be written.
    """
    job, trained, rows = draft.job, draft.trained(result), kind_of_rows(data)
    kind = next(name for name, cls in MODELS.items() if type(job.model) is cls)
    meta = {
        "kind": kind,
        "settings": to_dict(job.model),
        "data": to_dict(job.data),
        "threads": job.threads,  # with which a later measurement gives the same bits
        "seed": job.seed,  # of constants that are no parameters
        "rows": {**rows, "shape": rows["shape"] or list(result.row_shape)},
    }
    try:
        return save_model(folder, trained.tensors(), meta, is_own=True)
    except CheckpointError as error:  # a run that has trained cannot take another folder
        wrong, got = (
            f"the model could not be saved in {folder}",
            reason_of(error.__cause__ or error),
        )
        do = "make room there, then resume the run"
        raise RunFailedError(wrong, got=got, do=do) from error


def save_adapter(draft: LazyModel, result: RunResult, folder: Path) -> bool:
    """Has a module with `save_pretrained` write itself, in the format of its library.

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


@contextlib.contextmanager
def model_folder(run: Path | str) -> Iterator[Path]:
    """Hands out the folder of a run's model, or that folder itself, for a while.

    Args:
        run: the folder of a run or of a model; a path or an address.

    Raises:
        UsageError: there is no model in it, or none yet.
    """
    with fetched(run, "model", "model.safetensors", "model.json", "job.json", "metadata") as folder:
        model = folder / "model" if (folder / "model").is_dir() else folder
        if (folder / "job.json").is_file() and model == folder:
            raise UsageError(f"{run} holds no model yet", do=f"photinus train --resume {run}")
        if (model / "metadata").is_dir():
            do = f'in Python {_spark_class(model)}.load("{run}").transform(table) scores rows'
            raise UsageError(f"{run} holds a model of Spark ML, and no run", do=do)
        if model.is_dir() and not any(model.glob("model.*")):
            raise UsageError(f"{run} holds no model", do="name the folder of a run or of a model")
        yield model


def _spark_class(folder: Path) -> str:
    """Returns the class that saved a model of Spark ML, as a program names it."""
    for part in sorted((folder / "metadata").glob("part-*")):
        with contextlib.suppress(OSError, ValueError):  # its text is of no use
            if match := _SPARK_CLASS.search(part.read_text(encoding="utf-8")):
                return f"photinus.{match[2]}" if match[1].startswith("photinus.") else match[2]
    return "photinus.TorchClassificationModel"


def load_trained(
    folder: Path | str, *, trust_code: Trust = False
) -> tuple[TrainedModel, dict[str, Any]]:
    """Returns a saved model, and what was saved beside it.

    Args:
        folder: of the model.
        trust_code: run the code that the folder names, though no run of this user made it.

    Raises:
        CheckpointError: the folder holds no whole model.
        UsageError: it comes from elsewhere and names code, or names what is no model.
    """
    saved = load_model(folder)
    saved.check_code(f"the model in {folder}", trust_code)
    kind = str(saved.meta.get("kind", ""))
    if kind not in MODELS:
        raise UsageError(f"{folder} holds no model of photinus", got=repr(kind))
    settings: Any = from_dict(MODELS[kind], saved.meta["settings"])
    return trained_of(settings, saved.tensors, saved.meta.get("seed", 0)), dict(saved.meta)


def trained_of(settings: Any, tensors: Mapping[str, Vector], seed: int = 0) -> TrainedModel:  # noqa: ANN401
    """Returns a model with the numbers that were saved of it.

    Args:
        settings: one of MODELS.
        tensors: arrays by name.
        seed: of what is neither trained nor saved.
    """
    model = None if isinstance(settings, DBN) else settings.blank((), seed)
    return TrainedModel(settings, *_vectors(settings, tensors, model), model)


def first_parameters(draft: LazyModel) -> dict[str, tuple[Vector, ...]]:
    """Returns what the last phase of a job starts from, where that is known before the others.

    It is of a saved model, if the job names one, or of the model as it is made.

    Raises:
        UsageError: there is none, or it is of another shape than the job's.
        CheckpointError: it is damaged.
    """
    job, is_dbn = draft.job, isinstance(draft.job.model, DBN)
    if not job.start and is_dbn:
        return {}  # the layers below decide
    model = None if is_dbn else draft.model()
    is_table = draft.is_sharded and model is not None
    tensors = load_initial_tensors(job.start, is_mapped=is_table) if job.start else {}
    if job.start and on_disk(job.start).is_file():  # a model's folder may hold more
        _check_names(model, tensors)
    parameters: dict[str, tuple[Vector, ...]] = {}
    parameters[_config_of(job.model).name] = (
        _first_table(job, model, tensors)
        if is_table and model is not None
        else _vectors(job.model, tensors, model)
    )
    _check_constants(model, tensors)
    if tensors and (frozen := getattr(model, "frozen", {})):
        parameters[""] = (np.concatenate([array.reshape(-1) for array in frozen.values()]),)
    return parameters


def _first_table(job: Job, model: Model, tensors: Mapping[str, Vector]) -> tuple[Vector, ...]:
    """Returns what a sharded table starts from: a saved one in its file, or nothing."""
    parameters = model.parameters
    if not tensors:
        return parameters.trained[:0], parameters.floats, parameters.integers
    table = ScratchFolder().array(parameters.trained.shape, str(parameters.trained.dtype))
    if isinstance(model, ShardedModel):
        model.attach(table)
    return _vectors(job.model, tensors, _config_of(job.model).over(table) or model)


def _check_names(model: Model | None, tensors: Mapping[str, Vector]) -> None:
    """Refuses numbers that the module has no name for, as a strict load of torch does."""
    if not isinstance(model, ModuleModel):
        return
    known = {*model.module.state_dict(), *named_arrays(model)}
    unknown = [n for n in tensors if n not in known and n.removeprefix("average.") not in known]
    if unknown:
        got = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if unknown[3:] else "")
        do = "leave them out, or name the module that they are of"
        raise UsageError("start holds names that the module does not have", got=got, do=do)


def _check_constants(model: Model | None, tensors: Mapping[str, Vector]) -> None:
    """Refuses a start whose numbers no worker would get: the module has others, and keeps them."""
    if not isinstance(model, (ModuleModel, ShardedModel)):
        return
    sent_names = {*model.frozen, *getattr(model, "embeddings", ())}
    for name, parameter in model.module.named_parameters():
        start_value = tensors.get(name)
        if parameter.requires_grad or name in sent_names or start_value is None:
            continue
        if not np.array_equal(numbers_of(parameter), start_value):
            wrong = f"the module does not train {name}, and makes other numbers than start has"
            raise UsageError(wrong, do="name it in frozen, so that the workers get these")


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
    saved_names = (
        model.module.state_dict() if isinstance(model, ModuleModel) else named_arrays(model)
    )
    for name, view in named_arrays(model).items() if tensors else ():
        plain_name = name.removeprefix("average.")  # that begins where the weights begin
        value = tensors.get(name, tensors.get(plain_name))
        if value is None and plain_name not in saved_names:
            continue  # a buffer that no state_dict has: a constant
        if value is None or value.shape != view.shape:
            raise UsageError(
                f"the saved model's {name} must have the shape {list(view.shape)}",
                got="none of that name" if value is None else list(value.shape),
                do="name a model that was made with the same settings",
            )
        np.copyto(view, value)
    parameters = model.parameters
    model.to_device(parameters.trained, parameters.floats, parameters.integers)
    return parameters.trained, parameters.floats, parameters.integers


def measure_result(
    draft: LazyModel, result: RunResult, test: TestRows
) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the metrics on rows that were not trained on, and what a report shows of them."""
    trained = draft.trained(result)
    metrics, extra = measure(trained, test)
    if isinstance(draft.job.model, DBN):
        extra |= _first_layer(draft.job.model, trained)
    return metrics, extra


def measure(trained: TrainedModel, test: TestRows) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the metrics on test rows, with the error's 95 % interval and the confusion.

    Args:
        trained: as `load_trained` returns it.
        test: the rows.

    Raises:
        DataError: a label is one that the model does not know.
    """
    check_test(test, classes_of(trained.settings))
    check_fit(trained.settings, test)
    model, sums = trained.model(), dict[str, float]()
    for batch in _batches(test):
        for name, value in sums_over(trained.settings, model, batch).items():
            sums[name] = sums.get(name, 0.0) + value
    return metrics_from_sums(trained.settings, sums)


def _batches(test: TestRows) -> Iterator[Batch]:
    """Yields all rows; those of like length together, where they are padded."""
    features, labels = test.features, test.labels
    if isinstance(features, Inputs):
        for rows in features.by_length(_CHUNK_ROWS):
            row_labels = features.token_labels(rows) if labels is None else labels[rows]
            yield Batch(features.batch(rows), row_labels)
        return
    for start in range(0, len(features), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        yield Batch(features[chunk], None if labels is None else labels[chunk])


def sums_over(
    settings: Any,  # noqa: ANN401 - one of MODELS
    model: Model,
    batch: Batch,
    metrics: Collection[str] = (),
    head: str = "",
) -> dict[str, float]:
    """Returns the sums of which metrics are made, over a batch; those of several can be added up.

    Args:
        settings: of the model.
        model: measures.
        batch: some rows.
        metrics: names of `METRICS`, beside those that belong to the loss.
        head: what the outputs stand for, as of `heads`; left out, it follows from the loss.
    """
    sums = {name: float(value) for name, value in model.measure(batch).items()}
    read_outputs = getattr(model, "outputs", None)
    if read_outputs is None or batch.labels is None:
        return sums
    loss = _loss_of(settings)
    outputs = predicted(loss, tensor_of(np.asarray(read_outputs(batch.features))))
    labels = tensor_of(np.asarray(batch.labels))  # some cannot be written to, as Arrow's
    outputs, labels = labelled_tokens(loss, outputs, labels)
    names = {*metrics, *(REGRESSION if loss in NUMBERS else ())}
    sums |= counted(names, outputs, labels)
    all_metrics = (*metrics, *getattr(_config_of(settings), "metrics", ()))
    sums |= evaluation_sums(head_under(loss, outputs, labels, all_metrics) or head, outputs, labels)
    return {**errors_of(head, outputs, labels), **sums}  # a model that counts them itself is right


def metrics_from_sums(
    settings: Any,  # noqa: ANN401 - one of MODELS
    sums: Mapping[str, float],
    metrics: Collection[str] = (),
) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns metrics out of sums over all rows; the error's interval, and the confusion.

    Of a model of several labels a row, their counts.

    Args:
        settings: of the model.
        sums: as `sums_over` returned them, added up.
        metrics: likewise.

    Raises:
        DataError: there were no rows.
    """
    if not sums.get("examples"):
        raise DataError("there are no rows to measure on, or none with a label")
    extra: dict[str, Any] = {}
    if "errors" in sums:
        extra["interval"] = list(error_interval(sums["errors"], sums["examples"]))
    if table := confusion(sums):
        extra["confusion"] = table
    if counts := label_counts(sums):
        extra["labels"] = counts
    usual_metrics = REGRESSION if _loss_of(settings) in NUMBERS and "squared:0" in sums else ()
    values = {**_config_of(settings).finished(sums), **finished((*usual_metrics, *metrics), sums)}
    return {name: values[name] for name in (*usual_metrics, *metrics)} | values, extra


def _loss_of(settings: Any) -> str:  # noqa: ANN401 - one of MODELS
    config = _config_of(settings)
    network = getattr(config, "network", config)
    return str(getattr(network, "loss", "cross_entropy"))


def loss_name(settings: Any, seed: int) -> str:  # noqa: ANN401 - one of MODELS
    """Returns the name of a model's loss; one with ":" is the user's own.

    A `photinus.Model` of the user's own computes it itself, whatever loss its settings name.
    """
    is_own = isinstance(settings, ModuleConfig) and isinstance(settings.made(seed), Model)
    return str(settings.module) if is_own else _loss_of(settings)


def head_of_outputs(settings: Any, loss: str, outputs: Tensor) -> str:  # noqa: ANN401 - one of MODELS
    """Returns what a model's outputs [B, ...] stand for, as far as its settings show it.

    Args:
        settings: of the model.
        loss: as of `loss_name`.
        outputs: before a softmax or sigmoid.
    """
    if classes_of(settings) is not None:
        return CLASSES
    return head_of(loss, outputs, getattr(_config_of(settings), "metrics", ()))


def _first_layer(dbn: DBN, trained: TrainedModel) -> dict[str, Any]:
    """The first units' weights as pictures, where the inputs are a square."""
    side = round(dbn.inputs**0.5)
    if side * side != dbn.inputs:
        return {}
    weights = trained.vector[: dbn.inputs * dbn.hidden[0]].reshape(dbn.inputs, dbn.hidden[0])
    return {"filters": pack(weights.T[:_FILTERS].reshape(-1, side, side))}
