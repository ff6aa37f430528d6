"""Publish and gossip in virtual time: nobody waits, any may die, and every count is proved."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from photinus.coordinator.coordinator import Coordinator
from photinus.core.clock import Steps
from photinus.core.parameters import fingerprint
from photinus.engine.simulation.simulator import Simulation
from photinus.protocol.peer_session import COORDINATOR, PeerSession
from photinus.protocol.reduce_scatter import ReduceScatter
from photinus.strategies.recipes import all_reduce, averaging, gossip, publish
from photinus.testing import Faults
from photinus.training import segments
from photinus.training.requests import Grant

WAYS = {
    "publish": publish(every=Steps(3), exact_every=3),
    "publish fp32": publish(every=Steps(3), exact_every=3, codec="fp32"),
    "gossip": gossip(every=Steps(3), exact_every=3),
    "gossip ring": gossip(every=Steps(3), exact_every=3, graph="ring"),
    "gossip random": gossip(every=Steps(3), exact_every=3, graph="random"),
}


LOSSY = {"faults": Faults().lose(0.2).double(0.3), "resend_seconds": 0.1}


@pytest.fixture
def truth(monkeypatch):
    """What became of publications, counted where they are read."""
    counts, hear, end, tell = (
        Counter(),
        PeerSession.hear_worker,
        PeerSession.end_meeting,
        PeerSession.publish,
    )

    def publishing(self, message):
        counts["published"] += len(message.slots)
        return tell(self, message)

    def hearing(self, frame):
        is_seated = self._seat.lease > 0
        counts["early"] += frame.kind == "publish" and not is_seated
        is_older = frame.header["version"] < self._version
        counts["late"] += frame.kind == "publish" and is_seated and is_older
        return hear(self, frame)

    def agreeing(self, message):
        counts["unread"] += sum(f.header["version"] == self._version for f in self._inbox)
        return end(self, message)

    monkeypatch.setattr(PeerSession, "publish", publishing)
    monkeypatch.setattr(PeerSession, "hear_worker", hearing)
    monkeypatch.setattr(PeerSession, "end_meeting", agreeing)
    return counts


@pytest.mark.parametrize("cluster", [{}, LOSSY, {"step_seconds": (0.01, 0.04, 0.02)}])
@pytest.mark.parametrize("name", WAYS)
def test_after_every_exact_agreement_all_hold_the_same_bits(field, agreed, name, cluster):
    played = field.play(WAYS[name], cluster=cluster, epochs=4).run(until=200)
    assert len(agreed) > 3
    met = {event.version: len(event.slots) for event in played.tape.of("RoundClosed")}
    assert {version: len(fingerprints) for version, fingerprints in agreed.items()} == met
    assert [met[n] for n in (1, 2, 3)] == [4, 4, 4], "until the first is done with its rows"
    assert all(len(set(fingerprints)) == 1 for fingerprints in agreed.values())
    assert fingerprint(played.vector) == agreed[max(agreed)][0]
    assert played.tape.of("PhaseEnded")[0].examples == 4 * len(field.labels)
    assert played.tape.warnings() == []
    played.tape.assert_exact()


@pytest.mark.parametrize("name", WAYS)
def test_every_publication_is_taken_once_or_counted_as_missing(field, truth, name):
    loses = {"faults": Faults().lose(0.2), "resend_seconds": 0.1}
    played = field.play(WAYS[name], cluster=loses, epochs=4).run(until=200)
    met = played.tape.of("PeersMet")
    missing = sum(e.missing for e in met)
    gone = played.simulation.lost_among_workers
    assert gone > 0
    assert all(e.published == e.taken + e.missing for e in met)
    assert sum(e.published for e in met) == truth["published"]
    assert missing == gone + truth["unread"] + truth["late"] + truth["early"] + _left(played)


def _left(played):
    """How many came to workers that were done with their rows."""
    readers = [node.session.peers for node in played.simulation.nodes.values()]
    return sum(f.header["version"] == r._version for r in readers for f in r._inbox)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("every", [3, 10])
def test_workers_of_one_speed_end_together(field, monkeypatch, name, every):
    """All know of each other before their first step: nobody meets alone, and waits."""
    finish_times, step = {}, Simulation._stepped

    def stepped(self, node):
        finish_times[node.slot] = self.now
        step(self, node)

    monkeypatch.setattr(Simulation, "_stepped", stepped)
    way = dataclasses.replace(WAYS[name], every=Steps(every), exact_every=every)
    played = field.play(way, epochs=4).run(until=200)
    assert {len(e.slots) for e in played.tape.of("RoundClosed")} == {4}
    assert max(finish_times.values()) - min(finish_times.values()) < 0.01 * every


@pytest.mark.parametrize("name", WAYS)
def test_a_copy_is_taken_in_once(field, name):
    clean = field.play(WAYS[name], epochs=4).run(until=200)
    bad = field.play(WAYS[name], epochs=4, cluster={"faults": Faults().double(1.0)}).run(until=200)
    met = bad.tape.of("PeersMet")
    assert all(e.taken <= e.published for e in met)
    assert sum(e.doubled for e in met) > 10
    assert field.loss(bad.vector) == pytest.approx(field.loss(clean.vector), abs=0.02)


@pytest.mark.parametrize("name", WAYS)
def test_any_worker_may_die_and_its_rows_are_done_once(field, agreed, name):
    played = field.play(WAYS[name], epochs=6)
    simulation = played.simulation
    simulation.at(0.2, simulation.kill, 0, 0.3)
    simulation.at(0.5, simulation.kill, 2, 0.5)
    simulation.at(0.9, simulation.kill, 1)
    simulation.at(2.5, simulation.seat, 1)
    played.run(until=200)
    joined = [e for e in played.tape.of("WorkerJoined") if e.lease > 1]
    assert {e.slot for e in joined} == {0, 1, 2}
    applied = played.tape.assert_exact()
    assert (
        sum(f.header.get("examples", 0) for f in applied.values())
        == played.tape.of("PhaseEnded")[0].examples
    )
    assert all(len(set(fingerprints)) == 1 for fingerprints in agreed.values())
    assert field.loss(played.vector) < 0.5
    assert played.tape.warnings() == []


def test_who_dies_in_a_meeting_lets_the_survivors_meet_again(field):
    """Killed when its part is on its way: the mean is of those who are left."""
    slow_links = {"latency_seconds": 0.05}
    played = field.play(WAYS["publish"], epochs=4, cluster=slow_links)
    simulation, met = played.simulation, []
    hear = Coordinator.hear

    def hearing(self, frame, now):
        out = hear(self, frame, now)
        if any(f.kind == "meet" for f in out) and not met:
            met.append(frame.slot)
            simulation.kill(frame.slot, 3.0)
        return out

    simulation.coordinator.hear = hearing.__get__(simulation.coordinator)
    played.run(until=200)
    assert met
    assert played.counts["missed"] == 1
    first = played.tape.of("RoundClosed")[0]
    assert set(first.slots) == set(range(4)) - set(met)
    played.tape.assert_exact()
    assert played.tape.warnings() == []


@pytest.mark.parametrize("name", [*WAYS, "deltas"])
def test_rounds_tell_every_byte_that_workers_sent_each_other(field, monkeypatch, name):
    sent, post = Counter(), Simulation._post

    def posting(self, node, out):
        for to, frame in out:
            sent["bytes"] += (to != COORDINATOR) * frame.size_bytes
        post(self, node, out)

    monkeypatch.setattr(Simulation, "_post", posting)
    played = field.play(
        {**WAYS, "deltas": averaging(every=Steps(3), owners=4)}[name], epochs=4
    ).run(until=200)
    bytes_up = [e.bytes_up for e in played.tape.of("RoundClosed")]
    assert sum(bytes_up) == sent["bytes"]
    if name == "deltas":  # each worker says (K - 1)/K of a bf16 vector, and hears as much, twice
        assert bytes_up == [2 * 3 * 2 * played.vector.size] * len(bytes_up)


@pytest.mark.parametrize("name", WAYS)
def test_a_slow_worker_holds_nobody_up(field, name):
    """At least 85 % of the summed speed, where rounds of fixed steps go at the slowest's."""
    steps = (0.01, 0.01, 0.01, 0.04)
    speed = sum(1 / s for s in steps)

    def share(strategy):
        cluster = {"step_seconds": steps}
        played = field.play(strategy, epochs=20, cluster=cluster, share="fastest").run(until=200)
        phase_ended = played.tape.of("PhaseEnded")[0]
        return phase_ended.examples / 8 / phase_ended.seconds / speed

    assert share(dataclasses.replace(WAYS[name], exact_every=10)) >= 0.85
    assert share(averaging(every=Steps(9))) < 0.4


