"""A whole application: reads raw rows, cleans them, trains, scores, and writes a table.

    python examples/customers.py [FOLDER]

FOLDER gets the raw rows, which are made here, the model and the scores.
"""

import sys
import tempfile

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import Imputer, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql.functions import coalesce, col, lit, rand, when
from torch import nn

import photinus as ph

NUMBERS = ["age", "visits", "spent"]


def net():
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))


def raw(spark, folder, rows):
    """Customers as CSV: some leave, some numbers are missing, some lines came twice."""
    made = spark.range(rows, numPartitions=2).select(
        "id", (18 + 60 * rand(1)).alias("age"), (rand(2) * 20).alias("visits"),
        when(rand(3) > 0.05, rand(4) * 500).alias("spent"),
    )  # fmt: skip
    leaves = col("visits") * 20 + coalesce("spent", lit(250)) < col("age") * 8
    made = made.withColumn("state", when(leaves, "left").otherwise("stays"))
    made.union(made.limit(rows // 20)).write.mode("overwrite").csv(f"{folder}/raw", header=True)


def main(folder, spark=None, rows=6_000, epochs=8.0):
    spark = spark or ph.spark_session(2)
    spark.sparkContext.addPyFile(__file__)
    raw(spark, folder, rows)
    table = spark.read.csv(f"{folder}/raw", header=True, inferSchema=True)
    train, test = table.dropDuplicates(["id"]).where("age >= 18").randomSplit([0.8, 0.2], seed=1)
    pipeline = Pipeline(stages=[
        Imputer(inputCols=NUMBERS, outputCols=NUMBERS),
        VectorAssembler(inputCols=NUMBERS, outputCol="joined"),
        StandardScaler(inputCol="joined", outputCol="features", withMean=True),
        StringIndexer(inputCol="state", outputCol="label"),
        ph.TorchClassifier(module="customers:net", epochs=epochs, learningRate=0.01, numWorkers=2),
    ])  # fmt: skip
    pipeline.fit(train.repartition(2)).write().overwrite().save(f"{folder}/model")
    scored = PipelineModel.load(f"{folder}/model").transform(test)
    scored = scored.select("id", "state", "label", "prediction")
    scored.write.mode("overwrite").parquet(f"{folder}/scores")
    found = spark.read.parquet(f"{folder}/scores")
    error = found.where("label != prediction").count() / found.count()
    print(f"customers scored: {found.count()}, error {error:.1%}")
    return error


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="customers-"))
