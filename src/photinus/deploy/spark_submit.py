"""Builds the spark-submit command: masters, settings, files."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from photinus.core.addresses import is_address
from photinus.core.errors import NotReadyError, UsageError, reason_of
from photinus.deploy.executor_process import ENDS_EXECUTOR
from photinus.deploy.packaging import LAUNCHER
from photinus.transport.filesystems import check_reachable

_MASTER: Final = re.compile(r"yarn|spark://[^/\s]+:\d+(,[^/\s]+:\d+)*|local(\[[0-9*]+(,\d+)?\])?")
_SECRET_NAME: Final = re.compile(r"secret|password|token|credential|access\.key|keyPassword", re.I)
JARS_SETTINGS: Final = {"spark.yarn.jars", "spark.yarn.archive"}
"""Where the nodes find Spark's jars."""
_MAX_APP_ATTEMPTS: Final = 4
"""Of a driver that YARN starts again; YARN's own yarn.resourcemanager.am.max-attempts limits it."""
_MAX_TASK_FAILURES: Final = 20
_MAX_EXECUTOR_FAILURES: Final = 1000
"""Before Spark gives the application up; its own limit is twice the executors."""
HEARTBEATS: Final = {
    "spark.executor.heartbeatInterval": "2s",
    "spark.executor.heartbeat.maxFailures": "7",
}
"""An executor whose driver answers nothing is gone within 30 s: after 7 or 8 intervals, and 10 s
that Spark waits for the thread that sends them."""
_MEMORY_OVERHEAD: Final = "2048m"
"""Outside of Java: torch, the rows, and what a worker computes with."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An application: where it runs, what travels with it, and Spark's settings for it.

    Example:
        >>> run = Submission(master="spark://host:7077", workers=2, code=("photinus.zip",))
        >>> run.arguments()[:4]
        ['--master', 'spark://host:7077', '--deploy-mode', 'client']
    """

    master: str
    deploy_mode: str = "client"
    name: str = "photinus"
    workers: int = 1
    threads: int = 1
    code: tuple[str, ...] = ()
    """Python files and zips: photinus, where the nodes have it not, and modules of the user's."""
    environment: str = ""
    """The archive of the packages, likewise."""
    jars: str = ""
    """The archive of Spark's jars; "" leaves Spark its own way."""
    python: str = ""
    """The nodes' Python; "" for what is on their PATH."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the user's; they win."""

    @property
    def worker_python(self) -> str:
        """The program that nodes start."""
        if own_python := self.settings.get("spark.pyspark.python"):
            return own_python  # Spark itself reads it only where spark-submit starts the driver
        return f"./environment/{LAUNCHER}" if self.environment else self.python or "python3"

    def all_settings(self) -> dict[str, str]:
        """Returns Spark's settings, by name."""
        settings = self._common_settings()
        if not self.master.startswith("local"):
            settings |= self._executor_settings()
        if self.master.startswith("spark:"):
            settings["spark.cores.max"] = str(self.workers * self.threads)
        if self.master == "yarn":
            settings |= self._yarn_settings()
        return {**settings, **self.settings}

    def arguments(self) -> list[str]:
        """Returns spark-submit's arguments before the program's name; no secret is among them."""
        is_plain = self.master == "local"
        master = f"local[{self.workers},{_MAX_TASK_FAILURES}]" if is_plain else self.master
        arguments = ["--master", master, "--deploy-mode", self.deploy_mode, "--name", self.name]
        for name, path in (("--py-files", ",".join(self.code)), ("--archives", self._archives())):
            arguments += [name, path] if path else []
        for name, value in sorted(self.all_settings().items()):
            arguments += ["--conf", f"{name}={value}"]
        return arguments

    def _archives(self) -> str:
        return f"{self.environment}#environment" if self.environment else ""

    def _common_settings(self) -> dict[str, str]:
        return {
            "spark.pyspark.python": self.worker_python,
            "spark.task.maxFailures": str(_MAX_TASK_FAILURES),
            "spark.speculation": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.python.daemon.module": "photinus.engine.spark.daemon",
        }

    def _executor_settings(self) -> dict[str, str]:
        """One worker an executor: a container that is lost takes one with it."""
        settings = {
            "spark.executor.cores": str(self.threads),
            "spark.task.cpus": str(self.threads),
            "spark.executor.memory": "1g",
            "spark.executor.memoryOverhead": _MEMORY_OVERHEAD,
            "spark.executor.maxNumFailures": str(_MAX_EXECUTOR_FAILURES),
        }
        if self.master == "yarn" or not self.environment:
            settings |= HEARTBEATS
        else:  # a driver that sends an environment to executors answers no heartbeat meanwhile
            settings[f"spark.executorEnv.{ENDS_EXECUTOR}"] = "1"
        return settings | self._launcher_settings("spark.executorEnv")

    def _launcher_settings(self, prefix: str) -> dict[str, str]:
        """What the environment's launcher reads."""
        is_named = bool(self.python and self.environment)
        return {f"{prefix}.PHOTINUS_NODE_PYTHON": self.python} if is_named else {}

    def _yarn_settings(self) -> dict[str, str]:
        """On YARN Spark makes a secret for each application by itself."""
        settings = {
            "spark.executor.instances": str(self.workers),
            "spark.yarn.maxAppAttempts": str(_MAX_APP_ATTEMPTS),
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
        }
        if self.jars and not JARS_SETTINGS & set(self.settings):
            settings["spark.yarn.archive"] = self.jars
        settings |= self._launcher_settings("spark.yarn.appMasterEnv")
        if self.deploy_mode == "cluster":
            settings |= {
                "spark.driver.memory": "1g",
                "spark.driver.memoryOverhead": _MEMORY_OVERHEAD,
            }
        return settings


