import os
import socket
import subprocess
import sys
import threading
import types
from contextlib import suppress

import pytest

from photinus.core.errors import NotReadyError, UsageError
from photinus.engine.spark import session
from photinus.engine.spark.engine import free_slots


class Builder:
    """Keeps what it is told; `failure` is what starting raises."""

    failure: Exception | None = None

    def __init__(self):
        self.settings = {}

    def appName(self, name):  # noqa: N802 - pyspark's name
        return self.config("spark.app.name", name)

    def config(self, key, value):
        self.settings[key] = value
        return self

    def getOrCreate(self):  # noqa: N802 - pyspark's name
        if self.failure:
            raise self.failure
        return self


@pytest.fixture
def pyspark(monkeypatch):
    """A pyspark that starts no Java, with no session yet."""
    fake = types.ModuleType("pyspark")
    sql = types.ModuleType("pyspark.sql")
    fake.SparkContext = types.SimpleNamespace(_active_spark_context=None)
    sql.SparkSession = types.SimpleNamespace(getActiveSession=lambda: None, builder=Builder())
    monkeypatch.setitem(sys.modules, "pyspark", fake)
    monkeypatch.setitem(sys.modules, "pyspark.sql", sql)
    monkeypatch.setitem(sys.modules, "pyspark.logger", None)
    monkeypatch.setattr(session, "ensure_java", lambda: "/a/java")
    monkeypatch.setattr(session, "reading_options", lambda home: f"-XX:SharedArchiveFile={home}")
    monkeypatch.setattr(os, "environ", {})
    return fake


def conf(**settings):
    values = {key.replace("__", "."): value for key, value in settings.items()}
    return types.SimpleNamespace(conf=types.SimpleNamespace(get=values.get))


def test_our_own_application_survives_a_thousand_failures(pyspark):
    settings = session.spark_session(4, name="digits").settings
    assert settings["spark.master"] == "local[4,20]"
    assert settings["spark.task.maxFailures"] == "20"
    assert settings["spark.app.name"] == "digits"


def test_our_own_application_starts_from_an_archive_of_its_javas_classes(pyspark):
    settings = session.spark_session(1).settings
    assert settings["spark.driver.defaultJavaOptions"].endswith(" -XX:SharedArchiveFile=/a/java")


def test_our_own_application_opens_no_port_to_others(pyspark):
    settings = session.spark_session(1).settings
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_the_workers_run_this_python_unless_the_user_named_another(pyspark):
    os.environ["PYSPARK_PYTHON"] = "/their/python"
    session.spark_session(1)
    assert os.environ["PYSPARK_PYTHON"] == "/their/python"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["JAVA_HOME"] == "/a/java"


def test_extra_settings_win_over_ours(pyspark):
    assert session.spark_session(1, extra={"spark.driver.memory": "8g"}).settings[
        "spark.driver.memory"
    ] == ("8g")


def test_an_active_session_is_used_as_it_is(pyspark):
    theirs = object()
    sys.modules["pyspark.sql"].SparkSession.getActiveSession = lambda: theirs
    assert session.spark_session(4) is theirs
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("named", ["PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"])
def test_an_application_that_the_user_submitted_is_not_configured(pyspark, named):
    os.environ[named] = "x"
    assert session.spark_session(4).settings == {}


def test_a_context_without_an_active_session_is_not_configured(pyspark):
    pyspark.SparkContext._active_spark_context = object()
    assert session.spark_session(4).settings == {}


def test_no_workers_are_refused(pyspark):
    with pytest.raises(UsageError, match="workers must be at least 1; got 0"):
        session.spark_session(0)


def test_without_pyspark_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(NotReadyError, match=r"pip install 'photinus\[spark\]'"):
        session.spark_session(1)


def test_a_start_that_fails_is_one_sentence(pyspark, monkeypatch):
    monkeypatch.setattr(Builder, "failure", RuntimeError("Java gateway process exited\n  at ..."))
    with pytest.raises(NotReadyError) as caught:
        session.spark_session(1)
    assert str(caught.value) == (
        "Spark did not start; got Java gateway process exited; photinus doctor"
    )


