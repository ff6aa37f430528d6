"""Faults of the process of the coordinator, and the folder of its run."""

import os
from dataclasses import replace

import pytest

from photinus.core.errors import UsageError
from photinus.core.events import RoundClosed
from photinus.testing import Faults

CLOSED = RoundClosed(phase=0, version=1, slots=(0,), examples=1, progress=0.1, seconds=0.0)


@pytest.fixture
def faults_of_driver(tiny, tmp_path):
    """Faults of a driver, by a clock that stands still; and what the run is told of."""
    told = []

    def make(faults, **fields):
        assignment = tiny.assignment(folder=str(tmp_path), emit=told.append, **fields)
        return faults.driver(assignment, lambda: 0.0)

    make.told = told
    return make


def checkpoint(folder, name, at):
    place = folder / "checkpoints" / name
    place.mkdir(parents=True)
    (place / "small.safetensors").write_bytes(bytes(10))
    (place / "large.safetensors").write_bytes(bytes(100))
    (place / "manifest.json").write_text("{}")
    os.utime(place / "manifest.json", (at, at))
    return place


def test_one_bit_of_the_newest_whole_checkpoint_changes_once_so_many_rounds_have_closed(
    faults_of_driver, tmp_path
):
    older = checkpoint(tmp_path, "00001", at=100)
    newest = checkpoint(tmp_path, "00002", at=200)
    aside = checkpoint(tmp_path, ".00003.tmp-0123456789ab", at=300)
    with faults_of_driver(Faults().flip_bit(2)) as faulty:
        faulty.run_spec.emit(CLOSED)
        assert (newest / "large.safetensors").read_bytes() == bytes(100)
        faulty.run_spec.emit(CLOSED)
    assert faults_of_driver.told == [CLOSED, CLOSED], "who listened still does"
    flipped = (newest / "large.safetensors").read_bytes()
    assert sum(byte.bit_count() for byte in flipped) == 1
    for place in (older, newest, aside):
        assert (place / "small.safetensors").read_bytes() == bytes(10)
    for place in (older, aside):
        assert (place / "large.safetensors").read_bytes() == bytes(100)


def test_without_a_checkpoint_it_waits_for_one_and_so_does_what_follows(faults_of_driver, tmp_path):
    faults = Faults().flip_bit(1).flip_bit(1).noted_in(str(tmp_path / "diary"))
    with faults_of_driver(faults) as faulty:
        faulty.run_spec.emit(CLOSED)
        assert not (tmp_path / "diary").exists()
        place = checkpoint(tmp_path, "00001", at=100)
        faulty.look()
    assert len((tmp_path / "diary").read_text().splitlines()) == 2
    flipped = (place / "large.safetensors").read_bytes()
    assert sum(byte.bit_count() for byte in flipped) == 2


def test_a_run_to_which_nothing_happens_is_left_as_it_is(tiny):
    run_spec = tiny.assignment()
    with Faults().kill(slot=0, step=1).driver(run_spec) as faulty:
        assert faulty.run_spec is run_spec


def test_a_large_disk_and_a_run_without_a_folder_are_refused(faults_of_driver, tiny, monkeypatch):
    large = os.statvfs("/")
    room = type("Room", (), {"f_bavail": 3 << 20, "f_frsize": large.f_frsize})
    monkeypatch.setattr(os, "statvfs", lambda folder: room)
    with pytest.raises(UsageError, match=r"only a small disk of the run's own .* MiB free; mount"):
        faults_of_driver(Faults().fill_disk(1, seconds=1.0))
    homeless = replace(tiny.assignment(), folder="")
    with pytest.raises(UsageError, match="fill_disk needs the folder of a run; got a run with"):
        Faults().fill_disk(1, seconds=1.0).driver(homeless)
