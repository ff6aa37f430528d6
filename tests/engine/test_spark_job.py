"""A Spark job is seen through to its end; why it failed, in one line."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from photinus.core.errors import DataError, NotReadyError, RunFailedError, UsageError
from photinus.engine.spark.job import (
    MAX_CLOSURE_BYTES,
    Failures,
    SparkJob,
    cause_of,
    check_size,
    cure_of,
    is_lost,
    raise_task_error,
    run_query,
    wait_for_end,
)
from photinus.engine.spark.slots import StarvationWatch


class Job:
    """A job that ends at once, as its turn in the script says."""

    def __init__(self, script, error=None, failed=0, lives=False, stranded=False, lost=0):
        self.script, self.error, self.lives = script, error, lives
        self.own, self.lost = failed, lost
        self.stranded = stranded
        self.why = "ModuleNotFoundError: No module named 'torch'"

    def start(self):
        self.script.append("start")

    def fresh_copy(self):
        return Job(self.script, self.error, self.own)

    def is_alive(self):
        return self.lives

    def is_stranded(self):
        return self.stranded

    def failures(self):
        return Failures(self.own, self.own, self.lost, self.why)

    def cure(self, reason):
        return cure_of(reason, "spark://one:7077")

    def join(self, seconds):
        pass

    def cancel(self):
        self.script.append("cancel")


class Place:
    """A meeting that is over after so many looks."""

    slots = 2

    def __init__(self, script, looks, leases=0):
        self.script, self.looks, self.leases = script, looks, leases

    def wait(self, seconds):
        self.looks -= 1
        return self.looks < 0

    def lease(self, slot):
        return self.leases

    def stop(self, reason):
        self.script.append(f"stop: {reason}")


class Interrupted(Place):
    def wait(self, seconds):
        raise KeyboardInterrupt


def test_a_job_that_spark_gave_up_is_submitted_again_and_said_so():
    script, events = [], []
    wait_for_end(Place(script, looks=4), Job(script, "ValueError: lost"), events.append)
    assert script == ["start"] * 3
    texts = {event.text for event in events}
    assert texts == {"Spark gave the job up; got ValueError: lost; it is submitted again"}


def test_a_job_that_spark_gives_up_again_and_again_ends_the_run():
    script = []
    with pytest.raises(RunFailedError, match=r"^Spark gave the job up; got all its tasks ended"):
        wait_for_end(Place(script, looks=99), Job(script), lambda event: None)
    assert script == ["start"] * 4


KILLED = (
    "An error occurred while calling o2.collectToPython.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 7.0 "
    "failed 1 times, most recent failure: Lost task 1.0 in stage 7.0 (TID 10) (h1 executor 0): "
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed){more}\n"
    "\tat org.apache.spark.api.python.BasePythonRunner\nCaused by: java.io.EOFException"
)
CONSIDER = ". Consider setting 'spark.python.worker.faulthandler.enabled' for a better traceback."


def test_a_process_that_is_killed_again_and_again_ends_the_run_with_the_setting_to_raise():
    with pytest.raises(RunFailedError) as failed:
        wait_for_end(Place([], looks=99), Job([], KILLED.format(more=CONSIDER)), lambda event: None)
    assert str(failed.value) == (
        "Spark gave the job up; got the Python process of task 1 was killed, or crashed; "
        "if nobody killed it, memory ran out: raise spark.executor.memoryOverhead, "
        "use a smaller batch, or fewer workers"
    )
    wait_for_end(Place([], looks=9), Job([], lost=12, lives=True), lambda event: None)
    job = Job([], lost=13, lives=True)
    job.why = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    with pytest.raises(
        NotReadyError,
        match=r"are lost before their workers say.*raise spark\.executor\.memoryOverhead, use",
    ):
        wait_for_end(Place([], looks=9), job, lambda event: None)


def test_a_package_that_the_tasks_python_lacks_names_that_python():
    assert "PYSPARK_PYTHON" in cure_of("ModuleNotFoundError: No module named 'torch'", "yarn")


def test_what_no_kill_explains_has_no_cure_of_memory():
    lost = "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137"
    assert "spark.executor.memoryOverhead" in cure_of(lost, "yarn")
    assert cure_of("ValueError: no such row", "yarn") == ""
    cause = cause_of(KILLED.format(more=": Fatal Python error: Segmentation fault"))
    assert "Segmentation fault" in cause, "what faulthandler says is kept"


def test_a_job_whose_application_has_ended_is_not_tried_again():
    script, events = [], []
    with pytest.raises(RunFailedError, match="application has ended under the run; got shut down"):
        wait_for_end(
            Place(script, looks=99), Job(script, "shut down", stranded=True), events.append
        )
    assert (script, events) == (["start"], [])


@pytest.mark.parametrize(
    ("java", "stranded"),
    [
        (SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)), False),
        (SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: True)), True),
        (None, True),  # Java is gone
    ],
)
def test_an_application_that_is_stopped_or_without_java_has_ended(java, stranded):
    job = SparkJob(SimpleNamespace(setJobGroup=None, _jsc=java), lambda: [], "group")
    assert job.is_stranded() == stranded


def test_a_connect_server_that_does_not_answer_is_not_waited_for_when_a_job_is_cancelled(
    monkeypatch,
):
    answers, asked, forgotten = threading.Event(), threading.Event(), []

    def interrupt_tag(group):
        assert group == "group"
        asked.set()
        answers.wait()

    client = SimpleNamespace(_cleanup_ml_cache=lambda: None)
    session = SimpleNamespace(interruptTag=interrupt_tag, client=client)
    monkeypatch.setattr("photinus.engine.spark.job._CANCEL_SECONDS", 0.01)
    monkeypatch.setattr("atexit.unregister", forgotten.append)
    SparkJob(session, list, "group").cancel()
    answers.set()
    assert asked.is_set()
    assert forgotten == [client._cleanup_ml_cache]


def test_a_connect_server_that_is_gone_does_not_hide_what_stopped_the_run(monkeypatch):
    def refuse(group):
        raise ConnectionError(group)

    monkeypatch.setattr("atexit.unregister", None)  # it has answered: nothing is forgotten
    SparkJob(SimpleNamespace(interruptTag=refuse), list, "group").cancel()


def test_a_job_that_follows_is_no_failure():
    script, events, more = [], [], [None, "second", "first"]

    def follow(job):
        return Job(script, more[-1]) if more.pop() else None

    wait_for_end(Place(script, looks=6), Job(script), events.append, follow=follow)
    assert script == ["start"] * 4
    assert len(events) == 1


def test_tasks_that_fail_before_anybody_came_end_the_run():
    script = []
    with pytest.raises(NotReadyError, match="before their workers say hello; got ModuleNotFound"):
        wait_for_end(Place(script, looks=9), Job(script, failed=7, lives=True), lambda event: None)
    assert script == ["start", "stop: the driver ended the run", "cancel"]
    wait_for_end(Place([], looks=9, leases=1), Job([], failed=7, lives=True), lambda event: None)


def test_rows_that_are_refused_before_a_worker_reads_them_end_the_run_at_once():
    script = []
    job = Job(script, failed=1, lives=True)
    job.why = "photinus.core.errors.DataError: a.bin record 2: a label must lie in 0..9; got 10"
    with pytest.raises(DataError, match=r"^a\.bin record 2: a label must lie in 0\.\.9; got 10$"):
        wait_for_end(Place(script, looks=9), job, lambda event: None)
    assert script == ["start", "stop: the driver ended the run", "cancel"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DataError, "row 33 column x: nan at 1"),
        (UsageError, "the module 'mine:net' cannot be imported; got ModuleNotFoundError: mine"),
    ],
)
def test_of_a_query_on_connect_the_error_that_a_task_raised_is_passed_on(kind, words):
    def query():
        raise RuntimeError(f"Job aborted\n photinus.core.errors.{kind.__name__}: {words}\n\tat a.b")

    with pytest.raises(kind) as caught:
        run_query(SimpleNamespace(), query)
    assert str(caught.value) == words


def test_of_a_query_on_connect_any_other_error_stays_what_it_is():
    def query():
        raise LookupError("of Spark's")

    with pytest.raises(LookupError, match="of Spark's"):
        run_query(SimpleNamespace(), query)


def test_a_query_whose_tasks_fail_again_and_again_is_ended(monkeypatch):
    script, session = [], SimpleNamespace(_jsparkSession=None, sparkContext=None)
    job = Job(script, failed=4, lives=True)
    monkeypatch.setattr("photinus.engine.spark.job.SparkJob", lambda *_: job)
    with pytest.raises(DataError, match=r"^the rows cannot be read; got ModuleNotFoundError"):
        run_query(session, lambda: 1)
    assert script == ["start", "cancel"]


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", True),
        ("ExecutorLostFailure (executor 1 exited unrelated to the running tasks)", True),
        ("java.net.SocketException: Broken pipe", True),
        ("java.io.IOException: Connection reset by peer", True),
        ("java.io.EOFException\n\tat o.a.s.api.python.PythonWorkerFactory.createSimple", True),
        ("java.io.EOFException\n\tat org.apache.parquet.Reader", False),
        ("Error from python worker: No module\nEOFException\nat PythonWorkerFactory", False),
        ("ModuleNotFoundError: No module named 'torch'", False),
        ("photinus.core.errors.DataError: row 3", False),
    ],
)
def test_a_lost_process_is_told_from_a_failure_of_its_own(said, lost):
    assert is_lost(said) is lost


class Task(SimpleNamespace):
    """An attempt as Spark's store has it."""

    def __init__(self, number, task, text=None):
        message = SimpleNamespace(isDefined=lambda: text is not None, get=lambda: text)
        super().__init__(
            taskId=lambda: number,
            index=lambda: task,
            status=lambda: "RUNNING" if text is None else "FAILED",
            errorMessage=lambda: message,
        )


