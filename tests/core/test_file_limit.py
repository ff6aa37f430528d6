import errno
import resource

import pytest

from photinus.core import file_limit
from photinus.core.errors import NotReadyError
from photinus.core.file_limit import allow_descriptors


@pytest.fixture
def limits(monkeypatch):
    """Limits that are only written down; ten files are open."""
    calls = []

    def set_to(soft, hard):
        monkeypatch.setattr(file_limit, "_count", lambda limit: min(10, limit))
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: calls.append(pair))
        return calls

    return set_to


def test_a_limit_that_is_high_enough_is_left(limits):
    calls = limits(30, 100)
    allow_descriptors(20, "the driver")
    assert calls == []


def test_the_soft_limit_is_raised_where_the_hard_one_allows_it(limits):
    calls = limits(30, 100)
    allow_descriptors(21, "the driver")
    assert calls == [(31, 100)]


@pytest.mark.parametrize(("soft", "hard"), [(30, -1), (-1, -1)])
def test_no_hard_limit_refuses_nothing(limits, soft, hard):
    limits(soft, hard)
    allow_descriptors(1_000, "the driver")


def test_a_hard_limit_that_is_too_low_is_one_sentence(limits):
    limits(20, 30)
    with pytest.raises(NotReadyError) as refused:
        allow_descriptors(21, "the driver")
    assert str(refused.value) == (
        "the driver may not open enough files and connections; got at most 30, 10 of them open "
        "already; allow 31: ulimit -n 31, or LimitNOFILE of the service"
    )


def test_what_is_open_is_counted(tmp_path):
    before = file_limit._count(0)
    with (tmp_path / "one").open("w"):
        assert file_limit._count(0) == before + 1


def test_a_process_that_can_open_nothing_at_all_counts_as_full(monkeypatch):
    def fail(path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(file_limit.os, "listdir", fail)
    assert file_limit._count(9) == 9


def test_a_system_that_tells_nothing_refuses_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(file_limit, "_OPEN", tmp_path / "none")
    assert file_limit._count(9) == 0
