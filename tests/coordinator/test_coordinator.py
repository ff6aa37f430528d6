"""The coordinator, frame by frame: strangers, copies, standbys and the end."""

import dataclasses

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.core.clock import Clock, Steps
from photinus.core.errors import FencedError, RunFailedError, UsageError
from photinus.core.events import Warned
from photinus.core.parameters import Layout, Parameters
from photinus.models.logistic import LogisticConfig
from photinus.protocol.messages import Seat, grant_of
from photinus.protocol.worker_session import WorkerSession
from photinus.strategies.base import Message, Turn
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import all_reduce, averaging
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.requests import Close, Exchange, Hello, StepDone

RUN = bytes(16)
PLAIN = averaging(every=Steps(1), outer=Sgd(), codec="fp32")


def plan(strategy=PLAIN, workers=2, **fields):
    config = LogisticConfig(features=1, classes=2, epochs=4, batch_size=1, dtype="float64")
    return TrainingPlan(
        phases=(Phase(config=config, strategy=strategy),), workers=workers, **fields
    )


class Harness:
    """A coordinator and two sessions that speak to it, without a simulator."""

    def __init__(self, strategy=PLAIN, workers=2, fields=None, **callbacks):
        self.events, self.lines = [], []
        callbacks = Callbacks(emit=self.events.append, enter=self._enter, **callbacks)
        self.coordinator = Coordinator(plan(strategy, workers, **(fields or {})), callbacks)
        self.sessions = [self.session(slot) for slot in range(workers)]

    def _enter(self, op, frame, fields):
        self.lines.append(op)

    def session(self, slot, attempt="a"):
        return WorkerSession(Seat(RUN, 1, 0, slot), {"attempt": f"{attempt}{slot}"})

    def hello(self, session, now=0.0, rows=4):
        frame = session.frame(Hello(rows, 0), now)
        return frame, self.coordinator.hear(frame, now)

    def all_come(self, now=0.0):
        replies = []
        for session in self.sessions:
            request = Hello(4, 0)
            replies = self.coordinator.hear(session.frame(request, now), now)
        for session, frame in zip(self.sessions, replies, strict=True):
            session.understood(frame, now)
        return replies

    def push(self, slot, delta=1.0, now=0.0, position=1, version=0):
        message = Message("push", np.full(4, delta), since=Clock(1, 1), version=version)
        frame = self.sessions[slot].frame(Exchange(Turn("swap"), message, position), now)
        return frame, self.coordinator.hear(frame, now)

    def close(self, slot, now=0.0):
        frame = self.sessions[slot].frame(Close(4, None), now)
        return frame, self.coordinator.hear(frame, now)


def test_a_worker_that_comes_back_with_other_rows_is_told():
    harness = Harness()
    for digest, attempt in (("1f", "a"), ("1f", "b"), ("2e", "c"), ("2e", "d")):
        frame = harness.session(0, attempt).frame(Hello(4, 0, digest=digest), 0.0)
        harness.coordinator.hear(frame, 0.0)
    [warning] = [event.text for event in harness.events if isinstance(event, Warned)]
    assert warning.startswith("worker 0 reads other rows than before: some count twice, or never")


def test_rows_that_are_dealt_anew_and_those_of_a_standby_are_no_other_rows():
    harness = Harness()
    for slot in (0, 1):
        frame = harness.session(slot).frame(Hello(4, 0, digest="1f"), 0.0)
        replies = harness.coordinator.hear(frame, 0.0)
    assert {frame.kind for frame in replies} == {"grant"}
    standby = harness.session(0, "b").frame(Hello(4, 0, digest="2e"), 0.0)
    assert [frame.kind for frame in harness.coordinator.hear(standby, 0.0)] == ["busy"]
    assert harness.coordinator.leases[0].digest == "1f"
    harness.coordinator._phases.wants_shuffle = True
    harness.coordinator.next_pass(1.0)
    harness.coordinator.hear(harness.session(0, "c").frame(Hello(4, 0, digest="3d"), 1.0), 1.0)
    assert harness.coordinator.leases[0].digest == "3d"
    assert [event for event in harness.events if isinstance(event, Warned)] == []


def test_frames_of_strangers_are_not_heard():
    harness = Harness()
    hello, _ = harness.hello(harness.sessions[0])
    hear = harness.coordinator.hear
    assert hear(dataclasses.replace(hello, run=bytes([1] * 16)), 0.0) == []
    assert hear(dataclasses.replace(hello, slot=9), 0.0) == []
    assert hear(dataclasses.replace(hello, kind="note"), 0.0) == []
    (fenced,) = hear(dataclasses.replace(hello, term=7), 0.0)
    assert (fenced.kind, fenced.term) == ("fenced", 1)