def test_a_cluster_that_lets_nobody_in_is_told_without_javas_trace(pyspark, monkeypatch):
    message = (
        "An error occurred while calling None.X.\n: java.lang.IllegalStateException: a stopped"
    )
    monkeypatch.setattr(Builder, "failure", RuntimeError(f"{message} context\n\tat org.apache"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://one:7077 pyspark-shell")
    with pytest.raises(NotReadyError) as caught:
        session.spark_session(1)
    assert "got java.lang.IllegalStateException: a stopped context; look at" in str(caught.value)
    assert "here or in logs/spark.log of the run" in str(caught.value)
    assert "spark.authenticate.secret" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("master", "setting", "failures"),
    [
        ("local", "1000", 1),
        ("local[*]", "1000", 1),
        ("local[4, 7]", "1000", 7),
        ("local[4,20]", "4", 20),
        ("local-cluster[2,1,1024]", "4", 4),
        ("yarn", "8", 8),
    ],
)
def test_local_mode_takes_its_retries_from_the_master(master, setting, failures):
    assert session._failures(master, {"spark.task.maxFailures": setting}) == failures


@pytest.mark.parametrize("wrong", ["many", "", "-1", "0", "2.5", "1_0"])
def test_a_count_that_is_no_number_is_refused_by_the_name_of_the_setting(wrong):
    refusal = rf"spark.task.maxFailures must be a whole number, at least 1; got '{wrong}'; start"
    with pytest.raises(UsageError, match=refusal):
        session.session_warnings(conf(spark__master="yarn", spark__task__maxFailures=wrong))


def test_sparks_default_holds_where_a_count_is_not_set():
    assert session.whole_setting({}, "spark.task.cpus", 1) == 1
    assert session.whole_setting({"spark.task.cpus": " 2 "}, "spark.task.cpus", 1) == 2


def test_on_connect_each_session_has_an_id_of_its_own():
    one, other = (types.SimpleNamespace(session_id=name) for name in ("a", "b"))
    assert [session.application_of(each) for each in (one, other)] == ["a", "b"]


def test_without_a_count_of_slots_the_number_of_workers_must_be_named(monkeypatch):
    monkeypatch.setattr("photinus.engine.spark.engine.slots_of", lambda _: None)
    with pytest.raises(UsageError, match=r"how many tasks can run at the same time; .*set numWork"):
        free_slots(conf())


def test_a_session_like_ours_has_no_warnings():
    assert session.session_warnings(conf(spark__master="local[2,20]")) == []


def test_a_cluster_that_gives_up_early_is_warned_of():
    (warning,) = session.session_warnings(conf(spark__master="yarn"))
    assert "gives a task up after 4 failures" in warning
    assert "spark.task.maxFailures" in warning


def test_plain_local_mode_is_warned_of_with_the_master_that_fits():
    (warning,) = session.session_warnings(conf(spark__master="local[*]"))
    assert "after 1 failure, and its job" in warning
    assert "local[N,20]" in warning


def test_speculation_and_the_progress_bar_are_warned_of():
    warnings = session.session_warnings(
        conf(
            spark__master="local[2,20]",
            spark__speculation="true",
            spark__ui__showConsoleProgress="true",
        ),
        has_view=True,
    )
    assert ["spark.speculation" in warnings[0], "showConsoleProgress" in warnings[1]] == [True] * 2


def test_sparks_progress_bar_is_nobodys_trouble_where_no_view_is_drawn(monkeypatch):
    """A script or a notebook shows nothing else; the command line sends it to a file."""
    shown = {"spark__master": "local[2,20]", "spark__ui__showConsoleProgress": "true"}
    assert session.session_warnings(conf(**shown)) == []
    for is_screen in (True, False):
        monkeypatch.setattr("os.isatty", lambda file, answer=is_screen: answer)
        setting = session._settings(2)["spark.ui.showConsoleProgress"]
        assert setting == ("true" if is_screen else "false")


@pytest.mark.spark
def test_a_real_session_starts_quietly_and_retries_a_killed_worker(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "from photinus.engine.spark.session import session_warnings, spark_session\n"
        "def task(batches):\n"
        "    from pyspark import TaskContext\n"
        "    if TaskContext.get().attemptNumber() == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    yield from batches\n"
        "flags = '-XX:TieredStopAtLevel=1'\n"
        "spark = spark_session(2, extra={'spark.driver.extraJavaOptions': flags})\n"
        "assert spark_session(3) is spark\n"
        "print(spark.range(10).repartition(2).mapInArrow(task, 'id long').count())\n"
        "print(session_warnings(spark))\n"
        "try: spark.range(1).select('no such column')\n"
        "except Exception as error: print(type(error).__name__)\n"
        "spark.stop()\n"
    )
    completed = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, timeout=240
    )
    assert completed.stdout.splitlines() == ["10", "[]", "AnalysisException"], completed.stderr
    lines = [line for line in completed.stderr.splitlines() if "incubator" not in line]
    assert lines == []


