"""Workers that cannot reach each other, in virtual time: who is left out, and comes back."""

import dataclasses
import itertools

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import RunFailedError
from photinus.strategies.recipes import all_reduce, averaging, gossip, publish
from photinus.testing import Faults

TRANSPORTS = {
    "publish": publish(every=Steps(3), exact_every=3),
    "gossip": gossip(every=Steps(3), exact_every=3),
    "shards": all_reduce(owners=4),
    "deltas": averaging(every=Steps(3), owners=4),
}


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("at", [0.0, 0.3])
def test_a_link_that_stays_cut_leaves_one_out_and_says_which(field, agreed, name, at):
    """Workers 1 and 3 reach all others and the coordinator, never again each other."""
    played = field.play(TRANSPORTS[name], epochs=4)
    played.simulation.at(at, played.simulation.cut, 1, 3)
    played.run(until=200)
    assert played.result is not None
    (warning,) = played.tape.warnings()
    assert warning.startswith("workers 1 and 3 could not reach each other")
    assert "worker 3 is left out of this round, and is brought up to date" in warning
    assert {e.slot for e in played.tape.of("WorkerJoined") if e.lease > 1} == {3}
    applied = played.tape.assert_exact()
    ended = played.tape.of("PhaseEnded")[0]
    assert played.tape.examples(applied) == ended.examples
    if TRANSPORTS[name].is_deterministic:
        assert ended.examples == 4 * len(field.labels)
    assert all(len(set(fingerprints)) == 1 for fingerprints in agreed.values())
    assert field.loss(played.vector) < 0.5


@pytest.mark.parametrize("name", TRANSPORTS)
def test_after_three_rounds_a_cut_costs_five_seconds_and_the_others_go_on(field, name):
    played = field.play(TRANSPORTS[name], epochs=40)
    simulation, cut = played.simulation, []

    def cutting(event):
        if event.version == 4 and not cut:
            cut.append(simulation.now)
            simulation.cut(0, 2)

    played.tape.hooks["RoundClosed"] = cutting
    warned = []
    played.tape.hooks["Warned"] = lambda event: warned.append(simulation.now)
    played.run(until=cut[0] + 9 if cut else 9)
    assert len(warned) == 1
    assert 5.0 <= warned[0] - cut[0] <= 7.0
    after = [e for e in played.tape.of("RoundClosed") if e.version > 4]
    assert set(after[1].slots) == {0, 1, 3}


def test_who_is_missed_by_all_is_left_out_and_comes_back_when_the_network_is_mended(field):
    played = field.play(all_reduce(owners=4), epochs=40)
    simulation = played.simulation
    for other in (1, 2, 3):
        simulation.at(0.3, simulation.cut, 0, other, 8.0)
    played.run(until=300)
    (warning,) = played.tape.warnings()
    assert warning.startswith("workers 1 and 0 could not reach each other")
    assert [e.slot for e in played.tape.of("WorkerJoined") if e.lease > 1] == [0]
    played.tape.assert_exact()
    rounds = played.tape.of("RoundClosed")
    met = [len(e.slots) for e in rounds]
    assert 4 in met[met.index(3) :], "all meet again"
    assert rounds[-1].examples == 40 * len(field.labels)


def test_a_cut_that_stays_is_met_with_pauses_that_double(field):
    played = field.play(all_reduce(owners=4), epochs=300, cluster={"step_seconds": 0.25})
    played.simulation.at(2.0, played.simulation.cut, 1, 3)
    warned = []
    played.tape.hooks["Warned"] = lambda event: warned.append(played.simulation.now)
    played.run(until=120)
    gaps = np.diff(warned)
    assert 2 <= len(gaps) <= 5
    assert all(later > earlier + 3 for earlier, later in itertools.pairwise(gaps))


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_run_where_no_two_reach_each_other_ends_with_one_sentence(field, name):
    played = field.play(TRANSPORTS[name], epochs=4)
    for one, other in itertools.combinations(range(4), 2):
        played.simulation.cut(one, other)
    with pytest.raises(RunFailedError, match="no two of the workers 0, 1, 2, 3 can reach"):
        played.run(until=200)
    two = field.play(PAIRS[name], workers=2, epochs=4)
    two.simulation.cut(0, 1)
    with pytest.raises(RunFailedError, match="no two of the workers 0, 1 can reach"):
        two.run(until=200)


SLOW = {"step_seconds": 0.02}
PAIRS = TRANSPORTS | {n: dataclasses.replace(TRANSPORTS[n], owners=2) for n in ("shards", "deltas")}


@pytest.mark.parametrize("mended_after", [3.0, 9.0, None])
@pytest.mark.parametrize("name", PAIRS)
def test_two_workers_whose_link_is_cut_both_train_again_once_it_is_mended(
    field, agreed, name, mended_after
):
    """Below the patience nobody is left out; above it one continues, alone for ever if need be."""
    played = field.play(PAIRS[name], workers=2, epochs=20, cluster=SLOW)
    played.simulation.at(1.0, played.simulation.cut, 0, 1, mended_after)
    played.run(until=400)
    assert played.result is not None
    warnings = played.tape.warnings()
    leases = [e.lease for e in played.tape.of("WorkerJoined") if e.slot == 1]
    assert max(e.lease for e in played.tape.of("WorkerJoined") if e.slot == 0) == 1
    if mended_after == 3.0:
        assert (warnings, leases) == ([], [1])
    else:
        assert all(t.startswith("workers 0 and 1 could not reach each other for") for t in warnings)
        assert leases[:2] == [1, 2]
        met = [e.slots for e in played.tape.of("RoundClosed")]
        is_again = (0, 1) in met[met.index((0,)) :]
        assert is_again == (mended_after is not None)
    applied = played.tape.assert_exact()
    ended = played.tape.of("PhaseEnded")[0]
    assert played.tape.examples(applied) == ended.examples
    if PAIRS[name].is_deterministic:
        assert ended.examples == 20 * len(field.labels)
    assert all(len(set(fingerprints)) == 1 for fingerprints in agreed.values())
    assert field.loss(played.vector) < 0.5


@pytest.mark.parametrize("name", TRANSPORTS)
def test_all_links_cut_in_the_middle_leave_one_that_continues(field, name):
    played = field.play(TRANSPORTS[name], epochs=20, cluster=SLOW)
    for one, other in itertools.combinations(range(4), 2):
        played.simulation.at(1.0, played.simulation.cut, one, other, 12.0)
    played.run(until=400)
    first = played.tape.warnings()[0]
    assert first.startswith("no two of the workers 0, 1, 2, 3 can reach each other any more")
    assert {e.slot for e in played.tape.of("WorkerJoined") if e.lease > 1} == {1, 2, 3}
    played.tape.assert_exact()
    assert {len(e.slots) for e in played.tape.of("RoundClosed")} >= {1, 4}


@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("every", range(3, 8))
@pytest.mark.parametrize("name", TRANSPORTS)
def test_strictly_periodic_loss_ends_nevertheless(field, agreed, name, every, workers):
    """What is said again and again would lose the same messages for ever, were it in step."""
    strategy = TRANSPORTS[name]
    if strategy.owners > 1:
        strategy = dataclasses.replace(strategy, owners=workers)
    for first in range(every):
        agreed.clear()
        loses = {"faults": Faults().lose(each=every, first=first), "resend_seconds": 0.1}
        played = field.play(strategy, workers, cluster=loses, epochs=1).run(until=400)
        assert played.result is not None, (every, first)
        assert played.tape.warnings() == []
        assert all(len(set(fingerprints)) == 1 for fingerprints in agreed.values())
        played.tape.assert_exact()
