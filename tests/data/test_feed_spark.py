import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row
from pyspark.sql.functions import array, col, lit, when

from photinus.core.errors import DataError, UsageError
from photinus.data import cifar
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.spark import (
    cifar_frame,
    columns,
    one_column,
    partitioned,
    selected,
    stream_batches,
)
from photinus.data.spool import Budget, gather
from photinus.engine.spark.job import run_query

pytestmark = pytest.mark.spark


def features_in_tasks(df, spec):
    """What the workers' feeds hand out in one epoch, as [(feature values, label)], sorted."""

    def train(batches):
        rows = gather(batches, spec, RowChecker(RowChecks()), Budget())
        for batch in PartitionFeed(rows, FeedOrder(batch_size=2, epochs=1.0)):
            flat = batch.features.reshape(batch.examples, -1).astype(np.float64)
            labels = np.zeros(batch.examples) if batch.labels is None else batch.labels
            yield pa.RecordBatch.from_pydict(
                {"x": flat.tolist(), "y": labels.astype(np.float64)},
                schema=pa.schema([("x", pa.list_(pa.float64())), ("y", pa.float64())]),
            )

    collected = df.mapInArrow(train, "x array<double>, y double").collect()
    return sorted((tuple(row.x), row.y) for row in collected)


@pytest.fixture(scope="module")
def table(spark):
    rows = [
        Row(
            id=i,
            a=float(i),
            b=i * 2,
            flag=i % 2 == 0,
            name=f"row {i}",
            doubles=[float(i), 0.5],
            tiny=[i, 1],
            vector=Vectors.sparse(2, {0: float(i)}) if i % 2 else Vectors.dense([i, 0]),
            blob=bytearray([i, i + 1, 255]),
        )
        for i in range(8)
    ]
    df = spark.createDataFrame(rows).repartition(3)
    return df.withColumn("tiny", col("tiny").cast("array<tinyint>")).cache()


@pytest.mark.parametrize(
    ("features", "shape", "expected"),
    [
        ("vector", (2,), lambda i: (i, 0)),
        ("doubles", (2,), lambda i: (i, 0.5)),
        ("tiny", (2,), lambda i: (i, 1)),
        ("blob", (3,), lambda i: (i, i + 1, 255)),
        (["a", "b", "flag"], (3,), lambda i: (i, 2 * i, i % 2 == 0)),
        ("a", (1,), lambda i: (i,)),
    ],
)
def test_every_kind_of_column_reaches_the_workers(table, features, shape, expected):
    df, spec = columns(table, features, "id")
    assert spec.shape == shape
    assert features_in_tasks(df, spec) == [(expected(i), i) for i in range(8)]


def test_images_reach_the_workers(spark):
    schema = (
        "img struct<origin string, height int, width int, nChannels int, mode int, data binary>"
    )
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    image = ("file", 2, 2, 3, 16, bytearray(pixels.tobytes()))
    df, spec = columns(spark.createDataFrame([(image,)], schema), "img")
    assert (spec.kind, spec.shape, spec.dtype) == ("image", (2, 2, 3), "uint8")
    assert features_in_tasks(df, spec) == [(tuple(range(12)), 0.0)]


def test_an_assembled_vector_without_a_label(table):
    assembled = VectorAssembler(inputCols=["a", "b"], outputCol="both").transform(table)
    df, spec = columns(assembled, "both")
    assert df.columns == ["both"]
    assert features_in_tasks(df, spec)[1] == ((1.0, 2.0), 0.0)


def test_names_that_only_dots_tell_apart_are_columns_of_their_own(spark):
    df = spark.createDataFrame([(1.5, 2.5, 3.0, 4.0)], ["a.b", "a·b", "c.d", "c·d"])
    selection, spec = columns(df, ["a.b", "a·b"], "c.d")
    assert spec.features == ("a·b", "a·b (2)")
    assert features_in_tasks(selection, spec) == [((1.5, 2.5), 3.0)]
    selection, spec = columns(df, "a·b", "a.b")
    assert features_in_tasks(selection, spec) == [((2.5,), 1.5)]
    selection, spec = selected(df, ["a.b"], "c.d", weight="c·d")
    assert selection.collect() == [(1.5, 3.0, 4.0)]
    assert (spec.label, spec.weight) == ("c·d", "c·d (weight)")


