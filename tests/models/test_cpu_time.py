import time

import pytest
import torch
from torch import nn

from photinus.models import matmul
from photinus.models.autotune import fastest_settings
from photinus.models.cpu_time import cpu_seconds


class CoarseClock:
    """A thread's clock that counts in ticks of 10 ms; only `spend` lets time pass."""

    def __init__(self):
        self._seconds = 0.0

    def spend(self, seconds):
        self._seconds += seconds

    def __call__(self):
        return self._seconds // 0.01 * 0.01


@pytest.fixture
def clock(monkeypatch):
    clock = CoarseClock()
    monkeypatch.setattr(time, "thread_time", clock)
    return clock


@pytest.mark.parametrize("seconds", [0.00003, 0.003, 0.03])
def test_a_call_is_measured_by_a_clock_of_coarse_ticks(clock, seconds):
    assert cpu_seconds(lambda: clock.spend(seconds)) == pytest.approx(seconds, rel=0.34)


def test_a_tick_before_the_first_call_is_no_measurement_of_nothing(monkeypatch):
    seconds = iter([0.0, 0.0, 0.0, 0.01, 0.01, 0.01, 0.02, 0.03])
    monkeypatch.setattr(time, "thread_time", lambda: next(seconds))
    assert cpu_seconds(lambda: None) == pytest.approx(0.02)


def test_products_have_a_rate_on_a_coarse_clock(monkeypatch, clock):
    monkeypatch.setattr(matmul, "linear", lambda *_: clock.spend(0.0001))
    assert matmul.gigaflops("mkl", (100, 3, 2)) == pytest.approx(2e-9 * 600 / 0.0001, rel=0.1)


@pytest.mark.parametrize(("low", "chosen"), [(0.0009, "float32"), (0.0004, "bfloat16")])
def test_a_coarse_clock_chooses_as_a_fine_one_would(clock, low, chosen):
    class Timed(nn.Linear):
        def forward(self, x):
            clock.spend(low if torch.is_autocast_enabled("cpu") else 0.001)
            return super().forward(x)

    assert fastest_settings(lambda: Timed(3, 2), (4, 3)) == (chosen, "contiguous")