def test_a_run_begins_when_all_came():
    harness = Harness()
    assert harness.hello(harness.sessions[0])[1] == []
    _, replies = harness.hello(harness.sessions[1])
    assert [(f.kind, f.slot, f.lease) for f in replies] == [("grant", 0, 1), ("grant", 1, 1)]
    assert grant_of(replies[0]).is_fresh
    assert harness.coordinator.owner.budget == 2 * 4 * 4


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({}, ""),
        ({"has_held": True}, ", and at which rows validation or validationIndicatorCol sets aside"),
    ],
)
def test_a_run_without_rows_ends_with_an_error_before_its_first_step(fields, hint):
    harness = Harness(fields=fields)
    harness.hello(harness.sessions[0], rows=0)
    _, replies = harness.hello(harness.sessions[1], rows=0)
    assert [(f.kind, f.slot) for f in replies] == [("stop", 0), ("stop", 1)]
    assert harness.coordinator.failure_kind == "DataError"
    expected = "there are no rows to train on; look at where the data is read and filtered"
    assert harness.coordinator.failure == expected + hint
    assert harness.coordinator.result is None


def test_a_run_with_rows_of_one_worker_only_begins():
    harness = Harness()
    harness.hello(harness.sessions[0], rows=0)
    _, replies = harness.hello(harness.sessions[1], rows=4)
    assert [f.kind for f in replies] == ["grant", "grant"]


def test_where_an_owner_holds_the_parameters_nobody_is_told_who_is_there():
    harness = Harness()
    replies = harness.all_come() + harness.push(0)[1] + harness.push(1)[1]
    harness.coordinator.leases.gone(1, 1, 0.5)
    replies += harness.coordinator.tick(1.6) + harness.push(0, now=1.7, position=2, version=1)[1]
    assert [f.kind for f in replies] == ["grant", "grant", "agreed", "agreed", "agreed"]


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_warned_of_once(loss):
    harness = Harness()
    harness.all_come()
    for version in range(3):
        for slot in (0, 1):
            harness.sessions[slot].stepped(StepDone(1, {"loss": loss if version else 1.0}))
            _, replies = harness.push(slot, position=version + 1, version=version)
        for frame in replies:
            harness.sessions[frame.slot].understood(frame, 0.0)
    (warning,) = (event for event in harness.events if isinstance(event, Warned))
    assert warning.text == (
        f"logistic: the loss is not finite, though the gradients are; got {loss:g} in round 2; "
        "look for a log, a root or a quotient of 0 in it; the model may be of no use"
    )


def test_few_that_came_are_told_once_after_thirty_seconds():
    harness = Harness()
    harness.hello(harness.sessions[0])
    for now in (29.0, 30.0, 31.0, 60.0):
        harness.coordinator.tick(now)
    (warning,) = harness.events
    assert warning.text == (
        "1 of 2 workers came within 30 s; wait, or look at the logs of those that are missing"
    )


def test_what_to_do_about_those_that_are_missing_is_the_engines_to_say():
    harness = Harness(advice=lambda: "other jobs hold 2 of 4 slots")
    harness.coordinator.tick(31.0)
    (warning,) = harness.events
    assert warning.text == "0 of 2 workers came within 30 s; other jobs hold 2 of 4 slots"


def test_a_copy_of_a_hello_gets_the_same_grant_until_it_was_used():
    harness = Harness()
    first, _ = harness.hello(harness.sessions[0])
    _, replies = harness.hello(harness.sessions[1])
    assert harness.coordinator.hear(first, 0.0) == [replies[0]]
    harness.sessions[0].understood(replies[0], 0.0)
    harness.sessions[1].understood(replies[1], 0.0)
    harness.push(0)
    harness.push(1)
    assert harness.coordinator.hear(first, 0.0) == []
    assert harness.coordinator.leases[0].lease == 1


def test_a_new_hello_of_the_same_attempt_leaves_its_seat_and_takes_it_again():
    harness = Harness()
    harness.all_come()
    harness.push(1)
    _, replies = harness.hello(harness.sessions[0])
    assert [(f.kind, f.slot) for f in replies] == [("agreed", 1), ("grant", 0)]
    assert harness.coordinator.leases[0].lease == 2


