"""Converts snapshots to checkpoints and back, and keeps those of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from photinus.checkpoint.background import Saver
from photinus.checkpoint.files import Step, Tensors
from photinus.checkpoint.mapped import ScratchFolder
from photinus.checkpoint.store import MAPPED_PREFIX, Checkpoint, Store
from photinus.core.errors import CheckpointError
from photinus.core.events import CheckpointFailed, CheckpointSaved, Event, Warned
from photinus.strategies.base import Message
from photinus.training.snapshots import RunSnapshot

_Files = dict[str, Tensors]


class Checkpoints:
    """The checkpoints of a run, under one term.

    Args:
        folder: of the checkpoints.
        fingerprint: of the job, which a checkpoint must have.
        emit: is called with what was refused.
        step: as of `Store`: a fence for a coordinator of an older term.
        saved: is called with what was saved, beside the training.
    """

    found: str = ""
    """The name of what `newest` returned."""

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        emit: Callable[[Event], None],
        *,
        step: Step,
        saved: Callable[[CheckpointSaved | CheckpointFailed], None],
    ) -> None:
        self._store = Store(folder, step=step)
        self.scratch = ScratchFolder(folder / ".pages")
        self.scratch.clear()
        self._saver, self._emit = Saver(self._store, saved), emit
        self._fingerprint = fingerprint

    def save(self, snapshot: RunSnapshot, *, is_best: bool = False) -> None:
        """Saves a snapshot, beside the training."""
        meta = meta_of(snapshot, self._fingerprint)
        self._saver.save(snapshot.name, meta, files_of(snapshot), is_best=is_best)

    def save_best(self, snapshot: RunSnapshot) -> None:
        """Saves the best snapshot so far: it is kept until a better one comes."""
        self.save(snapshot, is_best=True)

    def newest(self) -> RunSnapshot | None:
        """Returns the newest whole checkpoint's snapshot; warns of each one that was refused.

        Raises:
            CheckpointError: none is whole, or it belongs to another job.
        """
        checkpoint = self._store.latest()
        for refusal in self._store.refusals:
            self._emit(Warned(text=str(refusal)))
        if checkpoint is None:
            if self._store.refusals:
                raise CheckpointError("no checkpoint of this run is complete", do="start a new run")
            return None
        self.found = checkpoint.name
        return snapshot_from(checkpoint, self._fingerprint)

    def close(self) -> None:
        """Writes what waits; what was written in pages loses its other name."""
        self._saver.close()
        self.scratch.clear()


def files_of(snapshot: RunSnapshot) -> _Files:
    """Returns a snapshot's arrays by file: the agreed point, the history, and each slot's own.

    Each shard of a sharded table is a file.
    """
    point = snapshot.point
    point_arrays = {"vector": point.vector, "floats": point.floats, "integers": point.integers}
    point_arrays["left"] = point.left
    agreed_arrays = {name: value for name, value in point_arrays.items() if value is not None}
    agreed_arrays |= {f"outer.{i}": value for i, value in enumerate(point.outer)}
    files: _Files = {"agreed": agreed_arrays}
    files |= {f"{MAPPED_PREFIX}{slot:05d}": shard for slot, shard in snapshot.shards.items()}
    if snapshot.history:
        files["history"] = {f"{i:03d}": vector for i, vector in enumerate(snapshot.history)}
    for slot, inner in snapshot.inner.items():
        if inner:
            files[f"slot-{slot:03d}"] = dict(inner)
    return files


def meta_of(snapshot: RunSnapshot, fingerprint: str) -> dict[str, Any]:
    """Returns a snapshot's plain numbers, and which plan it belongs to."""
    return {
        "program": fingerprint,
        "phase": snapshot.phase,
        "version": snapshot.version,
        "applied": snapshot.applied,
        "budget": snapshot.budget,
        "positions": {str(slot): position for slot, position in snapshot.positions.items()},
        "rows": {str(slot): rows for slot, rows in snapshot.rows.items()},
        "digests": {str(slot): digest for slot, digest in snapshot.digests.items()},
        "reached": {
            str(s): [[*fragment, n] for fragment, n in fragments.items()]
            for s, fragments in snapshot.reached.items()
        },
        "lost": {str(slot): lost for slot, lost in snapshot.lost.items()},
        "slots": sorted(snapshot.inner),
        "row_size": snapshot.row_size,
    }


def snapshot_from(checkpoint: Checkpoint, fingerprint: str) -> RunSnapshot:
    """Returns the snapshot in a checkpoint.

    Raises:
        CheckpointError: it belongs to another plan.
    """
    meta, files = checkpoint.meta, checkpoint.files
    if meta["program"] != fingerprint:
        raise CheckpointError(
            f"checkpoint {checkpoint.name} belongs to another job",
            got=meta["program"],
            do="resume with the settings and workers that the run was started with; for others, "
            "begin a new run with start = 'FOLDER/model' of one that has ended",
        )
    agreed = files["agreed"]
    outer_count = sum(name.startswith("outer.") for name in agreed)
    shards = [files[name] for name in sorted(files) if name.startswith(MAPPED_PREFIX)]
    history = files.get("history", {})
    return RunSnapshot(
        phase=int(meta["phase"]),
        version=int(meta["version"]),
        applied=int(meta["applied"]),
        budget=int(meta["budget"]),
        point=Message(
            "heal",
            agreed.get("vector"),
            version=int(meta["version"]),
            outer=tuple(agreed[f"outer.{i}"] for i in range(outer_count)),
            floats=agreed.get("floats", np.zeros(0, np.float32)),
            integers=agreed.get("integers", np.zeros(0, np.int64)),
            left=agreed.get("left"),
        ),
        positions={int(slot): int(position) for slot, position in meta["positions"].items()},
        rows={int(slot): int(rows) for slot, rows in meta["rows"].items()},
        # older checkpoints hold none of the next three
        digests={int(slot): digest for slot, digest in meta.get("digests", {}).items()},
        reached={
            int(slot): {(start, stop): n for start, stop, n in fragments}
            for slot, fragments in meta.get("reached", {}).items()
        },
        lost={int(slot): int(lost) for slot, lost in meta.get("lost", {}).items()},
        inner={int(slot): files.get(f"slot-{int(slot):03d}", {}) for slot in meta["slots"]},
        history=tuple(history[name] for name in sorted(history)),
        row_size=int(meta.get("row_size", 0)),
        shards=dict(enumerate(shards)),
    )
