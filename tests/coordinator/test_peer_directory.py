"""Who is told what, and when a meeting is called: frame by frame."""

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import Leases
from photinus.coordinator.peer_directory import PeerDirectory
from photinus.coordinator.phases import Phases
from photinus.core.clock import Steps
from photinus.models.logistic import LogisticStage
from photinus.protocol.messages import Seat
from photinus.strategies.recipes import publish
from photinus.training.plan import Phase, TrainingPlan

RUN = bytes(16)


class Said:
    """Phases with seats that are held, and the directory over them."""

    def __init__(self, strategy=None, workers=3):
        stage = LogisticStage(features=1, classes=2, epochs=4, batch_size=1)
        strategy = strategy or publish(every=Steps(1), exact_every=4)
        plan = TrainingPlan(phases=(Phase(stage=stage, strategy=strategy),), workers=workers)
        self.leases = Leases(workers)
        self.phases = Phases(plan, self.leases, Callbacks(run=RUN))
        self.peer_directory = PeerDirectory(self.phases, self.leases)
        for slot in range(workers):
            self.sits(slot)
            self.leases.seats[slot].rows = 10
        self.phases.begin(0.0)

    def sits(self, slot, hello=1):
        seat = self.leases.seats[slot]
        note = {"attempt": "a", "hello": hello, "has": 0, "address": f"at-{slot}-{hello}"}
        self.leases.grant(seat, Seat(RUN, 1, 0, slot).frame("hello", note), 0.0)

    def tells(self, slot, rounds, examples=0, version=0, edition=99):
        seat = Seat(RUN, 1, 0, slot, self.leases.seats[slot].lease)
        told = {"version": version, "examples": examples, "edition": edition}
        return self.peer_directory.receive(seat.frame("publish", told, sequence=rounds))

    def news(self, is_wanted=False):
        return self.peer_directory.notifications(is_wanted=is_wanted)


def test_a_change_of_members_is_told_once_to_all_who_are_there():
    said = Said()
    told = said.news()
    assert [(f.kind, f.slot, f.header["call"]) for f in told] == [
        ("here", s, False) for s in range(3)
    ]
    assert told[0].header["peers"] == [[s, 1, f"at-{s}-1"] for s in range(3)]
    assert said.news() == []
    said.leases.vacate(said.leases.seats[1])
    assert [f.slot for f in said.news()] == [0, 2]
    said.sits(1, hello=2)
    (_, again, _) = said.news()
    assert again.header["peers"][1] == [1, 2, "at-1-2"]


def test_grants_that_tell_who_is_there_leave_the_news_to_be_told():
    """The first to get a seat is told of itself alone with it."""
    said = Said()
    said.peer_directory.member_fields()
    assert [f.slot for f in said.news()] == [0, 1, 2]


def test_who_missed_the_news_hears_it_with_its_next_word():
    said = Said()
    edition = said.news()[0].header["edition"]
    assert said.tells(0, 1, edition=edition) == []
    (told,) = said.tells(0, 1, edition=edition - 1)
    assert (told.slot, told.header["call"]) == (0, False)


def test_a_meeting_is_called_after_so_many_publications_of_each_on_average():
    said = Said()
    said.news()
    said.tells(0, 8)
    said.tells(1, 3)
    assert said.news() == []
    said.tells(1, 4)
    called = said.news()
    assert [(f.slot, f.header["version"], f.header["call"]) for f in called] == [
        (s, 0, True) for s in range(3)
    ]
    assert said.news() == [], "once"
    (again,) = said.tells(2, 1)
    assert again.header["call"], "and to whoever speaks without having heard it"


def test_a_meeting_is_called_when_the_budget_is_spent_or_a_point_is_wanted():
    said = Said()
    said.news()
    said.tells(0, 1, examples=60)
    assert said.news() == []
    said.tells(1, 1, examples=60)
    assert len(said.news()) == 3
    other = Said()
    other.news()
    assert len(other.news(is_wanted=True)) == 3


def test_words_of_the_dead_count_for_nothing():
    said = Said()
    said.tells(0, 50)
    said.leases.vacate(said.leases.seats[0])
    assert all(not f.header["call"] for f in said.news())


def test_who_was_left_out_of_a_meeting_is_called_to_it():
    said = Said()
    said.news()
    said.phases.owner.version = 2
    (told,) = said.tells(0, 1, version=1)
    assert (told.header["version"], told.header["call"]) == (1, True)