def test_a_standby_is_busy_and_sits_down_when_the_lease_ends():
    harness = Harness()
    harness.all_come()
    standby = harness.session(0, "b")
    _, replies = harness.hello(standby, 1.0)
    assert [f.kind for f in replies] == ["busy"]
    beat = harness.sessions[1].seat.frame("beat")
    assert harness.coordinator.hear(beat, 4.0) == []
    (grant,) = harness.coordinator.tick(5.5)
    assert (grant.kind, grant.slot, grant.lease) == ("grant", 0, 2)
    assert standby.answers(Hello(4, 0), standby.frame(Hello(4, 0), 0.0), grant) is False
    assert [type(e).__name__ for e in harness.events][-2:] == ["WorkerLost", "WorkerJoined"]


def test_a_push_that_waits_is_settled_before_its_seat_is_given_away():
    harness = Harness()
    harness.all_come()
    harness.push(0)
    harness.coordinator.leases.gone(0, 1, 0.0)
    harness.coordinator.hear(harness.sessions[1].seat.frame("beat"), 1.5)
    assert harness.coordinator.tick(1.5) == []
    _, replies = harness.hello(harness.session(0, "b"), 1.6)
    assert [f.kind for f in replies] == ["busy"]
    _, replies = harness.push(1, now=1.7)
    assert sorted((f.kind, f.slot, f.lease) for f in replies) == [
        ("agreed", 0, 1),
        ("agreed", 1, 1),
    ]
    (grant,) = harness.coordinator.tick(1.8)
    assert grant.header["position"] == 1, "it continues behind what was applied"


def test_copies_gaps_and_late_leases():
    harness = Harness()
    harness.all_come()
    frame, _ = harness.push(0)
    assert harness.coordinator.hear(frame, 0.0) == [], "not answered yet"
    _, replies = harness.push(1)
    assert harness.coordinator.hear(frame, 0.0) == [f for f in replies if f.slot == 0]
    assert harness.coordinator.hear(dataclasses.replace(frame, sequence=5), 0.0) == []
    (fenced,) = harness.coordinator.hear(dataclasses.replace(frame, lease=0, sequence=1), 0.0)
    assert (fenced.kind, fenced.sequence) == ("fenced", 1)
    assert harness.coordinator.leases.counts == {
        "applied": 2,
        "missed": 0,
        "duplicate": 2,
        "gap": 1,
        "fenced": 1,
    }


def test_a_refusal_is_said_again_to_a_copy():
    harness = Harness()
    harness.all_come()
    frame, (refused,) = harness.push(0, np.nan)
    assert refused.kind == "refused"
    assert harness.coordinator.hear(frame, 0.0) == [refused]
    with pytest.raises(FencedError):
        harness.sessions[0].answers(Exchange(Turn("swap"), None, 0), frame, refused)
    assert "refuse" in harness.lines


def test_float_buffers_must_be_finite_too():
    harness = Harness()
    harness.all_come()
    buffers = {"floats": np.array([np.nan], np.float32), "integers": np.zeros(0, np.int64)}
    message = Message("push", np.zeros(4), since=Clock(1, 1), **buffers)
    frame = harness.sessions[0].frame(Exchange(Turn("swap"), message, 1), 0.0)
    assert [f.kind for f in harness.coordinator.hear(frame, 0.0)] == ["refused"]


def test_a_worker_that_fails_by_itself_ends_the_run_in_its_own_words():
    harness = Harness()
    harness.all_come()
    bye = harness.sessions[1].seat.frame("bye", {"error": "row 3 is bad", "type": "DataError"})
    stale = dataclasses.replace(bye, lease=9)
    assert harness.coordinator.hear(stale, 0.0) == []
    replies = harness.coordinator.hear(bye, 0.0)
    assert {(f.kind, f.slot, f.header["reason"]) for f in replies} == {
        ("stop", slot, "row 3 is bad") for slot in (0, 1)
    }
    assert harness.coordinator.failure_kind == "DataError"
    with pytest.raises(RunFailedError, match="row 3 is bad"):
        harness.sessions[0].answers(Hello(4, 0), bye, replies[0])


def test_after_a_failure_everything_is_answered_by_stop():
    harness = Harness()
    harness.all_come()
    harness.coordinator.stop("enough")
    harness.coordinator.stop("later")
    for _, replies in (harness.push(0), harness.close(1), harness.hello(harness.session(0, "b"))):
        assert [(f.kind, f.header["reason"]) for f in replies] == [("stop", "enough")]
    assert harness.coordinator.tick(9.0) == []


