from __future__ import annotations

import stat

import pytest

from photinus.core.errors import DataError
from photinus.report.lines import Lines, read_lines


def test_a_line_cut_by_a_crash_is_dropped_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "lines"
    for whole in (b'{"a":1}\n', b""):
        path.write_bytes(whole + b'{"b":')
        lines = Lines(path)
        lines.write({"c": 2})
        lines.close()
        assert path.read_bytes() == whole + b'{"c":2}\n'


def test_only_the_owner_may_read_it(tmp_path):
    Lines(tmp_path / "lines").close()
    assert stat.S_IMODE((tmp_path / "lines").stat().st_mode) == 0o600


def test_what_is_no_object_is_told_apart(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n[2]\n\n\xff\n{"cut":')
    assert list(read_lines(path)) == [{"a": 1}, None, None]
    with pytest.raises(DataError, match="cannot be read"):
        list(read_lines(tmp_path / "none"))
