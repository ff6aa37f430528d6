"""A fragment that is under way costs no time, and nothing depends on how fast it travels."""

import pytest

from photinus.core.clock import Steps
from photinus.strategies.recipes import streaming

STEP_SECONDS, LATENCY_SECONDS = 0.01, 0.02


def played(field, delay, latency=LATENCY_SECONDS, **cluster):
    strategy = streaming(every=Steps(16), fragments=2, delay=delay)
    cluster |= {"step_seconds": STEP_SECONDS, "latency_seconds": latency}
    return field.play(strategy, epochs=4, cluster=cluster).run()


def test_a_delay_longer_than_the_way_hides_it(field):
    """There and back takes 4 steps: with a delay of 5 only the ends of the phase wait for it."""
    waits, hides = played(field, 0), played(field, 5)
    steps = 4 * 15
    assert {*waits.simulation.steps, *hides.simulation.steps} == {steps}
    rounds = steps // 8
    round_trips = rounds * 2 * LATENCY_SECONDS
    saved = waits.simulation.now - hides.simulation.now
    assert saved == pytest.approx(round_trips, abs=2 * 2 * LATENCY_SECONDS + 1e-3)


def test_a_fragment_that_is_late_is_waited_for(field):
    late, in_time = played(field, 2), played(field, 5)
    assert late.simulation.now > in_time.simulation.now


@pytest.mark.parametrize("latency", [1e-4, 0.013, 0.3])
def test_the_bits_do_not_depend_on_how_fast_fragments_travel(field, latency):
    usual, other = played(field, 3), played(field, 3, latency, bytes_per_second=1e5)
    assert (usual.vector == other.vector).all()
