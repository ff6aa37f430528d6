"""Who is due which seats, and what a run does about it."""

import json
import shutil
from dataclasses import replace

import pytest

from photinus.core.errors import UsageError
from photinus.engine.seat_sharing import SeatSharing, Urgency, allotments
from photinus.engine.seat_table import (
    FolderClaims,
    SeatClaim,
    announce_here,
    announced,
    forget_here,
)


def run_of(name, workers, **fields):
    usual = {"place": "here", "slots": 4, "held": workers, "is_starting": False}
    return SeatClaim(run=name, workers=workers, **usual | fields)


@pytest.mark.parametrize(
    ("runs", "due"),
    [
        ([run_of("a", 4)], {"a": 4}),
        ([run_of("a", 9)], {"a": 9}),  # more than there are: nobody else wants any
        ([run_of("a", 4), run_of("b", 3, priority=1, held=0)], {"a": 1, "b": 3}),
        ([run_of("a", 4), run_of("b", 9, priority=1, held=0)], {"a": 0, "b": 9}),
        ([run_of("a", 4), run_of("b", 4, held=0, is_starting=True)], {"a": 4, "b": 4}),
        ([run_of("a", 4, slots=None), run_of("b", 4, priority=1)], {"a": 4, "b": 4}),
        # nobody is more urgent, so nobody yields; and where somebody is, the older one keeps more
        ([run_of("a", 2), run_of("b", 2), run_of("c", 2, priority=1)], {"a": 2, "b": 0, "c": 2}),
        # a launch, or a table, keeps what it holds
        ([run_of("a", 2, can_yield=False), run_of("b", 4, priority=1)], {"a": 2, "b": 4}),
        ([run_of("a", 4, weight=1.0), run_of("b", 4, weight=1.0)], {"a": 2, "b": 2}),
        ([run_of("a", 4, weight=1.0), run_of("b", 4, weight=3.0)], {"a": 1, "b": 3}),
        ([run_of("a", 4, weight=1.0), run_of("b", 1, weight=9.0)], {"a": 3, "b": 1}),
        # one that starts needs all its seats at once; then it shares
        ([run_of("a", 4, weight=1.0), run_of("b", 4, weight=1.0, is_starting=True)],) * 1
        + ({"a": 0, "b": 4},),
        # one without a weight that waits takes nothing from an equal one that has a weight
        ([run_of("a", 4, weight=1.0), run_of("b", 4, held=0, is_starting=True)],) * 1
        + ({"a": 4, "b": 4},),
        # the slots of two applications, of which one has none yet
        (
            [run_of("a", 4), run_of("b", 2, place="there", slots=0, priority=1, held=0)],
            {"a": 2, "b": 2},
        ),
    ],
)
def test_the_more_urgent_get_their_seats_first_and_equals_share_by_weight(runs, due):
    assert allotments(runs) == due
    assert allotments(reversed(runs)) == due


def test_by_weight_seats_are_shared_in_proportion():
    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    runs = [run_of(name, 8, slots=8, weight=weight) for name, weight in weights.items()]
    assert allotments(runs) == {"a": 2, "b": 4, "c": 2}


class Given:
    """Seats that leave when they are told to."""

    has_begun = can_yield = can_share = True

    def __init__(self):
        self.slots, self.ready, self.done = {}, True, frozenset()
        self.unprepared = False

    def idle(self):
        return self.done

    def prepare(self):
        return self.ready

    def unprepare(self):
        self.unprepared = True

    def yielding(self):
        return dict(self.slots)

    def yield_seats(self, slots):
        self.slots |= dict.fromkeys(slots, False)

    def leave(self):
        self.slots = dict.fromkeys(self.slots, True)

    def take_back(self, slots):
        return frozenset(slot for slot in slots if self.slots.pop(slot))


@pytest.fixture
def shared():
    """A run of four workers on four slots, told of another; each look is a second later."""
    events, clock = [], iter(range(1000))
    own = run_of("own", 4, place="shared", held=4)
    sharing = SeatSharing(Urgency(), own, lambda: 4, events.append, now=lambda: next(clock))
    with sharing.joined():
        yield sharing, Given(), events
    forget_here("other")


def other(workers, held, **fields):
    announce_here(run_of("other", workers, place="shared", held=held, **{"priority": 1} | fields))


