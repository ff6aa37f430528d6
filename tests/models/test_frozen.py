"""Parameters that are not trained."""

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.data.base import Batch
from photinus.models.module import ModuleConfig

SMALL_CONFIG = {
    "module": "torch.nn:Linear",
    "arguments": {"in_features": 4, "out_features": 3},
    "loss": "cross_entropy",
}


class HalfFrozen(nn.Module):
    """A pre-trained layer in bfloat16 under one that is trained."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(4, 3, dtype=torch.bfloat16), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.base(x.bfloat16()).float())


def test_frozen_layers_may_be_of_a_type_that_numpy_lacks():
    config = ModuleConfig(module=f"{__name__}:HalfFrozen", loss="cross_entropy", frozen=("base.*",))
    model = config.build((), 0)
    saved = np.concatenate([array.reshape(-1) for array in model.frozen.values()])
    assert saved.dtype == np.float32
    rebuilt = config.build((saved,), 1)
    assert rebuilt.module.base.weight.dtype == torch.bfloat16
    assert torch.equal(rebuilt.module.base.weight, model.module.base.weight)
    gradient, _ = rebuilt.learn(Batch(np.ones((5, 4), np.float32), np.zeros(5, np.int64)), 0)
    assert gradient.any()


def test_frozen_parameters_are_not_trained():
    config = ModuleConfig(**SMALL_CONFIG, frozen=("w*",))
    model = config.build((), 0)
    assert model.parameters.layout.names() == ("bias",)
    assert list(model.frozen) == ["weight"]
    values = np.arange(12, dtype=np.float32)
    rebuilt = config.build((values,), 0)
    np.testing.assert_array_equal(rebuilt.module.weight.detach().numpy().reshape(-1), values)
    with pytest.raises(UsageError, match="unknown parameter in frozen; got 'weights'; did you"):
        ModuleConfig(**SMALL_CONFIG, frozen=("weights",)).build((), 0)
    with pytest.raises(UsageError, match=r"frozen leaves nothing to train; got \*; name fewer"):
        ModuleConfig(**SMALL_CONFIG, frozen=("*",)).build((), 0)