def test_columns_whose_names_differ_by_case_alone_are_read_as_two_in_a_thread(spark):
    key = "spark.sql.caseSensitive"
    before = spark.conf.get(key)
    spark.conf.set(key, "true")
    try:
        df = spark.createDataFrame([(1.5, 2.5, 3.0, 4.0)], ["A", "a", "B", "b"])
        selection, spec = columns(df, ["A", "a", "B"], "b")
        # a training's job has a thread of its own, in which Spark knows no setting of the session
        (batch,) = run_query(spark, lambda: list(stream_batches(selection)))
    finally:
        spark.conf.set(key, before)
    assert spec.features == ("A", "a (2)", "B")
    assert spec.label == "b (label)"
    assert [column[0].as_py() for column in batch.columns] == [1.5, 2.5, 3.0, 4.0]


def test_a_name_with_a_dot_is_one_column(spark):
    df = spark.createDataFrame([(1.5, 1)], ["a.b", "y"])
    df, spec = columns(df, ["a.b"], "y")
    assert features_in_tasks(df, spec) == [((1.5,), 1.0)]


@pytest.mark.parametrize("wrong", [None, float("nan")])
def test_of_several_labels_the_column_that_holds_a_wrong_one_is_named(spark, wrong):
    rows = [(1.0, 1.0, 2.0), (1.0, 3.0, wrong)]
    df = spark.createDataFrame(rows, "x double, y double, z double").coalesce(1)
    df, spec = columns(df, "x", ["y", "z"])
    said = "null" if wrong is None else "nan, expected finite numbers"
    with pytest.raises(DataError, match=f"partition 0 row 1 column z: {said}; mend the row"):
        gather(stream_batches(df), spec, RowChecker(RowChecks()), Budget())


def test_a_null_in_an_array_of_labels_is_named_by_its_place(spark):
    df = spark.createDataFrame([(1.0, [1, 0]), (1.0, [1, None])], "x double, y array<int>")
    df, spec = columns(df.coalesce(1), "x", "y")
    with pytest.raises(DataError, match="partition 0 row 1 column y: null at 1; mend the row"):
        gather(stream_batches(df), spec, RowChecker(RowChecks()), Budget())


def test_a_bad_row_is_named_by_the_task(spark):
    df = spark.createDataFrame([([1.0, 2.0],), ([1.0],)], "x array<double>").coalesce(1)
    df, spec = columns(df, "x")
    schema = pa.schema([("x", pa.list_(pa.float32()))])
    block = pa.RecordBatch.from_pydict({"x": [row["x"] for row in df.collect()]}, schema)
    with pytest.raises(DataError, match="partition 0 row 1 column x: length 1, expected 2"):
        gather([block], spec, RowChecker(RowChecks()), Budget())


@pytest.mark.parametrize(
    ("features", "label", "error", "said"),
    [
        ("vectro", None, UsageError, "unknown column; got 'vectro'; did you mean 'vector'?"),
        ("vector", "idd", UsageError, "unknown column; got 'idd'; did you mean 'id'?"),
        ("name", None, DataError, "column name holds text; name an encoder"),
        (["a", "name"], None, DataError, "column name holds text"),
        ("a", "name", DataError, "column name holds text"),
        (
            "a",
            "blob",
            DataError,
            "column blob: a label must be a number, or an array of numbers; got binary",
        ),
        (["a", "vector"], None, UsageError, "join them first, e.g. with VectorAssembler"),
        (["a", "nested"], None, UsageError, "join them into one array first, e.g. by F.concat"),
        (["a", "pairs"], None, UsageError, "got map<string,int>; make a column of numbers of it"),
        ("time", None, DataError, "column time holds times; got timestamp; make numbers of them"),
        (["a", "day"], None, DataError, 'e.g. by F.year("day") or F.dayofyear("day")'),
        (["a", "time"], None, DataError, 'e.g. by F.hour("time") or F.dayofyear("time")'),
        ("a", "a", UsageError, "a column cannot be taken twice; got 'a'"),
        ([], "a", UsageError, "no feature column is named"),
        (
            "nested",
            None,
            DataError,
            "a model cannot learn from this type; got array<array<int>>; the estimators of modules "
            "read it by inputs={'parameter of forward': 'nested'}",
        ),
    ],
)
def test_a_wrong_column_is_named(table, features, label, error, said):
    nested = table.withColumn("nested", array(array(lit(1))))
    nested = nested.selectExpr("*", "now() time", "current_date() day", "map('a', 1) pairs")
    with pytest.raises(error) as caught:
        columns(nested, features, label)
    assert said in str(caught.value)


