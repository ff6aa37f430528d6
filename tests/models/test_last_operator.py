"""What a module ends with."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from photinus.models.last_operator import ends_with_sigmoid


class _Named(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.line, self.function = nn.Linear(3, 2), function

    def forward(self, x):
        return self.function(self.line(x))


@pytest.mark.parametrize(
    ("function", "ends"),
    [
        (nn.Sigmoid(), True),
        (torch.sigmoid, True),
        (torch.Tensor.sigmoid_, True),
        (torch.special.expit, True),
        (lambda z: torch.sigmoid(z)[:, 0], True),
        (nn.Identity(), False),
        (nn.SiLU(), False),
        (nn.LogSigmoid(), False),
        (lambda z: z * torch.sigmoid(z), False),
        (lambda z: (torch.sigmoid(z), z), False),
        (lambda z: {"hidden": z, "logits": torch.sigmoid(z)}, True),
        (lambda z: {"hidden": torch.sigmoid(z), "logits": z}, False),
    ],
)
def test_a_sigmoid_is_found_where_it_is_the_last_that_is_done(function, ends):
    module = _Named(function)
    assert ends_with_sigmoid(module, lambda: module(torch.zeros(4, 3))) == ends


def test_what_cannot_be_watched_is_no_sigmoid():
    """Operators that call functions, as `torch.cond` does, refuse a dispatch mode."""

    def forward(z):
        return torch.cond(z.sum() > 0, torch.sigmoid, torch.tanh, (z,))

    module = _Named(forward)
    with pytest.raises(NotImplementedError), TorchDispatchMode():
        module(torch.zeros(4, 3))
    assert not ends_with_sigmoid(module, lambda: module(torch.zeros(4, 3)))