def check_master(master: str, deploy_mode: str) -> None:
    """Refuses an unknown master, and a mode that the master does not have.

    Raises:
        UsageError: the message names those that there are.
        NotReadyError: the cluster's settings are not here.
    """
    if not _MASTER.fullmatch(master):
        known = "yarn, spark://HOST:PORT, local or local[N]"
        raise UsageError("the master is unknown", got=repr(master), do=f"name {known}")
    if master != "yarn" and deploy_mode == "cluster":
        raise UsageError(
            "only YARN runs a Python driver on a node",
            got=f"--master {master} --deploy-mode cluster",
            do="--deploy-mode client",
        )
    if master == "yarn":
        _settings_folder("yarn-site.xml")


def check_answered(master: str) -> None:
    """Asks a standalone master for a connection first: Spark itself tries for a minute.

    Raises:
        NotReadyError: none of the masters that are named answers.
    """
    scheme, _, hosts = master.partition("://")
    if scheme != "spark":
        return
    *others, last = (f"spark://{host}" for host in hosts.split(","))
    for address in others:
        with contextlib.suppress(NotReadyError):
            return check_reachable(address)
    check_reachable(last)


def check_cluster_answered() -> None:
    """Asks the cluster's file system and YARN for a connection: their clients try for many minutes.

    Raises:
        NotReadyError: one of them does not answer.
    """
    check_reachable(home_of_user())
    managers = _resource_managers()
    for n, address in enumerate(managers, 1):
        try:
            return check_reachable(address)
        except NotReadyError as error:
            if n == len(managers):
                wrong = f"YARN's ResourceManager cannot be reached: {error}"
                raise NotReadyError(wrong) from error


def _resource_managers() -> list[str]:
    """Returns where YARN's ResourceManagers listen; none where its settings do not say it."""
    settings = _read_settings("yarn-site.xml")
    names = settings.get("yarn.resourcemanager.ha.rm-ids", "").replace(" ", "").split(",")
    addresses = []
    for suffix in (f".{name}" if name else "" for name in names):
        host = settings.get(f"yarn.resourcemanager.hostname{suffix}", "")
        address = settings.get(f"yarn.resourcemanager.address{suffix}") or f"{host}:8032"
        addresses.append(address.replace("${yarn.resourcemanager.hostname}", host))
    is_known = all(re.fullmatch(r"[\w.-]+:\d+", address) for address in addresses)
    return [f"yarn://{address}" for address in addresses] if is_known else []


def _settings_folder(file: str) -> Path:
    folders = [
        os.environ[name] for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR") if name in os.environ
    ]
    for folder in folders:
        if Path(folder, file).is_file():
            return Path(folder)
    raise NotReadyError(
        f"the cluster's settings are not here: no {file}",
        got=", ".join(folders) or "neither HADOOP_CONF_DIR nor YARN_CONF_DIR",
        do="copy /etc/hadoop/conf from a node and set HADOOP_CONF_DIR to it",
    )


def _read_settings(name: str) -> dict[str, str]:
    file = _settings_folder(name) / name
    try:
        settings = ElementTree.parse(file).getroot()  # noqa: S314 - the administrator's own file
    except (OSError, ElementTree.ParseError) as error:
        raise NotReadyError(f"{file} cannot be read", got=reason_of(error)) from error
    properties = settings.iter("property")
    return {p.findtext("name", "").strip(): p.findtext("value", "").strip() for p in properties}


def home_of_user() -> str:
    """Returns the user's folder on the cluster's own file system, such as hdfs://host/user/me.

    Raises:
        NotReadyError: the cluster's settings name no file system that all nodes share.
    """
    values = _read_settings("core-site.xml")
    root = (values.get("fs.defaultFS") or values.get("fs.default.name") or "").rstrip("/")
    if not is_address(root):
        file = _settings_folder("core-site.xml") / "core-site.xml"
        raise NotReadyError(
            f"{file} names no file system that all nodes share: fs.defaultFS",
            got=root or "none",
            do="set HADOOP_CONF_DIR to the cluster's settings",
        )
    return f"{root}/user/{os.environ.get('HADOOP_USER_NAME') or getpass.getuser()}"


def checked_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Returns settings of Spark's, `spark.name=value` each.

    Raises:
        UsageError: one is none, or a secret: every user of the machine could read it.

    Example:
        >>> checked_settings(("spark.executor.memory=4g",))
        {'spark.executor.memory': '4g'}
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise UsageError("a setting of Spark's must be spark.NAME=VALUE", got=repr(text))
        if _SECRET_NAME.search(name):
            raise UsageError(
                f"{name} must not stand in a command, which all users of the machine can read",
                do="write it into spark-defaults.conf, mode 600, in the folder SPARK_CONF_DIR",
            )
        settings[name] = value
    return settings
