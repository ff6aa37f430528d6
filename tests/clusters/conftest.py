"""Real clusters of Spark on this machine: a master and workers as processes of their own.

A cluster's settings, its secret among them, lie in one file that all its processes read, as they
do at a user's; photinus reaches the executors as an archive.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from pyspark import __file__ as pyspark_file
from pyspark import cloudpickle

import photinus
from photinus.deploy.java import ensure_java
from photinus.report.ledger import audit
from photinus.testing import Faults

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CLASSES = "org.apache.spark.deploy"
PATIENT_SECONDS = 240.0
HOMES = f"{Path(photinus.__file__).parents[1]}:{Path(__file__).parents[1] / 'counting'}"
"""Where drivers and executors find photinus and the counting model."""
INSTALLED = {
    "spark.executorEnv.PYTHONPATH": HOMES,
    "spark.python.daemon.module": "photinus.engine.spark.daemon",
}
"""As where photinus is installed on the executors."""
SAFE = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.io.encryption.enabled": "true",
}
USUAL = SAFE | {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
    "spark.task.maxFailures": "20",
}


def children_of(pid):
    """All processes below one, the nearest first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = (entry / "stat").read_text()
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    descendants, level = [], [pid]
    while level:
        level = [child for parent in level for child in parents.get(parent, [])]
        descendants += level
    return descendants


def words_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def folder_of(pid):
    """In which a process works; empty where it has ended."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/cwd")
    return ""


def loopback(name):
    """The address of one of a cluster's processes, all on this host."""
    return f"127.0.0.{int(name[6:]) + 1}" if name.startswith("worker") else "127.0.0.1"


