from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import DataError, UsageError
from photinus.models.module_model import ModuleModel

pytestmark = pytest.mark.numerics


class Complex(nn.Module):
    """Multiplies the spectrum by complex numbers, held as complex ones, as pairs or as halves."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.last = kind, nn.Linear(4, 3)
        pairs = torch.randn(3, 2)
        numbers = torch.view_as_complex(pairs)
        self.first = nn.Parameter(torch.zeros(1))
        self.factors = nn.Parameter(numbers if kind == "complex" else pairs)

    def forward(self, x):
        w = self.factors
        if self.kind == "pairs":
            w = torch.view_as_complex(w)
        elif self.kind == "halves":
            w = torch.complex(w[..., 0], w[..., 1])
        return self.last(torch.fft.irfft(torch.fft.rfft(x) * w, n=4)) + self.first


@pytest.mark.parametrize(
    ("module", "do"),
    [
        (Complex("complex"), "hold a complex parameter as two of float32, and use torch.complex"),
        (nn.ReLU(), "got none; give it a layer to train"),
        (nn.Linear(4, 3).bfloat16(), r"make it in float32, as by \.float\(\)"),
    ],
)
def test_parameters_of_other_types_are_refused_with_what_to_do_for_them(module, do):
    with pytest.raises(UsageError, match=do):
        ModuleModel(module, "cross_entropy")


@pytest.mark.parametrize("kind", ["pairs", "halves"])
def test_pairs_that_cannot_be_read_as_complex_where_they_lie_get_advice_that_works(kind):
    features = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    batch = SimpleNamespace(features=features, labels=np.arange(8) % 3)
    model = ModuleModel(Complex(kind), "cross_entropy")
    if kind == "halves":
        assert model.learn(batch, 0)[0][1:7].any(), "of the factors"
        return
    with pytest.raises(DataError, match=r"use torch.complex\(w\[..., 0\], w\[..., 1\]\) in"):
        model.learn(batch, 0)
