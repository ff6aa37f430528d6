import platform
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from photinus.core.errors import NotReadyError
from photinus.devices.discovery import (
    Device,
    check_memory,
    fastest,
    found,
    measured,
    product_gflops,
    ready,
)
from photinus.devices.opencl import platforms
from photinus.devices.resources import TaskResources

GIB = 2**30


class Cards:
    """What torch tells of two cards."""

    def __init__(self, free=GIB, broken=""):
        self.free, self.broken, self.calls = free, broken, []

    def is_available(self):
        return not self.broken

    def device_count(self):
        return 2

    def get_device_properties(self, index):
        return SimpleNamespace(name=f"Card {index}", total_memory=8 * GIB)

    def init(self):
        if self.broken:
            raise RuntimeError(self.broken)

    def set_device(self, index):
        self.calls.append(index)

    def set_per_process_memory_fraction(self, share):
        self.calls.append(share)

    def mem_get_info(self, index):
        return self.free, 8 * GIB


@pytest.fixture
def cards(monkeypatch):
    """Has torch tell of cards for CUDA, and of nothing else."""

    def install(**fields):
        cards, none = Cards(**fields), Cards(broken="none")
        named = {"cuda": cards}
        monkeypatch.setattr(torch, "get_device_module", lambda kind: named.get(kind, none))
        monkeypatch.setattr(platforms, "is_installed", bool)
        return cards

    yield install
    TaskResources().bind()


def test_the_processor_is_always_found_with_its_memory():
    first = found()[0]
    assert (first.name, first.memory_bytes > GIB / 4) == ("cpu", True)
    assert first.title


def test_a_products_speed_is_measured():
    assert product_gflops("cpu") > 0.1


def test_a_device_that_fails_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setattr(
        "photinus.devices.discovery.engine", Mock(side_effect=NotReadyError("broken"))
    )
    device = Device(name="opencl:0:0", title="Card", driver="1.0")
    assert measured(device) == (replace(device, driver="broken"), 0.0)


def test_cards_are_found_by_number(cards):
    cards()
    assert [device.name for device in found()] == ["cpu", "cuda:0", "cuda:1"]
    assert found()[2] == Device(
        name="cuda:1",
        title="Card 1",
        memory_bytes=8 * GIB,
        driver=f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}",
    )


def test_a_device_that_is_there_gets_its_number_and_is_held(cards):
    calls = cards().calls
    assert [ready("cuda"), ready("cuda:1")] == ["cuda:0", "cuda:1"]
    assert calls == [0, 1]


def test_a_fraction_of_a_card_caps_this_process_memory(cards, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    calls = cards().calls
    TaskResources({"gpu": ["0"]}, {"gpu": 0.25}).bind()
    ready("cuda")
    assert calls == [0, 0.25]


def test_a_fraction_of_another_resource_caps_no_card(cards):
    calls = cards().calls
    TaskResources({"fpga": ["0"]}, {"fpga": 0.25}).bind()
    ready("cuda")
    assert calls == [0]


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("cuda", {"broken": "The driver is too old"}, "The driver is too old; device="),
        ("cuda:5", {}, "got cpu, cuda:0, cuda:1; photinus devices"),
        ("xpu", {}, "got cpu, cuda:0, cuda:1, with PyTorch"),
        ("mps", {}, f"got cpu, cuda:0, cuda:1, with PyTorch {torch.__version__}; device="),
    ],
    ids=["driver", "number", "kind", "apple"],
)
def test_a_device_that_is_not_there_is_refused_in_a_sentence(cards, name, fields, words):
    cards(**fields)
    with pytest.raises(NotReadyError, match=f"there is no device {name}") as refused:
        ready(name)
    assert words in str(refused.value)
    assert platform.node() in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_card_is_ready_as_it_is():
    assert [ready(name) for name in ("cpu", "auto", "stand-in", "stand-in:2")] == [
        "cpu",
        "auto",
        "stand-in:0",
        "stand-in:2",
    ]


def test_a_card_without_memory_for_the_model_is_refused(cards):
    cards(free=GIB)
    check_memory("cuda:0", GIB // 4)
    with pytest.raises(NotReadyError, match="got 1024 MiB free, and 1028 MiB needed"):
        check_memory("cuda:0", GIB // 4 + 2**20)


def test_a_share_of_a_card_is_all_the_memory_that_counts(cards, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    cards(free=8 * GIB)
    TaskResources({"gpu": ["0"]}, {"gpu": 0.25}).bind()
    with pytest.raises(NotReadyError, match="got 2048 MiB free"):
        check_memory("cuda:0", GIB)


def test_the_fastest_device_is_chosen_and_said_why():
    seconds = {"cpu": 0.2, "stand-in": 0.1}
    assert fastest(seconds.__getitem__, tuple(seconds), "a step") == (
        "stand-in",
        "device stand-in: a step takes 200 ms on cpu, 100 ms on stand-in",
    )


def test_where_there_is_one_device_nothing_is_measured():
    name, why = fastest({}.__getitem__, ("cpu",), "a step")
    assert (name, why) == ("cpu", f"device cpu: {platform.node()} has no other one")
