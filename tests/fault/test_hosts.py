"""Hosts with addresses of their own, in network namespaces: a pulled cable, and slow links."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOSTS = Path(__file__).parents[2] / "benchmarks" / "hosts.py"
PROBE = (
    "mount -t tmpfs none /run && ip netns add a && ip link add v0 type veth peer name v1 netns a"
)
PROBE += " && tc qdisc add dev v0 root tbf rate 10mbit burst 256kb latency 50ms"


def why_not():
    """Returns why this machine cannot make hosts, or nothing."""
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    command = ["unshare", "--net", "--mount", "sh", "-c", PROBE]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"network namespaces: {completed.stderr.strip()[-80:]}" if completed.returncode else ""


@pytest.fixture
def hosts():
    """Runs the benchmark on four hosts; returns its lines behind that of the processor."""
    if reason := why_not():
        pytest.skip(reason)

    def run(*words):
        command = [sys.executable, str(HOSTS), *words]
        environment = os.environ | {"PYTHONPATH": str(HOSTS.parents[1] / "src")}
        completed = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert completed.returncode == 0, completed.stderr
        processor, *lines = completed.stdout.splitlines()
        assert processor.startswith("processor: ")
        return [json.loads(line) for line in lines]

    return run


pytestmark = [pytest.mark.fault, pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("way", ["averaging", "publish"])
def test_a_host_whose_cable_is_pulled_out_is_left_out_and_comes_back(hosts, way):
    """No connection is closed: silence alone tells of it."""
    [report] = hosts("cut", way)
    assert report["audit"].endswith("each exactly once"), report
    assert report["leases"] >= 2
    assert report["others lost"] == 0
    assert 4.5 < report["noticed after s"] < 9.0
    assert report["rounds while cut"] > 3


def test_the_slow_link_of_one_host_is_told_of(hosts):
    [report] = hosts("slow", "averaging every 5 steps, fp32")
    assert report["audit"].endswith("each exactly once"), report
    [advice] = [text for text in report["told"] if "sends for" in text]
    assert advice.startswith("worker 1 sends for")


def test_a_slow_link_costs_time_and_no_bit_and_advice_is_given(hosts):
    often = "averaging every 5 steps, fp32"
    reports = {line["rate"]: line for line in hosts("rates", often)}
    assert len({line["bits"] for line in reports.values()}) == 1
    assert reports["10mbit"]["seconds"] > reports["1gbit"]["seconds"]
    [advice] = [text for text in reports["10mbit"]["told"] if "sends for" in text]
    assert "agree less often, as averaging(every=Steps(" in advice
