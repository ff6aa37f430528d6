from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from photinus.models.module_model import ModuleModel

pytestmark = pytest.mark.numerics


class Outputs(NamedTuple):
    logits: Tensor
    auxiliary: Tensor


class Auxiliary(nn.Module):
    """As GoogLeNet of torchvision: several outputs in training, one otherwise."""

    def __init__(self):
        super().__init__()
        self.main, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        logits = self.main(x)
        return Outputs(logits, self.second(x)) if self.training else logits


def both(outputs, labels):
    if isinstance(outputs, Tensor):
        return nn.functional.cross_entropy(outputs, labels)
    return sum(nn.functional.cross_entropy(part, labels) for part in outputs)


@pytest.mark.parametrize("loss", ["cross_entropy", f"{__name__}:both"])
def test_a_named_tuple_has_logits_for_a_loss_by_name_and_all_for_ones_own(loss):
    model = ModuleModel(module := Auxiliary(), loss)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((16, 4)).astype(np.float32)
    batch = SimpleNamespace(features=features, labels=rng.integers(0, 3, 16))
    gradient, metrics = model.learn(batch, 0)
    x, labels = torch.from_numpy(features), torch.from_numpy(batch.labels)
    parts = [module.main(x), module.second(x)][: 1 if loss == "cross_entropy" else 2]
    expected = sum(nn.functional.cross_entropy(part, labels) for part in parts)
    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert bool(gradient[15:].any()) == (loss != "cross_entropy"), "of the second layer"
    assert model.outputs(features).shape == (16, 3)
