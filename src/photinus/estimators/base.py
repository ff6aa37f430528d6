"""What all estimators share: Params become a job, and the result becomes a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.ml.classification import Classifier
from pyspark.ml.param.shared import HasProbabilityCol
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus.checkpoint.mirror import Mirror
from photinus.core.errors import DataError, UsageError
from photinus.core.settings import NUMBER_THE_CLASSES, to_dict
from photinus.data.checks import RowChecks
from photinus.data.kept_rows import run_plan_once
from photinus.data.spark import as_frame, quoted, selected
from photinus.engine.spark.engine import FrameData, check_slots, free_slots
from photinus.engine.spark.executor_python import check_python
from photinus.engine.spark.job import run_query
from photinus.engine.spark.session import is_connect
from photinus.estimators.inputs import spec_and_example
from photinus.estimators.model import NetworkModel
from photinus.estimators.network import Network
from photinus.estimators.params import defaults, plain_job
from photinus.estimators.summary import TrainingSummary
from photinus.estimators.thresholds import check_thresholds
from photinus.estimators.trainer import TrainingEstimator
from photinus.models.dbn import DBN
from photinus.run.data import with_token_labels
from photinus.run.evaluate import LazyModel
from photinus.run.job import MODELS, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from photinus.data.arrow import ColumnSpec


class SelectedRows(NamedTuple):
    """The rows that a fit reads."""

    frame: DataFrame
    spec: ColumnSpec
    example: Any
    """Two of them as the model reads them: [2, ...], or a dict of arrays by input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a fit trains, and what becomes of it."""

    draft: LazyModel
    outputs: int
    """Numbers that the network returns for one row."""
    head: str
    """What they stand for: one of `HEADS`."""
    checks: RowChecks = field(default_factory=RowChecks)
    model_class: type[NetworkModel] | None = None
    """Of the model that the fit returns; None for the estimator's own."""


class NetworkEstimator(TrainingEstimator):
    """Trains on the tasks of the DataFrame's own session; a subclass defines what."""

    _default_settings: ClassVar[Any]
    """The model's settings if nothing is set."""
    _model_class: ClassVar[type[NetworkModel]]

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**defaults(self._param_rows, self._default_settings))

    def _fit(self, dataset: DataFrame) -> NetworkModel:
        features = self.getOrDefault("featuresCol")
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
            workers = min(free_slots(spark), _smallest_batch_size(job.model))
        source = with_token_labels(job.data, job.model)
        self._check_label(dataset.columns)
        frame, spec = selected(
            dataset,
            features,
            source.labels,
            inputs=source.named,
            weight=source.weight or None,
            held=source.validation or None,
        )
        known_outputs = self._known_outputs(dataset)
        with (
            self._reserve_seats(spark, workers),
            self._run_folder() as folder,
            run_plan_once(frame, always=known_outputs is None) as rows,
        ):
            spec, example = run_query(spark, lambda: spec_and_example(rows, spec, job.data.scale))
            plan = self._plan(SelectedRows(rows, spec, example), workers, known_outputs)
            self._check_outputs(plan)
            data = FrameData(
                frame=rows,
                label=spec.label,
                scale=job.data.scale,
                checks=plan.checks,
                shape=spec.shape,
                spec=spec,
            )
            network, summary = self._train_network(folder, plan, data)
        return self._fitted((plan.model_class or self._model_class)(network), summary)

    def _check_label(self, columns: Sequence[str]) -> None:
        """Refuses a wrong label column where an estimator has better advice than the usual one."""

    def _known_outputs(self, dataset: DataFrame) -> int | None:  # noqa: ARG002 - some look at it
        """Returns how many outputs there are by the columns; None: all labels must be read.

        0 stands for any number that the module returns.
        """
        return 0

    @abstractmethod
    def _plan(self, rows: SelectedRows, workers: int, known_outputs: int | None) -> Plan:
        """Returns what is trained on rows of this kind.

        Args:
            rows: what they are.
            workers: how many train.
            known_outputs: as of `_known_outputs`.
        """

    def _check_outputs(self, plan: Plan) -> None:
        """Refuses Params that do not fit what the network returns."""

    def _train_network(
        self, folder: Path | Mirror, plan: Plan, data: FrameData
    ) -> tuple[Network, TrainingSummary]:
        """Trains on the session's tasks."""
        job = plan.draft.job
        outcome, summary = self._run(plan.draft, data, folder)
        network = Network.from_run(
            outcome.folder / "model",
            shape=data.shape,
            classes=plan.outputs,
            scale=job.data.scale,
            seed=job.seed,
            head=plan.head,
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
        return self._job_of(lambda values: self._make_job(values, sizes), values)

    def _make_job(self, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Job:
        job_dict = plain_job(self._param_rows, values)
        kind = next(name for name, cls in MODELS.items() if isinstance(self._default_settings, cls))
        loss_settings = (
            {"loss": loss} if (loss := getattr(self._default_settings, "loss", "")) else {}
        )
        job_dict["model"] = {"kind": kind, **loss_settings, **job_dict.get("model", {}), **sizes}
        features = self.getOrDefault("featuresCol")
        features = [features] if isinstance(features, str) else features
        source = {"name": "given", "features": features}
        source["label"] = self.getOrDefault("labelCol")
        job_dict["data"] = {**job_dict.get("data", {}), **source}
        return Job.from_dict({**job_dict, "engine": "spark", "name": self.uid})


class NetworkClassifier(NetworkEstimator, Classifier[Any], HasProbabilityCol):
    """Trains a classifier; a subclass defines the kind."""

    _large_label_advice: ClassVar[str]
    """What to do where a label is too large."""

    def _num_classes(self) -> int | None:
        return self.getOrDefault("numClasses") if self.isSet("numClasses") else None

    def _check_outputs(self, plan: Plan) -> None:
        is_set = self.isSet("thresholds")
        thresholds = self.getOrDefault("thresholds") if is_set else None
        check_thresholds(thresholds, plan.head, plan.outputs)

    def _row_checks(self, classes: int) -> RowChecks:
        num_classes = self._num_classes()
        advice = "set numClasses to {} or more" if num_classes else self._large_label_advice
        return RowChecks(classes=num_classes or classes, more_classes=advice)


def _smallest_batch_size(model: Any) -> int:  # noqa: ANN401 - one of MODELS
    """Returns the examples of a model's smallest step: more workers have nothing to do in it."""
    configs = (model.pretraining, model.fine_tuning) if isinstance(model, DBN) else (model,)
    return min(int(config.batch_size) for config in configs)


_MOST_CLASSES = 1_000_000


def count_classes(frame: DataFrame, label: str) -> int:
    """Returns how many classes there are, by one pass over the labels.

    Raises:
        DataError: a label is null, negative, a fraction, or far above all numbers of classes.
    """
    y = quoted(label)
    is_bad = y.isNull() | (y < 0) | (y != F.floor(y))
    query = frame.agg(
        F.sum(is_bad.cast("long")),
        F.min(F.when(is_bad, y)),
        F.max(y),
    )
    row: Any = run_query(frame.sparkSession, query.first)
    bad_count, first_bad, largest = row
    if bad_count:
        raise DataError(
            f"column {label}: labels must be whole numbers from 0",
            got=f"{'null' if first_bad is None else first_bad} and {bad_count - 1} more such",
            do="turn them into indices first, e.g. with StringIndexer",
        )
    if largest >= _MOST_CLASSES:
        wrong = f"column {label}: a number this large is none of a class"
        raise DataError(wrong, got=f"{largest:.0f}", do=NUMBER_THE_CLASSES)
    return int(largest) + 1
