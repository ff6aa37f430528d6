"""What a worker takes from others: at most once, from the same point, under a lease that holds."""

import dataclasses

import numpy as np
import pytest

from photinus.core.clock import Clock
from photinus.data.rows import memory
from photinus.protocol import peer_session as room
from photinus.protocol.messages import Seat
from photinus.protocol.peer_session import COORDINATOR, PeerSession
from photinus.strategies.base import Message, OwnedShard, RowExchange
from photinus.strategies.outer import Sgd
from photinus.strategies.shard_backups import ShardBackup
from photinus.strategies.shards import moves_by

RUN = bytes(16)


def members_header(edition, *slots):
    return {"edition": edition, "peers": [[s, lease, f"at-{s}"] for s, lease in slots]}


def peers(slot=0, version=3):
    worker = PeerSession()
    worker.seated(Seat(RUN, 1, 0, slot, 1), version, members_header(1, (0, 1), (1, 1), (2, 1)))
    worker.arrived()
    return worker


def publication(worker, *to, value=1.0):
    message = Message("publish", np.full(3, value), since=Clock(4, 32), version=3, slots=to)
    return sorted(worker.publish(message), key=lambda a: (a.to == COORDINATOR, a.to))


def test_a_publication_goes_to_its_readers_and_word_of_it_to_the_coordinator():
    out = publication(peers(), 1, 2)
    assert [a.to for a in out] == [1, 2, COORDINATOR]
    notice = out[-1].frame
    assert (notice.sequence, notice.header["version"], notice.header["examples"]) == (1, 3, 32)
    assert notice.arrays == {}
    assert out[0].frame is out[1].frame


def test_the_word_for_the_coordinator_is_not_always_the_last_said():
    worker = peers()
    message = Message("publish", np.ones(3), since=Clock(4, 32), version=3, slots=(1, 2))
    places = {[a.to for a in worker.publish(message)].index(COORDINATOR) for _ in range(30)}
    assert places == {0, 1, 2}


def at_version(frame, version, **ids):
    return dataclasses.replace(frame, header={**frame.header, "version": version}, **ids)


def test_it_counts_once_and_from_the_same_point_only():
    writer, reader = peers(1), peers(0)
    first, *_ = publication(writer, 0, value=2.0)
    for _ in range(3):
        assert reader.hear_worker(first.frame) == []
    (message,) = reader.arrived()
    assert (message.kind, message.vector[0], message.since) == ("publish", 2.0, Clock(4, 32))
    assert reader.counts["taken"] == 1
    assert reader.counts["doubled"] == 2
    assert reader.arrived() == ()
    reader.hear_worker(at_version(first.frame, 2, sequence=2))
    assert reader.counts["late"] == 1
    assert reader.arrived() == ()
    reader.hear_worker(at_version(first.frame, 4, sequence=3))
    assert reader.arrived() == (), "it waits until this worker stands there too"


@pytest.mark.parametrize("field", [{"lease": 0}, {"phase": 1}, {"term": 2}])
def test_an_older_lease_another_phase_or_term_is_not_heard(field):
    reader = peers(0)
    (first, _) = publication(peers(1), 0)
    reader.hear_worker(dataclasses.replace(first.frame, **field))
    assert reader.arrived() == ()
    assert reader.counts["fenced"] == 1


def test_numbers_that_are_not_finite_are_refused():
    reader = peers(0)
    (first, _) = publication(peers(1), 0, value=np.nan)
    reader.hear_worker(first.frame)
    assert reader.arrived() == ()
    assert reader.counts["refused"] == 1
    _, header = reader.bring_push(Message("push", np.array([np.inf])))
    assert header["is_finite"] is False


def test_publications_that_pile_up_push_the_oldest_out():
    reader, writer = peers(0), peers(1)
    for n in range(70):
        reader.hear_worker(publication(writer, 0, value=float(n))[0].frame)
    assert [m.vector[0] for m in reader.arrived()] == [float(n) for n in range(6, 70)]
    assert reader.counts["overrun"] == 6


