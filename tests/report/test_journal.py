from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from photinus.core.errors import DataError, UsageError
from photinus.core.events import PhaseStarted, RoundClosed, RunStarted, Warned
from photinus.report.journal import Journal, read

EVENTS = [
    RunStarted(run="a", term=1, engine="local", workers=2, job={"x": [1, {"y": None}]}),
    PhaseStarted(phase=0, name="é\n<b>", budget=9, parameters=4, strategy="s"),
    RoundClosed(phase=0, version=1, slots=(0, 1), examples=5, progress=0.5, seconds=0.1),
]


class Clock:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def test_what_was_written_is_read_with_its_time(tmp_path):
    now = Clock(50.0)
    journal = Journal(tmp_path / "e", now=now, wall=Clock(1e9))
    for event in EVENTS:
        now.at += 1.5
        journal.write(event)
    stamped = read(tmp_path / "e")
    assert [s.event for s in stamped] == EVENTS
    assert [s.at for s in stamped] == [1.5, 3.0, 4.5]
    assert stamped[0].wall == 1e9 + 1.5


def test_a_cut_last_line_is_left_out_at_any_length(tmp_path):
    path = tmp_path / "e"
    journal = Journal(path)
    for event in EVENTS:
        journal.write(event)
    journal.close()
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        assert [s.event for s in read(path)] == EVENTS[:2]


def test_a_resumed_run_continues_in_the_same_file_and_time_never_falls(tmp_path):
    path = tmp_path / "e"
    now = Clock(0.0)
    first = Journal(path, now=now, wall=Clock(1000.0))
    now.at = 30.0
    first.write(EVENTS[0])
    first.close()
    with path.open("ab") as file:
        file.write(b'{"at": 31, "kind": "Warn')
    for wall, expected in ((1100.0, 100.0), (900.0, 100.0)):
        journal = Journal(path, now=Clock(7.0), wall=Clock(wall))
        journal.write(Warned(text="again"))
        journal.close()
        assert read(path)[-1].at == expected
    assert len(read(path)) == 3
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_damaged_and_unknown_lines_are_left_out(tmp_path):
    path = tmp_path / "e"
    Journal(path).write(EVENTS[0])
    with path.open("a") as file:
        file.write('nonsense\n[1]\n{"kind": "Later"}\n{"kind": "Warned"}\n\n{"at": "x", "kind": ')
        file.write('"Warned", "text": "kept", "new": 1}\n' + "[" * 100_000 + "\n")
    assert [s.event for s in read(path)] == [EVENTS[0], Warned(text="kept")]
    with pytest.raises(DataError, match=r"cannot be read; got No such file"):
        read(tmp_path / "none")


def test_many_threads_write_whole_lines(tmp_path):
    journal = Journal(tmp_path / "e")

    def work(name: int) -> None:
        for n in range(50):
            journal.write(Warned(text=f"{name} {n}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {s.event.text for s in read(tmp_path / "e")}
    assert texts == {f"{a} {b}" for a in range(4) for b in range(50)}


def test_numbers_of_numpy_are_written_plain(tmp_path):
    event = Warned(text=np.float32(0.5))
    Journal(tmp_path / "e").write(event)
    Journal(tmp_path / "e").write(Warned(text={"a": np.arange(2), "b": tmp_path}))
    assert [s.event.text for s in read(tmp_path / "e")] == [0.5, {"a": [0, 1], "b": str(tmp_path)}]


def test_a_full_disk_delays_lines_and_loses_none(tmp_path, monkeypatch):
    import os

    path, write = tmp_path / "e", os.write
    journal = Journal(path)

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    journal.write(Warned(text="delayed"))
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
    journal.write(Warned(text="torn"))
    monkeypatch.setattr(os, "write", write)
    journal.write(Warned(text="kept"))
    assert journal.lost == 0
    assert [s.event.text for s in read(path)] == ["delayed", "torn", "kept"]
    journal.close()
    journal.close()
    journal.write(Warned(text="late"))
    assert journal.lost == 1
    with pytest.raises(UsageError, match="cannot be written"):
        Journal(tmp_path / "no" / "where")
