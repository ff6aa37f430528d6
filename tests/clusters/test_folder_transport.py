"""The folder transport between executors that see the same folder, and that do not."""

import os

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.strategies.recipes import averaging

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Apart:
    """This host, where each process of a cluster has a folder's place to itself."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def before(self, name):
        mount = f'mount -t tmpfs none "{self.folder}" && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", mount, name)

    def address(self, name):
        return f"127.0.0.{int(name[6:]) + 1}" if name.startswith("worker") else "127.0.0.1"


def plan_of(tiny):
    return tiny.plan(workers=4, recipes=(averaging(every=Steps(4), codec="fp32"),))


def test_executors_that_open_no_port_agree_through_a_folder(clusters, applications, tiny, tmp_path):
    driver, plan = applications(clusters()), plan_of(tiny)
    folder = tmp_path / "transport"
    vectors = driver.train("folder", plan, tiny.data, transport=str(folder))
    expected = SimulatedEngine().run(tiny.assignment(plan)).vectors
    assert all(np.array_equal(a, b) for a, b in zip(vectors, expected, strict=True))
    assert not list(folder.rglob("*-0*")), "no message is left"


@pytest.mark.skipif(os.geteuid() != 0, reason="a folder's place of one's own takes root")
def test_a_folder_that_executors_do_not_share_ends_the_run_in_a_sentence(
    clusters, applications, tiny, tmp_path
):
    apart = Apart(tmp_path / "transport")
    driver = applications(clusters(hosts=apart))
    driver.start("apart", plan_of(tiny), tiny.data, transport=str(apart.folder))
    failed = driver.wait("Failed", "apart")
    assert failed["kind"] == "NotReadyError"
    assert f"no process of this run signs in {apart.folder}" in failed["text"]
    assert "that every worker sees the same folder" in failed["text"]
    assert not driver.of("WorkerJoined", "apart")
