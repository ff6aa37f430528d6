import pytest

from photinus.devices.names import DEVICES, is_device, kind_of


@pytest.mark.parametrize(
    "name",
    ["auto", "cpu", "cuda", "cuda:1", "xpu:0", "mps", "stand-in", "opencl", "opencl:intel:1"],
)
def test_a_devices_name_is_known(name):
    assert is_device(name)


@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:x", "CPU", "", "opencl:0", "mps:1", None, 0]
)
def test_other_names_are_not(name):
    assert not is_device(name)


def test_a_setting_takes_one_name_or_a_list():
    assert DEVICES.holds("cuda:1")
    assert DEVICES.holds(("cpu", "auto"))
    assert not DEVICES.holds(("cpu", "gpu"))


def test_the_kind_stands_before_the_number():
    assert [kind_of(name) for name in ("cuda:3", "cpu")] == ["cuda", "cpu"]
