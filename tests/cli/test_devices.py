"""`photinus devices`: what this machine, and the tasks of a session, can compute on."""

import platform

import pytest

from photinus.cli.main import main
from photinus.engine.spark.executor_devices import visible_devices


def test_this_machines_devices_are_listed_with_memory_speed_and_driver(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(["devices"])
    output = capsys.readouterr().out
    assert ended.value.code == 0
    for words in ("device", "memory", "GFLOP/s", "driver", "of Spark", "cpu", "GiB", "PyTorch"):
        assert words in output


@pytest.mark.slow
@pytest.mark.spark
def test_the_tasks_of_a_session_tell_what_they_see(spark, nothing_left):
    first, *others = visible_devices(spark, 2)
    assert (first.host, first.resource, first.device.name) == (platform.node(), "", "cpu")
    assert first.gflops > 0
    assert all(one.device.name.startswith("opencl:") for one in others)