def test_who_is_here_is_told_once_an_edition_and_calls_for_the_present_lease():
    worker = peers(0)
    news = members_header(2, (0, 1), (2, 4))
    frame = worker._seat.frame("here", {"version": 3, **news, "call": True})
    worker.hear_coordinator(frame)
    older = {"version": 3, **members_header(1, (0, 1)), "call": False}
    worker.hear_coordinator(dataclasses.replace(frame, header=older))
    worker.hear_coordinator(dataclasses.replace(frame, lease=9))
    assert [(m.kind, m.slots, m.version) for m in worker.arrived()] == [
        ("here", (0, 2), 0),
        ("call", (), 3),
    ]
    assert worker.addresses == {0: "at-0", 2: "at-2"}


def meet(worker, slots, version=3):
    ones = np.full(len(slots), 1 / len(slots))
    header = {"version": version, **members_header(1, (0, 1), (1, 1), (2, 1)), "slots": list(slots)}
    return worker._seat.frame("meet", header, {"vector": ones, "floats": ones})


def carry(workers, out):
    """Delivers everything until nobody says anything; returns what the coordinator hears."""
    waiting, arrived = list(out), []
    while waiting:
        to, sent = waiting.pop(0)
        if to == COORDINATOR:
            arrived.append((sent.slot, sent.kind))
        elif to in workers:
            waiting += workers[to].hear_worker(sent)
    return arrived


def come(slots):
    workers = {s: peers(s) for s in slots}
    for slot, worker in workers.items():
        worker.bring_push(Message("push", np.full(7, float(slot))))
    return workers


def test_pieces_that_come_before_the_call_are_kept():
    workers = come((0, 1))
    replies = carry(workers, workers[1].hear_coordinator(meet(workers[1], (0, 1))))
    assert replies == []
    replies = carry(workers, workers[0].hear_coordinator(meet(workers[0], (0, 1))))
    assert sorted(replies) == [(0, "ready"), (1, "ready")]
    for worker in workers.values():
        agreed = worker.end_meeting(Message("agreed", version=4))
        np.testing.assert_array_equal(agreed.vector, np.full(7, 0.5))
        assert (agreed.version, worker.is_meeting) == (4, False)


def test_the_survivors_meet_again_with_what_they_brought():
    workers = come((0, 1, 2))
    lost = workers.pop(2)
    out = [a for s in (0, 1) for a in workers[s].hear_coordinator(meet(workers[s], (0, 1, 2)))]
    assert carry(workers, out) == []
    assert workers[0].is_waiting_for_peers
    out = [a for s in (0, 1) for a in workers[s].hear_coordinator(meet(workers[s], (0, 1)))]
    assert sorted(set(carry(workers, out))) == [(0, "ready"), (1, "ready")]
    assert workers[0].hear_coordinator(meet(workers[0], (0, 1, 2))) == [], "an old word"
    late = lost.hear_coordinator(meet(lost, (0, 1, 2)))
    assert carry(workers, late) == []
    np.testing.assert_array_equal(
        workers[1].end_meeting(Message("agreed", version=4)).vector, np.full(7, 0.5)
    )


def test_what_a_broken_line_lost_is_said_again():
    workers = come((0, 1))
    out = workers[0].hear_coordinator(meet(workers[0], (0, 1)))
    assert [a.frame.kind for a in out] == ["part"]
    carry(workers, workers[1].hear_coordinator(meet(workers[1], (0, 1))))
    replies = carry(workers, workers[0].resend(1))
    assert (1, "ready") in replies
    assert workers[0].resend(2) == []


def lost(out):
    """What was sent, by kind and reader; none of it arrives."""
    return [(a.frame.kind, a.to) for a in out]


