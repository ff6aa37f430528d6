"""What is scarce: descriptors, /dev/shm, room in the temporary folder. A sentence, or no matter."""

import resource
import shutil
import subprocess
import sys

import pytest

from photinus.core.clock import Steps
from photinus.core.errors import NotReadyError, UsageError
from photinus.engine.local.engine import LocalEngine
from photinus.strategies.recipes import averaging

pytestmark = [pytest.mark.fault, pytest.mark.processes]

DRIVER = """
import os, resource, sys, tempfile
import numpy as np
import photinus as ph
from photinus.core.errors import PhotinusError
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Source

soft, hard, rows = map(int, sys.argv[1:])
chance = np.random.default_rng(0)
data = ArrayData(chance.random((rows, 60), dtype=np.float32), chance.integers(0, 3, rows))
model = LogisticConfig(features=60, classes=3, epochs=2.0, batch_size=rows // 20)
job = ph.Job(model=model, data=Source(name="given"), workers=2, engine="local")
if soft:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    ph.train(job, data, folder="run")
    print("done")
except PhotinusError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def driver(tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)

    def run(*before, soft=0, hard=0, rows=200):
        words = [sys.executable, "driver.py", str(soft), str(hard), str(rows)]
        completed = subprocess.run(
            [*before, *words], capture_output=True, text=True, cwd=tmp_path, timeout=200
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout.strip()

    return run


def test_a_driver_with_too_few_descriptors_says_so_and_does_not_hang(driver):
    output = driver(soft=24, hard=24)
    assert output.startswith("NotReadyError the driver may not open enough files and connections; ")
    assert "; got at most 24, " in output
    assert "; allow " in output


def test_a_driver_with_a_low_soft_limit_raises_it(driver):
    assert driver(soft=24, hard=500) == "done"


def test_a_worker_with_too_few_descriptors_says_so_and_does_not_hang(tiny):
    def before(slot):
        return ("/bin/sh", "-c", 'ulimit -n 12; exec "$@"', "sh") if slot == 1 else ()

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 12
    plan = tiny.plan(recipes=(averaging(every=Steps(4)),))
    with pytest.raises(NotReadyError) as failed:
        LocalEngine(before=before).run(tiny.assignment(plan))
    assert str(failed.value) == (
        "worker 1 may not open enough files and connections; raise its limit: ulimit -n 64, or more"
    )


def test_a_worker_that_lost_what_it_was_handed_says_so(tiny):
    """As behind sudo, which closes all files but the first three."""
    words = (sys.executable, "-c", CLOSES)
    plan = tiny.plan(recipes=(averaging(every=Steps(4)),))
    with pytest.raises(UsageError, match="closes files that it must inherit"):
        LocalEngine(before=lambda slot: words).run(tiny.assignment(plan))


CLOSES = "import os, sys; os.closerange(3, 1000); os.execv(sys.argv[1], sys.argv[1:])"

FULL = "mount -t tmpfs -o size=64k none /dev/shm && ! head -c 200k /dev/zero 2>&- > /dev/shm/full"
MISSING = (
    "mkdir dev && for n in null zero full random urandom; do touch dev/$n; "
    "mount --bind /dev/$n dev/$n; done; ln -s /proc/self/fd dev/fd; mount --rbind dev /dev; "
    "! test -e /dev/shm"
)
NO_ROOM = "mkdir temp && mount -t tmpfs -o size=1m none temp && export TMPDIR=$PWD/temp"


@pytest.fixture
def mounted(driver):
    """Runs a driver in a mount namespace of its own, which a command has changed."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    completed = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(f"no mount namespaces here: {completed.stderr.strip()[-80:]}")

    def run(change, **fields):
        return driver("unshare", "-m", "sh", "-c", f'{change} && exec "$@"', "sh", **fields)

    return run


@pytest.mark.parametrize("change", [FULL, MISSING], ids=["full", "missing"])
def test_shared_memory_that_is_full_or_missing_is_not_needed(mounted, change):
    assert mounted(change) == "done"


def test_a_temporary_folder_without_room_for_the_rows_is_one_sentence(mounted):
    output = mounted(NO_ROOM, rows=20_000)
    assert output.startswith("NotReadyError the temporary folder ")
    assert "cannot take the workers' rows; got No space left on device, at " in output
    assert output.endswith("; set TMPDIR to a folder with room for them")
