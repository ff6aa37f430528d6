import logging

import numpy as np
import pytest

from photinus.data.base import Batch
from photinus.models.dbn import DBN
from photinus.models.module import ModuleStage
from photinus.models.placement import PlacedInner
from photinus.training.placement import device_for, fresh

STAGE = ModuleStage(module="torch.nn:Linear", arguments={"in_features": 4, "out_features": 3})
BATCH = Batch(np.ones((8, 4), np.float32), np.zeros(8, np.int64))


def make(device):
    return fresh(STAGE, (), 0, device)


def test_auto_measures_a_step_on_each_device_and_says_why(caplog):
    with caplog.at_level(logging.WARNING, "photinus"):
        chosen = device_for("auto", make, lambda: BATCH, ("cpu", "stand-in"))
    assert chosen in ("cpu", "stand-in")
    assert f"device {chosen}: a step takes" in caplog.text
    assert "ms on cpu" in caplog.text
    assert "ms on stand-in" in caplog.text


def test_auto_leaves_out_a_device_on_which_the_model_does_not_compute(caplog):
    stage = DBN(hidden=(4,)).stages()[0]

    def of_layer(device):
        return fresh(stage, (), 0, device)

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
    assert isinstance(inner, PlacedInner)
    assert inner.placed.parameters is model.parameters
    assert not isinstance(make("cpu")[1], PlacedInner)
