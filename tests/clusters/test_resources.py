"""Spark's resources on executors: invented addresses, and the stand-in device at each of them."""

from pathlib import Path

import numpy as np
import pytest
from pyspark import __file__ as pyspark_file

from photinus.core.clock import Steps
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MIG = "MIG-GPU-8f6e2a3c/1/0"
SCRIPT = '#!/bin/sh\necho \'{"name": "%s", "addresses": ["%s", "%s"]}\'\n'
CONFIG = ModuleConfig(
    module="torch.nn:Linear",
    arguments={"in_features": 6, "out_features": 3},
    epochs=2.0,
    batch_size=16,
)


def plan_of(workers, **fields):
    phase = Phase(config=CONFIG, strategy=averaging(every=Steps(3), gradients_until=0.0))
    return TrainingPlan(phases=(phase,), workers=workers, **fields)


@pytest.fixture(scope="module")
def driver(clusters, applications, tmp_path_factory):
    """Two executors of two cores, each with two GPUs, one of them a part by MIG, and two FPGAs."""
    settings = {}
    for name, addresses in {"gpu": ("0", MIG), "fpga": ("2", "3")}.items():
        script = tmp_path_factory.mktemp("found") / name
        script.write_text(SCRIPT % (name, *addresses))
        script.chmod(0o755)
        settings |= {
            f"spark.worker.resource.{name}.amount": "2",
            f"spark.worker.resource.{name}.discoveryScript": str(script),
            f"spark.executor.resource.{name}.amount": "2",
        }
    return applications(clusters(settings, installed=True))


@pytest.fixture(scope="module")
def on_yarn(hadoop, clusters, applications, tmp_path_factory):
    """Two executors of two cores, for each of which a real YARN has two GPUs."""
    hadoop.hand_out("yarn.io/gpu", 2)
    script = tmp_path_factory.mktemp("found") / "gpu"
    script.write_text(SCRIPT % ("gpu", "4", "5"))
    script.chmod(0o755)
    settings = {
        "spark.yarn.jars": f"local:{Path(pyspark_file).parent}/jars/*",
        "spark.yarn.am.memory": "256m",
        "spark.executor.instances": "2",
        "spark.executor.memoryOverhead": "1g",
        "spark.executor.resource.gpu.amount": "2",
        "spark.executor.resource.gpu.discoveryScript": str(script),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", hadoop.environment["HADOOP_CONF_DIR"])
        yield applications(clusters(settings, master="yarn", installed=True))


def devices_of(driver, tiny, plan, name):
    """Trains to the simulator's bits; returns the device of each worker, by its slot."""
    vectors = driver.train(name, plan, tiny.data)
    alone = SimulatedEngine().run(tiny.assignment(plan)).vectors
    assert all(np.array_equal(mine, other) for mine, other in zip(vectors, alone, strict=True))
    joined = {line["slot"]: line["device"] for line in driver.of("WorkerJoined", name)}
    return [joined[slot] for slot in range(plan.workers)]


@pytest.fixture
def trained(driver, tiny, request):
    """Trains; returns the device of each worker, by its slot."""
    return lambda plan: devices_of(driver, tiny, plan, request.node.name)


@pytest.fixture
def refused(driver, tiny, request):
    """Starts a job that must not begin; returns what its user is told."""

    def run(plan, name=request.node.name):
        driver.start(name, plan, tiny.data)
        failed = driver.wait("Failed", name)
        assert not driver.of("RoundClosed", name)
        return failed["text"]

    return run


def test_a_job_that_asks_for_no_resource_trains_on_the_processor(trained):
    assert trained(plan_of(2)) == ["cpu", "cpu"]


def test_each_worker_has_a_gpu_of_its_own(trained):
    devices = trained(plan_of(4, devices=("stand-in",), resources={"gpu": 1}))
    assert sorted(devices) == ["stand-in:0"] * 2 + [f"stand-in:{MIG}"] * 2


def test_two_workers_share_the_first_gpu_of_an_executor_by_halves(trained):
    devices = trained(plan_of(4, devices=("stand-in",), resources={"gpu": 0.5}))
    assert devices == ["stand-in:0"] * 4


def test_a_resource_of_any_name_is_handed_out(trained):
    devices = trained(plan_of(4, devices=("stand-in",), resources={"fpga": 1}))
    assert sorted(devices) == ["stand-in:2"] * 2 + ["stand-in:3"] * 2


def test_workers_of_one_run_compute_on_different_devices(trained):
    devices = ("stand-in", "cpu", "cpu", "stand-in:7")
    assert trained(plan_of(4, devices=devices)) == ["stand-in:0", "cpu", "cpu", "stand-in:7"]


def test_too_few_gpus_for_all_workers_are_refused_before_training(refused):
    text = refused(plan_of(4, devices=("stand-in",), resources={"gpu": 2}))
    assert "4 workers need 4 slots at the same time; got 2 slots" in text


def test_more_gpus_for_a_worker_than_an_executor_has_are_refused(refused):
    text = refused(plan_of(1, devices=("stand-in",), resources={"gpu": 3}))
    assert "the executors have too little gpu for a worker" in text


def test_a_resource_that_no_executor_has_is_refused(refused):
    text = refused(plan_of(2, resources={"gpus": 1}))
    assert "the executors have too little gpus for a worker" in text
    assert "spark.executor.resource.gpus.amount" in text


def test_cuda_on_executors_without_it_is_refused_in_a_sentence(refused):
    text = refused(plan_of(2, devices=("cuda",), resources={"gpu": 1}))
    assert "there is no device cuda on" in text
    assert "Spark gave gpu" in text
    assert 'device="auto" takes what there is' in text


def test_with_dynamic_allocation_executors_with_gpus_are_started_for_the_training_alone(
    clusters, applications, tmp_path, tiny
):
    """The application's own executors have none; those of the training's stage have two each."""
    script = tmp_path / "gpu"
    script.write_text(SCRIPT % ("gpu", "0", MIG))
    script.chmod(0o755)
    settings = {
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
    }
    driver = applications(clusters(settings, installed=True, cores=4))
    plan = plan_of(2, devices=("stand-in",), resources={"gpu": 1})
    vectors = driver.train("elastic", plan, tiny.data)
    alone = SimulatedEngine().run(tiny.assignment(plan)).vectors
    assert all(np.array_equal(mine, other) for mine, other in zip(vectors, alone, strict=True))
    devices = [line["device"] for line in driver.of("WorkerJoined", "elastic")]
    assert set(devices) <= {"stand-in:0", f"stand-in:{MIG}"}
    driver.start("many", plan_of(3, devices=("stand-in",), resources={"gpu": 1}), tiny.data)
    text = driver.wait("Failed", "many")["text"]
    assert "3 workers need 3 slots at the same time; got 2 slots" in text


@pytest.mark.parametrize(
    ("amount", "devices"),
    [(1, ["stand-in:4"] * 2 + ["stand-in:5"] * 2), (0.5, ["stand-in:4"] * 4)],
)
def test_on_yarn_workers_compute_on_the_gpus_of_their_containers(on_yarn, tiny, amount, devices):
    plan = plan_of(4, devices=("stand-in",), resources={"gpu": amount})
    assert sorted(devices_of(on_yarn, tiny, plan, f"gpu-{amount}")) == devices


def test_on_yarn_more_gpus_for_a_worker_than_a_container_has_are_refused(on_yarn, tiny):
    plan = plan_of(1, devices=("stand-in",), resources={"gpu": 3})
    on_yarn.start("many", plan, tiny.data)
    text = on_yarn.wait("Failed", "many")["text"]
    assert "the executors have too little gpu for a worker" in text