def test_a_run_gives_up_what_a_more_urgent_one_lacks_and_takes_it_back_when_it_is_free(shared):
    sharing, seats, events = shared
    assert not sharing.look(seats)
    assert not seats.slots
    other(3, 0)
    assert not sharing.look(seats)
    assert seats.slots == {1: False, 2: False, 3: False}
    seats.leave()
    other(3, 3)
    assert not sharing.look(seats)
    other(2, 3)  # due to this run, but not free yet
    assert not sharing.look(seats)
    other(2, 2)
    assert len(sharing.look(seats)) == 1
    forget_here("other")
    assert len(sharing.look(seats)) == 2
    assert not seats.slots
    assert events[0].text == (
        "workers [1, 2, 3] give their seats up at the end of their round; another run is due them"
    )


def test_a_worker_that_has_not_left_yet_just_stays(shared):
    sharing, seats, _ = shared
    other(4, 0)
    sharing.look(seats)
    forget_here("other")
    assert sharing.look(seats) == frozenset()
    assert not seats.slots


def test_nothing_is_given_up_before_the_run_is_ready_for_it(shared):
    sharing, seats, _ = shared
    seats.ready = False
    other(4, 0)
    sharing.look(seats)
    assert not seats.slots
    seats.ready = True
    sharing.look(seats)
    assert len(seats.slots) == 4


def test_slots_that_are_lent_count_until_another_application_has_them(tmp_path):
    slots, clock = [4], iter(range(1000))
    own, seats = run_of("own", 4, place="lending", held=4), Given()
    urgency = Urgency(folder=str(tmp_path))
    sharing = SeatSharing(urgency, own, lambda: slots[0], print, now=lambda: next(clock))
    wants = {"place": "far", "priority": 1, "is_starting": True}
    with sharing.joined(), FolderClaims(str(tmp_path)) as far:
        far.announce(run_of("far", 2, slots=0, held=0, **wants))
        sharing.look(seats)
        assert seats.slots == {2: False, 3: False}
        assert sharing.remote_shortage() == 2
        seats.leave()
        sharing.note_lent(2)
        assert not sharing.look(seats), "an executor that was just ended is still counted"
        slots[0] = 2
        sharing.look(seats)
        assert sharing.remote_shortage() == 0, "they are on their way"
        assert len(seats.slots) == 2, "no more seats are given up for the same lack"
        far.announce(run_of("far", 2, slots=2, held=2, **wants))
        assert not sharing.look(seats)
        assert len(seats.slots) == 2
    sharing.note_lent(0)
    assert len(sharing.look(seats)) == 2
    forget_here("own")


def test_runs_of_two_applications_tell_each_other_through_a_folder(tmp_path):
    seconds = [0.0]
    one, other = (FolderClaims(str(tmp_path), now=lambda: seconds[0]) for _ in range(2))
    first, second = run_of("first", 4), run_of("second", 2, place="there", weight=2.0, priority=1)
    one.announce(first)
    other.announce(second)
    assert one.live_claims() == other.live_claims() == {"first": first, "second": second}
    other.announce(run_of("second", 3, place="there"))
    assert one.live_claims()["second"].workers == 3
    assert len(list((tmp_path / "jobs").iterdir())) == 2


def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start_and_borne_later(tmp_path):
    (tmp_path / "jobs").mkdir()
    one = FolderClaims(str(tmp_path))
    one.announce(run_of("first", 4))
    shutil.rmtree(tmp_path / "jobs")
    tmp_path.joinpath("jobs").touch()
    one.announce(run_of("first", 4, held=3))
    with pytest.raises(UsageError, match="jobs_folder cannot be used; got"):
        FolderClaims(str(tmp_path)).announce(run_of("second", 4))


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_is_none_is_one_sentence(is_file, tmp_path):
    path = tmp_path / "jobs-of-all"
    if is_file:
        path.touch()
    with pytest.raises(UsageError, match=r"jobs_folder cannot be used; got .*name a folder that"):
        FolderClaims(str(path)).announce(run_of("first", 4))


def test_a_run_that_is_announced_gets_its_seats_and_speaks_for_itself_then(shared):
    sharing, seats, _ = shared
    fit = run_of("fit", 3, place="shared", held=0, priority=1, is_starting=True)
    with announced(fit):
        sharing.look(seats)
        assert len(seats.slots) == 3
        own = SeatSharing(Urgency(), replace(fit, run="run"), lambda: 4, print)
        with own.joined():
            assert sorted(s.run for s in own.other_claims()) == ["own"]
    assert sorted(s.run for s in sharing.other_claims()) == []


