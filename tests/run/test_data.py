import re
import socket
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.data import cifar
from photinus.data.spark import partitioned
from photinus.engine.base import ArrayData
from photinus.models.dbn import DBN
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.run.data import (
    ParquetRows,
    PathError,
    TestRows,
    check_files,
    check_fit,
    check_test,
    limited,
    parquet_frame,
    read_test,
    read_train,
)
from photinus.run.job import Source
from photinus.run.presets import preset
from photinus.run.train import train


@pytest.fixture
def write_table(tmp_path):
    """Writes columns as a Parquet file."""

    def write_rows(**columns):
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table(columns), path)
        return str(path)

    return write_rows


def parquet_source(path, **fields):
    return Source(name="parquet", path=path, test=path, **fields)


def test_columns_of_numbers_become_rows(write_table, small):
    path = write_table(a=[1.0, 2.0], b=[3.0, 4.0], label=[0, 1])
    columns = parquet_source(path, features=("a", "b"), classes=2)
    data = read_train(small.job(data=columns, engine="local"))
    assert data.features.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert data.labels.tolist() == [0, 1]
    test = read_test(columns)
    assert np.array_equal(test.features, data.features)


def test_lists_are_rows_and_are_scaled_when_they_are_measured_on(write_table):
    path = write_table(features=[[2.0, 4.0], [6.0, 8.0]], label=[0, 1])
    assert read_test(parquet_source(path, scale=0.5)).features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert len(read_test(parquet_source(f"file://{path}")).features) == 2


def test_a_wrong_column_is_named_beside_those_there_are(write_table, small):
    path = write_table(pixels=[[1.0]], label=[0])
    with pytest.raises(UsageError, match="unknown column; got 'features'; known: label, pixels"):
        read_train(small.job(data=parquet_source(path), engine="local"))


def test_a_label_out_of_range_is_named(write_table, small):
    path = write_table(features=[[1.0], [2.0]], label=[0, 10])
    with pytest.raises(DataError, match="10"):
        read_train(small.job(data=parquet_source(path, classes=10), engine="local"))


def test_a_wrong_label_of_a_table_is_named_by_its_column(tmp_path, small):
    table = pa.table({"x": [1.0, 2.0], "y": [0, 3]})
    pq.write_table(table, tmp_path / "rows.parquet")
    source = Source(name="parquet", path=str(tmp_path), features=("x",), label="y")
    job = small.job(data=source, engine="local")
    with pytest.raises(DataError, match=r"row 1 column y: label 3 outside 0..2"):
        limited(read_train(job), 3).checked(job.plan())  # as of a module of three outputs


