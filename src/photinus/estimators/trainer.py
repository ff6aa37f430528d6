"""What all estimators that train a job share: settings of a fit, its run folder, saving."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.param.shared import HasSeed
from pyspark.ml.util import MLReadable, MLWritable

from photinus.engine.spark.engine import FrameData, SparkEngine
from photinus.estimators.model import Keywords
from photinus.estimators.persist import ParamsReader, ParamsWriter
from photinus.estimators.summary import TrainingSummary
from photinus.report.journal import read
from photinus.run.train import train_draft

if TYPE_CHECKING:
    from photinus.core.events import Event
    from photinus.run.evaluate import Draft
    from photinus.run.train import Outcome


class TrainingEstimator(Keywords, Estimator[Any], HasSeed, MLWritable, MLReadable[Any]):
    """Trains on the tasks of the DataFrame's own session; a subclass says what."""

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
            UsageError: somebody else saved it, and it names code.
        """
        return ParamsReader(cls, trust_code=trust_code).load(path)

    def _run(self, draft: Draft, data: FrameData, folder: Path) -> tuple[Outcome, TrainingSummary]:
        """Trains on the session's tasks, in a run folder that `_folder` gave."""
        is_kept = bool(self.getOrDefault("runDir"))
        outcome = train_draft(
            draft,
            data,
            folder=folder,
            callbacks=self.callbacks,
            verbose=self.verbose,
            engine=SparkEngine(data.frame.sparkSession),
            is_kept=is_kept,
        )
        kept = outcome.folder if is_kept else None
        return outcome, TrainingSummary.of(read(outcome.folder / "events.jsonl"), kept)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """A run folder of its own for every fit."""
        if kept := self.getOrDefault("runDir"):
            stamp = time.strftime("%Y%m%d-%H%M%S")
            yield Path(kept) / f"{self.uid}-{stamp}-{secrets.token_hex(2)}"
            return
        with tempfile.TemporaryDirectory(prefix="photinus-") as folder:
            yield Path(folder) / "run"