def test_failures_are_counted_by_task_and_by_what_failed():
    died = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    tasks = [Task(0, 0, died), Task(1, 1, died), Task(2, 0, died), Task(3, 1, "ValueError: no")]
    tasks += [Task(4, 1), Task(5, 1, "ValueError: no, too"), Task(6, 2, "KeyError: x")]
    rows = SimpleNamespace(size=lambda: len(tasks), apply=lambda i: tasks[i])
    info = SimpleNamespace(numFailedTasks=6)
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda group: [0],
        getJobInfo=lambda job: SimpleNamespace(stageIds=[7]),
        getStageInfo=lambda stage: info,
    )
    store = SimpleNamespace(taskList=lambda stage, attempt, most: rows)
    scala = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))
    of = SimpleNamespace(setJobGroup=None, statusTracker=lambda: tracker, _jsc=scala)
    job = SparkJob(of, list, "group")
    assert job.failures() == Failures(3, 2, 2, "KeyError: x")
    assert job.failures() == job.failures(), "an attempt counts once"
    assert job.reason() == "KeyError: x"


@pytest.fixture
def dying(tmp_path):
    """Rows of which every task's process is killed while it reads, so often as is said."""

    def batches_of(times):
        def read(batches):
            from pyspark import TaskContext

            task = TaskContext.get().partitionId()
            for batch in batches:
                for number in range(times):
                    file = tmp_path / f"{task}-{number}"
                    if not file.exists():
                        file.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        return read

    return batches_of


