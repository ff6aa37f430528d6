"""A Spark Connect server of its own, with a token, in processes of its own.

A client of Spark Connect changes what pyspark's functions do in its whole process, so these checks
are no tests of the common run: `tests/system/test_connect.py` starts them in another pytest.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from photinus.checkpoint.folder import RunFolder
from photinus.deploy.java import ensure_java

_START_SECONDS = 90.0
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def connect_server(folder, master="local[4,8]", **conf):
    """Yields the address of a server that wants a token; the token is in no command line."""
    home, port, token = Path(pyspark.__file__).parent, free_port(), secrets.token_hex(16)
    settings = {
        "spark.master": master,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.connect.authenticate.token": token,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": _QUICK,
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": "photinus.engine.spark.daemon",
        **conf,
    }
    properties = folder / "server.properties"
    properties.touch(mode=0o600)
    properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    jar = [*home.glob("jars/spark-connect_*.jar")]
    where = (
        [] if jar else ["--packages", f"org.apache.spark:spark-connect_2.12:{pyspark.__version__}"]
    )
    submit = [str(home / "bin" / "spark-submit"), "--properties-file", str(properties), *where]
    environment = {
        **os.environ,
        "JAVA_HOME": ensure_java(),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("SPARK_REMOTE", None)
    server = subprocess.Popen(
        [*submit, "--class", _CLASS, "--name", "connect", "spark-internal"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    output, news = [], threading.Event()
    reader = threading.Thread(target=_read, args=(server.stdout, output, news), daemon=True)
    reader.start()
    try:
        assert news.wait(_START_SECONDS), f"Spark Connect did not start:\n{output[-30:]}"
        assert server.poll() is None, f"Spark Connect has ended:\n{output[-30:]}"
        yield f"sc://localhost:{port}/;token={token}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        reader.join()
        server.stdout.close()


def _read(pipe, output, news):
    """Keeps what the server says; the news is that it listens, or that it has ended."""
    for line in pipe:
        output.append(line)
        if "Spark Connect server started" in line:
            news.set()
    news.set()


@pytest.fixture(scope="session")
def start_server():
    return connect_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="session")
def connected(server):
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(server).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def assignment(tiny, tmp_path):
    """The tiny job, for a run folder."""
    place = RunFolder(tmp_path / "run")

    def make(*args, **fields):
        return tiny.assignment(*args, folder=str(place.path), term=place.claim_term(), **fields)

    return make
