"""Who is told what, and when a meeting is called: frame by frame."""

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import Leases
from photinus.coordinator.peer_directory import PeerDirectory
from photinus.coordinator.phases import Phases
from photinus.core.clock import Steps
from photinus.models.logistic import LogisticConfig
from photinus.protocol.messages import Seat
from photinus.strategies.recipes import publish
from photinus.training.plan import Phase, TrainingPlan

RUN = bytes(16)


class Harness:
    """Phases with seats that are held, and the directory over them."""

    def __init__(self, strategy=None, workers=3):
        config = LogisticConfig(features=1, classes=2, epochs=4, batch_size=1)
        strategy = strategy or publish(every=Steps(1), exact_every=4)
        plan = TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=workers)
        self.leases = Leases(workers)
        self.phases = Phases(plan, self.leases, Callbacks(run=RUN))
        self.peer_directory = PeerDirectory(self.phases, self.leases)
        for slot in range(workers):
            self.grant(slot)
            self.leases[slot].rows = 10
        self.phases.begin(0.0)

    def grant(self, slot, hello=1):
        seat = self.leases[slot]
        note = {"attempt": "a", "hello": hello, "has": 0, "address": f"at-{slot}-{hello}"}
        self.leases.grant(seat, Seat(RUN, 1, 0, slot).frame("hello", note), 0.0)

    def publish_rounds(self, slot, rounds, examples=0, version=0, edition=99):
        seat = Seat(RUN, 1, 0, slot, self.leases[slot].lease)
        header = {"version": version, "examples": examples, "edition": edition}
        return self.peer_directory.receive(seat.frame("publish", header, sequence=rounds))

    def notifications(self, is_wanted=False):
        return self.peer_directory.notifications(is_wanted=is_wanted)


def test_a_change_of_members_is_told_once_to_all_who_are_there():
    harness = Harness()
    frames = harness.notifications()
    assert [(f.kind, f.slot, f.header["call"]) for f in frames] == [
        ("here", s, False) for s in range(3)
    ]
    assert frames[0].header["peers"] == [[s, 1, f"at-{s}-1"] for s in range(3)]
    assert harness.notifications() == []
    harness.leases.vacate(harness.leases[1])
    assert [f.slot for f in harness.notifications()] == [0, 2]
    harness.grant(1, hello=2)
    (_, frame, _) = harness.notifications()
    assert frame.header["peers"][1] == [1, 2, "at-1-2"]


def test_grants_that_tell_who_is_there_leave_the_news_to_be_told():
    """The first to get a seat is told of itself alone with it."""
    harness = Harness()
    harness.peer_directory.member_fields()
    assert [f.slot for f in harness.notifications()] == [0, 1, 2]


def test_who_missed_the_news_hears_it_with_its_next_word():
    harness = Harness()
    edition = harness.notifications()[0].header["edition"]
    assert harness.publish_rounds(0, 1, edition=edition) == []
    (frame,) = harness.publish_rounds(0, 1, edition=edition - 1)
    assert (frame.slot, frame.header["call"]) == (0, False)


def test_a_meeting_is_called_after_so_many_publications_of_each_on_average():
    harness = Harness()
    harness.notifications()
    harness.publish_rounds(0, 8)
    harness.publish_rounds(1, 3)
    assert harness.notifications() == []
    harness.publish_rounds(1, 4)
    calls = harness.notifications()
    assert [(f.slot, f.header["version"], f.header["call"]) for f in calls] == [
        (s, 0, True) for s in range(3)
    ]
    assert harness.notifications() == [], "once"
    (late_call,) = harness.publish_rounds(2, 1)
    assert late_call.header["call"], "and to whoever speaks without having heard it"


def test_a_meeting_is_called_when_the_budget_is_spent_or_a_point_is_wanted():
    harness = Harness()
    harness.notifications()
    harness.publish_rounds(0, 1, examples=60)
    assert harness.notifications() == []
    harness.publish_rounds(1, 1, examples=60)
    assert len(harness.notifications()) == 3
    second = Harness()
    second.notifications()
    assert len(second.notifications(is_wanted=True)) == 3


def test_words_of_the_dead_count_for_nothing():
    harness = Harness()
    harness.publish_rounds(0, 50)
    harness.leases.vacate(harness.leases[0])
    assert all(not f.header["call"] for f in harness.notifications())


def test_who_was_left_out_of_a_meeting_is_called_to_it():
    harness = Harness()
    harness.notifications()
    harness.phases.owner.version = 2
    (frame,) = harness.publish_rounds(0, 1, version=1)
    assert (frame.header["version"], frame.header["call"]) == (1, True)