@pytest.mark.spark
@pytest.mark.parametrize("times", [3, 5])
def test_processes_that_are_killed_while_they_read_rows_cost_retries_and_no_blame(
    spark, dying, nothing_left, times
):
    """Three of each of four tasks: Spark's retries; five: more than Spark gives, so once more."""
    rows = spark.range(4000, numPartitions=4).mapInArrow(dying(times), "id long")
    assert run_query(spark, rows.count) == 4000


@pytest.mark.spark
def test_processes_that_are_killed_for_ever_end_a_query_with_what_to_do(spark, dying):
    rows = spark.range(100, numPartitions=1).mapInArrow(dying(1000), "id long")
    with pytest.raises(NotReadyError, match=r"were lost again and again; .*memory ran out"):
        run_query(spark, rows.count)


def test_a_query_of_connect_is_just_asked():
    assert run_query(SimpleNamespace(), lambda: 3) == 3


@pytest.mark.spark
def test_a_row_that_is_refused_where_it_is_read_ends_the_query(spark, nothing_left):
    def refuse(batches):
        raise DataError("a.bin record 2: a label must lie in 0..9", got=10)
        yield from batches

    rows = spark.range(8, numPartitions=2)
    assert run_query(spark, rows.count) == 8
    with pytest.raises(DataError, match=r"^a\.bin record 2: a label must lie in 0\.\.9; got 10$"):
        run_query(spark, rows.mapInArrow(refuse, "id long").count)


