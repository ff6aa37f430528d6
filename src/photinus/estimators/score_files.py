"""Scores Parquet files by the model of a run: without Spark, or as a query of Spark."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from photinus.core.addresses import filesystem, is_address, on_disk, try_writing
from photinus.core.errors import DataError, PhotinusError, RunFailedError, UsageError, reason_of
from photinus.core.threads import limit_threads
from photinus.data.base import Array, Features
from photinus.data.inputs import Inputs
from photinus.engine.spark.session import is_connect, is_started_here
from photinus.estimators.from_run import SavedRun, tried, with_shape
from photinus.estimators.network import Network, predictor
from photinus.estimators.scores import arrow_column, scores_in_order
from photinus.models.heads import LOGS, NUMBERS, TOKENS
from photinus.run.data import DENIED, check_address, images_under, parquet_frame, rows_to_score
from photinus.run.job import Source
from photinus.transport.filesystems import check_reachable

_BATCH_ROWS = 512
"""That go through the network at once, as in `transform`."""
_SPARK_SETTINGS = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")
"""Where they may say that a path is not of this machine."""
_READ_ROWS = 8 * _BATCH_ROWS
"""That are read and written at once."""
_UNWRITTEN = "_temporary"
"""The folder in which Spark keeps what it has not yet written as a whole."""


def score_files(run: SavedRun, data: str, output: Path) -> int:
    """Writes rows, with their predictions beside them, as one Parquet file.

    Args:
        run: of `open_run`.
        data: a Parquet file or a folder of them, or of images where the run read such files; a path
            or an address.
        output: the file; it is there as a whole or not at all.

    Returns:
        How many rows there are.

    Raises:
        UsageError: a column is missing, or would be replaced; or the model reads other rows.
        DataError: a row is bad.
    """
    with _as_usage_error():
        table = rows_to_score(run.source, data)
    with limit_threads(run.threads):
        batches = table.batches(_READ_ROWS)
        first = next(batches)
        network = tried(with_shape(run.network, table.shape), _two_rows(first[1]))
        names = _output_names(network, table.schema.names)
        predict = predictor(network, names)
        scored = (
            _with_scores(batch, scores_in_order(features, _BATCH_ROWS, predict))
            for batch, features in itertools.chain([first], batches)
        )
        return _write(scored, output)


def check_before_spark(source: Source, data: str, output: str) -> None:
    """Refuses what Spark would refuse, before it is started.

    Args:
        source: that the run read.
        data: as of `score_on_spark`.
        output: likewise.

    Raises:
        UsageError: rows are missing, may not be read, or are files of images; or there is such an
            output already.
        NotReadyError: nothing answers at an address.
    """
    check_address(data)
    if images_under(source, data) is not None:
        do = "leave --engine spark out: this process reads images, also at an address"
        raise UsageError("Spark predicts of Parquet files", got=f"images in {data}", do=do)
    if not is_address(output):
        if is_started_here() and not any(map(os.environ.get, _SPARK_SETTINGS)):
            check_output(on_disk(output))
        return  # Spark's settings say in which file system it is
    check_reachable(output)
    try:
        files, path = filesystem(output)
        is_there = files.exists(path)
    except Exception:  # it is left to Spark, which has clients of its own
        return
    if is_there:
        raise exists_already(output)


def score_on_spark(run: SavedRun, folder: str, data: str, output: str, spark: Any) -> str:  # noqa: ANN401
    """Has Spark write the same as a folder of Parquet files.

    Args:
        run: of `open_run`.
        folder: what the user calls it.
        data: a Parquet file or a folder of them, wherever Spark reads.
        output: the folder, wherever Spark writes.
        spark: a session.

    Returns:
        Where the folder is: a path is of HDFS where Spark's settings say so.

    Raises:
        UsageError: as `score_files`, or there is such an output already.
        DataError: a row is bad.
        RunFailedError: Spark says why.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from photinus.engine.spark.job import cause_of, run_query
    from photinus.estimators.model import model_of_run

    with _as_usage_error():
        frame = parquet_frame(spark, data)
    model = model_of_run(run, folder, frame)
    names = _output_names(model.network, frame.columns)
    if "probability" in names:
        model._set(rawPredictionCol="")
    scored = model.transform(frame)
    if "probability" in names:
        scored = scored.withColumn("probability", vector_to_array(F.col("probability")))
    try:
        run_query(spark, lambda: scored.write.parquet(output))
    except KeyboardInterrupt:
        _remove_unwritten(spark, output)
        raise
    except Exception as error:  # of Java's, of pyspark's or of Connect's, without a common class
        if "PATH_ALREADY_EXISTS" in str(error):
            raise exists_already(output) from error
        _remove_unwritten(spark, output)
        if isinstance(error, PhotinusError):
            raise
        denied = DENIED.search(str(error))
        if denied and "access=READ" not in denied[0]:
            raise RunFailedError(f"{output} cannot be written to", got=denied[0]) from error
        wrong = f"Spark could not score {data}"
        raise RunFailedError(wrong, got=cause_of(error)) from error
    return _found_at(spark, output)


