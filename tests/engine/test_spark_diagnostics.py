"""What `photinus doctor` says of ports and of Spark's settings."""

import pytest

from photinus.deploy.spark_submit import Submission
from photinus.engine.spark.diagnostics import Diagnosis, port_finding, settings_findings, version

CLUSTER = {"spark.master": "yarn"}
CLOSED = {
    "spark.executor.memoryOverhead": "2g",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.executor.heartbeatInterval": "2s",
    "spark.executor.heartbeat.maxFailures": "7",
}


def states(settings):
    return {finding.name: finding.state for finding in settings_findings(settings)}


def test_a_finding_is_missing_before_it_is_advice():
    assert Diagnosis("x", "y").state == "ok"
    assert Diagnosis("x", "y", "do").state == "advice"
    assert Diagnosis("x", "y", "do", is_needed=True).state == "missing"


def test_a_port_of_this_machine_can_be_had_and_one_of_another_cannot():
    assert "127.0.0.1:" in port_finding("127.0.0.1").found
    other = port_finding("192.0.2.1")
    assert other.state == "missing"
    assert "spark.driver.host" in other.fix


def test_an_open_cluster_gets_advice_on_memory_network_page_and_executors():
    assert set(states(CLUSTER).values()) == {"advice"}


def test_a_closed_cluster_gets_none():
    assert set(states(CLUSTER | CLOSED).values()) == {"ok"}


@pytest.mark.parametrize("missing", ["spark.authenticate", "spark.network.crypto.enabled"])
def test_half_of_the_network_settings_do_not_close_it(missing):
    settings = {name: value for name, value in (CLUSTER | CLOSED).items() if name != missing}
    assert states(settings)["Spark's own network"] == "advice"


@pytest.mark.parametrize(
    ("interval", "failures", "seconds", "state"),
    [
        (None, None, 620, "advice"),
        ("10s", "60", 620, "advice"),
        ("2s", "7", 26, "ok"),
        ("2000ms", "8", 28, "ok"),
        ("2000", "9", 30, "advice"),
        ("1min", "1", 130, "advice"),
        ("5s", None, 315, "advice"),
        (" 1S", None, 71, "advice"),
    ],
)
def test_on_a_cluster_executors_that_stay_long_without_a_driver_get_advice(
    interval, failures, seconds, state
):
    """As long as Spark's heartbeats fail, one interval more, and 10 s in which it ends."""
    names = ("spark.executor.heartbeatInterval", "spark.executor.heartbeat.maxFailures")
    pairs = zip(names, (interval, failures), strict=True)
    settings = {name: value for name, value in pairs if value is not None}
    *_, finding = settings_findings(CLUSTER | settings)
    assert f"up to {seconds} s" in finding.found
    assert finding.state == state
    assert all(name in finding.fix for name in names) == (state == "advice")
    *_, local = settings_findings({"spark.master": "local[2]"} | settings)
    assert local.state == "ok"


def test_what_submit_sets_gets_no_advice_on_executors():
    settings = Submission(master="spark://a:7077").all_settings()
    assert states(CLUSTER | settings)["without a driver"] == "ok"


def test_a_package_that_cannot_be_imported_has_no_version():
    assert version("numpy")
    assert version("photinus_is_not_called_so") == ""
