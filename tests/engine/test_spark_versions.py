"""Older Sparks, each in an environment of its own: what is promised of them is true there."""

import shutil
import subprocess
import venv
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
CHECKS = (
    "tests/engine/test_spark_engine.py",
    "tests/estimators/test_classifiers.py",
    "tests/feed/test_feed_spark.py",
    "tests/estimators/test_iterate.py::test_kmeans_finds_the_centres_of_scikit_learn",
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(params=["3.5", "4.0"])
def python(request, tmp_path):
    """Returns the Python of an environment with that Spark, and all else as it is here."""
    folder, version = tmp_path / "environment", request.param
    venv.create(folder, with_pip=True)
    ours = Path(pyspark.__file__).parents[1]
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "here.pth").write_text(f"{ours}\n")  # after its own: Spark is the older one
    program = str(folder / "bin" / "python")
    wanted = [f"pyspark=={version}.*", "py4j"]
    pip = [program, "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps", *wanted]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"Spark {version} cannot be had: {done.stderr.strip()[-200:]}")
    yield program
    shutil.rmtree(folder)


@pytest.mark.timeout(1200)
def test_the_engine_the_dbn_and_the_estimators_run_on_older_sparks(python):
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
