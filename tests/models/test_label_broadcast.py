"""Losses of one's own that compare each output with every label by mistake."""

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss, softplus

from photinus.core.errors import UsageError
from photinus.data.rows import Rows
from photinus.models.label_broadcast import is_paired
from photinus.models.module import ModuleConfig

OUTPUTS = torch.tensor([[0.5], [1.5], [2.0]])


def apart(outputs, labels):
    return ((outputs - labels) ** 2).mean()


def first(outputs, labels):
    return ((outputs[:, 0] - labels) ** 2).mean()


def columns(outputs, labels):
    return ((outputs - labels[:, None]) ** 2).mean()


def converted(outputs, labels):
    return ((outputs - labels.float().clone()) ** 2).mean()


def ranks(outputs, labels):
    """RankNet's: each output beside every other one, and each label likewise."""
    differ = outputs.reshape(-1)[:, None] - outputs.reshape(-1)
    return (softplus(-differ) * (labels[:, None] > labels)).sum()


@pytest.mark.parametrize("labels", [torch.ones(3), torch.ones(3, dtype=torch.float64)])
@pytest.mark.parametrize(
    ("loss", "is_wrong"),
    [
        (apart, True),
        (converted, True),
        (first, False),
        (columns, False),
        (ranks, False),
    ],
)
def test_a_loss_that_broadcasts_outputs_and_labels_is_found(loss, is_wrong, labels):
    assert is_paired(loss, OUTPUTS, labels) is is_wrong


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_torchs_own_loss_is_found_too():
    assert is_paired(mse_loss, OUTPUTS, torch.ones(3))
    assert not is_paired(mse_loss, OUTPUTS, torch.ones(3, 1))
    assert not is_paired(mse_loss, OUTPUTS[:1], torch.ones(1)), "of one row there is one number"


@pytest.mark.parametrize("loss", [apart, first])
def test_it_is_refused_at_the_first_step(loss):
    name = f"{__name__}:{loss.__name__}"
    linear = {"module": "torch.nn:Linear", "arguments": {"in_features": 2, "out_features": 1}}
    model = ModuleConfig(**linear, loss=name).build((), 0)
    batch = Rows.of(np.ones((4, 2), np.float32), np.arange(4.0)).batch(np.arange(4))
    if loss is first:
        model.learn(batch, 0)
        return
    with pytest.raises(UsageError, match=r"each output with every label; got outputs \[B, 1\]"):
        model.learn(batch, 0)
