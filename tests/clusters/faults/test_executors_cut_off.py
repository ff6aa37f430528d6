"""Hosts with addresses of their own: an executor that Spark's driver cannot reach, and we can."""

import contextlib
import json
import shutil
import subprocess
import time

import pytest

from photinus.testing import Faults

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(800)]

DRIVER, HOSTS = "10.77.0.1", 3
PORTS = ("7178", "7179")
SETTINGS = {
    "spark.cores.max": "4",
    "spark.driver.host": DRIVER,
    "spark.driver.bindAddress": DRIVER,
    "spark.driver.port": PORTS[0],
    "spark.driver.blockManager.port": PORTS[1],
    "spark.task.maxFailures": "20",
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10000",
    "spark.executor.heartbeatInterval": "2s",
    "spark.executor.heartbeat.maxFailures": "40",
    "spark.worker.timeout": "12",
}
"""Spark takes a silent executor or host for lost soon, and an executor ends that it hears nothing.

Its defaults are two minutes, one minute, and ten minutes.
"""
GIVEN_UP = "requests to kill executors"

MAKE = f"""set -e
mount -t tmpfs none /run
ip link set lo up
ip link add br0 type bridge
ip addr add {DRIVER}/24 dev br0
ip link set br0 up
for n in $(seq 0 {HOSTS}); do
    ip netns add h$n
    ip link add v$n type veth peer name eth0 netns h$n
    ip link set v$n master br0 up
    ip netns exec h$n ip link set lo up
    ip netns exec h$n ip addr add 10.77.0.$((10 + n))/24 dev eth0
    ip netns exec h$n ip link set eth0 up
done
ip rule add ipproto tcp dport 9 blackhole  # where rules know no ports, it ends here
echo made
exec cat
"""


class Hosts:
    """A bridge, where master and driver are, and hosts behind it: one for each worker, one more.

    All lives in network namespaces, and is gone when the process that made them ends.
    """

    def __init__(self):
        missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}")
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", MAKE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self.process.stdout.readline() != "made\n":
            pytest.skip(f"network namespaces: {self.process.communicate()[1].strip()[-80:]}")

    @staticmethod
    def address(name):
        return f"10.77.0.{10 + int(name[6:])}" if name.startswith("worker") else DRIVER

    def before(self, name):
        """What a command begins with, to run where one of the cluster's processes lives."""
        place = f"root/run/netns/h{name[6:]}" if name.startswith("worker") else "ns/net"
        return ("nsenter", f"--net=/proc/{self.process.pid}/{place}")

    @contextlib.contextmanager
    def cut(self, name, *ports):
        """For a while nothing passes between a worker's host and these ports of the driver's."""
        self._rules("add", name, ports)
        try:
            yield
        finally:
            self._rules("del", name, ports)

    @contextlib.contextmanager
    def unplug(self, name):
        """For a while nothing at all passes between a worker's host and the others."""
        self._cable(name, "down")
        try:
            yield
        finally:
            self._cable(name, "up")

    def _cable(self, name, state):
        link = f"ip link set v{name[6:]} {state}"
        subprocess.run([*self.before("driver"), *link.split()], check=True)

    def _rules(self, change, name, ports):
        for port in ports:
            there = f"ip rule {change} to {DRIVER} ipproto tcp dport {port} blackhole"
            back = f"ip rule {change} to {self.address(name)} ipproto tcp sport {port} blackhole"
            subprocess.run([*self.before(name), *there.split()], check=True)
            subprocess.run([*self.before("driver"), *back.split()], check=True)

    def close(self):
        self.process.communicate()


@pytest.fixture(scope="module")
def hosts():
    created = Hosts()
    yield created
    created.close()


@pytest.fixture(scope="module")
def field(clusters, applications, hosts):
    """Three hosts, two of which have an executor."""
    cluster = clusters(SETTINGS, workers=HOSTS, installed=True, hosts=hosts)
    return cluster, applications(cluster)


def given_up(run):
    """Waits until Spark takes an executor for lost; returns when."""
    before = run.cluster.log("master").count(GIVEN_UP)
    run.cluster.until(lambda: run.cluster.log("master").count(GIVEN_UP) > before, GIVEN_UP)
    return time.time()


def trained_after(run, slots, moment):
    """How many rounds had a part of all these seats between a moment and their first loss."""
    lost = [line["at"] for line in run.of("WorkerLost")]
    rounds = [r for r in run.of("RoundClosed") if moment < r["at"] < min(lost, default=time.time())]
    return sum(slots <= set(r["slots"]) for r in rounds)


def test_an_executor_that_sparks_driver_cannot_reach_trains_on_until_spark_ends_it(
    runs, hosts, record_property
):
    """Its host still hears Spark's master, which has it ended, and starts others in vain."""
    run = runs(steps=8_000)
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    run.at = time.time()
    with hosts.cut(place, *PORTS):
        replaced = given_up(run)
        for slot in slots:
            run.driver.wait("WorkerLost", run.name, slot=slot)
        assert trained_after(run, slots, run.at + 5) > 5, "until Spark gave it up"
        run.driver.wait("RoundClosed", run.name, version=run.version + 50)
    run.back(slots)
    run.ended(record_property, slots)
    record_property("seconds until Spark gave it up", round(replaced - run.at, 1))
    assert run.reasons() == {"its connection closed and did not come back"}
    assert {line["slot"] for line in run.of("WorkerLost")} == slots
    assert run.gap < 5


