"""SparkNet's example: Caffe's quick network on CIFAR-10, averaged every 10 steps or 5 seconds.

    python examples/sparknet_cifar10.py FOLDER

FOLDER holds the binary version (data_batch_1.bin ... test_batch.bin) where the executors see it.
The workers import the module by its name, so this file must be on their path: `addPyFile`.
"""

import sys

from torch import nn

import photinus as ph
from photinus.zoo import cifar10_quick


class Net(nn.Module):
    """The quick network on the stored bytes, less their middle."""

    def __init__(self):
        super().__init__()
        self.quick = cifar10_quick()

    def forward(self, pixels):  # uint8 [B, 3072] -> [B, 10]
        return self.quick(pixels.float().sub(120).view(-1, 3, 32, 32))


def main(folder, spark=None, workers=2, epochs=2.0):
    spark = spark or ph.spark_session(workers)
    spark.sparkContext.addPyFile(__file__)
    sparknet = ph.TorchClassifier(
        module="sparknet_cifar10:Net",
        optimizer="sgd",
        optimizerArgs={"momentum": 0.9, "weight_decay": 0.004},
        decays="weights",
        learningRate=0.001,
        batchSize=100 * workers,
        epochs=epochs,
        numWorkers=workers,
        numClasses=10,
        strategy=ph.averaging(
            every=ph.Steps(10) | ph.Seconds(5), outer=ph.Sgd(), merge="uniform", gradients_until=0
        ),
    )
    trained = sparknet.fit(ph.cifar_frame(spark, folder).repartition(workers).cache())
    test = ph.cifar_frame(spark, folder, "test")
    print(trained.evaluate(test))
    hidden = trained.withLayer(test, "quick.ip1", "hidden")
    hidden.selectExpr("label", "slice(hidden, 1, 4) AS `4 of 64 features`").show(3)
    return trained, hidden


if __name__ == "__main__":
    main(sys.argv[1])