def test_a_call_that_comes_again_asks_only_for_what_did_not_come():
    workers = come((0, 1, 2))
    call = {s: meet(w, (0, 1, 2)) for s, w in workers.items()}
    assert lost(workers[0].hear_coordinator(call[0])) == [("part", 1), ("part", 2)]
    parts = [a for s in (1, 2) for a in workers[s].hear_coordinator(call[s])]
    carry(workers, [a for a in parts if {a.frame.slot, a.to} != {0, 1}])
    requests = workers[0].hear_coordinator(call[0])
    missing = requests[-1].frame
    assert sorted(lost(requests)) == [("missing", COORDINATOR), ("missing", 1), ("missing", 2)]
    assert {n: missing.header[n] for n in ("parts", "wholes", "near")} == {
        "parts": [1],
        "wholes": [1, 2],
        "near": [2],
    }
    assert workers[0].hear_coordinator(call[0])[-1].frame.header["near"] == []
    replies = carry(workers, [a for s in (1, 2, 0) for a in workers[s].hear_coordinator(call[s])])
    replies += carry(workers, [a for s in (0, 1, 2) for a in workers[s].hear_coordinator(call[s])])
    assert {slot for slot, kind in replies if kind == "ready"} == {0, 1, 2}
    assert lost(workers[1].hear_coordinator(call[1])) == [("ready", COORDINATOR)]


def test_who_lacks_a_piece_gets_that_piece_and_no_other():
    workers = come((0, 1))
    call = {s: meet(w, (0, 1)) for s, w in workers.items()}
    workers[0].hear_coordinator(call[0])
    carry({1: workers[1]}, workers[1].hear_coordinator(call[1]))
    carry({0: workers[0]}, workers[1].resend(0))
    assert workers[0].is_waiting_for_peers
    (request, _) = workers[0].hear_coordinator(call[0])
    assert workers[1].hear_worker(request.frame) == [], "worker 1 could not merge yet"
    (request, _) = workers[1].hear_coordinator(call[1])
    out = workers[0].hear_worker(request.frame)
    assert lost(out) == [("part", 1), ("whole", 1)]
    old = dataclasses.replace(request.frame, header={**request.frame.header, "slots": [0, 1, 2]})
    assert workers[0].hear_worker(old) == [], "of another meeting"


def announce(worker, value, *runs, version=3):
    """Sends runs of 7 numbers ahead of the push that brings them."""
    out = []
    for start, stop in runs:
        numbers = np.full(stop - start, value)
        run = Message("push", numbers, (start, stop), since=Clock(1, 8), version=version)
        out += worker.announce(run, 7, "examples")
    return out


def announced(slots):
    workers = {s: peers(s) for s in (0, 1, 2)}
    out = [a for s in slots for a in announce(workers[s], float(s), (0, 7))]
    assert carry(workers, out) == []
    for slot, worker in workers.items():
        worker.bring_push(Message("push", np.full(7, float(slot)), since=Clock(1, 8), version=3))
    return workers


def agreed(worker):
    return worker.end_meeting(Message("agreed", version=4)).vector


def test_what_was_sent_before_the_call_is_not_sent_again():
    workers = announced((0, 1, 2))
    for worker in workers.values():
        assert not worker.is_meeting
        assert lost(worker.hear_coordinator(meet(worker, (0, 1, 2)))) == [("ready", COORDINATOR)]
        np.testing.assert_allclose(agreed(worker), np.ones(7))


def test_who_sent_nothing_early_meets_those_who_did():
    workers = announced((0, 2))
    out = [a for s, w in workers.items() for a in w.hear_coordinator(meet(w, (0, 1, 2)))]
    assert {(a.frame.slot, a.to) for a in out if a.frame.kind == "part"} == {(1, 0), (1, 2)}
    assert sorted(carry(workers, out)) == [(0, "ready"), (1, "ready"), (2, "ready")]
    for worker in workers.values():
        np.testing.assert_allclose(agreed(worker), np.ones(7))


def test_without_a_lost_member_all_is_sent_anew():
    workers = announced((0, 1, 2))
    workers.pop(2)
    out = [a for s in (0, 1) for a in workers[s].hear_coordinator(meet(workers[s], (0, 1)))]
    assert sorted(lost(out)) == [("part", 0), ("part", 1)]
    assert sorted(set(carry(workers, out))) == [(0, "ready"), (1, "ready")]
    for worker in workers.values():
        np.testing.assert_array_equal(agreed(worker), np.full(7, 0.5))


