"""Older Sparks, each in an environment of its own: the same tests pass there."""

import shutil
import subprocess
import venv
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
CHECKS = (
    "tests/engine/test_spark_engine.py",
    "tests/estimators/test_classifiers.py::test_two_workers_learn_almost_what_one_learns",
    "tests/estimators/test_classifiers.py::test_a_saved_model_is_the_same_without_pickle",
    "tests/fault/test_workers_die.py::test_a_killed_worker_of_spark_takes_its_seat_again",
    "tests/data/test_feed_spark.py",
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(params=["3.5", "4.0"])
def python(request, tmp_path):
    """Returns the Python of an environment with that Spark, and all else as it is here."""
    folder, version = tmp_path / "environment", request.param
    venv.create(folder, with_pip=True)
    ours = Path(pyspark.__file__).parents[1]
    (own,) = folder.glob("lib/python*/site-packages")
    # after its own, so that Spark is the older one, and with what is installed there as a link
    (own / "here.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")
    plan = str(folder / "bin" / "python")
    pip = [plan, "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps"]
    completed = subprocess.run([*pip, f"pyspark=={version}.*"], capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(f"Spark {version} cannot be had: {completed.stderr.strip()[-200:]}")
    command = [plan, "-c", "import pyspark; print(pyspark.__version__)"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"{version}."), output
    yield plan
    shutil.rmtree(folder)


@pytest.mark.timeout(1200)
def test_a_dbn_the_engine_and_a_killed_worker_on_an_older_spark(python):
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout[-6000:] + completed.stderr[-2000:]
    assert "skipped" not in completed.stdout, completed.stdout[-6000:]
