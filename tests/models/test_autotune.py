import time
from collections import Counter

import pytest
import torch
from torch import nn

from photinus.models import autotune as measuring
from photinus.models.autotune import fastest_settings
from photinus.models.matmul import resolve
from photinus.models.tensors import to_memory_format

pytestmark = pytest.mark.numerics


@pytest.fixture
def costs(monkeypatch):
    """Has each combination take as long as a test says."""

    def of(table):
        def seconds(module, x, precision, least):
            is_last = x.is_contiguous(memory_format=torch.channels_last)
            return table[precision, "channels_last" if is_last else "contiguous"]

        monkeypatch.setattr(measuring, "_seconds", seconds)

    return of


def net():
    return nn.Conv2d(3, 4, 3)


@pytest.mark.parametrize(
    ("low", "chosen"),
    [
        ((0.8, 0.5), ("bfloat16", "channels_last")),
        ((0.5, 0.8), ("bfloat16", "contiguous")),
        ((0.7, 0.9), ("float32", "contiguous")),
    ],
)
def test_bfloat16_is_taken_only_where_it_is_much_faster(costs, low, chosen):
    costs(
        {
            ("float32", "contiguous"): 1.0,
            ("float32", "channels_last"): 1.2,
            ("bfloat16", "contiguous"): low[0],
            ("bfloat16", "channels_last"): low[1],
        }
    )
    assert fastest_settings(net, (2, 3, 8, 8)) == chosen
    assert fastest_settings(net, (2, 3, 8, 8), ("bfloat16",), ("channels_last",)) == (
        "bfloat16",
        "channels_last",
    )


def test_it_really_runs_and_leaves_chance_alone():
    before = torch.get_rng_state()
    precision, memory = fastest_settings(net, (2, 3, 8, 8))
    assert precision in measuring.PRECISIONS
    assert memory in measuring.MEMORIES
    assert torch.equal(torch.get_rng_state(), before)


def test_of_named_outputs_the_logits_are_computed_alone():
    class Named(nn.Linear):
        def forward(self, x):
            return {"loss": None, "logits": super().forward(x)}

    precision, _ = fastest_settings(lambda: Named(3, 2), (4, 3))
    assert precision in measuring.PRECISIONS


def test_what_is_many_times_slower_is_tried_no_longer_than_it_takes_to_see_that(monkeypatch):
    seconds, steps = [0.0], Counter()

    class Slow(nn.Linear):
        def forward(self, x):
            is_low = torch.is_autocast_enabled("cpu")
            seconds[0] += 100.0 if is_low else 1.0
            steps["bfloat16" if is_low else "float32"] += 1
            return super().forward(x)

    monkeypatch.setattr(time, "thread_time", lambda: seconds[0])
    assert fastest_settings(lambda: Slow(3, 2), (4, 3)) == ("float32", "contiguous")
    assert steps == {"float32": 2 * 4, "bfloat16": 2 * 2}


def test_bfloat16_is_not_taken_without_instructions_for_it():
    """Held to AVX2 it is a hundred times slower here: no busy machine hides that."""
    has_them = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    image, _ = fastest_settings(lambda: nn.Conv2d(16, 32, 5), (32, 16, 16, 16))
    product = resolve("auto", [(100, 784, 500)])
    assert {image, product} <= {"float32", "mkl", "onednn", *(["bfloat16"] * has_them)}


def test_only_images_have_their_channels_last():
    images, rows = torch.zeros(2, 3, 4, 4), torch.zeros(2, 5)
    assert to_memory_format(images, "channels_last").is_contiguous(
        memory_format=torch.channels_last
    )
    assert to_memory_format(rows, "channels_last") is rows
    assert to_memory_format(images, "contiguous") is images