class Cluster:
    """A standalone master and workers, each on a loopback address of its own.

    Args:
        folder: of settings, logs and scratch files.
        settings: of Spark's, for all its processes and every application.
        workers: how many.
        cores: of each.
        master: instead of processes of its own, what the application starts by itself.
        installed: so that Python workers are forked with their libraries loaded.
        hosts: on which it lives, if not on this one alone: `Hosts`.
    """

    def __init__(
        self, folder, settings, *, workers=2, cores=2, master="", installed=False, hosts=None
    ):
        self.folder, self.home = folder, Path(pyspark_file).parent
        self.before = hosts.before if hosts else lambda name: ()
        self.address = hosts.address if hosts else loopback
        folder.mkdir(parents=True)
        self.settings = USUAL | {"spark.authenticate.secret": secrets.token_hex(16)} | settings
        self.settings |= INSTALLED if installed else {}
        self.cores, self.processes = cores, {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = master or f"spark://{self.address('master')}:{self.port}"
        self._write(folder / "conf", {"spark.master": self.url})
        if master:
            self.home = self._linked()  # Spark writes beside its own files there
            return
        try:
            own = ("--host", self.address("master"), "--port", str(self.port))
            self._start("master", "master.Master", *own)
            self._await("master", "New state: ALIVE")
            for n in range(workers):
                self._add_worker(n)
            for n in range(workers):
                self._await(f"worker{n}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise

    def _add_worker(self, n):
        name, work = f"worker{n}", str(self.folder / f"work{n}")
        own = ("--host", self.address(name), "-c", str(self.cores), "-m", "2g", "-d", work)
        self._start(name, "worker.Worker", *own, self.url)

    def _linked(self):
        home = self.folder / "home"
        home.mkdir()
        for entry in self.home.iterdir():
            (home / entry.name).symlink_to(entry)
        return home

    def _write(self, conf, extra):
        conf.mkdir(exist_ok=True)
        file = conf / "spark-defaults.conf"
        file.touch(mode=0o600)
        lines = [f"{key} {value}\n" for key, value in (self.settings | extra).items()]
        file.write_text("".join(lines))

    def environment(self, **extra):
        """Of every process; the driver's has its own settings."""
        env = os.environ | {
            "JAVA_HOME": ensure_java(),
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
        }
        env.pop("SPARK_LOCAL_IP", None)
        return env | extra

    def _start(self, name, kind, *options):
        command = [self.home / "bin/spark-class", f"{CLASSES}.{kind}", "--webui-port", "0"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*self.before(name), *command, *options],
                env=self.environment(PYTHONPATH=""),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _await(self, name, words):
        self.until(lambda: words in self.log(name), f"{name} says {words}: {self.log(name)[-999:]}")

    @staticmethod
    def until(holds, what, seconds=PATIENT_SECONDS):
        """Looks until it holds: Spark's processes tell of themselves in files and tables only."""
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            threading.Event().wait(0.05)
        return found

    def executors(self):
        """Java processes of executors: worker -> process ids."""
        return {
            name: [p for p in children_of(process.pid) if "CoarseGrainedExecutor" in words_of(p)]
            for name, process in self.processes.items()
        }

    def waiting(self, seated, executors=()):
        """How many processes of Python have as many connections as those with seats, and no seat.

        Fewer than that has a worker that still loads its libraries or reads its rows. With none of
        the executors named, those count too that are below none: Spark uses a worker again whose
        daemon was killed.
        """
        sockets = min(map(self.sockets_of, seated))
        pids = set().union(*map(children_of, executors)) if executors else self._python()
        return sum(self.sockets_of(pid) >= sockets for pid in pids - set(seated))

    def _python(self):
        """Daemons and workers of all executors, which work in folders of the cluster's."""
        pids = set()
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            is_here = folder_of(pid).startswith(str(self.folder))
            pids |= {pid} if is_here and "pyspark.worker" in words_of(pid) else set()
        return pids

    @staticmethod
    def sockets_of(pid):
        """How many a process holds: a worker has one to its executor, two to the coordinator."""
        links = []
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    links.append(os.readlink(entry))
        return sum(link.startswith("socket:") for link in links)

    below = staticmethod(children_of)

    @staticmethod
    def are_over(pids):
        return not any(words_of(pid) for pid in pids)

    def executor_of(self, pid):
        """The executor that a Python worker belongs to: (worker, process id).

        It works in the executor's folder, also where it is below none as its daemon was killed.
        """
        for name, executors in self.executors().items():
            for executor in executors:
                if folder_of(executor) == folder_of(pid):
                    return name, executor
        raise AssertionError(f"{pid} belongs to no executor")

    def stop(self):
        everyone = [p for process in self.processes.values() for p in children_of(process.pid)]
        for process in self.processes.values():
            process.kill()
            process.wait()
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Driver:
    """An application on a cluster, in a process of its own: `driver.py`."""

    def __init__(self, folder, archive, environment, before=()):
        self.folder, self.lines = folder, []
        folder.mkdir(parents=True)
        self._news = threading.Condition()
        self._errors = (folder / "driver.log").open("wb")
        self.process = subprocess.Popen(
            [*before, sys.executable, Path(__file__).with_name("driver.py"), archive],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with (self.folder / "events.jsonl").open("a") as file:
                file.write(line)
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self.lines.append({"job": "", "event": "Ended"})
            self._news.notify_all()

    def of(self, event, job=None):
        return [x for x in self.lines if x["event"] == event and job in (None, x["job"])]

    def wait(self, event, job=None, seconds=PATIENT_SECONDS, **fields):
        """Returns the first line of this kind, when it has come."""

        def matching():
            return [x for x in self.of(event, job) if fields.items() <= x.items()]

        def is_over():
            return matching() or self.of("Ended") or (job and self.of("Failed", job))

        with self._news:
            self._news.wait_for(is_over, seconds)
            last = "\n".join(map(str, self.lines[-5:]))
            assert matching(), f"no {event} of {job}: {fields}\n{last}\n{self.log()[-3000:]}"
            return matching()[0]

    def log(self):
        return (self.folder / "driver.log").read_text(errors="replace")

    def say(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def start(self, name, plan, data, *, faults=None, pool="", **fields):
        """Orders a job; its ledger and result are kept under its name."""
        place = self.folder / name
        place.mkdir()
        assignment = {"plan": plan, "data": data, "run": os.urandom(16)} | fields
        order = {"assignment": assignment, "faults": faults or Faults(), "pool": pool}
        (place / "order").write_bytes(cloudpickle.dumps(order))
        self.say(place)

    def result(self, name, seconds=PATIENT_SECONDS):
        """Waits for a job's end; its ledger must be exact."""
        self.wait("Done", name, seconds)
        report = audit(self.folder / name / "ledger.jsonl")
        assert report.is_exact, report.offences
        with np.load(self.folder / name / "result.npz") as arrays:
            return [arrays[key] for key in arrays]

    def train(self, name, plan, data, **fields):
        self.start(name, plan, data, **fields)
        return self.result(name)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            for pid in [*children_of(self.process.pid), self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """photinus as a user ships it to executors that have it not."""
    home, file = Path(photinus.__file__).parent, tmp_path_factory.mktemp("code") / "photinus.zip"
    with zipfile.ZipFile(file, "w") as packed:
        for source in sorted(home.rglob("*.py")):
            packed.write(source, source.relative_to(home.parent))
    return file


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """Starts clusters, and ends them with the last test of the file."""
    with contextlib.ExitStack() as stack:

        def start(settings=None, **fields):
            folder = tmp_path_factory.mktemp("cluster") / "it"
            cluster = Cluster(folder, settings or {}, **fields)
            stack.callback(cluster.stop)
            return cluster

        yield start


@pytest.fixture(scope="module")
def applications(tmp_path_factory, archive):
    """Starts drivers on a cluster, and ends them likewise."""
    with contextlib.ExitStack() as stack:

        def start(cluster):
            folder = tmp_path_factory.mktemp("driver") / "it"
            environment = cluster.environment(PYTHONPATH=HOMES)
            driver = Driver(folder, archive, environment, cluster.before("driver"))
            stack.callback(driver.close)
            driver.wait("Ready")
            return driver

        yield start
