"""What `fit` reads of the user's DataFrame: how often each partition of its plan runs."""

import pytest
from pyspark.ml.feature import StringIndexer

from photinus.data.spark import classes_in
from photinus.estimators.dbn import DBNClassifier
from photinus.estimators.module import TorchClassifier

pytestmark = pytest.mark.spark

PARTITIONS, ROWS = 3, 30
TORCH = {
    "module": "torch.nn:Linear",
    "moduleArgs": {"in_features": 2, "out_features": 2},
    "batchSize": 10,
    "epochs": 1.0,
    "numWorkers": 2,
}
DBN = {
    "hiddenSizes": [4],
    "preTrainEpochs": 1,
    "fineTuneEpochs": 1,
    "precision": "float32",
    "numWorkers": 2,
}


def persisted_rdds(spark):
    """Returns the RDDs that Spark keeps now, by number; those of other tests may go meanwhile."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def times_each(times):
    return dict.fromkeys(range(PARTITIONS), times)


def test_the_module_says_the_classes_and_the_plan_runs_once_after_its_first_row(counted):
    frame, read_counts = counted
    TorchClassifier(**TORCH).fit(frame)
    assert read_counts() == times_each(1) | {0: 2}, "partition 0 holds the first row"


def test_with_numclasses_a_deep_belief_network_runs_the_plan_once_after_its_first_row(counted):
    frame, read_counts = counted
    DBNClassifier(numClasses=2, **DBN).fit(frame)
    assert read_counts() == times_each(1) | {0: 2}


def test_without_it_the_labels_are_looked_at_and_the_plan_runs_once(counted, nothing_left, spark):
    frame, read_counts = counted
    before = persisted_rdds(spark)
    model = DBNClassifier(**DBN).fit(frame)
    assert model.numClasses == 2
    assert read_counts() == times_each(1)
    assert persisted_rdds(spark) <= before, "its rows are given up again"


def test_a_plan_that_moves_rows_behind_the_users_functions_runs_once(counted, nothing_left, spark):
    frame, read_counts = counted
    before = persisted_rdds(spark)
    TorchClassifier(**TORCH).fit(frame.repartition(4))
    assert read_counts() == times_each(1)
    assert persisted_rdds(spark) <= before, "its rows are given up again"


def test_an_indexers_column_says_how_many_classes_there_are(counted):
    frame, read_counts = counted
    text = frame.withColumn("text", frame.label.cast("string"))
    indexed = StringIndexer(inputCol="text", outputCol="index").fit(text).transform(text)
    assert classes_in(indexed, "index") == 2
    assert classes_in(frame, "label") is None
    before = read_counts()
    model = DBNClassifier(labelCol="index", **DBN).fit(indexed)
    assert model.numClasses == 2
    assert read_counts() - before == times_each(1) | {0: 2}
