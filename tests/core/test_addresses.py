import os
import sys

import pytest

from photinus.core.addresses import filesystem, local_folder
from photinus.core.errors import NotReadyError, UsageError


def test_without_fsspec_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(NotReadyError, match=r"pip install 'photinus\[hdfs\]'"):
        filesystem("hdfs://there/runs")


def test_where_only_pyarrow_opens_hdfs_one_line_says_what_to_install(monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def url_to_fs(*_, **__):
        raise OSError("Unable to load libjvm\ndlopen(/usr/a) failed\ndlopen(/usr/b) failed")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotReadyError) as caught:
        filesystem("hdfs://there/runs")
    wrong = "hdfs://there/runs cannot be opened; got Unable to load libjvm"
    assert str(caught.value) == f"{wrong}; pip install 'photinus[hdfs]'"


def test_an_address_is_opened_to_its_path():
    pytest.importorskip("fsspec")
    system, path = filesystem("memory://runs/first/")
    assert (system.protocol, path) == ("memory", "/runs/first")


def test_nothing_is_kept_that_a_fork_would_drop():
    pytest.importorskip("fsspec")
    system, _ = filesystem("memory://runs")
    assert system is not filesystem("memory://runs")[0]


def test_what_is_kept_on_this_machine_only_takes_no_address(tmp_path):
    assert local_folder(f"file://{tmp_path}", "a page is written") == tmp_path
    words = "a page is written on this machine only; got hdfs://h/p; name a path on it"
    with pytest.raises(UsageError, match=words):
        local_folder("hdfs://h/p", "a page is written")


def test_in_a_container_files_belong_to_the_user_who_submitted(monkeypatch, tmp_path):
    pytest.importorskip("fsspec")
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("SPARK_USER", "ann")
    monkeypatch.setenv("HADOOP_USER_NAME", "")
    monkeypatch.delenv("HADOOP_USER_NAME")
    filesystem("memory://runs")
    assert "HADOOP_USER_NAME" not in os.environ
    (tmp_path / "__spark_conf__" / "__hadoop_conf__").mkdir(parents=True)
    monkeypatch.setenv("HADOOP_CONF_DIR", "named")
    filesystem("memory://runs")
    assert os.environ["HADOOP_USER_NAME"] == "ann"


def test_in_a_container_the_clusters_settings_are_those_that_spark_sent(monkeypatch, tmp_path):
    pytest.importorskip("fsspec")
    shipped = tmp_path / "__spark_conf__" / "__hadoop_conf__"
    shipped.mkdir(parents=True)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("HADOOP_CONF_DIR", "named")
    filesystem("memory://runs")
    assert os.environ["HADOOP_CONF_DIR"] == "named"
    monkeypatch.delenv("HADOOP_CONF_DIR")
    filesystem("memory://runs")
    assert os.environ["HADOOP_CONF_DIR"] == str(shipped)
