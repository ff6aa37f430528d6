"""A table whose plan counts how often it runs."""

from collections import Counter

import pytest
from pyspark.ml.feature import VectorAssembler


@pytest.fixture
def counted(spark, tmp_path):
    """Rows whose plan notes in a file each time that it computes a partition."""
    notes = tmp_path / "notes"
    notes.touch()
    path = str(notes)

    def note(frames):
        for frame in frames:
            with open(path, "a") as file:
                file.writelines(f"{part}\n" for part in sorted(set(frame["id"] // 30)))
            yield frame

    columns = ("id", "id % 7 / 7 a", "id % 5 / 5 b", "id % 2 label")
    plain = spark.range(0, 30 * 3, 1, 3).selectExpr(*columns)
    frame = plain.mapInPandas(note, plain.schema)
    assembled = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(frame)
    return assembled, lambda: Counter(int(line) for line in notes.read_text().split())
