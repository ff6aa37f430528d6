"""Saves and loads models: Spark ML metadata, weights as safetensors, no pickle.

All files are read and written through Spark, so that a model can be wherever Spark can write.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter

from photinus.checkpoint.signatures import check_code, is_signed, signature_of
from photinus.core.errors import CheckpointError, PhotinusError, UsageError, reason_of
from photinus.core.factories import check_importable
from photinus.estimators.network import Network

M = TypeVar("M", bound=MLReadable[Any])

_PART_BYTES = 8 << 20
"""Of a row, which is written and read by itself: 100 MB at once are too much for a Java of 1 GB,
which is what Spark gives a driver."""
_SCHEMA = "part int, bytes binary"
_MODEL, _PARAMS, _SIGNATURE = "network", "params", "signature"


class NetworkWriter(MLWriter):
    """Writes a model's `metadata` and `data`, signed by this user."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - any of our models
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Writes both below `path`; Spark's own way to overwrite needs Java, and Connect has none.

        Raises:
            UsageError: it names code that is sent by value; the path cannot be written; or, without
                `overwrite()`, something is there already.
        """
        spark, network = self.sparkSession, self._model.network
        check_importable(network.meta(), "a model to be saved")
        meta, weights = network.meta(), network.weights()
        parts = list(_chunks(weights))
        signature = signature_of(_MODEL, _signed_content(meta, weights))
        extra = {"network": meta, "parts": len(parts), _SIGNATURE: signature}
        mode = "overwrite" if self.shouldOverwrite else "error"
        with explain_write(path):
            write_metadata(self._model, spark, path, mode, extra)
            for number, part in enumerate(parts):
                row = spark.createDataFrame([(number, part)], _SCHEMA)
                row.coalesce(1).write.mode(mode).parquet(f"{path}/data")
                mode = "append"


class _Reader(MLReader[M]):
    """Reads what this user has signed, and from other users only what names no code.

    Args:
        cls: the class of what is read.
        trust_code: run the code that a folder names, though this user did not save it.
    """

    def __init__(self, cls: type[M], *, trust_code: bool = False) -> None:
        super().__init__()
        self._cls, self._trust_code = cls, trust_code

    def _read_metadata(self, path: str) -> dict[str, Any]:
        with explain_read(path):
            row: Any = self.sparkSession.read.text(f"{path}/metadata").first()
            metadata = dict(DefaultParamsReader._parseMetaData(row["value"] if row else ""))
            metadata["class"]  # a KeyError is explained
        name = self._cls.__name__
        if not metadata["class"].endswith(f".{name}"):
            do = "load it with the class that saved it"
            raise CheckpointError(f"{path} holds no {name}", got=metadata["class"], do=do)
        return metadata

    def _with_saved_params(self, instance: Any, metadata: dict[str, Any]) -> M:  # noqa: ANN401
        instance._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(instance, metadata)
        result: M = instance
        return result


class NetworkReader(_Reader[M]):
    """Reads what `NetworkWriter` wrote."""

    def load(self, path: str) -> M:
        """Returns the model.

        Raises:
            CheckpointError: no such model is there, or it is damaged.
            UsageError: another user saved it, and it names code.
        """
        metadata = self._read_metadata(path)
        with explain_read(path):
            data = self.sparkSession.read.parquet(f"{path}/data")
            count = metadata.get("parts") or data.count()  # earlier ones have none
            parts = [row for n in range(count) for row in data.where(f"part = {n}").collect()]
            if len(parts) != count:
                got, do = f"{len(parts)} of {count} parts", "save it anew, or load a copy of it"
                raise CheckpointError(f"{path} holds no whole model", got=got, do=do)
            weights = b"".join(bytes(row["bytes"]) for row in parts)
        signed = _signed_content(metadata["network"], weights)
        if not is_signed(_MODEL, signed, metadata.get(_SIGNATURE)):
            check_code(metadata["network"], f"the model in {path}", self._trust_code)
        model = self._cls(Network.of(metadata["network"], weights))  # type: ignore[call-arg]
        return self._with_saved_params(model, metadata)


class ParamsWriter(MLWriter):
    """Writes an estimator's Params, signed by this user: they may name code that `fit` calls."""

    def __init__(self, instance: Any) -> None:  # noqa: ANN401 - any of our estimators
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Writes them below `path`.

        Raises:
            UsageError: they name code that is sent by value; the path cannot be written; or,
                without `overwrite()`, something is there already.
        """
        instance = self._instance
        values = {p.name: instance.getOrDefault(p) for p in instance.params if instance.isSet(p)}
        check_importable(values, "an estimator to be saved")
        extra = {_SIGNATURE: signature_of(_PARAMS, values)}
        mode = "overwrite" if self.shouldOverwrite else "error"
        with explain_write(path):
            write_metadata(instance, self.sparkSession, path, mode, extra)


class ParamsReader(_Reader[M]):
    """Reads what `ParamsWriter` wrote."""

    def load(self, path: str) -> M:
        """Returns the estimator.

        Raises:
            CheckpointError: something else is there, or it is damaged.
            UsageError: another user saved it, and it names code.
        """
        metadata = self._read_metadata(path)
        if not is_signed(_PARAMS, metadata["paramMap"], metadata.get(_SIGNATURE)):
            check_code(metadata["paramMap"], f"the estimator in {path}", self._trust_code)
        estimator: Any = self._cls()
        names = {param.name for param in estimator._defaultParamMap}
        loaded = self._with_saved_params(estimator, metadata)
        for param in [p for p in estimator._defaultParamMap if p.name not in names]:
            value = estimator._defaultParamMap.pop(param)  # of an earlier version: it is kept
            if not estimator.isSet(param):
                estimator._set(**{param.name: value})
        return loaded


def _signed_content(meta: dict[str, Any], weights: bytes) -> dict[str, Any]:
    return {"meta": meta, "tensors": hashlib.sha256(weights).hexdigest()}


_NOT_SEEN = re.compile("Permission denied|Connection refused")
"""In a reason: what is saved may well be whole."""


@contextmanager
def explain_write(path: str) -> Iterator[None]:
    """Says in one sentence why Spark cannot write below `path`.

    Raises:
        UsageError: it cannot.
    """
    try:
        yield
    except PhotinusError:
        raise
    except Exception as error:  # of Java's, of pyspark's or of Connect's, without a common class
        reason = _reason(error)
        is_there = "PATH_ALREADY_EXISTS" in reason
        do = "write().overwrite().save(path) replaces it" if is_there else "name another path"
        wrong = f"{path} already exists" if is_there else f"{path} cannot be written"
        raise UsageError(wrong, got=None if is_there else reason, do=do) from error


@contextmanager
def explain_read(path: str) -> Iterator[None]:
    """Says in one sentence why what is saved in `path` cannot be read.

    Raises:
        CheckpointError: it cannot.
    """
    try:
        yield
    except PhotinusError:
        raise
    except Exception as error:  # Spark's, or of a text that is no metadata
        reason = _reason(error)
        if "PATH_NOT_FOUND" in reason and f"{path}/metadata" in reason:
            do = "name the path that it was saved to"
            raise CheckpointError("nothing is saved at that path", got=path, do=do) from error
        do = "save it anew, or load a copy of it"
        do = "check the address, and this user's rights" if _NOT_SEEN.search(reason) else do
        raise CheckpointError(f"{path} cannot be read", got=reason, do=do) from error


def _reason(error: Exception) -> str:
    """Returns in one line what failed in Spark: the first cause, not the job that it ended."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = reason_of(error) if java is None else str(java.getMessage() or java.toString())
    return text.strip().partition("\n")[0]


def write_metadata(
    instance: Any,  # noqa: ANN401 - with Params
    spark: Any,  # noqa: ANN401 - classic or Connect
    path: str,
    mode: str,
    extra: dict[str, Any],
) -> None:
    """Writes the `metadata` of an instance with Params below `path`.

    Args:
        instance: whose Params.
        spark: the session.
        path: of the folder.
        mode: "overwrite" or "error".
        extra: further entries.
    """
    metadata = DefaultParamsWriter._get_metadata_to_save(instance, spark, extra)
    frame = spark.createDataFrame([(metadata,)], "value string")
    frame.coalesce(1).write.mode(mode).text(f"{path}/metadata")


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PART_BYTES):
        yield data[start : start + _PART_BYTES]