def test_a_second_attempt_waits_beside_an_executor_that_spark_gave_up_and_cannot_end(
    runs, hosts, record_property
):
    """Neither driver nor master reach it; it ends itself when its heartbeats fail for long."""
    run = runs(steps=40_000)
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    run.at = time.time()
    first = {executor, run.executor_of(0)[1]}

    def wait_beside():
        pids = {pid for pids in run.cluster.executors().values() for pid in pids} - first
        return run.cluster.waiting([run.pid(0)], pids) >= 2

    with hosts.cut(place, *PORTS, str(run.cluster.port)):
        replaced = given_up(run)
        run.cluster.until(wait_beside, "second attempts wait beside the first")
        beside = time.time()
        run.driver.wait("RoundClosed", run.name, version=run.version + 20)
        assert run.of("WorkerLost") == [], "second attempts change nothing"
        assert len(run.of("WorkerJoined")) == 4
        assert trained_after(run, slots, beside) > 10, "the first ones count"
        run.back(slots)
        assert run.executor_of(1)[0] != place
    run.ended(record_property, slots)
    lost = [line["at"] for line in run.of("WorkerLost")]
    joined = [line["at"] for line in run.of("WorkerJoined") if line["lease"] == 2]
    record_property("seconds until Spark gave it up", round(replaced - run.at, 1))
    record_property("seconds until second attempts waited", round(beside - run.at, 1))
    record_property("seconds until it ended", round(min(lost) - run.at, 1))
    record_property("seconds from its end to all seats", round(max(joined) - min(lost), 2))
    assert run.reasons() == {"its connection closed and did not come back"}
    assert {line["slot"] for line in run.of("WorkerLost")} == slots
    assert run.gap < 5


def test_workers_of_a_host_that_is_cut_off_from_everything_end_by_themselves(
    runs, hosts, record_property
):
    """Their executor lives on; nobody can tell them anything, and no connection is closed."""
    run = runs(steps=12_000)
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    pids = {run.pid(slot) for slot in slots}
    run.at = time.time()
    with hosts.unplug(place):
        run.cluster.until(lambda: run.cluster.are_over(pids), "they end", 60)
        seconds = time.time() - run.at
        assert executor in run.cluster.executors()[place], "their executor outlives them"
        run.driver.wait("RoundClosed", run.name, version=run.version + 20)
        run.back(slots)
    run.ended(record_property, slots)
    record_property("seconds until workers of a host without a cable ended", round(seconds, 1))
    assert 10 < seconds < 30
    assert run.reasons() == {"no sign of life from it for 5 s"}


def test_executors_of_a_submitted_run_whose_drivers_host_is_cut_off_end_by_themselves(
    clusters, submitted, hosts, record_property
):
    """Java's processes too; Spark's master hears them, and tells them nothing."""
    place = f"worker{HOSTS}"
    address = hosts.address(place)
    settings = {"spark.driver.host": address, "spark.driver.bindAddress": address}
    cluster = clusters(workers=2, installed=True, hosts=hosts)
    run = submitted(cluster, before=hosts.before(place), settings=settings)
    run.trains_on()
    with hosts.unplug(place):
        seconds = run.ends_without_its_driver()
    record_property("seconds until the executors of a driver without a cable ended", seconds)
    assert 10 < seconds < 30


class Named(Hosts):
    """Hosts that know the names of their network namespaces, as those of `ip netns exec` do."""

    def before(self, name):
        if not name.startswith("worker"):
            return super().before(name)
        there = f"/proc/{self.process.pid}/ns"
        enter = ("nsenter", f"--mount={there}/mnt", f"--net={there}/net")
        return (*enter, "ip", "netns", "exec", f"h{name[6:]}")


def test_a_host_is_cut_off_and_another_slowed_by_name(clusters, applications, long_job, tmp_path):
    hosts, diary = Named(), tmp_path / "diary"
    patient = {
        "spark.network.timeout": "120s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "120000",
    }
    faults = Faults().slow_link(slot=0, bytes_per_second=2e6, step=30, host=True)
    faults = faults.cut(slot=1, step=60, seconds=8.0, host=True).noted_in(str(diary))
    for slot in range(4):
        faults = faults.slow(slot, 15.0)
    try:
        driver = applications(clusters(SETTINGS | patient, workers=2, installed=True, hosts=hosts))
        driver.start("by name", *long_job(1500, 4), faults=faults)
        driver.result("by name", seconds=200)
    finally:
        hosts.close()
    notes = [json.loads(line) for line in diary.read_text().splitlines()]
    assert {"slow_link", "cut"} <= {note["kind"] for note in notes if note.get("host")}
    lost = driver.of("WorkerLost", "by name")
    assert 1 in {line["slot"] for line in lost}
    assert {line["reason"] for line in lost} == {"no sign of life from it for 5 s"}
    joined = driver.of("WorkerJoined", "by name")
    assert max(line["lease"] for line in joined if line["slot"] == 1) == 2
