import numpy as np
import pytest
import torch

from photinus.models.random import RandomStream

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_units_are_drawn_with_their_probability(dtype):
    p = torch.tensor([0.0, 0.01, 0.25, 0.5, 0.9, 1.0]).to(dtype).expand(40_000, 6)
    drawn = RandomStream(1).bernoulli(p, torch.empty(40_000, 6, dtype=dtype)).float()
    assert torch.equal(drawn.unique(), torch.tensor([0.0, 1.0]))
    error = (drawn.mean(0) - p[0].float()).abs()
    assert (error <= 4 * (p[0].float() * (1 - p[0].float()) / 40_000).sqrt() + 1e-9).all()


def test_drawing_in_place_gives_the_same_bits():
    p = torch.rand(30, 7)
    apart = RandomStream(5).bernoulli(p, torch.empty(30, 7))
    assert torch.equal(RandomStream(5).bernoulli(p, p), apart)


def test_a_mask_keeps_the_mean():
    mask = RandomStream(2).dropout_mask(0.8, (400, 300), torch.float32)
    assert sorted(mask.unique().tolist()) == [0.0, 1.25]
    assert abs(float(mask.mean()) - 1) < 0.01


def test_another_seed_gives_other_bits():
    one, other = RandomStream(1).uniform((5000,)), RandomStream(2).uniform((5000,))
    assert not torch.equal(one, other)
    assert 0 <= float(one.min()) < 0.01 < 0.99 < float(one.max()) < 1
    assert abs(float(one.mean()) - 0.5) < 0.02


def test_normal_numbers_have_mean_0_and_variance_1():
    drawn = RandomStream(3).normal((200, 200)).numpy()
    assert drawn.dtype == np.float32
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.var() - 1) < 0.03