def test_no_file_and_no_rows_are_told(write_table, small, tmp_path):
    with pytest.raises(DataError, match="there is no"):
        read_train(small.job(data=parquet_source(str(tmp_path / "no")), engine="local"))
    empty = write_table(
        features=pa.array([], pa.list_(pa.float32())), label=pa.array([], pa.int64())
    )
    with pytest.raises(DataError, match="holds no rows"):
        read_train(small.job(data=parquet_source(empty), engine="local"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="nothing holds no Parquet files; name a Parquet file"):
        read_train(small.job(data=parquet_source(str(tmp_path / "nothing")), engine="local"))
    (tmp_path / "junk.parquet").write_bytes(b"no table" * 9)
    with pytest.raises(DataError, match="cannot be read as Parquet; got"):
        read_train(small.job(data=parquet_source(str(tmp_path / "junk.parquet")), engine="local"))


CSV = "spark.read.csv(PATH, header=True, inferSchema=True).write.parquet(FOLDER)"


def test_of_files_that_are_no_parquet_it_is_said_how_to_write_them_so(small, tmp_path):
    (tmp_path / "rows.csv").write_text("features,label\n1.0,0\n")
    with pytest.raises(DataError) as caught:
        read_train(small.job(data=parquet_source(str(tmp_path)), engine="local"))
    assert str(caught.value).endswith(f"write it as Parquet: of CSV by {CSV}")


@pytest.mark.spark
def test_spark_tells_a_missing_path_and_csv_as_a_local_run_does(spark, small, tmp_path):
    assert spark is not None
    lost = str(tmp_path / "no")
    with pytest.raises(DataError, match=f"there is no {lost}; name a Parquet file"):
        read_train(small.job(data=parquet_source(lost), engine="spark"))
    (tmp_path / "rows.csv").write_text("features,label\n1.0,0\n")
    with pytest.raises(DataError, match=f"cannot be read as Parquet; got .*{re.escape(CSV)}"):
        read_train(small.job(data=parquet_source(str(tmp_path)), engine="spark"))


def test_rows_that_were_handed_over_must_be_again(small):
    with pytest.raises(UsageError, match="hand them over again"):
        read_train(small.job())
    assert read_test(Source(name="given")) is None


def test_rows_that_are_no_rows_are_told(small):
    with pytest.raises(UsageError, match="must be a DataFrame of Spark, arrays or a path of"):
        limited((small.features, small.labels), 3)
    with pytest.raises(UsageError, match="rows to measure on must be arrays; got tuple"):
        check_test((small.features, small.labels), 3)
    with pytest.raises(UsageError, match="labels must be a NumPy array; got list"):
        ArrayData(small.features, small.labels.tolist())


@pytest.mark.parametrize(
    ("features", "labels", "said"),
    [
        ([[1.0]], None, "features must be a NumPy array; got list; np.asarray"),
        (np.ones((2, 3)).astype(str), None, "features must hold numbers; got <U"),
        (np.ones((2, 3)), np.array(["a", "b"]), "labels must hold numbers; got <U1; number the"),
        (
            np.ma.masked_greater(np.ones((2, 3)), 0),
            None,
            r"features must be known numbers; got a masked array; .* filled",
        ),
        (
            torch.eye(2).to_sparse(),
            None,
            r"features must be a NumPy array; got Tensor; to_dense\(\) makes one",
        ),
        (np.array(3.0), None, "features must have a row for each example; got a single number"),
        (np.ones((0, 3)), None, "there are no rows"),
        (np.ones((2, 3)), np.ones(3), "features and labels must be equally many; got 2 and 3"),
    ],
)
def test_what_is_no_array_of_rows_is_told(features, labels, said):
    with pytest.raises(UsageError, match=said):
        ArrayData(features, labels)
    measured_on = TestRows(features, np.zeros(2) if labels is None else labels)
    with pytest.raises(UsageError, match="rows to measure on: " + said):
        check_test(measured_on, None)


def test_settings_of_rows_are_told():
    with pytest.raises(UsageError, match="scale of ArrayData must be a number"):
        ArrayData(np.ones((2, 3)), scale="x")
    with pytest.raises(UsageError, match="checks of ArrayData must be of type RowChecks; got None"):
        ArrayData(np.ones((2, 3)), checks=None)
    with pytest.raises(UsageError, match="rows to measure on need labels"):
        check_test(TestRows(np.ones((2, 3)), None), 3)


@pytest.mark.parametrize("model", [DBN(inputs=6, classes=3), LogisticConfig(features=6, classes=3)])
@pytest.mark.parametrize(
    ("shape", "labels", "said"),
    [
        ((4, 5), np.zeros(4), r"rows of 6 numbers; got \[4, 5\]"),
        ((4,), np.zeros(4), r"rows of 6 numbers; got \[4\]"),
        ((4, 2, 3), None, "the rows have no labels"),
        ((4, 6), np.zeros((4, 3)), r"must be one of the classes; got \[4, 3\]; .*argmax"),
    ],
)
def test_rows_that_a_model_cannot_take_are_told(model, shape, labels, said):
    with pytest.raises(DataError, match=said):
        check_fit(model, ArrayData(np.ones(shape), labels))


def test_a_module_is_measured_on_rows_as_wide_as_it_was_trained_on():
    model, rows = ModuleConfig(module="torch.nn:Linear"), ArrayData(np.ones((4, 2, 3)))
    check_fit(model, TestRows(np.ones((2, 6)), np.zeros(2)), like=rows)
    with pytest.raises(DataError, match=r"rows of 6 numbers; got \[2, 5\]"):
        check_fit(model, TestRows(np.ones((2, 5)), np.zeros(2)), like=rows)


def test_of_several_labels_in_a_file_the_column_that_lacks_one_is_named(write_table):
    path = write_table(a=[1.0, 2.0], y=[1.0, 3.0], z=[2.0, None])
    with pytest.raises(DataError, match=r"row 1 column z: n.*; mend the row"):
        read_test(parquet_source(path, features=("a",), label=("y", "z")))


def test_rows_to_measure_on_may_lie_at_an_address(write_table, small):
    fsspec = pytest.importorskip("fsspec")
    path = write_table(a=[1.0, 2.0], b=[3.0, 4.0], label=[0, 1])
    with open(path, "rb") as file:
        fsspec.filesystem("memory").pipe("/digits/test.parquet", file.read())
    remote = parquet_source("memory://digits/test.parquet", features=("a", "b"))
    local = parquet_source(path, features=("a", "b"))
    assert np.array_equal(read_test(remote).features, read_test(local).features)
    with pytest.raises(DataError, match="there is no memory://digits/none"):
        read_test(parquet_source("memory://digits/none", features=("a", "b")))


def test_rows_on_a_cluster_that_this_user_may_not_read_are_told_before_spark_starts(
    small, monkeypatch
):
    fsspec = pytest.importorskip("fsspec")
    job = small.job(data=parquet_source("memory://secret/rows.parquet"), engine="spark")

    def refuse(*_, **__):
        raise RuntimeError(r'RPCError("a.AccessControlException", "Permission denied: a\n\tat b")')

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuse)
    with pytest.raises(
        UsageError, match=r"rows\.parquet cannot be read; got Permission denied: a$"
    ):
        check_files(job)


