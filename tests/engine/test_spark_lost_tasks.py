"""Tasks that Spark knows to have failed, told to the coordinator once each."""

from types import SimpleNamespace

from photinus.engine.spark.job import SparkJob
from photinus.engine.spark.lost_tasks import LostTaskReporter

CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
LOST = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"


class Job:
    failed = 0
    reads = 0

    def failure_count(self):
        return self.failed

    def ended_tasks(self):
        self.reads += 1
        return [(1, "11"), (0, "13")][: self.failed]


class Seats(list):
    def died(self, slot, attempt):
        self.append((slot, attempt))


def test_each_task_that_failed_is_told_once():
    seats, job = Seats(), Job()
    deaths = LostTaskReporter(seats)
    for job.failed in (0, 1, 1, 2):
        deaths.look(job)
    assert seats == [(1, "11"), (0, "13")]
    assert job.reads == 2, "Spark's store is read only when a task has failed"


def task(number, slot, status, message=None):
    text = SimpleNamespace(isDefined=lambda: message is not None, get=lambda: message)
    return SimpleNamespace(
        taskId=lambda: number,
        partitionId=lambda: slot,
        status=lambda: status,
        errorMessage=lambda: text,
    )


def test_only_tasks_whose_python_process_has_ended_count(monkeypatch):
    """Of an executor that Spark has lost sight of the Python worker may train on."""
    tasks = [
        task(10, 0, "RUNNING"),
        task(11, 1, "FAILED", CRASHED),
        task(12, 2, "FAILED", LOST),
        task(13, 3, "SUCCESS"),
        task(14, 0, "KILLED", "TaskKilled (another attempt succeeded)"),
    ]
    task_list = SimpleNamespace(size=lambda: len(tasks), apply=lambda n: tasks[n])
    store = SimpleNamespace(taskList=lambda stage, attempt, most: task_list)
    java = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))
    job = SparkJob(SimpleNamespace(setJobGroup=None, _jsc=java), lambda: [], "group")
    monkeypatch.setattr(job, "_stages", lambda: {3: None})
    assert job.ended_tasks() == [(1, "11")]


def test_a_store_that_is_read_otherwise_costs_only_the_minute(monkeypatch):
    java = SimpleNamespace(sc=lambda: SimpleNamespace())
    job = SparkJob(SimpleNamespace(setJobGroup=None, _jsc=java), lambda: [], "group")
    monkeypatch.setattr(job, "_stages", lambda: {3: None})
    assert job.ended_tasks() == []