def test_after_the_end_hellos_and_closes_are_done_and_pushes_fenced():
    harness = Harness()
    harness.all_come()
    harness.close(0)
    last, replies = harness.close(1)
    assert [f.kind for f in replies] == ["done", "done"]
    assert harness.sessions[1].understood(replies[1], 0.0) is None
    assert [f.kind for f in harness.coordinator.hear(last, 0.0)] == ["done"]
    assert [f.kind for f in harness.hello(harness.session(0, "b"))[1]] == ["done"]
    assert [f.kind for f in harness.push(0)[1]] == ["fenced"]
    assert harness.coordinator.result.vectors[0].tolist() == [0.0] * 4


def test_a_close_under_an_old_lease_is_fenced():
    harness = Harness()
    harness.all_come()
    harness.coordinator.leases.vacate(harness.coordinator.leases[0])
    assert [f.kind for f in harness.close(0)[1]] == ["fenced"]


def test_a_state_under_an_old_lease_is_not_taken():
    harness = Harness(all_reduce())
    harness.all_come()
    state = dataclasses.replace(harness.sessions[0].seat, lease=0).frame("state")
    assert harness.coordinator.hear(state, 0.0) == []


def test_workers_that_end_with_different_bits_are_told_of_and_averaged():
    harness = Harness(all_reduce())
    harness.all_come()
    harness.push(0)
    for frame in harness.push(1)[1]:
        harness.sessions[frame.slot].understood(frame, 0.0)
    layout = Layout.of([("w", (4,), "trained")], "float64")
    for slot, value in enumerate((1.0, 2.0)):
        parameters = Parameters(layout, np.full(4, value))
        frame = harness.sessions[slot].frame(Close(4, parameters), 0.0)
        harness.coordinator.hear(frame, 0.0)
    assert harness.coordinator.result.vectors[0].tolist() == [1.5] * 4
    texts = [e.text for e in harness.events if type(e).__name__ == "Warned"]
    assert "the workers ended with different parameters; the result is their mean" in texts
    assert all("were not used" in text for text in texts if "different parameters" not in text)


def test_a_push_that_says_fetch_gets_the_agreed_point():
    harness = Harness()
    harness.all_come()
    frame = dataclasses.replace(harness.push(0)[0], kind="fetch", sequence=1, arrays={})
    (heal,) = [f for f in harness.coordinator.hear(frame, 0.0) if f.kind == "heal"]
    assert heal.slot == 0


def test_metrics_of_a_round_are_means_over_examples():
    harness = Harness()
    harness.all_come()
    harness.sessions[0].stepped(StepDone(1, {"loss": 1.0}))
    harness.sessions[1].stepped(StepDone(3, {"loss": 2.0, "error": 0.5}))
    harness.push(0)
    harness.push(1)
    (closed,) = [e for e in harness.events if type(e).__name__ == "RoundClosed"]
    assert closed.metrics == {"loss": 1.5, "error": 0.5, "consistency": 0.0}


def test_programs_have_limits_and_words():
    with pytest.raises(UsageError, match="workers must be at least 1; got 0"):
        plan(workers=0)
    with pytest.raises(UsageError, match="at least one phase"):
        TrainingPlan(phases=(), workers=1)
    start_vectors = {"logistic": (np.arange(4.0),)}
    training_plan = plan(start=start_vectors, seed=3)
    assert training_plan.build(0, ()).parameters.trained.tolist() == [0, 1, 2, 3]
    assert training_plan.sent().start == {}
    assert training_plan.sent().seed == 3


def test_who_shall_leave_does_so_after_its_next_push_and_another_continues_behind_it():
    harness = Harness()
    harness.all_come()
    harness.coordinator.leases[0].leaving_attempt = "a0"
    harness.push(0)
    _, replies = harness.push(1)
    assert [f.kind for f in replies] == ["agreed", "agreed"], "its push is in the round"
    seat = harness.coordinator.leases[0]
    assert not seat.is_live
    assert harness.coordinator.leases.members == {1}, "nobody waits for it"
    harness.sessions[0].understood(replies[0], 0.0)
    assert harness.push(0)[1][0].kind == "fenced"
    assert [f.kind for f in harness.hello(harness.session(0))[1]] == ["busy"]
    _, (grant,) = harness.hello(harness.session(0, attempt="b"))
    assert (grant.kind, grant.lease, grant_of(grant).position) == ("grant", 2, 1)


