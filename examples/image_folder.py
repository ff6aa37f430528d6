"""Images in a folder: PNG files, a folder for each class, are decoded where they are read."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from pyspark.ml.feature import StringIndexer
from torch import nn

import photinus as ph


class Net(nn.Module):
    """Two convolutions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
            nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip

    def forward(self, picture):
        x = picture.permute(0, 3, 1, 2).float() / 255  # [B, 3, H, W] from [B, H, W, 3]
        return self.layers(x)


def draw(folder, images):
    """Writes images of stripes, across or down, and of squares."""
    rng = np.random.default_rng(0)
    for n in range(images):
        kind, at = ("across", "down", "square")[n % 3], int(rng.integers(2, 12))
        pixels = rng.integers(0, 120, (24, 24, 3)).astype(np.uint8)
        if kind == "square":
            pixels[at : at + 9, at : at + 9] += 120
        else:
            view = pixels if kind == "across" else pixels.swapaxes(0, 1)
            view[at::4] += 120
        path = Path(folder, kind, f"{n}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def main(folder, spark, images=900, epochs=10.0):
    draw(folder, images)
    spark.sparkContext.addPyFile(__file__)
    files = spark.read.format("binaryFile").load(f"{folder}/*/*.png")
    named = files.selectExpr("content", "element_at(split(path, '/'), -2) AS kind")
    table = StringIndexer(inputCol="kind", outputCol="label").fit(named).transform(named)
    train, test = table.randomSplit([0.8, 0.2], seed=1)
    net = {"module": "image_folder:Net", "inputs": {"picture": "content"}}
    clf = ph.TorchClassifier(**net, encoders={"picture": "image"}, learningRate=0.01, epochs=epochs)
    print(found := clf.fit(train).evaluate(test))
    return found.error


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(), ph.spark_session(2))
