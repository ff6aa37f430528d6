"""TensorBoard as a callback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from photinus.report.trackers.base import Point, Tracker, import_package


class TensorBoardCallback(Tracker):
    """Writes a run's events for TensorBoard: one folder for all workers and every resume.

    Args:
        folder: in which the run gets one of its own; left out, `tensorboard` in the run folder.

    Example:
        >>> from photinus import TensorBoardCallback, train
        >>> train(job, data, callbacks=[TensorBoardCallback("/logs")])  # doctest: +SKIP
    """

    name = "tensorboard"

    def __init__(self, folder: Path | str = "") -> None:
        super().__init__()
        self._parent = folder

    def _connect(self) -> None:
        import_package("tensorboard", "tensorboard")

    def _begin(self, run: str, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(self._parent) / f"{run}-{self.key}" if self._parent else None
        self._writer: Any = SummaryWriter(str(folder or self.folder / "tensorboard"))
        lines = "\n".join(f"    {name} = {value}" for name, value in settings.items())
        self._writer.add_text("job", lines)

    def _send(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.metrics.items():
                self._writer.add_scalar(name, value, point.step)
        self._writer.flush()

    def _log_artifact(self, path: Path, kind: str, metrics: Mapping[str, float]) -> None:
        metrics_text = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        self._writer.add_text(kind, f"{path}: {metrics_text}", self.step)

    def _end(self, state: str) -> None:
        self._writer.add_text("end", state)
        self._writer.close()
