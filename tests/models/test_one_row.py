from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.models.module_model import ModuleModel

pytestmark = pytest.mark.numerics


def batch(rows, shape=(4,), classes=3):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, *shape)).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, classes, rows))


class Pooled(nn.Module):
    """Its first norm sees images, the other one a number of each channel."""

    def __init__(self):
        super().__init__()
        self.images, self.pooled = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        self.last = nn.Linear(2, 3)

    def forward(self, x):
        means = self.images(x).mean((2, 3), keepdim=True)
        return self.last(self.pooled(means).flatten(1))


def test_a_norm_of_one_number_a_channel_takes_one_row_by_the_running_statistics():
    model = ModuleModel(Pooled(), "cross_entropy")
    model.learn(batch(8, (2, 5, 5)), 0)
    images, pooled = model.module.images, model.module.pooled
    before = images.running_mean.clone(), pooled.running_mean.clone()
    gradient, metrics = model.learn(batch(1, (2, 5, 5)), 1)
    assert np.isfinite(gradient).all()
    assert np.isfinite(metrics["loss"])
    assert torch.equal(pooled.running_mean, before[1])
    assert not torch.equal(images.running_mean, before[0]), "an image has statistics of its own"
    model.learn(batch(8, (2, 5, 5)), 2)
    assert pooled.training
    assert pooled.num_batches_tracked == 2, "the next batch has statistics"
    assert not pooled._forward_pre_hooks


class Squeezed(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(4, outputs)

    def forward(self, x):
        return self.last(x).squeeze()


@pytest.mark.parametrize(("outputs", "loss"), [(1, "mse"), (1, "binary_cross_entropy"), (3, "")])
def test_a_module_that_squeezes_its_outputs_takes_one_row(outputs, loss):
    squeezed, plain = Squeezed(outputs), nn.Linear(4, outputs)
    plain.load_state_dict(squeezed.last.state_dict())
    loss, one = loss or "cross_entropy", batch(1, classes=2)
    model, reference = ModuleModel(squeezed, loss), ModuleModel(plain, loss)
    gradient, metrics = model.learn(one, 0)
    expected, expected_metrics = reference.learn(one, 0)
    np.testing.assert_allclose(gradient, expected)
    assert metrics == pytest.approx(expected_metrics)
    assert model.measure(one) == pytest.approx(reference.measure(one))
    made = reference.outputs(one.features)
    np.testing.assert_allclose(model.outputs(one.features), made[:, 0] if outputs == 1 else made)


def two_views(outputs, labels):
    """Reads two outputs of each row, and so two of one."""
    assert len(outputs) == 2 * len(labels)
    return outputs.square().mean()


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.cat([x, -x]))


def test_a_loss_of_ones_own_gets_the_outputs_of_one_row_as_they_are():
    model = ModuleModel(Views(), f"{__name__}:two_views")
    assert np.isfinite(model.learn(batch(1), 0)[1]["loss"])
