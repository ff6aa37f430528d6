"""The judge of pushes under faults finds what was lost and what counted twice."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pushes(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("pushes")


def apply_entry(position, examples=16, slot=0, version=1):
    return {
        "op": "apply",
        "phase": 0,
        "slot": slot,
        "version": version,
        "examples": examples,
        "position": position,
    }


def test_rows_that_are_missing_or_done_twice_are_found(pushes):
    assert pushes.gaps([apply_entry(16), apply_entry(32), apply_entry(16, slot=1)]) == []
    assert pushes.gaps([apply_entry(16), apply_entry(48)]) == ["a gap: slot 0, from 16 to 32"]
    assert pushes.gaps([apply_entry(16), apply_entry(24)]) == ["rows twice: slot 0, from 16 to 8"]


def test_rows_are_done_again_where_all_who_knew_the_point_were_lost(pushes):
    back = {"op": "back", "phase": 0, "version": 1}
    entries = [apply_entry(16), apply_entry(32, version=2), back, apply_entry(32, version=2)]
    assert pushes.gaps(entries) == []
    assert len(pushes.gaps([*entries[:2], *entries[3:]])) == 1


@pytest.mark.parametrize("name", ["averaging", "downpour", "publish"])
def test_random_faults_lose_nothing_and_double_nothing(pushes, name):
    result = pushes.many(name, 300, np.random.default_rng(3), is_real=False)
    assert result.offences == []
    assert result.counts["applied"] + result.counts["published"] >= 300
    assert len(result.happened) == 4, "killed, frozen, cut off, copied"
    assert result.counts["duplicates"] > 0


@pytest.mark.parametrize("harm", ["apply", "drop"])
def test_a_ledger_that_tells_of_a_loss_or_of_a_double_is_not_passed(pushes, tmp_path, harm):
    result, way = pushes.Found(), pushes.WAYS["averaging"]
    judge = pushes.Watch.judge

    def judge_damaged(self, result, **fields):
        self.book.close()
        lines = self.path.read_text().splitlines()
        [first, *_] = [n for n, line in enumerate(lines) if json.loads(line)["op"] == "apply"]
        lines[first : first + 1] = [lines[first]] * (2 if harm == "apply" else 0)
        self.path.write_text("\n".join(lines) + "\n")
        judge(self, result, **fields)

    pushes.Watch.judge = judge_damaged
    try:
        pushes.one(way, 4.0, pushes.SimulatedEngine(), result)
    finally:
        pushes.Watch.judge = judge
    assert result.offences
    assert result.counts["doubled" if harm == "apply" else "lost"] > 0


def test_every_recipe_is_there(pushes):
    from photinus.strategies.recipes import RECIPES

    assert {way.recipe for way in pushes.WAYS.values()} == set(RECIPES)