def test_what_an_earlier_holder_of_a_seat_sent_early_is_not_merged():
    """Its successor computes another gradient, perhaps of other rows."""
    workers = {s: peers(s) for s in (0, 1, 2)}
    carry(workers, [a for s in (0, 1, 2) for a in announce(workers[s], 9.0, (0, 7))])
    anew = members_header(2, (0, 1), (1, 1), (2, 5))
    workers[2].seated(Seat(RUN, 1, 0, 2, 5), 3, anew)
    for slot, worker in workers.items():
        worker.bring_push(Message("push", np.full(7, float(slot)), since=Clock(1, 8), version=3))
    calls = {s: meet(w, (0, 1, 2)) for s, w in workers.items()}
    calls = {
        s: dataclasses.replace(call, header={**call.header, **anew}) for s, call in calls.items()
    }
    out = [a for s, w in workers.items() for a in w.hear_coordinator(calls[s])]
    assert sorted(set(carry(workers, out))) == [(0, "ready"), (1, "ready"), (2, "ready")]
    for worker in workers.values():
        np.testing.assert_allclose(agreed(worker), np.ones(7))


def test_early_runs_of_the_next_step_wait_until_this_one_is_agreed():
    workers = announced((0, 1, 2))
    ahead = {s: w for s, w in workers.items() if s != 0}
    for worker in ahead.values():
        worker.hear_coordinator(meet(worker, (0, 1, 2)))
        agreed(worker)
    carry(workers, [a for w in ahead.values() for a in announce(w, 2.0, (0, 7), version=4)])
    workers[0].hear_coordinator(meet(workers[0], (0, 1, 2)))
    np.testing.assert_allclose(agreed(workers[0]), np.ones(7))
    carry(workers, announce(workers[0], 2.0, (0, 7), version=4))
    for worker in workers.values():
        worker.bring_push(Message("push", np.full(7, 2.0), since=Clock(1, 8), version=4))
        assert lost(worker.hear_coordinator(meet(worker, (0, 1, 2), version=4))) == [
            ("ready", COORDINATOR)
        ]


def test_nothing_is_sent_early_from_another_point():
    assert announce(peers(0), 1.0, (0, 7), version=2) == []


def test_a_grant_starts_the_numbers_anew():
    reader, writer = peers(0), peers(1)
    reader.hear_worker(publication(writer, 0)[0].frame)
    reader.arrived()
    writer.seated(Seat(RUN, 1, 0, 1, 2), 3, members_header(2, (0, 1), (1, 2)))
    again = publication(writer, 0)[0].frame
    assert (again.lease, again.sequence) == (2, 1)
    reader.hear_worker(again)
    assert len(reader.arrived()) == 1


def test_a_piece_that_still_comes_in_is_not_missing():
    """It is not asked for again, and the coordinator hears that its sender is near."""
    workers = come((0, 1, 2))
    call = meet(workers[0], (0, 1, 2))
    workers[0].hear_coordinator(call)
    workers[0].note_arriving({1})
    requests = workers[0].hear_coordinator(call)
    assert sorted(lost(requests)) == [("missing", COORDINATOR), ("missing", 2)]
    assert requests[-1].frame.header["near"] == [1]
    assert requests[-1].frame.header["parts"] == [1, 2]


def test_publications_that_wait_are_bounded_by_their_bytes(monkeypatch):
    writer, reader = peers(1), peers(0)
    monkeypatch.setattr(room, "_MOST_WAITING_BYTES", 3 * 24)
    for value in range(5):
        first, *_ = publication(writer, 0, value=value)
        reader.hear_worker(first.frame)
    assert [m.vector[0] for m in reader.arrived()] == [2.0, 3.0, 4.0]
    assert reader.counts["overrun"] == 2