def test_a_connect_server_that_does_not_answer_is_told_at_once_and_its_token_is_not(
    pyspark, monkeypatch
):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        server = f"sc://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("SPARK_REMOTE", f"{server}/;token=hidden")
        with pytest.raises(NotReadyError, match=f"nothing answers at {server}; got") as told:
            session.spark_session(1)
    assert "hidden" not in str(told.value)


def test_a_connect_server_without_tls_is_told_at_once_where_there_is_a_token(pyspark, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer_in_http2():
            with suppress(OSError):  # nobody listens any more
                while True:
                    with listening.accept()[0] as asking, suppress(OSError):
                        asking.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # empty settings
                        asking.recv(4096)

        answering = threading.Thread(target=answer_in_http2)
        answering.start()
        for host, parameters, words in (
            ("127.0.0.1", "token=hidden", "a token needs TLS"),
            ("localhost", "use_ssl=true;token=hidden", "use_ssl=true asks for TLS"),
        ):
            address = f"sc://{host}:{port}"
            monkeypatch.setenv("SPARK_REMOTE", f"{address}/;{parameters}")
            message = f"{words}, which the server does not speak; got {address}; put it"
            with pytest.raises(NotReadyError, match=message):
                session.spark_session(1)
        for remote in (f"sc://127.0.0.1:{port}", f"sc://localhost:{port}/;token=hidden"):
            monkeypatch.setenv("SPARK_REMOTE", remote)
            assert session.spark_session(4).settings == {}
        listening.shutdown(socket.SHUT_RDWR)
        answering.join()


def test_a_connect_address_without_the_slash_before_its_token_shows_no_token(pyspark, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://one:15002;token=hidden")
    with pytest.raises(UsageError, match=r"got sc://one:15002;\.\.\.; write it as sc://") as told:
        session.spark_session(1)
    assert "hidden" not in str(told.value)


def test_a_connect_server_that_photinus_asked_for_is_asked_nothing_as_the_process_ends(
    pyspark, monkeypatch
):
    forgotten, client = [], types.SimpleNamespace(_cleanup_ml_cache=lambda: None)
    monkeypatch.setattr(Builder, "client", client, raising=False)
    monkeypatch.setattr("atexit.unregister", forgotten.append)
    monkeypatch.setenv("SPARK_REMOTE", "x")
    session.spark_session(1)
    assert forgotten == [client._cleanup_ml_cache]


def test_a_classic_session_of_another_program_is_not_asked_for_its_connect_client(
    pyspark, monkeypatch
):
    def refuse(_):
        raise RuntimeError("SparkSession.client is only supported with Spark Connect")

    monkeypatch.setattr(Builder, "client", property(refuse), raising=False)
    monkeypatch.setattr(Builder, "_jsparkSession", None, raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://one:7077 pyspark-shell")
    assert session.spark_session(1).settings == {}
