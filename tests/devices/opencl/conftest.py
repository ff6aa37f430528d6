"""The device of this machine with each flavour of the kernels."""

import pytest

from photinus.devices.opencl.engine import FLAVOURS, OpenCLEngine


@pytest.fixture(scope="session", params=FLAVOURS)
def engine(opencl, request):
    return OpenCLEngine(opencl, request.param)


@pytest.fixture(scope="session")
def usual(opencl):
    return OpenCLEngine(opencl)
