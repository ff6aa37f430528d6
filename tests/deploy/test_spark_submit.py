"""Masters, settings and the line of spark-submit."""

import getpass
import socket

import pytest

from photinus.core.errors import NotReadyError, UsageError
from photinus.deploy.spark_submit import (
    Submission,
    check_answered,
    check_cluster_answered,
    check_master,
    checked_settings,
    home_of_user,
)
from photinus.engine.spark.engine import slots_of

SITE = (
    "<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"
)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Settings of a cluster, as an administrator hands them out."""
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    (tmp_path / "core-site.xml").write_text(SITE.format("hdfs://host:8020/"))
    return tmp_path


@pytest.mark.parametrize(
    ("master", "mode", "words"),
    [
        ("yran", "client", "the master is unknown; got 'yran'; name yarn, spark://HOST:PORT"),
        ("k8s://https://host", "client", "the master is unknown"),
        ("spark://host", "client", "the master is unknown"),
        ("local[4", "client", "the master is unknown"),
        ("spark://host:7077", "cluster", "only YARN runs a Python driver on a node"),
        ("local", "cluster", "only YARN runs a Python driver on a node"),
    ],
)
def test_a_wrong_master_is_refused(master, mode, words):
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        check_master(master, mode)


@pytest.mark.parametrize("master", ["spark://a:7077", "spark://a:7077,b:7077", "local", "local[*]"])
def test_a_master_that_needs_no_settings_is_taken(master):
    check_master(master, "client")


def test_of_several_masters_one_must_answer():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        alive, dead = (f"127.0.0.1:{s.getsockname()[1]}" for s in (server, bound))
        for master in (f"spark://{alive}", f"spark://{dead},{alive}", "yarn", "local[2]"):
            check_answered(master)
        for master in (f"spark://{dead}", f"spark://{dead},{dead}"):
            with pytest.raises(NotReadyError, match=f"nothing answers at spark://{dead}; got"):
                check_answered(master)


def test_a_file_system_and_a_yarn_that_do_not_answer_are_told_at_once(cluster):
    def write(name, **settings):
        properties = "".join(
            f"<property><name>{key.replace('_', '.')}</name><value>{value}</value></property>"
            for key, value in settings.items()
        )
        (cluster / name).write_text(f"<configuration>{properties}</configuration>")

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        alive, dead = (f"127.0.0.1:{s.getsockname()[1]}" for s in (server, bound))
        write("core-site.xml", fs_defaultFS=f"hdfs://{dead}")
        with pytest.raises(NotReadyError, match=f"^nothing answers at hdfs://{dead}/user/"):
            check_cluster_answered()
        write("core-site.xml", fs_defaultFS=f"hdfs://{alive}")
        check_cluster_answered()  # yarn-site.xml names no ResourceManager
        rm = "yarn.resourcemanager"
        write("yarn-site.xml", **{f"{rm}.address": dead})
        with pytest.raises(NotReadyError, match=f"^YARN's ResourceManager cannot .*yarn://{dead}"):
            check_cluster_answered()
        port = "${yarn.resourcemanager.hostname}:" + alive.partition(":")[2]
        both = {f"{rm}.ha.rm-ids": "a, b", f"{rm}.address.a": dead, f"{rm}.address.b": alive}
        for answered in (
            {f"{rm}.hostname": "127.0.0.1", f"{rm}.address": port},
            both,
            both | {f"{rm}.address.b": "${of.another.setting}"},
        ):
            write("yarn-site.xml", **answered)
            check_cluster_answered()


def test_yarn_needs_the_clusters_settings(cluster, monkeypatch, tmp_path):
    check_master("yarn", "cluster")
    (cluster / "yarn-site.xml").unlink()
    with pytest.raises(NotReadyError, match=f"no yarn-site.xml; got {cluster}"):
        check_master("yarn", "client")
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(NotReadyError, match="got neither HADOOP_CONF_DIR nor YARN_CONF_DIR"):
        check_master("yarn", "client")


def test_the_users_folder_lies_on_the_clusters_own_file_system(cluster, monkeypatch):
    assert home_of_user() == f"hdfs://host:8020/user/{getpass.getuser()}"
    monkeypatch.setenv("HADOOP_USER_NAME", "mary")
    assert home_of_user() == "hdfs://host:8020/user/mary"
    for wrong in ("file:///", ""):
        (cluster / "core-site.xml").write_text(SITE.format(wrong))
        with pytest.raises(NotReadyError, match="names no file system that all nodes share"):
            home_of_user()
    (cluster / "core-site.xml").write_text("no xml")
    with pytest.raises(NotReadyError, match="cannot be read"):
        home_of_user()


@pytest.mark.parametrize(
    "name",
    ["spark.authenticate.secret", "spark.ssl.keyPassword", "spark.hadoop.fs.s3a.access.key"],
)
def test_a_secret_does_not_stand_in_a_command(name):
    with pytest.raises(UsageError, match=r"write it into spark-defaults\.conf"):
        checked_settings((f"{name}=1234",))


@pytest.mark.parametrize("text", ["spark.executor.memory", "executor.memory=1g", ""])
def test_what_is_no_setting_of_sparks_is_refused(text):
    with pytest.raises(UsageError, match=r"must be spark\.NAME=VALUE"):
        checked_settings((text,))


def pairs(arguments, option):
    return [arguments[i + 1] for i, word in enumerate(arguments) if word == option]


def test_on_yarn_all_travels_and_every_worker_has_a_container_of_its_own():
    run = Submission(
        master="yarn",
        deploy_mode="cluster",
        workers=3,
        threads=2,
        code=("photinus.zip", "mynets.py"),
        environment="hdfs://host/e.tar.gz",
        jars="hdfs://host/s.zip",
        python="python3.11",
        settings={"spark.executor.memory": "4g"},
    )
    arguments = run.arguments()
    assert pairs(arguments, "--archives") == ["hdfs://host/e.tar.gz#environment"]
    assert pairs(arguments, "--py-files") == ["photinus.zip,mynets.py"]
    settings = dict(text.split("=", 1) for text in pairs(arguments, "--conf"))
    assert settings == run.all_settings()
    assert (
        settings.items()
        >= {
            "spark.pyspark.python": "./environment/bin/python",
            "spark.yarn.archive": "hdfs://host/s.zip",
            "spark.executor.instances": "3",
            "spark.executor.cores": "2",
            "spark.task.cpus": "2",
            "spark.executor.memory": "4g",
            "spark.authenticate": "true",
            "spark.executorEnv.PHOTINUS_NODE_PYTHON": "python3.11",
            "spark.yarn.appMasterEnv.PHOTINUS_NODE_PYTHON": "python3.11",
        }.items()
    )


def test_where_all_is_installed_nothing_travels():
    run = Submission(master="spark://a:7077", workers=2, python="python3.11")
    arguments = run.arguments()
    assert not {"--archives", "--py-files"} & set(arguments)
    assert run.all_settings()["spark.pyspark.python"] == "python3.11"
    assert run.all_settings()["spark.cores.max"] == "2"
    assert not [name for name in run.all_settings() if "yarn" in name]


def test_the_nodes_python_is_named_to_the_packages_that_travel():
    run = Submission(master="spark://a:7077", environment="e.tar.gz", python="python3.11")
    settings = run.all_settings()
    assert settings["spark.pyspark.python"] == "./environment/bin/python"
    assert settings["spark.executorEnv.PHOTINUS_NODE_PYTHON"] == "python3.11"


def test_a_python_that_a_setting_names_is_that_of_the_workers():
    settings = {"spark.pyspark.python": "/opt/python"}
    run = Submission(master="yarn", environment="mine.tar.gz", settings=settings)
    assert run.worker_python == "/opt/python"


def test_a_users_own_way_to_sparks_jars_stays():
    settings = {"spark.yarn.jars": "local:/opt/spark/jars/*"}
    run = Submission(master="yarn", jars="hdfs://host/s.zip", settings=settings)
    assert "spark.yarn.archive" not in run.all_settings()


@pytest.mark.parametrize("master", ["yarn", "spark://a:7077"])
def test_on_a_cluster_executors_end_soon_after_their_driver_unless_the_user_says_else(master):
    names = ("spark.executor.heartbeatInterval", "spark.executor.heartbeat.maxFailures")
    settings = Submission(master=master).all_settings()
    assert [settings[name] for name in names] == ["2s", "7"]
    overridden = Submission(master=master, settings={names[1]: "60"}).all_settings()
    assert [overridden[name] for name in names] == ["2s", "60"]


def test_a_driver_that_sends_an_environment_asks_for_no_quick_heartbeats():
    """Its answers would wait behind 350 MB: a worker that lost the driver ends its executor."""
    run = Submission(master="spark://a:7077", environment="e.tar.gz", python="/usr/bin/python3")
    settings = run.all_settings()
    assert not [name for name in settings if "heartbeat" in name]
    assert settings["spark.executorEnv.PHOTINUS_ENDS_EXECUTOR"] == "1"


def test_where_driver_and_executor_are_one_process_heartbeats_are_sparks_own():
    assert not [name for name in Submission(master="local").all_settings() if "heartbeat" in name]


def test_local_means_a_slot_for_every_worker_and_tasks_that_are_tried_again():
    assert Submission(master="local", workers=3).arguments()[1] == "local[3,20]"
    assert Submission(master="local[8]", workers=3).arguments()[1] == "local[8]"


class PendingSession:
    """A session on YARN that has no executor yet."""

    def __init__(self, **settings):
        self.settings = {"spark.master": "yarn"} | settings
        self.conf = self.settings
        self.sparkContext = self._jsc = self._jsparkSession = self

    def sc(self):
        return self


def test_on_yarn_the_containers_that_were_asked_for_are_the_slots_whenever_they_come():
    conf = {"spark.executor.instances": "3", "spark.executor.cores": "4", "spark.task.cpus": "2"}
    assert slots_of(PendingSession(**conf)) == 6
    assert slots_of(PendingSession()) == 2, "Spark's own number"
