"""Resources that a real YARN hands out, and the stand-in device at each address that was found."""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from pyspark import __file__ as pyspark_file

from photinus.core.clock import Steps
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleStage
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

NODES = 2
TYPES = {
    "yarn.resource-types": "yarn.io/gpu",
    "yarn.nodemanager.resource-type.yarn.io/gpu": "2",
}
CALCULATORS = ("DefaultResourceCalculator", "DominantResourceCalculator")
SCRIPT = '#!/bin/sh\necho \'{"name": "gpu", "addresses": ["4", "5"]}\'\n'
STAGE = ModuleStage(
    module="torch.nn:Linear",
    arguments={"in_features": 6, "out_features": 3},
    epochs=2.0,
    batch_size=16,
)


class Yarn:
    """A YARN whose nodes have two GPUs each, by its settings."""

    def __init__(self, script, folder):
        self.script, self.folder = script, folder
        self.call("start", str(NODES))
        site = folder / "conf" / "yarn-site.xml"
        own = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>\n"
            for name, value in TYPES.items()
        )
        site.write_text(site.read_text().replace("</configuration>", f"{own}</configuration>"))
        queues = folder / "conf" / "capacity-scheduler.xml"
        queues.write_text(queues.read_text().replace(*CALCULATORS))
        servers = ["resourcemanager", *(f"nodemanager{n}" for n in range(NODES))]
        for server in servers:
            self.call("kill", server)
        for server in servers:
            self.call("again", server)
        deadline = time.monotonic() + 120
        while self.log().count("registered with capability") < 2 * NODES:
            assert time.monotonic() < deadline, self.log()[-3000:]
            time.sleep(0.2)  # its servers tell of themselves in files only

    def log(self):
        return (self.folder / "logs" / "resourcemanager.log").read_text()

    def call(self, verb, *words):
        with (self.folder.parent / "hadoop.log").open("a") as said:
            command = ["sh", self.script, verb, str(self.folder), *words]
            subprocess.run(command, stdout=said, stderr=said, check=True, timeout=120)


@pytest.fixture(scope="module")
def driver(hadoop_script, clusters, applications, tmp_path_factory):
    """An application of two executors of two cores, for each of which YARN has two GPUs."""
    folder = tmp_path_factory.mktemp("hadoop") / "it"
    script = tmp_path_factory.mktemp("found") / "gpu"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    yarn = Yarn(hadoop_script, folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HADOOP_CONF_DIR", str(folder / "conf"))
            settings = {
                "spark.yarn.jars": f"local:{Path(pyspark_file).parent}/jars/*",
                "spark.yarn.am.memory": "256m",
                "spark.executor.instances": str(NODES),
                "spark.executor.memoryOverhead": "1g",
                "spark.executor.resource.gpu.amount": "2",
                "spark.executor.resource.gpu.discoveryScript": str(script),
            }
            yield applications(clusters(settings, master="yarn", installed=True))
    finally:
        yarn.call("stop")


def plan_of(workers, amount):
    phase = Phase(stage=STAGE, strategy=averaging(every=Steps(3), gradients_until=0.0))
    return TrainingPlan(
        phases=(phase,), workers=workers, devices=("stand-in",), resources={"gpu": amount}
    )


@pytest.mark.parametrize(
    ("workers", "amount", "devices"),
    [
        (4, 1, ["stand-in:4"] * 2 + ["stand-in:5"] * 2),
        (4, 0.5, ["stand-in:4"] * 4),
    ],
)
def test_workers_compute_on_the_gpus_of_their_containers(driver, tiny, workers, amount, devices):
    name, plan = f"gpu-{amount}", plan_of(workers, amount)
    vectors = driver.train(name, plan, tiny.data)
    alone = SimulatedEngine().run(tiny.assignment(plan)).vectors
    assert all(np.array_equal(mine, other) for mine, other in zip(vectors, alone, strict=True))
    assert sorted(line["device"] for line in driver.of("WorkerJoined", name)) == devices


def test_more_gpus_for_a_worker_than_a_container_has_are_refused(driver, tiny):
    driver.start("many", plan_of(1, 3), tiny.data)
    assert "the executors have too little gpu for a worker" in driver.wait("Failed", "many")["text"]
