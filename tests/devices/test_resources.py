import os

import pytest
import torch

from photinus.core.errors import NotReadyError
from photinus.devices.discovery import ready
from photinus.devices.resources import TaskDevice, TaskResources, task_device

MIG = "MIG-GPU-8f6e2a3c/1/0"


@pytest.fixture(autouse=True)
def unbound(monkeypatch):
    """As a process is that Spark gave nothing to; CUDA's variable is put back."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "before")
    yield
    TaskResources().bind()


def test_a_task_without_resources_keeps_what_cuda_sees():
    assert TaskResources().bind() == TaskDevice()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


@pytest.mark.parametrize(
    ("addresses", "visible"),
    [(["1"], "1"), (["0", "1"], "0,1"), ([MIG], MIG)],
    ids=["one", "two", "mig"],
)
def test_cuda_sees_the_gpus_addresses_alone(addresses, visible):
    TaskResources({"gpu": addresses}, {"gpu": float(len(addresses))}).bind()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
    assert task_device() == TaskDevice("gpu", addresses[0], 1.0)


def test_level_zero_sees_the_gpus_numbers_and_no_names(monkeypatch):
    monkeypatch.setenv("ZE_AFFINITY_MASK", "before")
    TaskResources({"gpu": [MIG]}).bind()
    assert os.environ["ZE_AFFINITY_MASK"] == "before"
    TaskResources({"gpu": ["0", "2"]}).bind()
    assert os.environ["ZE_AFFINITY_MASK"] == "0,2"


def test_a_fraction_is_the_share_of_the_memory():
    assert TaskResources({"gpu": ["0"]}, {"gpu": 0.25}).bind().share == 0.25


def test_another_resource_leaves_cuda_alone_and_names_the_stand_ins_address():
    TaskResources({"fpga": ["3"]}, {"fpga": 1.0}).bind()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    assert ready("stand-in") == "stand-in:3"


def test_a_process_that_holds_another_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(NotReadyError, match=r"holds another GPU .* got before, and now 1; start"):
        TaskResources({"gpu": ["1"]}).bind()