def test_rows_that_a_local_run_may_not_read_are_told_without_javas_trace(small, monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def refuse(*_, **__):
        raise RuntimeError(r'RPCError("a.AccessControlException", "Permission denied: a\n\tat b")')

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuse)
    with pytest.raises(PathError, match=r"rows cannot be read; got Permission denied: a$"):
        read_train(small.job(data=parquet_source("memory://secret/rows"), engine="local"))


def test_rows_to_score_at_a_host_that_does_not_answer_are_told_at_once():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"hdfs://127.0.0.1:{bound.getsockname()[1]}/rows"
        with pytest.raises(NotReadyError, match=f"nothing answers at {address}"):
            ParquetRows(parquet_source(address), address)


class RefusingSpark:
    """A session that finds no rows, and says why as Spark does."""

    def __init__(self, says):
        self.read, self.says = self, says

    def parquet(self, _path):
        raise RuntimeError(self.says)


class LazySpark(RefusingSpark):
    """A session of Connect, which says so only where a DataFrame is used."""

    def parquet(self, _path):
        return self

    @property
    def schema(self):
        raise RuntimeError(self.says)


MISSING = "[PATH_NOT_FOUND] Path does not exist: {}. SQLSTATE: 42K03\n\tat org.a"
DENIED = (
    "(org.apache.spark.SparkException) Job aborted.\nCaused by: "
    "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.security.AccessControlException): "
    "Permission denied: user=ann, access=EXECUTE, inode=/secret\n\tat org.a"
)
SHORT = "Job aborted.\nCaused by: java.lang.RuntimeException: hdfs://h/rows/a is not a Parquet file"


@pytest.mark.parametrize("session", [RefusingSpark, LazySpark])
@pytest.mark.parametrize(
    ("path", "says", "words"),
    [
        ("rows", MISSING.format("file:/here/rows"), "there is no rows; name a Parquet file or a"),
        ("hdfs:///r", MISSING.format("hdfs://h/r"), "there is no hdfs:///r; name a Parquet file"),
        (
            "/rows",
            MISSING.format("hdfs://h/rows"),
            "there is no hdfs://h/rows, where Spark looks for /rows; "
            "write file:///rows for that of this machine",
        ),
        ("hdfs://h/secret", DENIED, "hdfs://h/secret cannot be read; got Permission denied: user="),
        ("rows", SHORT, "rows cannot be read as Parquet; got hdfs://h/rows/a is not a Parquet"),
        ("rows", "[UNABLE_TO_INFER_SCHEMA] a", "rows holds no Parquet files; name a Parquet file"),
    ],
)
def test_what_spark_says_of_rows_becomes_one_true_sentence(session, path, says, words):
    with pytest.raises(PathError) as caught:
        parquet_frame(session(says), path)
    assert str(caught.value).startswith(words)
    assert "org.apache" not in str(caught.value)


@pytest.mark.parametrize("path", ["memory://days/2026-*/rows.parquet", "nosuch://days/rows"])
def test_what_only_spark_can_find_is_left_to_spark(small, path):
    pytest.importorskip("fsspec")
    check_files(small.job(data=Source(name="parquet", path=path), engine="spark"))


@pytest.mark.spark
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_files_of_cifar_are_dealt_out_in_even_parts(spark, workers, tmp_path):
    for name in (*cifar.FILES["train"], "test_batch.bin"):
        np.full((40, cifar.RECORD_BYTES), 7, np.uint8).tofile(tmp_path / name)
    job = replace(preset("cifar10", workers), data=Source(name="cifar10", path=tmp_path.as_uri()))
    frame = partitioned(read_train(job).frame, workers)
    parts = frame.mapInArrow(lambda batches: [row_count_batch(batches)], "rows long").collect()
    assert [part.rows for part in parts] == [pytest.approx(200 / workers, abs=6)] * workers


def row_count_batch(batches):
    """How many rows a partition has, as its only row."""
    return pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def test_rows_of_the_default_source_that_do_not_fit_are_told_to_be_handed_over(small, monkeypatch):
    images = ArrayData(np.zeros((4, 784), np.float32), np.zeros(4, np.int64))
    monkeypatch.setattr("photinus.run.train.read_train", lambda job: images)
    monkeypatch.setattr("photinus.run.train.read_test", lambda source: None)
    said = r"no rows were handed over, and those of mnist do not .* got \[4, 784\] .* train\(job"
    with pytest.raises(DataError, match=said):
        train(small.job(data=Source()))


def test_labels_from_1_for_a_logistic_model_are_told_what_to_set_or_subtract(small, tmp_path):
    advice = "set classes of the model to 4 or more, or mend the row, or subtract 1 where labels"
    with pytest.raises(DataError, match=rf"label 3 outside 0\.\.2; {advice}"):
        train(small.job(), (small.features, small.labels + 1), folder=tmp_path / "run")