def of_table(slot, value, lease=1):
    """A worker of two, which brings a delta of row 0: worker 0 owns it."""
    worker = PeerSession()
    header = members_header(lease, (0, 1), (1, lease))
    worker.seated(Seat(RUN, 1, 0, slot, lease if slot else 1), 3, header)
    own, moved = np.zeros((1, 2)), np.zeros(1, np.int32)
    backup = ShardBackup(1, np.zeros((0, 2)), Sgd(), memory)
    owned = OwnedShard(own, (), moves_by(Sgd(), own, ()), moved=moved, backup=backup)
    push = Message("push", np.full(2, value), rows=np.array([0]), version=3)
    worker.bring_push(push._replace(table=RowExchange(asks=np.array([0]), owned=owned)))
    return worker


def test_no_part_of_a_lost_owner_gets_into_the_meeting_that_begins_anew():
    one, lost = of_table(0, 1.0), of_table(1, 10.0)
    [part] = lost.hear_coordinator(meet(lost, (0, 1)))
    one.hear_coordinator(meet(one, (0, 1)))
    one.hear_worker(part.frame)
    new = of_table(1, 4.0, lease=2)
    called = [meet(worker, (0, 1)) for worker in (one, new)]
    again = [
        dataclasses.replace(c, header={**c.header, **members_header(2, (0, 1), (1, 2))})
        for c in called
    ]
    out = one.hear_coordinator(again[0])
    assert [(a.to, a.frame.header["leases"]) for a in out] == [(1, [1, 2])]
    assert one.hear_worker(part.frame) == [], "it comes once more, and late"
    replies = carry({0: one, 1: new}, out + new.hear_coordinator(again[1]))
    assert sorted(replies) == [(0, "ready"), (1, "ready")]
    np.testing.assert_array_equal(
        new.end_meeting(Message("agreed", version=4)).vector, [-2.5, -2.5]
    )
    moved = one.end_meeting(Message("agreed", version=4)).table.moved
    np.testing.assert_array_equal(moved.rows, [[-2.5, -2.5]])


@pytest.mark.parametrize("kept", [0, 4, 5])
def test_a_new_backup_is_sent_the_rows_that_moved_since_the_last_checkpoint(kept):
    worker = of_table(0, 1.0)
    own, moved = np.zeros((4, 2)), np.array([2, 0, 5, 6], np.int32)
    owned = OwnedShard(own, (), moves_by(Sgd(), own, ()), moved=moved)
    push = Message("push", np.full(2, 1.0), rows=np.array([0]), version=3)
    worker.bring_push(push._replace(table=RowExchange(asks=np.array([0]), owned=owned)))
    called = meet(worker, (0, 1))
    worker.hear_coordinator(dataclasses.replace(called, header={**called.header, "kept": kept}))
    owner = of_table(1, 1.0)
    [part] = owner.hear_coordinator(meet(owner, (0, 1)))
    [whole] = [a for a in worker.hear_worker(part.frame) if a.frame.kind == "whole"]
    sent = whole.frame.arrays["backup.at"].tolist()
    assert sorted(sent) == ([0, 3] if kept == 5 else [0, 2, 3]), "the meeting moves row 0"


def test_rows_that_came_for_another_question_are_not_taken_for_those_that_were_asked_for():
    worker, rows = of_table(0, 1.0), np.array([1, 3])
    worker.hear_coordinator(meet(worker, (0, 1)))
    worker._shards.end_round(worker._push, (0, 1), (1, 1))
    [question] = worker._fetch_rows(Message("fetch", table=RowExchange(asks=rows)))
    assert (question.to, question.frame.header["restores"]) == (1, False)
    owner = PeerSession()
    owner.seated(Seat(RUN, 1, 0, 1, 1), 3, members_header(1, (0, 1), (1, 1)))
    for to, restores, is_taken in ((2, False, False), (1, True, False), (1, False, True)):
        answer = owner._addressed(
            0, "heal", {"vector": np.ones(4)}, {"to": to, "restores": restores}
        )
        worker.hear_worker(answer.frame)
        assert bool(worker._shards.fetched_ahead(rows, 3)) == is_taken
