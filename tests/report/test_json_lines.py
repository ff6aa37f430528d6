from __future__ import annotations

import errno
import os
import stat

import pytest

from photinus.core.errors import DataError
from photinus.report import json_lines as module
from photinus.report.json_lines import Lines, read_lines


def test_a_line_cut_by_a_crash_is_dropped_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "lines"
    for whole in (b'{"a":1}\n', b""):
        path.write_bytes(whole + b'{"b":')
        lines = Lines(path)
        lines.write({"c": 2})
        lines.close()
        assert path.read_bytes() == whole + b'{"c":2}\n'


def test_a_line_that_may_wait_is_written_with_the_next_one(tmp_path):
    path = tmp_path / "lines"
    lines = Lines(path)
    lines.write({"a": 1}, waits=True)
    assert path.read_bytes() == b""
    lines.write({"b": 2})
    assert path.read_bytes() == b'{"a":1}\n{"b":2}\n'
    lines.write({"c": 3}, waits=True)
    lines.close()
    assert path.read_bytes().endswith(b'{"b":2}\n{"c":3}\n')


def test_lines_do_not_wait_for_ever(tmp_path):
    lines = Lines(tmp_path / "lines")
    for _ in range(70):
        lines.write({"a": "x" * 1000}, waits=True)
    assert (tmp_path / "lines").stat().st_size > 60_000
    lines.close()


@pytest.fixture
def disk(monkeypatch):
    """A disk with room for so many bytes more; None for a disk that is never full."""
    disk = type("Disk", (), {"room": None})()
    write = os.write

    def write_within_room(descriptor, data):
        if disk.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(descriptor, data[: disk.room])
        disk.room = None if disk.room is None else disk.room - count
        return count

    monkeypatch.setattr(os, "write", write_within_room)
    return disk


@pytest.mark.parametrize("room", [0, 3, 8, 11])
def test_lines_that_find_no_room_are_written_once_there_is_some(tmp_path, disk, room):
    lines = Lines(tmp_path / "lines")
    lines.write({"a": 0})
    disk.room = room
    for number in range(1, 4):
        lines.write({"a": number})
    assert lines.lost == 3 - room // 8
    disk.room = None
    lines.write({"a": 4})
    assert lines.lost == 0
    lines.close()
    assert list(read_lines(tmp_path / "lines")) == [{"a": number} for number in range(5)]


def test_lines_that_find_no_room_until_the_end_are_counted_as_lost(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WAITING_BYTES", 16)
    lines = Lines(tmp_path / "lines")
    lines.write({"a": 0})
    disk.room = 3
    for number in range(1, 9):
        lines.write({"a": number})
    lines.close()
    lines.write({"a": 9})
    assert lines.lost == 9
    disk.room = None
    assert lines.lost == 9, "the file is closed"
    reopened = Lines(tmp_path / "lines")
    reopened.write({"a": 10})
    reopened.close()
    assert list(read_lines(tmp_path / "lines")) == [{"a": 0}, {"a": 10}]


def test_only_the_owner_may_read_it(tmp_path):
    Lines(tmp_path / "lines").close()
    assert stat.S_IMODE((tmp_path / "lines").stat().st_mode) == 0o600


def test_what_is_no_object_is_told_apart(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n[2]\n\n\xff\n{"cut":')
    assert list(read_lines(path)) == [{"a": 1}, None, None]
    with pytest.raises(DataError, match="cannot be read"):
        list(read_lines(tmp_path / "none"))