# -- seats that are given up to another run -----------------------------------------------------


def kinds(frames):
    return [frame.kind for frame in frames]


def with_yielded_seat(how, **callbacks):
    """Two workers after one round, of which slot 1 has given its seat up."""
    harness = Harness(**callbacks)
    harness.all_come()
    assert harness.coordinator.yield_seats([1], how, 0.0) == []
    assert harness.coordinator.leases.yielding == {1: False}
    harness.push(0)
    _, replies = harness.push(1)
    for session, frame in zip(harness.sessions, replies, strict=False):
        session.understood(frame, 0.0)
    return harness, replies


@pytest.mark.parametrize("how", ["parks", "ends"])
def test_a_seat_is_given_up_in_the_answer_to_a_push_which_counts(how):
    harness, replies = with_yielded_seat(how)
    assert kinds(replies) == ["agreed", "agreed", "fenced"]
    assert harness.coordinator.owner.applied == 2
    assert harness.coordinator.leases.members == {0}


def test_a_worker_that_parks_is_told_to_wait_and_gets_its_seat_back():
    harness, _ = with_yielded_seat("parks")
    assert harness.coordinator.leases.yielding == {1: True}
    assert kinds(harness.hello(harness.sessions[1])[1]) == ["busy"]
    assert kinds(harness.coordinator.tick(99.0)) == []
    assert harness.coordinator.take_back([1]) == frozenset()
    assert harness.coordinator.leases.yielding == {}
    (grant,) = harness.coordinator.tick(99.0)
    assert (grant.kind, grant.slot, grant.header["position"]) == ("grant", 1, 1)


def test_a_task_that_ends_is_told_that_all_is_done_and_another_one_continues():
    harness, _ = with_yielded_seat("ends")
    assert harness.coordinator.leases.yielding == {1: False}, "it holds its place until it is told"
    assert kinds(harness.hello(harness.sessions[1])[1]) == ["done"]
    assert harness.coordinator.leases.yielding == {1: True}
    assert kinds(harness.hello(harness.session(1, attempt="copy"))[1]) == ["done"]
    assert harness.coordinator.take_back([1]) == {1}
    (grant,) = harness.hello(harness.session(1, attempt="b"))[1]
    assert (grant.kind, grant.slot, grant.lease, grant.header["position"]) == ("grant", 1, 2, 1)


def test_a_task_that_was_not_told_yet_keeps_its_seat():
    harness, _ = with_yielded_seat("ends")
    assert harness.coordinator.take_back([1]) == frozenset()
    assert kinds(harness.hello(harness.sessions[1])[1]) == ["grant"]


def test_a_seat_that_has_closed_is_given_up_at_once_and_is_not_waited_for():
    harness = Harness()
    harness.all_come()
    harness.close(1)
    assert kinds(harness.coordinator.yield_seats([1], "ends", 0.0)) == ["fenced"]
    harness.close(0)
    assert harness.coordinator.is_over


@pytest.mark.parametrize("is_back", [False, True])
def test_the_end_waits_for_seats_that_are_given_up_and_for_the_task_of_one_that_is_back(is_back):
    harness, _ = with_yielded_seat("ends", rejoin_seconds=1.0)
    harness.hello(harness.sessions[1])
    harness.close(0)
    if is_back:
        harness.coordinator.take_back([1])
    harness.coordinator.leases[0].ends_at = 2e6
    harness.coordinator.tick(1e6)
    assert not harness.coordinator.is_over
    assert not [e for e in harness.events if type(e).__name__ == "Warned"]
    harness.coordinator.take_back([1])
    assert kinds(harness.hello(harness.session(1, attempt="b"), 1e6)[1]) == ["grant"]


def test_a_cut_that_was_made_for_nobody_is_made_anew_the_next_time():
    harness = Harness(all_reduce())
    harness.all_come()
    coordinator = harness.coordinator
    assert not coordinator.prepared_to_yield(), "a cut is asked for"
    assert coordinator.is_snapshot_asked
    coordinator._snapshots.is_requested = False  # it was saved
    coordinator.unprepare()
    assert not coordinator.prepared_to_yield()
    assert coordinator.is_snapshot_asked
    coordinator._snapshots.is_requested = False
    assert coordinator.prepared_to_yield()


def test_no_seat_is_given_up_before_all_have_come():
    harness = Harness()
    assert not harness.coordinator.prepared_to_yield()
    harness.all_come()
    assert harness.coordinator.prepared_to_yield()
