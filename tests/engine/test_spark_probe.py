"""What `photinus doctor` says of ports and of Spark's settings."""

import pytest

from photinus.engine.spark_probe import Finding, port_finding, settings_findings, version

CLUSTER = {"spark.master": "yarn"}
CLOSED = {
    "spark.executor.memoryOverhead": "2g",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.ui.enabled": "false",
}


def states(settings):
    return {finding.name: finding.state for finding in settings_findings(settings)}


def test_a_finding_is_missing_before_it_is_advice():
    assert Finding("x", "y").state == "ok"
    assert Finding("x", "y", "do").state == "advice"
    assert Finding("x", "y", "do", is_needed=True).state == "missing"


def test_a_port_of_this_machine_can_be_had_and_one_of_another_cannot():
    assert "127.0.0.1:" in port_finding("127.0.0.1").found
    other = port_finding("192.0.2.1")
    assert other.state == "missing"
    assert "spark.driver.host" in other.fix


def test_an_open_cluster_gets_advice_on_memory_network_and_page():
    assert set(states(CLUSTER).values()) == {"advice"}


def test_a_closed_cluster_gets_none():
    assert set(states(CLUSTER | CLOSED).values()) == {"ok"}


@pytest.mark.parametrize("missing", ["spark.authenticate", "spark.network.crypto.enabled"])
def test_half_of_the_network_settings_do_not_close_it(missing):
    settings = {name: value for name, value in (CLUSTER | CLOSED).items() if name != missing}
    assert states(settings)["Spark's own network"] == "advice"


def test_a_package_that_cannot_be_imported_has_no_version():
    assert version("numpy")
    assert version("photinus_is_not_called_so") == ""
