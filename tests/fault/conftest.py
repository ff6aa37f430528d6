"""A real HDFS and YARN of separate processes, and what runs in its containers; a small disk."""

import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

DISK_BYTES = 16 << 20


class Hadoop:
    """Starts and ends it by the script that PHOTINUS_HADOOP names.

    Args:
        script: `start FOLDER N`, `kill FOLDER NAME`, `again FOLDER NAME`, `stop FOLDER`.
        folder: for data, logs and settings.
        nodes: how many NodeManagers.
    """

    DRIVER, MASTER = "deploy.yarn.ApplicationMaster", "deploy.yarn.ExecutorLauncher"
    EXECUTOR = "YarnCoarseGrainedExecutorBackend"
    NODE = "registered with capability"
    """What a ResourceManager notes of a NodeManager."""

    def __init__(self, script, folder, nodes):
        self.script, self.folder, self.nodes = script, Path(folder), nodes

    def call(self, verb, *words):
        log = self.folder.parent / "hadoop.log"
        command = ["sh", self.script, verb, str(self.folder), *words]
        with log.open("a") as said:  # its servers keep the pipe: an output that is read would hang
            subprocess.run(command, stdout=said, stderr=said, check=True, timeout=120)

    def start(self):
        self.call("start", str(self.nodes))
        # the first container of a node unpacks 1.5 GB before its driver can say hello, for which
        # YARN itself allows ten minutes
        self._set("yarn.am.liveness-monitor.expiry-interval-ms", 180_000)
        # without it a ResourceManager that is started again ends every application that it finds
        self._set("yarn.resourcemanager.recovery.enabled", "true")
        self._set("yarn.resourcemanager.fs.state-store.uri", f"file://{self.folder}/data/state")
        self.kill("resourcemanager")
        self.again("resourcemanager")

    def have_nodes_wait(self, seconds):
        """Has NodeManagers wait so long from a container's SIGTERM to its SIGKILL."""
        self._set("yarn.nodemanager.sleep-delay-before-sigkill.ms", seconds * 1000)
        before = self.registered(self.NODE)
        for number in range(self.nodes):
            self.kill(f"nodemanager{number}")
            self.again(f"nodemanager{number}")
        self.until(
            lambda: self.registered(self.NODE) >= before + self.nodes, 120, "the nodes, again"
        )

    def end(self, application):
        """Has YARN end an application, as `yarn application -kill` does."""
        of = f"http://127.0.0.1:8088/ws/v1/cluster/apps/{application}/state?user.name=test"
        json = {"Content-Type": "application/json"}
        asked = Request(of, b'{"state": "KILLED"}', json, method="PUT")
        with urlopen(asked, timeout=60) as answer:
            answer.read()

    def _set(self, name, value):
        site = self.folder / "conf" / "yarn-site.xml"
        text = re.sub(rf"  <property><name>{re.escape(name)}<.*\n", "", site.read_text())
        own = f"  <property><name>{name}</name><value>{value}</value></property>\n"
        site.write_text(text.replace("</configuration>", f"{own}</configuration>"))

    def stop(self):
        try:
            self.call("stop")
        except subprocess.CalledProcessError:  # one of its processes ended just before its kill
            self.call("stop")

    def kill(self, name):
        self.call("kill", name)

    def again(self, name):
        self.call("again", name)

    def registered(self, what="ATTEMPT_REGISTERED"):
        """Returns how often a ResourceManager was told of a master, or of a node, that it knows."""
        return (self.folder / "logs" / "resourcemanager.log").read_text().count(what)

    @property
    def environment(self):
        """For commands that use it; nothing of this machine's Python is among it."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYSPARK", "SPARK"))}
        return kept | {"HADOOP_CONF_DIR": str(self.folder / "conf")}

    def programs(self, kind):
        """Returns the Java processes of a kind: process -> its container's folder."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                place = (process / "cwd").readlink()
            except OSError:
                continue
            is_kind = words[0].endswith(b"java") and kind.encode() in b" ".join(words)
            if is_kind and place.is_relative_to(self.folder):
                found[int(process.name)] = place
        return found

    def node_of(self, place):
        """Returns the NodeManager of a container's folder."""
        return place.relative_to(self.folder / "data").parts[0]

    @staticmethod
    def until(look, seconds, what):
        """Looks again and again until something is there; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
            time.sleep(0.1)  # containers and their files come untold: YARN sends no event

    def said(self, container):
        """Returns what a container wrote to its standard output."""
        found = self.folder.glob(f"logs/containers*/*/{container}/stdout")
        return "".join(path.read_text() for path in found)


@pytest.fixture(scope="module")
def hadoop(hadoop_script, tmp_path_factory):
    """A HDFS and a YARN of two nodes, for the tests of one file."""
    cluster = Hadoop(hadoop_script, tmp_path_factory.mktemp("hadoop") / "cluster", nodes=2)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "photinus", place]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted: {done.stderr.strip()[-80:]}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def assert_ended():
    """Waits for the ends of processes that are not our children."""

    def wait(pids, most_seconds):
        deadline = time.monotonic() + most_seconds
        for pid in pids:
            try:
                end = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                left = max(0.0, deadline - time.monotonic())
                assert select.select([end], [], [], left)[0], f"{pid} lives after {most_seconds} s"
            finally:
                os.close(end)

    return wait
