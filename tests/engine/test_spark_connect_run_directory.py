"""The corner of the run folder in which a client and its tasks leave word."""

import numpy as np
import pytest

from photinus.checkpoint.mapped import ScratchFolder, is_mapped
from photinus.coordinator.phases import Result
from photinus.coordinator.sharded_table import Table
from photinus.core.errors import LinkLostError, NotReadyError
from photinus.engine.spark.connect.run_directory import RunDirectory


@pytest.fixture
def run_directory(tmp_path):
    made = RunDirectory(str(tmp_path), 1)
    made.make({})
    return made


def test_a_task_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(NotReadyError, match="is not seen by a task; got nothing of this run on"):
        RunDirectory(str(tmp_path / "elsewhere"), 1).check()


def test_what_phases_start_from_is_handed_over(tmp_path):
    run_directory, start = (
        RunDirectory(str(tmp_path), 1),
        {"a phase": (np.ones(3, "f4"), np.zeros(0, "f4"))},
    )
    run_directory.make(start)
    given = RunDirectory(str(tmp_path), 1).given()
    assert [v.tolist() for v in given["a phase"]] == [[1.0, 1.0, 1.0], []]


def test_a_folder_that_tasks_may_only_read_says_so(run_directory, monkeypatch):
    def refused(*_):
        raise LinkLostError("no space")

    monkeypatch.setattr(run_directory._place, "put", refused)
    with pytest.raises(NotReadyError, match="cannot be written by a task on"):
        run_directory.check()


def test_only_one_coordinator_announces_a_term_and_the_newest_is_found(run_directory):
    assert run_directory.host() is None
    assert run_directory.announce(1, "a:1")
    assert not run_directory.announce(1, "b:2")
    assert run_directory.announce(12, "c:3")
    assert run_directory.host() == (12, "c:3")


def test_the_outcome_is_a_result_to_the_bit(run_directory):
    assert not run_directory.has_outcome
    vectors = (np.array([0.1, np.pi], "f4"), np.array([1e-30]))
    run_directory.say(Result(vectors, np.ones(2, "f4"), np.array([3])))
    result, failure, _ = run_directory.outcome()
    assert run_directory.has_outcome
    assert failure == ""
    assert [v.tobytes() for v in result.vectors] == [v.tobytes() for v in vectors]
    assert (result.floats.tolist(), result.integers.tolist()) == ([1.0, 1.0], [3])


def test_a_table_in_a_file_is_read_from_one_again(run_directory, tmp_path):
    shards = {slot: {"vector": np.full(2, slot, "f4")} for slot in (0, 1)}
    table = Table(shards, 1, ScratchFolder(tmp_path))
    run_directory.say(Result((), np.ones(2, "f4"), np.array([3]), table))
    [vector] = run_directory.outcome()[0].vectors
    run_directory.remove()
    assert is_mapped(vector)
    assert vector.tolist() == [0, 1, 0, 1]


def test_the_outcome_is_a_failure_in_its_own_class(run_directory):
    run_directory.say(None, "row 3 is wrong", "DataError")
    assert run_directory.outcome() == (None, "row 3 is wrong", "DataError")


def test_a_corner_that_is_gone_asks_for_the_end_and_is_not_made_again(run_directory):
    assert run_directory.asked() is None
    run_directory.stop("enough", saves=True)
    assert run_directory.asked() == {"reason": "enough", "saves": True}
    run_directory.remove()
    run_directory.say(None, "too late")
    run_directory.stop("too late")
    assert run_directory.asked() == {"reason": "the client has ended the run", "saves": False}
    assert not run_directory.path.exists()


def test_a_client_that_resumes_ends_the_tasks_of_the_one_before(run_directory, tmp_path):
    RunDirectory(str(tmp_path), 2).make({})
    assert run_directory.asked() == {"reason": "the client has ended the run", "saves": False}
