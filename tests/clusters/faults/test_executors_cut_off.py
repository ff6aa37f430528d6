"""Hosts with addresses of their own: an executor that Spark's driver cannot reach, and we can."""

import json
import shutil
import subprocess
import time

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]

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
    "spark.executor.heartbeat.maxFailures": "30",
}
"""Spark takes a silent executor for lost soon (its default is two minutes)."""

MAKE = f"""set -e
mount -t tmpfs none /run
ip link set lo up
ip link add br0 type bridge
ip addr add {DRIVER}/24 dev br0
ip link set br0 up
for n in $(seq 0 {HOSTS - 1}); do
    ip netns add h$n
    ip link add v$n type veth peer name eth0 netns h$n
    ip link set v$n master br0 up
    ip netns exec h$n ip link set lo up
    ip netns exec h$n ip addr add 10.77.0.$((10 + n))/24 dev eth0
    ip netns exec h$n ip link set eth0 up
done
ip rule add to 10.77.0.99 ipproto tcp sport 1-2 blackhole
echo made
exec cat
"""


class Hosts:
    """A bridge, where master and driver are, and hosts behind it, one for each worker.

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

    def cut(self, name, *ports, change="add"):
        """What a worker's host sends to these ports of the driver's, or from them, vanishes."""
        for port in ports:
            there = f"ip rule {change} to {DRIVER} ipproto tcp dport {port} blackhole"
            back = f"ip rule {change} to {self.address(name)} ipproto tcp sport {port} blackhole"
            subprocess.run([*self.before(name), *there.split()], check=True)
            subprocess.run([*self.before("driver"), *back.split()], check=True)

    def close(self):
        self.process.communicate()


@pytest.fixture(scope="module")
def hosts():
    made = Hosts()
    yield made
    made.close()


@pytest.fixture(scope="module")
def field(clusters, applications, hosts):
    """Three hosts, two of which have an executor."""
    cluster = clusters(SETTINGS, workers=HOSTS, installed=True, hosts=hosts)
    return cluster, applications(cluster)


def look(run, tag):
    c = run.cluster
    like = run.pid(0)
    print(
        f"{time.time() - run.at:7.1f}",
        tag,
        {
            name: [(p, c.python_workers(p, like)) for p in pids]
            for name, pids in c.executors().items()
        },
        "v",
        run.version,
        "lost",
        [(x["slot"], x["reason"], round(x["at"] - run.at, 1)) for x in run.of("WorkerLost")],
        "joined",
        [
            (x["slot"], x["lease"], round(x["at"] - run.at, 1))
            for x in run.of("WorkerJoined")
            if x["at"] > run.at
        ],
        flush=True,
    )


@pytest.mark.parametrize("kind", ["driver", "both"])
def test_explore(runs, hosts, kind, record_property):
    run = runs(steps=9_000)
    place, executor = run.executor_of(1)
    slots = run.slots_on((place, executor))
    print(place, executor, slots)
    ports = PORTS if kind == "driver" else (*PORTS, str(run.cluster.port))
    run.at = time.time()
    hosts.cut(place, *ports)
    ended = time.time() + 150
    while time.time() < ended and not run.of("Done"):
        look(run, kind)
        time.sleep(3)
    hosts.cut(place, *ports, change="del")
    look(run, "healed")
    run.ended(record_property, slots)
    look(run, "ended")
    print(json.dumps(run.warnings, indent=1))
    print(run.cluster.folder)
