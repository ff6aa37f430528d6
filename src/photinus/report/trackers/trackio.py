"""trackio, which has the interface of Weights & Biases, as a callback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from photinus.report.trackers.base import Point, Tracker, import_package


class TrackioCallback(Tracker):
    """Logs a run to trackio: one run of trackio's for all workers and every resume.

    Args:
        project: its name.
        settings: keyword arguments of `trackio.init`, such as `space_id`.

    Example:
        >>> from photinus import TrackioCallback, train
        >>> train(job, data, callbacks=[TrackioCallback("digits")])  # doctest: +SKIP
    """

    name = "trackio"

    def __init__(
        self, project: str = "photinus", settings: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.project, self.settings = project, dict(settings or {})

    def _connect(self) -> None:
        self._trackio = import_package("trackio", "trackio")

    def _begin(self, run: str, settings: Mapping[str, Any]) -> None:
        config = {k: v if isinstance(v, (int, float, str)) else str(v) for k, v in settings.items()}
        defaults = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False, "config": config}
        name = f"{run}-{self.key}"
        self._run: Any = self._trackio.init(
            project=self.project, name=name, resume="allow", **{**defaults, **self.settings}
        )

    def _send(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.metrics), step=point.step)

    def _log_artifact(self, path: Path, kind: str, metrics: Mapping[str, float]) -> None:
        if kind == "model":
            artifact = self._trackio.Artifact(self.key, type=kind, metadata=dict(metrics))
            artifact.add_dir(str(path))
            self._run.log_artifact(artifact)
        elif kind == "checkpoint":
            checkpoint_metrics = {f"checkpoint/{name}": value for name, value in metrics.items()}
            self._run.log(checkpoint_metrics)

    def _end(self, state: str) -> None:  # noqa: ARG002 - trackio knows one end
        self._run.finish()