@pytest.mark.parametrize("name", WAYS)
def test_no_parameters_pass_through_the_coordinator_while_all_are_well(field, name, monkeypatch):
    sizes, hear = Counter(), Coordinator.hear

    def hearing(self, frame, now):
        sizes[frame.kind] += frame.size_bytes
        return hear(self, frame, now)

    monkeypatch.setattr(Coordinator, "hear", hearing)
    field.play(WAYS[name], epochs=4).run(until=200)
    assert set(sizes) == {"hello", "beat", "publish", "push", "ready", "close"}
    assert all(sizes[kind] == 0 for kind in set(sizes) - {"close"})


def test_what_is_published_reaches_the_loss_of_exact_rounds(field):
    rounds = field.play(averaging(every=Steps(3), merge="uniform", codec="fp32"), epochs=6).run(
        until=200
    )
    for name, way in WAYS.items():
        played = field.play(way, epochs=6).run(until=200)
        assert field.loss(played.vector) < field.loss(rounds.vector) + 0.08, name


def test_phases_start_from_what_was_agreed_in_the_one_before(field):
    configs = [field.config(name=n) for n in ("first", "second")]
    played = field.play(WAYS["publish"], configs=configs).run(until=200)
    ends = played.tape.of("PhaseEnded")
    assert [e.phase for e in ends] == [0, 1]
    assert [e.fingerprint for e in ends] == [fingerprint(v) for v in played.result.vectors]


