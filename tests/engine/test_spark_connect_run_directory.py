"""The files in the run folder through which a client and its tasks exchange status."""

import secrets
from types import SimpleNamespace

import numpy as np
import pytest

from photinus.checkpoint.mapped import ScratchFolder, is_mapped
from photinus.coordinator.phases import RunResult
from photinus.coordinator.sharded_table import Table
from photinus.core.errors import AuthenticationError, CheckpointError, LinkLostError, NotReadyError
from photinus.engine.spark.connect import initial_vectors
from photinus.engine.spark.connect.run_directory import RunDirectory
from photinus.transport.credentials import Credentials

KEY = Credentials.make(secrets.token_bytes(16)).worker(is_peer=True)


@pytest.fixture
def run_directory(tmp_path):
    directory = RunDirectory(str(tmp_path), 1)
    directory.make({}, KEY)
    return directory


def test_a_task_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(NotReadyError, match="is not seen by a task; got nothing of this run on"):
        RunDirectory(str(tmp_path / "elsewhere"), 1).check()


def test_what_phases_start_from_is_handed_over(tmp_path):
    run_directory, start = (
        RunDirectory(str(tmp_path), 1),
        {"a phase": (np.ones(3, "f4"), np.zeros(0, "f4"))},
    )
    run_directory.make(start, KEY)
    initial = RunDirectory(str(tmp_path), 1).initial_vectors(KEY)
    assert [v.tolist() for v in initial["a phase"]] == [[1.0, 1.0, 1.0], []]


@pytest.fixture
def handed_over(tmp_path, monkeypatch):
    """A vector in three pages, sealed."""
    monkeypatch.setattr(initial_vectors, "_PAGE_BYTES", 16)
    directory = RunDirectory(str(tmp_path), 1)
    directory.make({"a phase": (np.arange(10, dtype="f4"),)}, KEY)
    return directory


def test_what_phases_start_from_is_handed_over_in_pages(handed_over):
    [vector] = handed_over.initial_vectors(KEY)["a phase"]
    assert vector.tolist() == list(range(10))
    assert is_mapped(vector)
    assert not vector.flags.writeable


def test_what_phases_start_from_is_read_by_members_of_the_run_alone(handed_over):
    pages = sorted((handed_over.path / "given").iterdir())
    assert [page.name for page in pages] == ["0-0-0", "0-0-1", "0-0-2", "index"]
    assert {page.stat().st_mode & 0o777 for page in pages} == {0o600}
    plain = np.arange(10, dtype="f4").tobytes()
    assert not any(plain[:16] in page.read_bytes() for page in pages)
    assert b"a phase" not in pages[-1].read_bytes()
    with pytest.raises(AuthenticationError, match="not sealed by this run; got given/index"):
        handed_over.initial_vectors(Credentials.make(KEY.run).worker())


def test_a_page_that_was_changed_moved_or_lost_is_refused(handed_over):
    first, second = (handed_over.path / "given" / name for name in ("0-0-0", "0-0-1"))
    whole = first.read_bytes()
    for wrong in (whole[:-1] + bytes([whole[-1] ^ 1]), second.read_bytes(), b""):
        first.write_bytes(wrong)
        with pytest.raises(AuthenticationError, match="not sealed by this run; got given/0-0-0"):
            handed_over.initial_vectors(KEY)
    first.unlink()
    with pytest.raises(CheckpointError, match="is missing; got given/0-0-0"):
        handed_over.initial_vectors(KEY)


def test_without_security_what_phases_start_from_lies_there_as_it_is(tmp_path):
    key, vector = Credentials.none(bytes(16)).worker(), np.arange(3, dtype="f4")
    directory = RunDirectory(str(tmp_path), 1)
    directory.make({"a phase": (vector,)}, key)
    assert (directory.path / "given" / "0-0-0").read_bytes() == vector.tobytes()
    assert directory.initial_vectors(key)["a phase"][0].tolist() == vector.tolist()


def test_an_executor_without_room_for_it_says_so(handed_over, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ScratchFolder, "array", full)
    with pytest.raises(NotReadyError, match=r"no room for what the run starts from .* TMPDIR"):
        handed_over.initial_vectors(KEY)


def test_a_folder_that_tasks_may_only_read_says_so(run_directory, monkeypatch):
    def refused(*_):
        raise LinkLostError("no space")

    monkeypatch.setattr(run_directory._filesystem, "put", refused)
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
    run_directory.write_outcome(RunResult(vectors, np.ones(2, "f4"), np.array([3])))
    result, failure, _ = run_directory.outcome()
    assert run_directory.has_outcome
    assert failure == ""
    assert [v.tobytes() for v in result.vectors] == [v.tobytes() for v in vectors]
    assert (result.floats.tolist(), result.integers.tolist()) == ([1.0, 1.0], [3])


def test_a_table_in_a_file_is_read_from_one_again(run_directory, tmp_path):
    shards = {slot: {"vector": np.full(2, slot, "f4")} for slot in (0, 1)}
    model = SimpleNamespace(parameters=SimpleNamespace(trained=np.zeros(4, "f4")))
    table = Table(shards, 1, ScratchFolder(tmp_path), lambda: model)
    run_directory.write_outcome(RunResult((), np.ones(2, "f4"), np.array([3]), table))
    [vector] = run_directory.outcome()[0].vectors
    run_directory.remove()
    assert is_mapped(vector)
    assert vector.tolist() == [0, 1, 0, 1]


def test_the_outcome_is_a_failure_in_its_own_class(run_directory):
    run_directory.write_outcome(None, "row 3 is wrong", "DataError")
    assert run_directory.outcome() == (None, "row 3 is wrong", "DataError")


def test_a_directory_that_is_gone_asks_for_the_end_and_is_not_made_again(run_directory):
    assert run_directory.stop_request() is None
    run_directory.stop("enough", saves=True)
    assert run_directory.stop_request() == {"reason": "enough", "saves": True}
    run_directory.remove()
    run_directory.write_outcome(None, "too late")
    run_directory.stop("too late")
    assert run_directory.stop_request() == {
        "reason": "the client has ended the run",
        "saves": False,
    }
    assert not run_directory.path.exists()


def test_a_client_that_resumes_ends_the_tasks_of_the_one_before(run_directory, tmp_path):
    RunDirectory(str(tmp_path), 2).make({}, KEY)
    assert run_directory.stop_request() == {
        "reason": "the client has ended the run",
        "saves": False,
    }
