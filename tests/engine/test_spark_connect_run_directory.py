"""The corner of the run folder in which a client and its tasks leave word."""

import numpy as np
import pytest

from photinus.coordinator.coordinator import Result
from photinus.core.errors import LinkLostError, NotReadyError
from photinus.engine.spark.connect.run_directory import RunDirectory


@pytest.fixture
def corner(tmp_path):
    made = RunDirectory(str(tmp_path), 1)
    made.make({})
    return made


def test_a_task_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(NotReadyError, match="is not seen by a task; got nothing of this run on"):
        RunDirectory(str(tmp_path / "elsewhere"), 1).check()


def test_what_phases_start_from_is_handed_over(tmp_path):
    corner, start = (
        RunDirectory(str(tmp_path), 1),
        {"a phase": (np.ones(3, "f4"), np.zeros(0, "f4"))},
    )
    corner.make(start)
    given = RunDirectory(str(tmp_path), 1).given()
    assert [v.tolist() for v in given["a phase"]] == [[1.0, 1.0, 1.0], []]


def test_a_folder_that_tasks_may_only_read_says_so(corner, monkeypatch):
    def refused(*_):
        raise LinkLostError("no space")

    monkeypatch.setattr(corner._place, "put", refused)
    with pytest.raises(NotReadyError, match="cannot be written by a task on"):
        corner.check()


def test_only_one_coordinator_announces_a_term_and_the_newest_is_found(corner):
    assert corner.host() is None
    assert corner.announce(1, "a:1")
    assert not corner.announce(1, "b:2")
    assert corner.announce(12, "c:3")
    assert corner.host() == (12, "c:3")


def test_the_outcome_is_a_result_to_the_bit(corner):
    assert not corner.has_outcome
    vectors = (np.array([0.1, np.pi], "f4"), np.array([1e-30]))
    corner.say(Result(vectors, np.ones(2, "f4"), np.array([3])))
    result, failure, _ = corner.outcome()
    assert corner.has_outcome
    assert failure == ""
    assert [v.tobytes() for v in result.vectors] == [v.tobytes() for v in vectors]
    assert (result.floats.tolist(), result.integers.tolist()) == ([1.0, 1.0], [3])


def test_the_outcome_is_a_failure_in_its_own_class(corner):
    corner.say(None, "row 3 is wrong", "DataError")
    assert corner.outcome() == (None, "row 3 is wrong", "DataError")


def test_a_corner_that_is_gone_asks_for_the_end_and_is_not_made_again(corner):
    assert corner.asked() is None
    corner.stop("enough", saves=True)
    assert corner.asked() == {"reason": "enough", "saves": True}
    corner.remove()
    corner.say(None, "too late")
    corner.stop("too late")
    assert corner.asked() == {"reason": "the client has ended the run", "saves": False}
    assert not corner.path.exists()


def test_a_client_that_resumes_ends_the_tasks_of_the_one_before(corner, tmp_path):
    RunDirectory(str(tmp_path), 2).make({})
    assert corner.asked() == {"reason": "the client has ended the run", "saves": False}