def test_after_ctrl_c_the_workers_are_still_there_when_it_is_told():
    script = []
    with pytest.raises(KeyboardInterrupt):
        wait_for_end(
            Interrupted(script, looks=9),
            Job(script, lives=True),
            lambda event: None,
            on_interrupt=script.append,
        )
    assert script == ["start", "stopped by Ctrl-C", "stop: the driver ended the run", "cancel"]


def test_a_task_that_spark_would_write_to_a_file_is_refused():
    heavy = bytes(MAX_CLOSURE_BYTES + 1)
    with pytest.raises(UsageError, match="must be below 512 KiB; got 512 KiB"):
        check_size(lambda: heavy)
    check_size(lambda: None)


def test_the_cause_is_the_line_that_python_raised():
    long = "Job aborted: Task 0 failed\nTraceback\nValueError: no such row\n\tat org.apache.Error"
    assert cause_of(long) == "ValueError: no such row"
    assert cause_of("org.apache.SparkException: lost") == "org.apache.SparkException: lost"
    java = "An error occurred while calling o1.collectToPython.\n: org.apache.SparkException: lost"
    assert cause_of(java) == "org.apache.SparkException: lost"
    read = "org.apache.SparkException: {}\n\tat a.B(C.java:1)\nCaused by: {}\n\t... 9 more"
    lost = "java.io.FileNotFoundException: File does not exist: /rows/part-0.parquet"
    assert cause_of(read.format("Job aborted", lost)) == lost
    damaged = "Encountered error while reading file file:///rows/part-0.parquet"
    cause = "java.lang.RuntimeException: it is not a Parquet file"
    assert cause_of(read.format(damaged, cause)) == f"org.apache.SparkException: {damaged}"
    assert cause_of(None) == "all its tasks ended early"
    assert cause_of(RuntimeError("")) == "RuntimeError"


def test_what_a_task_refuses_with_is_passed_on_in_its_own_class_and_a_lost_link_is_not():
    wrong = "Job aborted\n  raise it\nphotinus.core.errors.UsageError: a sentence; do this\n\nJVM"
    with pytest.raises(UsageError, match=r"^a sentence; do this$"):
        raise_task_error(Job([], error=wrong))
    raise_task_error(Job([], error="photinus.core.errors.LinkLostError: nobody answers"))
    raise_task_error(Job([]))


def test_a_job_that_ends_with_its_run_is_no_job_that_was_given_up():
    script, events = [], []
    wait_for_end(Place(script, looks=1), Job(script), events.append)
    assert (script, events) == (["start"], [])


def test_a_job_whose_copies_starve_a_worker_is_ended_after_two_minutes_and_begun_anew():
    script, events, now = [], [], [0.0]
    slots, job = {1}, Job(script)
    starving = StarvationWatch(lambda: frozenset(slots), events.append, lambda: now[0])
    for seconds, running in ((0, {1}), (119, set()), (1, {1}), (119, {1})):
        slots, now[0] = running, now[0] + seconds
        starving.look(job)
    assert (script, events) == ([], []), "a task came meanwhile"
    now[0] += 1
    starving.look(job)
    assert script == ["cancel"]
    assert [event.text for event in events] == [
        "workers [1] have no task, as copies of others' tasks hold the slots; "
        "after 120 s the job is ended, and submitted again"
    ]