def test_processors_are_taken_back_though_an_equal_run_uses_them_too(tmp_path):
    seats, clock = Given(), iter(range(1000))
    own = run_of("own", 4, place="machine", held=4)
    sharing = SeatSharing(
        Urgency(), own, lambda: 2, print, now=lambda: next(clock), can_overcommit=True
    )
    announce_here(run_of("equal", 2, place="machine", slots=2))
    announce_here(run_of("urgent", 2, place="machine", slots=2, priority=1))
    try:
        with sharing.joined():
            sharing.look(seats)
            assert len(seats.slots) == 4
            seats.leave()
            forget_here("urgent")
            assert len(sharing.look(seats)) == 4
    finally:
        forget_here("equal")


def test_an_equal_application_is_not_waited_for(tmp_path):
    own = run_of("own", 2, held=0, slots=0, is_starting=True, place="starting")
    with FolderClaims(str(tmp_path)) as far:
        for priority, is_awaited in ((0, False), (1, True)):
            far.announce(run_of("far", 4, place="far"))
            urgency = Urgency(priority=priority, folder=str(tmp_path))
            sharing = SeatSharing(urgency, own, lambda: 0, print)
            with sharing.joined():
                assert sharing.is_owed_seats() == is_awaited


def test_a_file_that_is_replaced_while_it_is_read_leaves_what_was_known(tmp_path, monkeypatch):
    one, other = (FolderClaims(str(tmp_path)) for _ in range(2))
    one.announce(run_of("first", 4))
    assert other.live_claims()["first"].held == 4
    one.announce(run_of("first", 4, held=3))
    with monkeypatch.context() as patch:
        patch.setattr(other._filesystem, "read", lambda name, most: None)
        assert other.live_claims()["first"].held == 4
    assert other.live_claims()["first"].held == 3


def test_a_run_that_signs_no_more_is_taken_for_ended(tmp_path):
    seconds = [0.0]
    one, other = (FolderClaims(str(tmp_path), now=lambda: seconds[0]) for _ in range(2))
    one.announce(run_of("first", 4))
    assert other.live_claims()
    seconds[0] = 19.0
    assert other.live_claims()
    one.announce(run_of("first", 4, held=3))
    seconds[0] = 38.0
    assert other.live_claims()  # seen first at 38
    seconds[0] = 60.0
    assert not other.live_claims()


def test_a_run_that_is_resumed_is_seen_though_its_last_life_left_files(tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for count in (3, 500):
        (jobs / f"first-{count:012d}").write_text("left")
    (jobs / "first-x").write_text("left")
    one, other = (FolderClaims(str(tmp_path)) for _ in range(2))
    one.announce(run_of("first", 4))
    assert other.live_claims()["first"].held == 4
    assert [path.name for path in jobs.iterdir()] == ["first-000000000501"]


def test_what_was_prepared_is_forgotten_where_no_seat_need_be_given_up(shared):
    sharing, seats, _ = shared
    other(2, 0)
    sharing.look(seats)
    assert not seats.unprepared
    forget_here("other")
    sharing.look(seats)
    assert seats.unprepared


def test_a_run_that_ends_takes_its_file_away(tmp_path):
    with FolderClaims(str(tmp_path)) as one:
        one.announce(run_of("first", 4))
    assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        json.dumps({"run": "x", "place": "y", "workers": -1}),
        json.dumps({"run": "x", "place": "y", "workers": "4"}),
        json.dumps({"run": "x", "place": "y", "priority": 1.5}),
        json.dumps({"run": "x", "place": "y", "weight": 0}),
        json.dumps({"run": "x", "place": "y", "other": 1}),
        json.dumps({"run": "x", "place": ["y"]}),
        json.dumps({"run": "x", "place": "y", "can_yield": "yes"}),
        json.dumps({"run": "x", "place": "y", "workers": 10**12}),
        "[" * 4000,
        "x" * 5000,
    ],
)
def test_a_file_that_says_something_else_is_left_alone(text, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "x-000000000001").write_text(text)
    assert FolderClaims(str(tmp_path)).live_claims() == {}
