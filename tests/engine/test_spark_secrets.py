"""A run's keys travel in the tasks' closures, and are nowhere else while it lasts."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from photinus.core.events import RoundClosed
from photinus.engine.spark.engine import SparkEngine
from photinus.transport.credentials import Credentials

pytestmark = pytest.mark.spark


def processes(root):
    """Returns a process and all below it."""
    below = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        below.setdefault(parent, []).append(int(place.name))
    pids = [root]
    for pid in pids:
        pids += below.get(pid, [])
    return pids


class Places:
    """All that others can read of an application: its settings, processes and files."""

    def __init__(self, spark, since):
        self.texts = {"settings": repr(spark.sparkContext.getConf().getAll()).encode()}
        self.texts["settings of the session"] = repr(spark.conf.getAll).encode()
        for pid in processes(os.getpid()):
            for kind in ("cmdline", "environ"):
                try:
                    self.texts[f"{kind} of {pid}"] = Path("/proc", str(pid), kind).read_bytes()
                except (FileNotFoundError, ProcessLookupError):
                    continue
        # where Spark keeps its blocks, broadcasts among them
        temporary = Path(tempfile.gettempdir())
        for place in (*temporary.glob("blockmgr-*"), *temporary.glob("spark-*")):
            for path in place.rglob("*"):
                try:
                    if path.is_file() and path.stat().st_mtime >= since:
                        self.texts[str(path)] = path.read_bytes()
                except FileNotFoundError:
                    continue

    def with_(self, word):
        return [name for name, text in self.texts.items() if word in text]


def test_keys_stand_in_no_setting_argument_environment_or_file_of_spark(spark, tiny, monkeypatch):
    keys, places = [], []
    since = time.time() - 1.0  # a file's time lags behind the clock by some milliseconds
    worker = Credentials.worker

    def recorded_worker(self, **fields):
        keys.append(worker(self, **fields))
        return keys[-1]

    def look(event):
        if isinstance(event, RoundClosed) and not places:
            places.append(Places(spark, since))

    monkeypatch.setattr(Credentials, "worker", recorded_worker)
    broadcast = spark.sparkContext.broadcast(b"a word that is handed to all")
    plan = tiny.plan(recipes=tiny.recipes[:1])
    SparkEngine(spark).run(tiny.assignment(plan, emit=look))
    [seen] = places
    assert seen.with_(b"photinus tests"), "what is in the settings is found"
    assert seen.with_(b"pyspark"), "and what is in arguments"
    assert seen.with_(b"a word that is handed to all"), "and what is a broadcast"
    broadcast.destroy()
    assert keys
    for key in keys:
        body = key.secret.splitlines()[1]
        for word in (body, key.password, key.seal, key.password.hex().encode()):
            assert len(word) >= 16
            assert seen.with_(word) == []
