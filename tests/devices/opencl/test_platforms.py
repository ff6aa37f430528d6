"""OpenCL devices by name; and what is said where there is none."""

import os
import sys
from types import SimpleNamespace

import pytest

from photinus.core.errors import NotReadyError, UsageError
from photinus.devices.discovery import found, product_gflops, ready
from photinus.devices.opencl import platforms
from photinus.devices.opencl.platforms import OpenCLDevice, chosen

PROCESSOR, CARD = SimpleNamespace(type=2), SimpleNamespace(type=4)


@pytest.fixture
def two(monkeypatch):
    """A processor and two cards, of two platforms."""
    here = (
        OpenCLDevice("opencl:0:0", "EPYC", "Portable Computing Language", PROCESSOR),
        OpenCLDevice("opencl:1:0", "Arc", "Intel(R) OpenCL", CARD),
        OpenCLDevice("opencl:1:1", "Arc", "Intel(R) OpenCL", CARD),
    )
    package = SimpleNamespace(device_type=SimpleNamespace(CPU=2))
    monkeypatch.setattr(platforms, "devices", lambda: here)
    monkeypatch.setattr(platforms, "pyopencl", lambda: package)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("opencl", "opencl:1:0"),
        ("opencl:0:0", "opencl:0:0"),
        ("opencl:1:1", "opencl:1:1"),
        ("opencl:intel:1", "opencl:1:1"),
        ("opencl:portable:0", "opencl:0:0"),
    ],
)
def test_a_device_is_chosen_by_number_or_platform_and_cards_first(two, name, whole):
    assert chosen(name).name == whole


@pytest.mark.parametrize("name", ["gpu", "amd", "cuda:0", "opencl:0"])
def test_the_name_of_another_device_is_refused(two, name):
    with pytest.raises(UsageError, match=f"this is no OpenCL device; got '{name}'"):
        chosen(name)


@pytest.mark.parametrize("name", ["opencl:2:0", "opencl:0:1", "opencl:amd:0"])
def test_a_device_that_is_not_there_is_refused_with_what_is(two, name):
    with pytest.raises(NotReadyError, match=f"there is no device {name} on") as refused:
        chosen(name)
    assert "opencl:0:0 (Portable Computing Language: EPYC), opencl:1:0" in str(refused.value)


def test_without_a_driver_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(platforms, "devices", tuple)
    with pytest.raises(NotReadyError, match=r"got no OpenCL device; pip install .*pocl"):
        chosen("opencl")


def test_without_pyopencl_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(NotReadyError, match=r"need pyopencl, .* pip install 'photinus\[opencl\]'"):
        ready("opencl")
    assert all(not device.name.startswith("opencl") for device in found())


def test_a_fork_of_a_process_that_used_opencl_is_refused(opencl, monkeypatch):
    monkeypatch.setattr(platforms, "_began_in", os.getpid() + 1)
    with pytest.raises(NotReadyError, match="OpenCL was started before this process was forked"):
        ready("opencl")


def test_this_machines_device_is_listed_ready_and_measured(opencl):
    assert ready(opencl.name) == opencl.name
    assert ready("opencl").startswith("opencl:")
    device = {device.name: device for device in found()}[opencl.name]
    assert (device.title, device.memory_bytes > 0) == (opencl.title, True)
    assert opencl.platform in device.driver
    assert product_gflops(opencl.name) > 0