def test_no_rows_and_empty_rows_are_named(spark, table):
    with pytest.raises(DataError, match="column doubles: there are no rows, or nulls only"):
        columns(table.where("false"), "doubles")
    with pytest.raises(DataError, match="column x: the first row is empty"):
        columns(spark.createDataFrame([([],)], "x array<double>"), "x")


def test_of_several_columns_that_are_scored_the_one_with_a_null_is_named(table):
    holed = table.withColumn("b", when(col("id") == 5, lit(None)).otherwise(col("a")))
    stacked, _ = one_column(holed, ["a", "b"], (2,))
    with pytest.raises(Exception, match="column b: a row holds null"):
        holed.select(stacked).collect()


def test_hundreds_of_columns_are_scored_and_are_labels(spark):
    names = [f"c{i}" for i in range(600)]
    wide = spark.range(2).select(*(lit(float(i)).alias(name) for i, name in enumerate(names)))
    stacked, _ = one_column(wide, names, (600,))
    assert wide.select(stacked.alias("x")).first().x == list(range(600))
    with_labels, _ = columns(wide, "c0", names[1:])
    assert list(with_labels.first()[-1]) == list(range(1, 600))


def test_columns_whose_names_spark_or_a_separator_could_take_apart_are_those_that_are_read(spark):
    names = ["x\x1fy", "${missing}", "a`b", "d.o.t", 'q"q', "back\\slash", ""]
    row = spark.range(1).select(*(lit(float(i)).alias(name) for i, name in enumerate(names)))
    stacked, _ = one_column(row, names, (7,))
    assert row.select(stacked.alias("x")).first().x == list(range(7))
    bad = row.withColumn("${missing}", lit(None).cast("float"))
    stacked, _ = one_column(bad, names, (7,))
    with pytest.raises(Exception, match=r"column \$\{missing\}: a row holds null"):
        bad.select(stacked).collect()


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_there_are_exactly_as_many_partitions_as_workers(table, workers):
    split = partitioned(table, workers)
    assert split.rdd.getNumPartitions() == workers
    assert (split is table) == (workers == 3)
    assert split.count() == 8


def test_a_plan_that_spark_knows_to_be_empty_is_refused(table):
    # it has no partition, so that no task would ever come
    with pytest.raises(DataError, match="there are no rows to train on; look at where the data"):
        partitioned(table.limit(0), 2)


@pytest.mark.parametrize("workers", [1, 3, 6])
def test_every_worker_is_a_task_even_where_spark_joins_partitions(table, workers):
    def one_row(batches):
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    joined_by_spark = table.groupBy("id").count()
    split = partitioned(joined_by_spark, workers)
    counts = [row.rows for row in split.mapInArrow(one_row, "rows long").collect()]
    assert len(counts) == workers
    assert sum(counts) == 8


def test_there_is_at_least_one_worker(table):
    with pytest.raises(UsageError, match="workers must be at least 1; got 0"):
        partitioned(table, 0)


def test_a_client_of_spark_connect_deals_the_rows_out_anew():
    class Remote:
        @property
        def rdd(self):
            raise PySparkAttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] rdd")

        def repartition(self, workers):
            return workers

    assert partitioned(Remote(), 3) == 3


def test_cifar_is_read_by_the_executors(spark, tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 10, (6, 4, cifar.RECORD_BYTES)).astype(np.uint8)
    for part, name in zip(records, (*cifar.FILES["train"], "test_batch.bin"), strict=True):
        part.tofile(tmp_path / name)
    folder = tmp_path.as_uri()
    rows = {(bytes(r.features), r.label) for r in cifar_frame(spark, folder).collect()}
    expected = records[:5].reshape(20, -1)
    assert rows == {(row[1:].tobytes(), int(row[0])) for row in expected}
    frame = cifar_frame(spark, folder, "test")
    assert (frame.count(), frame.columns) == (4, ["features", "label"])
    bad = records[0].copy()
    bad[3, 0] = 11
    bad.tofile(tmp_path / "test_batch.bin")
    with pytest.raises(Exception, match=r"test_batch\.bin record 3: a label must lie in 0\.\.9"):
        cifar_frame(spark, folder, "test").collect()
    (tmp_path / "data_batch_4.bin").write_bytes(records[0].tobytes()[:-5])
    with pytest.raises(DataError, match=r"data_batch_4\.bin is cut short in record 3"):
        cifar_frame(spark, folder)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match="cannot be read as CIFAR-10"):
        cifar_frame(spark, folder)
    with pytest.raises(UsageError, match="unknown split"):
        cifar_frame(spark, folder, "tset")
