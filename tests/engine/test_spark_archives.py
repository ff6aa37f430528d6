"""Directories of archives are read again only when their files have changed."""

import importlib
import sys
import zipfile
from zipimport import zipimporter

import pytest

from photinus.engine.spark.archives import keep_archives


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A zip on Python's path with the module `kept_one`, and how often its directory is dropped."""
    path, dropped = tmp_path / "kept.zip", []
    with zipfile.ZipFile(path, "w") as archive_file:
        archive_file.writestr("kept_one.py", "")
    plain = zipimporter.invalidate_caches

    def counted(finder):
        dropped.append(finder.archive)
        plain(finder)

    monkeypatch.setattr(zipimporter, "invalidate_caches", counted)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(sys, "path_importer_cache", {})
    importlib.import_module("kept_one")
    yield path, dropped
    for name in ("kept_one", "kept_two"):
        sys.modules.pop(name, None)


def test_an_archive_that_is_unchanged_is_not_read_again(archive):
    path, dropped = archive
    importlib.invalidate_caches()
    assert str(path) in dropped
    dropped.clear()
    keep_archives()
    keep_archives()
    importlib.invalidate_caches()
    assert dropped == []


def test_a_module_that_an_archive_gets_later_is_found(archive):
    path, dropped = archive
    keep_archives()
    with zipfile.ZipFile(path, "a") as archive_file:
        archive_file.writestr("kept_two.py", "")
    importlib.invalidate_caches()
    assert dropped == [str(path)]
    assert importlib.import_module("kept_two").__file__ == f"{path}/kept_two.py"


def test_an_archive_that_is_gone_raises_nothing(archive):
    path, _ = archive
    keep_archives()
    path.unlink()
    importlib.invalidate_caches()