def test_a_run_continues_from_a_cut(field):
    whole = field.play(WAYS["publish"], epochs=6, callbacks={"checkpoint_seconds": 0.2})
    whole.run(until=0.8)
    snapshot = [c for c in whole.tape.snapshots if c.version > 0][-1]
    assert set(snapshot.inner) == {0, 1, 2, 3}
    again = field.play(WAYS["publish"], epochs=6, snapshot=snapshot, callbacks={"term": 2}).run(
        until=200
    )
    ended = again.tape.of("PhaseEnded")[0]
    examples = sum(f.header.get("examples", 0) for f in again.tape.assert_exact().values())
    assert ended.examples == snapshot.applied + examples
    assert np.isfinite(again.vector).all()
    assert field.loss(again.vector) < 0.4


def test_shards_on_a_network_that_loses_and_doubles_change_no_bit(field):
    clean = field.play(all_reduce(owners=4)).run(until=200)
    bad = field.play(all_reduce(owners=4), cluster=LOSSY).run(until=400)
    np.testing.assert_array_equal(bad.vector, clean.vector)
    assert bad.counts["applied"] == clean.counts["applied"]
    bad.tape.assert_exact()


@pytest.fixture
def early(monkeypatch):
    """Has every segment of 4 numbers leave alone, before its step is over; counts them."""
    counts, pump = Counter(), Simulation._pump

    def pumping(self, node, answer, lost=None):
        def send(run, size, merge):
            counts["runs"] += 1
            self._post(node, node.session.peers.announce(run, size, merge))

        if isinstance(answer, Grant):
            answer = dataclasses.replace(answer, early=segments.EarlySending(send, lambda: True))
        pump(self, node, answer, lost)

    def opened(self, called, brought):
        counts["taken"] += (is_taken := opening(self, called, brought))
        return is_taken

    opening = ReduceScatter.open
    monkeypatch.setattr(Simulation, "_pump", pumping)
    monkeypatch.setattr(ReduceScatter, "open", opened)
    monkeypatch.setattr(segments, "SEGMENT", 4)
    joined = segments.runs
    monkeypatch.setattr(segments, "runs", lambda at, end: [r for a in at for r in joined([a], end)])
    return counts


@pytest.mark.parametrize("cluster", [{}, LOSSY])
@pytest.mark.parametrize("settings", [{}, {"codec": "bf16"}, {"merge": "nova"}])
def test_segments_that_leave_before_their_step_is_over_change_no_bit(
    field, request, settings, cluster
):
    way = all_reduce(owners=4, **settings)
    plain = field.play(way).run(until=200)
    early = request.getfixturevalue("early")
    played = field.play(way, cluster=cluster).run(until=400)
    np.testing.assert_array_equal(played.vector, plain.vector)
    assert played.counts["applied"] == plain.counts["applied"]
    assert early["runs"] > early["taken"] >= 0.9 * plain.counts["applied"]
    played.tape.assert_exact()


def test_a_worker_that_was_killed_leaves_nothing_of_an_early_segment(field, early):
    played = field.play(all_reduce(owners=4), epochs=6)
    simulation = played.simulation
    for number in range(8):
        simulation.at(0.1 + 0.07 * number, simulation.kill, number % 4, 0.05)
    played.run(until=200)
    assert {e.slot for e in played.tape.of("WorkerJoined") if e.lease > 1} == {0, 1, 2, 3}
    applied = played.tape.assert_exact()
    assert sum(f.header.get("examples", 0) for f in applied.values()) == 6 * len(field.labels)
    assert early["taken"] > 100
    assert field.loss(played.vector) < 0.4


def test_shards_go_on_without_a_worker_that_was_killed_and_count_its_rows_once(field):
    played = field.play(all_reduce(owners=4), epochs=6)
    simulation = played.simulation
    simulation.at(0.3, simulation.kill, 2, 0.5)
    played.run(until=200)
    assert {e.slot for e in played.tape.of("WorkerJoined") if e.lease > 1} == {2}
    applied = played.tape.assert_exact()
    assert sum(f.header.get("examples", 0) for f in applied.values()) == 6 * len(field.labels)
    assert played.tape.warnings() == []
