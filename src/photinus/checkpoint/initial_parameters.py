"""Finds the numbers that a training starts from: a run's, a saved model's, or those of a file."""

from __future__ import annotations

from pathlib import Path

from photinus.checkpoint.export import load_model
from photinus.checkpoint.files import Tensors, from_safetensors
from photinus.core.addresses import on_disk
from photinus.core.errors import NotReadyError, UsageError, reason_of

_RUN_FILE, _SPARK_ML_FOLDERS = "job.json", ("metadata", "data")
"""Files that identify a run's folder, and a folder that an estimator's model was saved in."""


def load_initial_tensors(path: Path | str, *, is_mapped: bool = False) -> Tensors:
    """Returns the arrays of a trained model by name; code that it names is not loaded.

    Args:
        path: of a run's folder, of a model's folder, as a run leaves it or as
            `model.write().save(path)` makes it, or of a safetensors file.
        is_mapped: the arrays stay on disk, where that can be.

    Raises:
        UsageError: there is nothing, or something else.
        CheckpointError: it is damaged; names the file and the hashes.
        NotReadyError: pyarrow is missing, which a model of the estimators needs.
    """
    source = on_disk(path)
    if (source / _RUN_FILE).is_file():
        source /= "model"
        if not source.is_dir():
            do = f"photinus train --resume {path}, or name another run"
            raise UsageError(f"the run {path} holds no model yet", do=do)
    if all((source / name).is_dir() for name in _SPARK_ML_FOLDERS):
        return from_safetensors(_read_weights(source), f"the model in {source}")
    return load_model(source, is_mapped=is_mapped).tensors


def _read_weights(source: Path) -> bytes:
    """Returns the safetensors file that lies in pieces in the rows of Parquet files."""
    try:
        import pyarrow.dataset as ds
    except ImportError:
        raise NotReadyError("pyarrow is not installed", do="pip install pyarrow") from None
    parts: dict[int, bytes] = {}
    try:
        rows = ds.dataset(str(source / "data"), format="parquet")
        for batch in rows.to_batches(columns=["part", "bytes"]):
            parts |= dict(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{source} holds no network's weights",
            got=reason_of(error).partition("\n")[0],
            do="name the folder of a run, or of a model that an estimator of networks trained",
        ) from error
    return b"".join(parts[number] for number in sorted(parts))
