"""What all estimators that train a job share: settings of a fit, its run folder, saving."""

from __future__ import annotations

import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.ml import Estimator
from pyspark.ml.param.shared import HasSeed
from pyspark.ml.util import MLReadable, MLWritable

from photinus.checkpoint.mirror import Mirror
from photinus.core.addresses import is_address, on_disk
from photinus.core.errors import UsageError
from photinus.data.spark import refuse_stream
from photinus.engine.spark.engine import FrameData, SparkEngine, claim_seats
from photinus.estimators.model import KeywordParams
from photinus.estimators.param_table import ParamRow
from photinus.estimators.persistence import ParamsReader, ParamsWriter
from photinus.estimators.summary import TrainingSummary
from photinus.report.journal import read
from photinus.run.job import Job
from photinus.run.remote_resume import mirrored
from photinus.run.train import train_lazy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from photinus.core.events import Event
    from photinus.run.evaluate import LazyModel
    from photinus.run.train import Outcome


M = TypeVar("M", bound=Any)
_JobMaker = Callable[[Mapping[str, Any]], Job]


class TrainingEstimator(KeywordParams, Estimator[Any], HasSeed, MLWritable, MLReadable[Any]):
    """Trains on the tasks of the DataFrame's own session; a subclass defines what."""

    callbacks: Sequence[Callable[[Event], None]] = ()
    """Called with every event, as of `photinus.train`; no Param, and not saved."""
    verbose: bool | None = None
    """Likewise; None shows the training on a screen and in a notebook."""

    def write(self) -> ParamsWriter:
        """Returns the writer: `estimator.write().overwrite().save(path)`."""
        return ParamsWriter(self)

    @classmethod
    def read(cls) -> ParamsReader[Any]:
        """Returns the reader."""
        return ParamsReader(cls)

    @classmethod
    def load(cls, path: str, *, trust_code: bool = False) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns a saved estimator.

        Args:
            path: where it was saved.
            trust_code: let `fit` run the code that it names, though this user did not save it here.

        Raises:
            UsageError: another user saved it, and it names code.
        """
        return ParamsReader(cls, trust_code=trust_code).load(path)

    def fit(self, dataset: Any, params: Any = None) -> Any:  # noqa: ANN401 - as Spark's own
        """Trains on a table's rows, and returns the model; for a list of ParamMaps, the models.

        Args:
            dataset: a DataFrame, or what else the estimator reads.
            params: Params that hold for this call only, or a list of such.

        Raises:
            UsageError: a column or a Param is wrong, or the table is a stream.
            DataError: a row is wrong; the message names it.
            NotReadyError: the cluster lacks slots.
        """
        refuse_stream(dataset)
        return super().fit(dataset, params)

    def _job_of(self, make_job: _JobMaker, values: Mapping[str, Any]) -> Job:
        """Returns the job that `make_job` makes of Params.

        Raises:
            UsageError: the message names the wrong Param, without which there is no error.
        """
        try:
            return make_job(values)
        except UsageError as error:
            suspects: list[tuple[bool, ParamRow]] = []
            for row in self._param_rows:
                if row.job_path and row.name in values:
                    other_values = {
                        name: value for name, value in values.items() if name != row.name
                    }
                    remaining_error = _error_of(make_job, other_values)
                    suspects += (
                        [(remaining_error == "", row)] if remaining_error != str(error) else []
                    )
            if not suspects:
                raise
            _, row = max(suspects, key=lambda suspect: suspect[0])
            setting = rf"^{row.job_path.rpartition('.')[2]} of \w+ "
            text, is_about_setting = re.subn(setting, f"{row.name} ", str(error))
            raise UsageError(text if is_about_setting else f"{row.name}: {error}") from error

    def _run(
        self, draft: LazyModel, data: FrameData, folder: Path | Mirror
    ) -> tuple[Outcome, TrainingSummary]:
        """Trains on the session's tasks, in a run folder that `_run_folder` gave."""
        is_kept = bool(self.getOrDefault("runDir"))
        outcome = train_lazy(
            draft,
            data,
            folder=folder,
            callbacks=self.callbacks,
            verbose=self.verbose,
            engine=SparkEngine(data.frame.sparkSession),
            is_kept=is_kept,
        )
        kept_folder = (outcome.address or outcome.folder) if is_kept else None
        return outcome, TrainingSummary.of(read(outcome.folder / "events.jsonl"), kept_folder)

    def _fitted(self, model: M, summary: TrainingSummary) -> M:
        """Gives a new model this estimator's Params, and the summary of the fit.

        It gets the estimator's uid, too: Spark knows Params by uid and name, and the estimator's
        Params, as `transform(table, {estimator.predictionCol: "x"})` names them, are the model's.
        """
        model._resetUid(self.uid)
        self._copyValues(model)
        model.summary = summary
        return model

    def _reserve_seats(self, spark: SparkSession, workers: int) -> AbstractContextManager[None]:
        """Asks for the seats of a fit, before its first query."""
        weight = self.getOrDefault("weight") if self.isDefined("weight") else None
        return claim_seats(spark, workers, self.getOrDefault("priority"), weight)

    @contextmanager
    def _run_folder(self) -> Iterator[Path | Mirror]:
        """A run folder of its own for every fit, on this machine or at an address."""
        if runs_folder := self.getOrDefault("runDir"):
            name = f"{self.uid}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            if is_address(runs_folder):
                yield mirrored(f"{runs_folder.rstrip('/')}/{name}")
            else:
                yield on_disk(runs_folder) / name
            return
        with tempfile.TemporaryDirectory(prefix="photinus-") as folder:
            yield Path(folder) / "run"


def _error_of(make_job: _JobMaker, values: Mapping[str, Any]) -> str:
    """Returns what is wrong with a job of these Params; empty if nothing is."""
    try:
        make_job(values)
    except UsageError as error:
        return str(error)
    return ""
