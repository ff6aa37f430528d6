"""What `benchmarks/shares.py` reads of the jobs that it has started."""

import argparse
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def shares(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("shares")


class Alive:
    def poll(self):
        return None


@pytest.fixture
def running(shares, tmp_path):
    """A job of 1,000 bytes each quarter of a second, from the tenth second on."""
    output = tmp_path / "said"
    rounds = "".join(f"{10 + n / 4} {1_000 if n else 9_999}\n" for n in range(41))
    output.write_text(f"4711\n{rounds}")
    return shares.Running(Alive(), output)


def test_the_rate_is_that_between_two_rounds_of_the_window(running):
    assert running.pid() == 4711
    assert running.sent(10.1, 19.9) == pytest.approx(4_000)
    assert running.sent(0.0, 99.0) == pytest.approx(4_000), "the first round's bytes came before"


def test_too_few_rounds_have_no_rate(running):
    with pytest.raises(SystemExit, match="give --seconds more"):
        running.sent(10.0, 10.1)


def test_the_parts_of_two_and_three_jobs_are_one_two_and_one(shares):
    assert shares.PARTS == {2: (1, 2), 3: (1, 2, 1)}


def test_how_far_a_share_is_off_is_told_by_its_largest_difference(
    shares, monkeypatch, capsys, tmp_path
):
    settings = argparse.Namespace(seconds=1.0, given=0.8)
    monkeypatch.setattr(
        shares, "measured", lambda kind, amounts, *_: [1.02 * amounts[0], amounts[1] / 2]
    )
    assert shares.table("cpu_share", 2, settings, tmp_path) == pytest.approx(0.5)
    monkeypatch.setattr(shares, "measured", lambda kind, amounts, *_: amounts)
    assert shares.table("bandwidth", 3, settings, tmp_path) == 0.0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[-1] for line in lines] == ["+2.0%", "-50.0%", *["+0.0%"] * 3]
    assert [line.split(" | ")[2] for line in lines[2:]] == ["1000 kB/s", "2000 kB/s", "1000 kB/s"]