def _found_at(spark: Any, output: str) -> str:  # noqa: ANN401 - a SparkSession
    """Returns an output as the user named it, or its address where that is not on this machine."""
    if is_connect(spark) or is_address(output):
        return output
    path = spark._jvm.org.apache.hadoop.fs.Path(output)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    address = str(files.makeQualified(path).toString())
    return address if is_address(address) else output


def _remove_unwritten(spark: Any, output: str) -> None:  # noqa: ANN401 - a SparkSession
    """Removes what Spark leaves of an output that failed, so that it can be written again."""
    with contextlib.suppress(Exception):  # there is none, or something is in it
        if is_connect(spark):
            if not is_address(output):
                return  # it is not known where Spark put it
            remote, folder = filesystem(output)
            if remote.exists(f"{folder}/{_UNWRITTEN}"):
                remote.rm(f"{folder}/{_UNWRITTEN}", recursive=True)
            if not remote.ls(folder):
                remote.rmdir(folder)
            return
        path = spark._jvm.org.apache.hadoop.fs.Path(output)
        files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        files.delete(path.suffix(f"/{_UNWRITTEN}"), True)  # noqa: FBT003 - with what is in it
        if files.getFileStatus(path).isDirectory():
            files.delete(path, False)  # noqa: FBT003 - Java's argument: not what is in it


@contextlib.contextmanager
def _as_usage_error() -> Iterator[None]:
    """Says of files that are missing, or are none, that the command line names the wrong ones."""
    try:
        yield
    except DataError as error:
        raise UsageError(str(error)) from error


def check_output(output: Path) -> None:
    """Refuses a path of this machine for the predictions; nothing is made.

    Raises:
        UsageError: something is there, or nothing can be written there.
    """
    if output.exists():
        raise exists_already(output)
    try:
        try_writing(output.parent)
    except OSError as error:
        do = "name a path that this user may write"
        raise UsageError(f"{output} cannot be written", got=reason_of(error), do=do) from error


def exists_already(output: Path | str) -> UsageError:
    """Returns the error of predictions that would replace something."""
    return UsageError(f"{output} exists already", do="name another path for the predictions")


def _output_names(network: Network, columns: Sequence[str]) -> list[str]:
    """Returns the names of the new columns, as `transform` has them; they must be new ones."""
    names = ["probability"] * (network.head not in (LOGS, NUMBERS, TOKENS)) + ["prediction"]
    for column in columns:
        if column.lower() in names:  # to Spark they are the same
            wrong = f"the table has a column {column} already"
            raise UsageError(wrong, do="leave it out, or give it another name")
    return names


def _two_rows(features: Features) -> Any:  # noqa: ANN401 - an array, or a dict of them by input
    if isinstance(features, Inputs):
        return features.batch(np.arange(min(2, len(features))))
    return features[:2]


def _with_scores(batch: Any, scores: dict[str, Array]) -> Any:  # noqa: ANN401 - a RecordBatch
    """Returns a table of a batch and its scores, without metadata.

    A note of Spark's in it, of the columns that it wrote, would hide the new ones from it.
    """
    import pyarrow as pa

    columns = [*batch.columns, *map(arrow_column, scores.values())]
    return pa.Table.from_arrays(columns, [*batch.schema.names, *scores])


def _write(tables: Iterator[Any], output: Path) -> int:
    """Writes tables as one file, which is renamed when it is whole; returns how many rows."""
    import pyarrow.parquet as pq

    output.parent.mkdir(parents=True, exist_ok=True)
    temporary, rows = output.with_name(f".{output.name}.tmp-{secrets.token_hex(6)}"), 0
    try:
        with contextlib.ExitStack() as stack:
            writer = None
            for table in tables:
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(temporary, table.schema))
                writer.write_table(table)
                rows += table.num_rows
        if output.exists():  # since it was looked at first
            raise exists_already(output)
        temporary.rename(output)
    finally:
        temporary.unlink(missing_ok=True)
    return rows
