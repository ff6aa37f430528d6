"""CIFAR-10's binary version on a real HDFS, as Spark's executors and as one process read it."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import photinus
from photinus.core.addresses import filesystem
from photinus.core.errors import DataError
from photinus.core.events import RoundClosed, RunEnded, RunStarted, WorkerJoined
from photinus.data import cifar
from photinus.data.spark import cifar_frame
from photinus.report.journal import read
from photinus.report.ledger import audit

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PLACE = "/user/test/cifar-10-batches-bin"
NAMES = [name for names in cifar.FILES.values() for name in names]
EPOCHS, WORKERS = 0.1, 2


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory):
    """The published files where PHOTINUS_CIFAR10 names them, else chance in files of that size."""
    own = os.environ.get("PHOTINUS_CIFAR10", "")
    if own and (Path(own) / NAMES[0]).exists():
        return Path(own)
    folder, chance = tmp_path_factory.mktemp("cifar"), np.random.default_rng(0)
    for name in NAMES:
        records = chance.integers(0, 256, (10_000, cifar.RECORD_BYTES), np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    return folder


@pytest.fixture(scope="module")
def hdfs_folder(hdfs, local_folder):
    """The same files on HDFS: the address of their folder, and Hadoop's settings."""
    address, settings = hdfs
    system, path = filesystem(address + PLACE)
    system.makedirs(path, exist_ok=True)
    for name in NAMES:
        system.pipe_file(f"{path}/{name}", (local_folder / name).read_bytes())
    return address + PLACE, settings


def count_images(rows):
    """How often each image stands beside each label."""
    return Counter((hashlib.sha256(image).digest(), int(label)) for image, label in rows)


@pytest.mark.parametrize("split", list(cifar.FILES))
def test_spark_reads_the_images_from_hdfs_that_lie_here(spark, hdfs_folder, local_folder, split):
    images, labels = cifar.load(local_folder, split)
    frame = cifar_frame(spark, hdfs_folder[0], split)
    assert count_images(frame.toLocalIterator()) == count_images(zip(images, labels, strict=True))
    for read_alone, local in zip(cifar.load(hdfs_folder[0], split), (images, labels), strict=True):
        np.testing.assert_array_equal(read_alone, local)


def test_a_file_that_hdfs_does_not_have_is_told_by_its_name(spark, hdfs):
    with pytest.raises(DataError, match=r"cannot be read as CIFAR-10; got .*data_batch_[1-5]\.bin"):
        cifar_frame(spark, f"{hdfs[0]}/user/nobody/cifar10")


def test_the_tutorial_network_trains_on_spark_from_hdfs(hdfs_folder, tmp_path):
    home = str(Path(photinus.__file__).parents[1])
    variables = {"PYTHONPATH": home, "HADOOP_CONF_DIR": str(hdfs_folder[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from photinus.cli.main import main; main()", "train"]
    command += ["cifar10", "--workers", str(WORKERS), "--folder", "run"]
    command += ["--set", f"data.path=hdfs://{PLACE}"]  # the host stands in Hadoop's settings
    command += ["--set", f"model.epochs={EPOCHS}"]
    process = subprocess.run(
        command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    events = [stamped.event for stamped in read(tmp_path / "run" / "events.jsonl")]
    [started] = [event for event in events if isinstance(event, RunStarted)]
    [ended] = [event for event in events if isinstance(event, RunEnded)]
    rounds = [event for event in events if isinstance(event, RoundClosed)]
    rows_joined = [event.examples for event in events if isinstance(event, WorkerJoined)]
    assert (started.engine, ended.state) == ("spark", "done")
    assert rows_joined == [pytest.approx(50_000 / WORKERS, abs=10)] * WORKERS
    assert rounds[-1].examples == pytest.approx(EPOCHS * 50_000, rel=0.01)
    assert {event.slots for event in rounds[:-1]} == {tuple(range(WORKERS))}
    assert audit(tmp_path / "run" / "ledger.jsonl").is_exact
    assert "test error" in process.stdout
