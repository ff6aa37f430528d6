"""What sends early only where a step takes less time so."""

import pytest

from photinus.protocol.early_trial import PERIOD, TURN, TURNS, EarlyTrial


def run(trial, seconds, steps, version=0, now=0.0):
    """Returns which steps of many were early."""
    ways = []
    for step in range(version, version + steps):
        ways.append(trial.pays())
        now += seconds[ways[-1]]
        trial.reached(step + 1, now)
    return ways


@pytest.mark.parametrize(("early", "late"), [(0.04, 0.05), (0.05, 0.04)])
def test_the_faster_way_stays_once_both_were_tried(early, late):
    ways = run(EarlyTrial(0, 0.0), {True: early, False: late}, PERIOD)
    tried = TURN * TURNS
    assert sum(ways[:tried]) == tried // 2
    assert set(ways[tried:]) == {early < late}


def test_it_is_tried_again_as_networks_change():
    trial = EarlyTrial(0, 0.0)
    run(trial, {True: 0.05, False: 0.04}, PERIOD)
    ways = run(trial, {True: 0.04, False: 0.05}, PERIOD, PERIOD, 60.0)
    assert not all(ways)
    assert ways[-1]


def test_workers_that_join_in_the_middle_try_the_same_way_at_the_same_step():
    trial, joiner = EarlyTrial(0, 0.0), EarlyTrial(TURN + 3, 0.0)
    whole = run(trial, {True: 0.05, False: 0.04}, TURN * TURNS)
    assert run(joiner, {True: 0.05, False: 0.04}, 10, TURN + 3) == whole[TURN + 3 : TURN + 13]


def test_a_slow_step_decides_nothing():
    trial = EarlyTrial(0, 0.0)
    run(trial, {True: 0.04, False: 0.05}, TURN - 1)
    trial.reached(TURN, 60.0)
    run(trial, {True: 0.04, False: 0.05}, TURN * TURNS - TURN, TURN, 60.0)
    assert trial.pays()
