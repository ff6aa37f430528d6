"""MLflow as a callback."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from photinus.report.trackers.base import Point, Tracker, import_package

_BATCH: Final = 1000
"""Metrics of one request: MLflow takes no more."""
_PARAMS: Final = 100
_TAG: Final = "photinus.key"
_STATES: Final = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflowCallback(Tracker):
    """Logs a run to MLflow: one run of MLflow's for all workers and every resume.

    Metrics by round, what each worker does below `system/`, the settings as parameters, each
    checkpoint's place and metrics, and at the end the report and the model.

    Args:
        experiment: its name; made where it is missing.
        uri: of the tracking server; left out, what MLflow is set to.

    Example:
        >>> from photinus import MLflowCallback, train
        >>> train(job, data, callbacks=[MLflowCallback("digits")])  # doctest: +SKIP
    """

    name = "mlflow"

    def __init__(self, experiment: str = "photinus", uri: str | None = None) -> None:
        super().__init__()
        self.experiment, self.uri, self.run_id = experiment, uri, ""

    def _connect(self) -> None:
        self._mlflow = import_package("mlflow", "mlflow")

    def _begin(self, run: str, settings: Mapping[str, Any]) -> None:
        self._client: Any = self._mlflow.MlflowClient(tracking_uri=self.uri)
        experiment = self._client.get_experiment_by_name(self.experiment)
        experiment_id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(self.experiment)
        )
        existing = self._client.search_runs(
            [experiment_id], f"tags.`{_TAG}` = '{self.key}'", max_results=1
        )
        if existing:
            self.run_id = existing[0].info.run_id
            self._client.update_run(self.run_id, status="RUNNING")
            return
        new_run = self._client.create_run(experiment_id, run_name=run, tags={_TAG: self.key})
        self.run_id = new_run.info.run_id
        params = [self._mlflow.entities.Param(k, str(v)[:500]) for k, v in settings.items()]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self.run_id, params=params[start : start + _PARAMS])

    def _send(self, points: Sequence[Point]) -> None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        metrics = [metric(k, float(v), now, p.step) for p in points for k, v in p.metrics.items()]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _BATCH])

    def _log_artifact(self, path: Path, kind: str, metrics: Mapping[str, float]) -> None:
        if kind == "checkpoint":  # its files stay in the run folder, where a resume finds them
            record = {"path": str(path), "metrics": dict(metrics)}
            self._client.log_dict(self.run_id, record, f"checkpoints/{path.name}.json")
        elif path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), kind)
            self._client.log_dict(self.run_id, dict(metrics), f"{kind}/metrics.json")
        else:
            self._client.log_artifact(self.run_id, str(path))

    def _end(self, state: str) -> None:
        self._client.set_terminated(self.run_id, _STATES[state])
