"""Saved models: Spark ML's metadata, and the weights as safetensors in rows of bytes; no pickle.

Everything goes through Spark, so that a model lies wherever Spark can write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter

from photinus.core.errors import CheckpointError
from photinus.estimators.network import Network

__all__ = ["NetworkReader", "NetworkWriter"]

M = TypeVar("M", bound=MLReadable[Any])

_PART_BYTES = 8 << 20
"""Of a row: Spark moves rows of some megabytes well, and much larger ones badly."""
_SCHEMA = "part int, bytes binary"


class NetworkWriter(MLWriter):
    """Writes a model's `metadata` and `data`."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - any of our models
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Writes both below `path`; Spark's own way to overwrite needs Java, and Connect has none.

        Raises:
            Exception: Spark's own; without `overwrite()`, where something is there already.
        """
        spark, network = self.sparkSession, self._model.network
        extra = {"network": network.meta()}
        metadata = DefaultParamsWriter._get_metadata_to_save(self._model, spark, extra)
        rows = [(i, bytearray(part)) for i, part in enumerate(_parts(network.weights()))]
        mode = "overwrite" if self.shouldOverwrite else "error"
        head = spark.createDataFrame([(metadata,)], "value string")
        head.coalesce(1).write.mode(mode).text(f"{path}/metadata")
        data = spark.createDataFrame(rows, _SCHEMA)
        data.coalesce(1).write.mode(mode).parquet(f"{path}/data")


class NetworkReader(MLReader[M]):
    """Reads what `NetworkWriter` wrote.

    Args:
        cls: the model's class.
    """

    def __init__(self, cls: type[M]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> M:
        """Returns the model.

        Raises:
            CheckpointError: another kind of model is there, or its weights are damaged.
        """
        spark = self.sparkSession
        head: Any = spark.read.text(f"{path}/metadata").first()
        metadata = DefaultParamsReader._parseMetaData(head["value"])
        if "network" not in metadata:
            raise CheckpointError(f"{path} holds no {self._cls.__name__}", got=metadata["class"])
        parts = spark.read.parquet(f"{path}/data").orderBy("part").collect()
        weights = b"".join(bytes(row["bytes"]) for row in parts)
        model: Any = self._cls(Network.of(metadata["network"], weights))  # type: ignore[call-arg]
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        loaded: M = model
        return loaded


def _parts(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PART_BYTES):
        yield data[start : start + _PART_BYTES]
