"""Saves and loads models: Spark ML metadata, weights as safetensors, no pickle.

All files are read and written through Spark, so that a model can be wherever Spark can write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, TypeVar

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter

from photinus.checkpoint.signatures import check_code, is_signed, signature_of
from photinus.core.errors import CheckpointError
from photinus.core.factories import check_importable
from photinus.estimators.network import Network

M = TypeVar("M", bound=MLReadable[Any])

_PART_BYTES = 8 << 20
"""Of a row: Spark moves rows of some megabytes well, and much larger ones badly."""
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
            UsageError: it names code that is sent by value.
            Exception: Spark's own; without `overwrite()`, where something is there already.
        """
        spark, network = self.sparkSession, self._model.network
        check_importable(network.meta(), "a model to be saved")
        meta, weights = network.meta(), network.weights()
        extra = {"network": meta, _SIGNATURE: signature_of(_MODEL, _signed(meta, weights))}
        mode = "overwrite" if self.shouldOverwrite else "error"
        write_head(self._model, spark, path, mode, extra)
        rows = [(i, bytearray(part)) for i, part in enumerate(_parts(weights))]
        data = spark.createDataFrame(rows, _SCHEMA)
        data.coalesce(1).write.mode(mode).parquet(f"{path}/data")


class _Reader(MLReader[M]):
    """Reads what this user has signed, and from other users only what names no code.

    Args:
        cls: the class of what is read.
        trust_code: run the code that a folder names, though this user did not save it.
    """

    def __init__(self, cls: type[M], *, trust_code: bool = False) -> None:
        super().__init__()
        self._cls, self._trust_code = cls, trust_code

    def _head(self, path: str) -> dict[str, Any]:
        read: Any = self.sparkSession.read.text(f"{path}/metadata").first()
        head, name = dict(DefaultParamsReader._parseMetaData(read["value"])), self._cls.__name__
        if not head["class"].endswith(f".{name}"):
            do = "load it with the class that saved it"
            raise CheckpointError(f"{path} holds no {name}", got=head["class"], do=do)
        return head

    def _filled(self, made: Any, metadata: dict[str, Any]) -> M:  # noqa: ANN401
        made._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(made, metadata)
        filled: M = made
        return filled


class NetworkReader(_Reader[M]):
    """Reads what `NetworkWriter` wrote."""

    def load(self, path: str) -> M:
        """Returns the model.

        Raises:
            CheckpointError: another kind of model is there, or its weights are damaged.
            UsageError: another user saved it, and it names code.
        """
        metadata = self._head(path)
        parts = self.sparkSession.read.parquet(f"{path}/data").orderBy("part").collect()
        weights = b"".join(bytes(row["bytes"]) for row in parts)
        signed = _signed(metadata["network"], weights)
        if not is_signed(_MODEL, signed, metadata.get(_SIGNATURE)):
            check_code(metadata["network"], f"the model in {path}", self._trust_code)
        made = self._cls(Network.of(metadata["network"], weights))  # type: ignore[call-arg]
        return self._filled(made, metadata)


class ParamsWriter(MLWriter):
    """Writes an estimator's Params, signed by this user: they may name code that `fit` calls."""

    def __init__(self, instance: Any) -> None:  # noqa: ANN401 - any of our estimators
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Writes them below `path`.

        Raises:
            UsageError: they name code that is sent by value.
            Exception: Spark's own; without `overwrite()`, where something is there already.
        """
        me = self._instance
        given = {p.name: me.getOrDefault(p) for p in me.params if me.isSet(p)}
        check_importable(given, "an estimator to be saved")
        extra = {_SIGNATURE: signature_of(_PARAMS, given)}
        mode = "overwrite" if self.shouldOverwrite else "error"
        write_head(me, self.sparkSession, path, mode, extra)


class ParamsReader(_Reader[M]):
    """Reads what `ParamsWriter` wrote."""

    def load(self, path: str) -> M:
        """Returns the estimator.

        Raises:
            CheckpointError: something else is there.
            UsageError: another user saved it, and it names code.
        """
        metadata = self._head(path)
        if not is_signed(_PARAMS, metadata["paramMap"], metadata.get(_SIGNATURE)):
            check_code(metadata["paramMap"], f"the estimator in {path}", self._trust_code)
        return self._filled(self._cls(), metadata)


def _signed(meta: dict[str, Any], weights: bytes) -> dict[str, Any]:
    return {"meta": meta, "tensors": hashlib.sha256(weights).hexdigest()}


def write_head(
    instance: Any,  # noqa: ANN401 - with Params
    spark: Any,  # noqa: ANN401 - classic or Connect
    path: str,
    mode: str,
    extra: dict[str, Any],
) -> None:
    """Writes the `metadata` of what has Params below `path`.

    Args:
        instance: whose Params.
        spark: the session.
        path: of the folder.
        mode: "overwrite" or "error".
        extra: what else is noted.
    """
    metadata = DefaultParamsWriter._get_metadata_to_save(instance, spark, extra)
    head = spark.createDataFrame([(metadata,)], "value string")
    head.coalesce(1).write.mode(mode).text(f"{path}/metadata")


def _parts(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PART_BYTES):
        yield data[start : start + _PART_BYTES]
