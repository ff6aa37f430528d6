from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.models.module import ModuleConfig

pytestmark = [
    pytest.mark.numerics,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
]


@pytest.fixture
def tiny_batch():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((16, 4)).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, 3, 16))


def whole():
    return torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))


def traced():
    return torch.jit.trace(nn.Linear(4, 3), torch.zeros(2, 4))


def normed():
    """A part with running statistics, before a layer of Python's."""
    return nn.Sequential(
        torch.jit.script(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))), nn.Linear(5, 3)
    )


def partly():
    return nn.Sequential(torch.jit.script(nn.Linear(4, 5)), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("factory", "got"),
    [
        (whole, "got RecursiveScriptModule"),
        (traced, "got TopLevelTracedModule"),
        (normed, "got 0.1"),
    ],
)
def test_code_of_torch_jit_is_refused_where_it_is_made(factory, got):
    config = ModuleConfig(module=f"{__name__}:{factory.__name__}")
    with pytest.raises(UsageError, match=f"code of torch.jit.*{got}; return the Python module"):
        config.build((), seed=0)


def test_a_part_of_torch_jit_without_buffers_trains(tiny_batch):
    model = ModuleConfig(module=f"{__name__}:partly").build((), seed=0)
    gradient, before = model.learn(tiny_batch, 0)
    model.parameters.trained[:] -= 0.1 * gradient
    assert np.count_nonzero(gradient[:25]) > 0, "of the scripted layer"
    assert model.learn(tiny_batch, 0)[1]["loss"] < before["loss"]
