"""Wrong input on a real Spark, as a user meets it: a command, a sentence, no process left."""

import os
import re
import select
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import photinus
from photinus.cli.main import EXIT_CODES
from photinus.data.cifar import FILES, RECORD_BYTES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes as Linux does"),
]

PATIENT_SECONDS = 280.0
ENDING_SECONDS = 30.0

DEEPDIST = """
import sys
from photinus.engine.spark.session import spark_session
from photinus.estimators.deepdist import DeepDist
import numpy as np

class Thing:
    pass

def gradient(model, rows):
    {gradient}

def descent(model, update):
    {descent}

sys.path.insert(0, {here!r})
import only_here

rdd = spark_session(2).sparkContext.parallelize(range(8), 4)
with DeepDist({{"w": np.zeros(2)}}) as dd:
    dd.train(rdd, {name}, descent)
"""
HERE_ONLY = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
import photinus as ph
from only_here import net

rows = ph.ArrayData(np.zeros((8, 2), "f4"), np.zeros(8, int))
model = ph.ModuleConfig(module="only_here:net", epochs=1.0)
ph.train(ph.Job(model=model, workers=2), rows)
"""
JOB = """
name = "mine"
workers = 2
[model]
kind = "module"
module = "{module}"
[data]
name = "cifar10"
path = "."
"""


def marked(mark):
    """Returns a handle of each process that the mark was handed down to."""
    handles = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if mark.encode() in (place / "environ").read_bytes():
                handles.append(os.pidfd_open(int(place.name)))
    return handles


def all_ended(handles):
    """Waits until every process has ended; says whether they did."""
    ended = [bool(select.select([handle], [], [], ENDING_SECONDS)[0]) for handle in handles]
    for handle in handles:
        os.close(handle)
    return all(ended)


@pytest.fixture
def run_python(tmp_path):
    """Runs Python in a folder of its own; returns exit code and the last line of its errors."""

    def run(*arguments):
        mark = uuid.uuid4().hex
        home = str(Path(photinus.__file__).parents[1])
        env = {**os.environ, "PYTHONPATH": home, "PHOTINUS_TEST_MARK": mark}
        process = subprocess.run(
            [sys.executable, *arguments],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENT_SECONDS,
        )
        assert all_ended(marked(mark)), "processes of the command are left"
        lines = process.stderr.strip().splitlines()
        return process.returncode, lines[-1], [line for line in lines if "Traceback" in line]

    return run


@pytest.fixture
def cifar(tmp_path):
    """CIFAR-10's files with four records each."""
    rng = np.random.default_rng(0)
    for name in [name for names in FILES.values() for name in names]:
        rng.integers(0, 10, (4, RECORD_BYTES)).astype(np.uint8).tofile(tmp_path / name)
    return tmp_path


@pytest.fixture
def driver_folder(tmp_path):
    """A folder with a module that only the driver sees."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "only_here.py").write_text(
        "import torch\n\n"
        "def net():\n    return torch.nn.Linear(2, 2)\n\n"
        "def gradient(model, rows):\n    return 1\n"
    )
    return str(folder)


def train(*arguments):
    command = "from photinus.cli.main import main; main()"
    return "-c", command, "train", *arguments, "--folder", "run"


@pytest.mark.parametrize("scheme", ["", "file://"])  # read by the driver, by the executors
@pytest.mark.parametrize(
    ("place", "byte", "sentence"),
    [
        (None, None, r"data_batch_3\.bin is cut short in record 3: a record has 3073 bytes; got 3"),
        (2 * RECORD_BYTES, 10, r"data_batch_3\.bin record 2: a label must lie in 0\.\.9; got 10"),
    ],
    ids=["cut short", "label above 9"],
)
def test_a_wrong_file_of_cifar_ends_a_training(run_python, cifar, scheme, place, byte, sentence):
    data = bytearray((cifar / "data_batch_3.bin").read_bytes())
    if place is None:
        del data[-5:]
    else:
        data[place] = byte
    (cifar / "data_batch_3.bin").write_bytes(data)
    path = f"data.path={scheme}{cifar}"
    code, message, traces = run_python(*train("cifar10", "--workers", "2", "--set", path))
    assert (code, traces) == (EXIT_CODES["failed"], [])
    assert re.search(sentence, message), message


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("no_such_nets:net", "the module 'no_such_nets:net' cannot be imported; got ModuleNotFou"),
        ("torch.nn:Liner", "torch.nn has no 'Liner'"),
    ],
)
def test_a_factory_that_is_not_there_is_a_wrong_word(run_python, cifar, module, sentence):
    (cifar / "job.toml").write_text(JOB.format(module=module))
    code, message, traces = run_python(*train("job.toml"))
    assert (code, traces) == (EXIT_CODES["usage"], [])
    assert sentence in message


def test_a_module_of_the_driver_alone_is_named(run_python, driver_folder):
    code, message, _ = run_python("-c", HERE_ONLY.format(here=driver_folder))
    assert code == 1
    assert "the module 'only_here:net' cannot be imported; got ModuleNotFoundError" in message


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"gradient": "return Thing()"},
            "what gradient returns must be an array or a plain value; got",
        ),
        ({"descent": "raise KeyError('syn0')"}, "update 1; got KeyError: 'syn0'"),
        (
            {"name": "only_here.gradient"},
            "gradient cannot be loaded on a worker; got ModuleNotFoundError",
        ),
    ],
    ids=["object", "descent", "module"],
)
def test_deepdist_ends_with_its_sentence(run_python, driver_folder, changes, sentence):
    parts = {"gradient": "return 1", "descent": "pass", "name": "gradient"} | changes
    code, message, _ = run_python("-c", DEEPDIST.format(here=driver_folder, **parts))
    assert code == 1
    assert sentence in message
