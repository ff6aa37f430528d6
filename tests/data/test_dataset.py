"""A DataFrame as a data set of torch: of Parquet files, and of any plan."""

import pickle  # noqa: TID251 - as launchers send a data set
import sys
from collections import Counter

import pytest
import torch
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from torch.utils.data import DataLoader

import photinus.data
from photinus.core.errors import DataError, UsageError
from photinus.data.spark import parquet_files

pytestmark = pytest.mark.spark

ROWS = 203


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    """Partitions of very unequal sizes, as files of several row groups."""
    rows = [([i % 7] * (1 + i % 5), i / 2, i % 3, i) for i in range(ROWS)]
    frame = spark.createDataFrame(rows, "ids array<int>, amount double, label int, number int")
    path = str(tmp_path_factory.mktemp("rows of files") / "table")
    sizes = F.when(F.col("number") < 180, 0).otherwise(F.col("number") % 3)
    writer = frame.repartition(4, sizes).write.option("parquet.block.row.count.limit", 50)
    writer.parquet(path)
    return spark.read.parquet(path)


def make_batches(table, **options):
    inputs = {"tokens": "ids", "pair": ["amount", "number"]}
    return photinus.data.batches(table, inputs, "label", batch_size=16, **options)


def numbers(batches):
    return [batch.features["pair"][:, 1].int().tolist() for batch in batches]


def flat(batches):
    return [number for batch in numbers(batches) for number in batch]


def test_each_pass_is_an_epoch_in_an_order_of_its_own(table):
    rows = make_batches(table, seed=3)
    first, second = flat(rows), flat(rows)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert flat(make_batches(table, seed=3)) == first
    assert flat(make_batches(table, seed=4)) != first


def test_a_batch_is_tensors_as_forward_takes_them(table):
    batch = next(iter(make_batches(table)))
    assert batch.features["tokens"].dtype == torch.int64
    assert batch.features["tokens_mask"].dtype == torch.bool
    assert batch.features["pair"].shape == (16, 2)
    assert batch.labels.dtype == torch.int64
    single = next(iter(photinus.data.batches(table, "amount", weight="amount", batch_size=5)))
    assert single.features.shape == (5,)
    assert single.labels is None
    assert torch.equal(single.features, single.weights)


def test_processes_share_the_rows_of_files_and_need_the_same_number_of_steps(table, monkeypatch):
    parts = [numbers(make_batches(table, rank=rank, workers=3)) for rank in range(3)]
    assert sorted(n for part in parts for batch in part for n in batch) == list(range(ROWS))
    assert len({len(part) for part in parts}) == 1
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert numbers(make_batches(table)) == parts[1], "as torch's launchers say it"
    with pytest.raises(UsageError, match=r"rank must lie in 0..workers-1; got 5 of 3"):
        next(iter(make_batches(table, rank=5)))


def test_a_pass_continues_at_the_row_where_it_was_left(table):
    whole = make_batches(table, seed=1)
    epochs = [numbers(whole), numbers(whole)]
    for steps in (0, 3, len(epochs[0]) - 1):
        interrupted = make_batches(table, seed=1)
        for taken_steps, _ in enumerate(interrupted, start=1):
            if taken_steps == steps:
                break
        resumed = make_batches(table, seed=1)
        if steps:
            state = interrupted.state_dict()
            assert state["position"] == sum(map(len, epochs[0][:steps]))
            resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert numbers(resumed) == epochs[0][steps:]
        assert numbers(resumed) == epochs[1], "and the epoch after it is the whole one's"


def test_a_state_of_another_share_is_refused(table):
    state = make_batches(table, rank=0, workers=2).state_dict()
    with pytest.raises(UsageError, match="the state is of another"):
        make_batches(table).load_state_dict(state)


def test_a_data_set_of_files_is_pickled_without_its_rows(table):
    data = pickle.dumps(make_batches(table, seed=2))
    assert len(data) < 10_000, "and takes no row with it"
    assert flat(pickle.loads(data)) == flat(make_batches(table, seed=2))


def test_a_data_loader_hands_the_batches_on(table):
    loader = DataLoader(make_batches(table, seed=2), batch_size=None)
    assert flat(loader) == flat(make_batches(table, seed=2))


def test_any_plan_is_run_for_one_process(table):
    plan = table.where("number < 100").withColumn("amount", F.col("amount") + 1)
    assert parquet_files(plan) is None
    rows = make_batches(plan)
    assert sorted(flat(rows)) == list(range(100))
    with pytest.raises(UsageError, match="runs for one process; got process 1 of 2; write it as"):
        next(iter(make_batches(plan, rank=1, workers=2)))
    with pytest.raises(UsageError, match="the plan of a DataFrame stays in the driver"):
        pickle.dumps(rows)


def test_only_plain_columns_of_parquet_files_are_read_without_spark(spark, table, tmp_path):
    assert parquet_files(table.select("ids", "label"))
    assert parquet_files(table.select((F.col("label") + 1).alias("label"))) is None
    table.select("label").write.csv(str(tmp_path / "csv"))
    assert parquet_files(spark.read.csv(str(tmp_path / "csv"))) is None
    assert parquet_files(spark.range(5)) is None


def test_rows_of_a_partitioned_folder_have_the_columns_that_the_files_lack(spark, table, tmp_path):
    path = str(tmp_path / "a folder")
    table.select("amount", "label").write.partitionBy("label").parquet(path)
    rows = photinus.data.batches(spark.read.parquet(path), "amount", "label", batch_size=500)
    counts = Counter(int(label) for batch in rows for label in batch.labels)
    assert counts == Counter(int(row.label) for row in table.select("label").collect())
    table.write.parquet(str(tmp_path / "with spaces"))
    frame = spark.read.parquet(str(tmp_path / "with spaces"))
    assert parquet_files(frame)
    assert sum(len(batch.labels) for batch in make_batches(frame)) == ROWS


def test_what_is_wrong_is_told_before_any_row_is_read(table):
    with pytest.raises(UsageError, match="amonut"):
        photinus.data.batches(table, "amonut")
    with pytest.raises(DataError, match="column name holds text; name an encoder"):
        photinus.data.batches(table.withColumn("name", F.lit("a")), "name")
    with pytest.raises(UsageError, match="batch_size of batches must be a whole number"):
        photinus.data.batches(table, "amount", batch_size=0)


def numbers_of_all_processes(rows):
    """What a process of TorchDistributor does: it gets a data set, and no session."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    own_numbers = [int(n) for batch in rows for n in batch.features["pair"][:, 1]]
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own_numbers)
    dist.destroy_process_group()
    return gathered


@pytest.mark.slow
def test_processes_of_torch_distributor_share_the_rows(table):
    from pyspark import cloudpickle
    from pyspark.ml.torch.distributor import TorchDistributor

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # its processes see no tests
    try:
        launcher = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
        gathered = launcher.run(numbers_of_all_processes, make_batches(table))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert all(gathered)
    assert abs(len(gathered[0]) - len(gathered[1])) <= 1
    assert sorted(gathered[0] + gathered[1]) == list(range(ROWS))
