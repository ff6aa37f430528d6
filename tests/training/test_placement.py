import logging
from unittest.mock import Mock

import numpy as np
import pytest

from photinus.core.errors import NotReadyError, UsageError
from photinus.data.base import Batch
from photinus.devices.discovery import Device, found
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.models.placement import DeviceOptimizer
from photinus.training.placement import device_for, fresh

CONFIG = ModuleConfig(module="torch.nn:Linear", arguments={"in_features": 4, "out_features": 3})
BATCH = Batch(np.ones((8, 4), np.float32), np.zeros(8, np.int64))


def make(device):
    return fresh(CONFIG, (), 0, device)


def test_auto_measures_a_step_on_each_device_and_says_why(caplog):
    with caplog.at_level(logging.WARNING, "photinus"):
        chosen = device_for("auto", make, lambda: BATCH, ("cpu", "stand-in"))
    assert chosen in ("cpu", "stand-in:0")
    assert f"device {chosen.partition(':')[0]}: a step takes" in caplog.text
    assert "ms on cpu" in caplog.text
    assert "ms on stand-in" in caplog.text


def test_auto_leaves_out_a_device_on_which_the_model_does_not_compute(caplog):
    config = LogisticConfig(features=4, classes=3)

    def of_layer(device):
        return fresh(config, (), 0, device)

    with caplog.at_level(logging.WARNING, "photinus"):
        assert device_for("auto", of_layer, lambda: BATCH, ("cpu", "stand-in")) == "cpu"
    assert "has no other one" in caplog.text


def test_auto_measures_a_product_where_rows_are_read_once(caplog):
    with caplog.at_level(logging.WARNING, "photinus"):
        device_for("auto", make, lambda: None, ("cpu", "cpu"))
    assert "device cpu: a product takes" in caplog.text


def test_a_device_by_name_is_taken_without_measuring():
    assert device_for("stand-in", make, pytest.fail) == "stand-in:0"


def test_model_and_optimizer_are_moved_together():
    model, inner = make("stand-in")
    assert isinstance(inner, DeviceOptimizer)
    assert inner.placed.parameters is model.parameters
    assert not isinstance(make("cpu")[1], DeviceOptimizer)


def test_on_an_opencl_device_the_model_stays_and_its_products_do_not(opencl, caplog):
    model, inner = make(opencl.name)
    plain, _ = make("cpu")
    with caplog.at_level(logging.WARNING, "photinus"):
        for _ in range(2):
            gradient, _ = model.learn(BATCH, 8)
    np.testing.assert_allclose(gradient, plain.learn(BATCH, 8)[0], rtol=1e-5)
    assert not isinstance(inner, DeviceOptimizer)
    assert sum(model.offload.counts.values()) == 4, "each step a product each way"
    message = f"device {opencl.name}: a step computes 1 addmm, 1 mm there, and none of them here"
    assert [record.getMessage() for record in caplog.records] == [message]
    assert model.measure(BATCH) == plain.measure(BATCH)


def test_a_model_without_a_product_of_pytorch_is_refused_on_an_opencl_device(opencl):
    config = LogisticConfig(features=4, classes=3)
    model, _ = fresh(config, (), 0, opencl.name)
    with pytest.raises(UsageError, match=r"makes no product by PyTorch .* got LogisticModel"):
        model.learn(BATCH, 0)


def test_auto_leaves_out_the_processor_by_way_of_opencl(monkeypatch):
    again = Device(name="opencl:0:0", title="PoCL", is_processor=True)
    monkeypatch.setattr("photinus.training.placement.found", lambda: (*found()[:1], again))
    assert device_for("auto", make, pytest.fail) == "cpu"


def test_auto_leaves_out_a_device_that_fails_its_test_and_says_why(monkeypatch, caplog):
    monkeypatch.setattr(
        "photinus.devices.discovery.engine", Mock(side_effect=NotReadyError("broken"))
    )
    with caplog.at_level(logging.WARNING, "photinus"):
        assert device_for("auto", make, lambda: BATCH, ("cpu", "opencl:0:0")) == "cpu"
    assert "broken" in caplog.text
