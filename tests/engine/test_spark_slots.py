"""Runs of one application take their slots together, or wait for each other."""

import threading
from types import SimpleNamespace

import pytest

from photinus.core.errors import UsageError
from photinus.engine.spark import engine as spark_engine
from photinus.engine.spark.engine import check_slots
from photinus.engine.spark.slots import AbsenceReasons, held_slots


def run_of(workers, slots, events, begun, may_end, application="one"):
    def run():
        with held_slots(application, workers, lambda: slots, events.append):
            begun.set()
            may_end.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_run_waits_for_the_slots_of_another_and_says_so():
    events, first, second, end = [], *(threading.Event() for _ in range(3))
    one = run_of(3, 4, events, first, end)
    assert first.wait(5)
    waits, texts = threading.Event(), []

    def note(event):
        texts.append(event.text)
        waits.set()

    class Events(list):
        append = staticmethod(note)

    other = run_of(2, 4, Events(), second, end)
    assert waits.wait(5)
    assert not second.is_set()
    end.set()
    assert second.wait(5)
    one.join()
    other.join()
    assert not events
    assert texts == [
        "2 workers need 2 slots at the same time; got 4 slots, of which other runs of this "
        "application hold 3; this run waits for them"
    ]


@pytest.mark.parametrize(("slots", "application"), [(5, "one"), (None, "one"), (4, "another")])
def test_nobody_waits_where_both_fit_or_nothing_is_bounded_or_another_application(
    slots, application
):
    events, end = [], threading.Event()
    begun = [threading.Event(), threading.Event()]
    runs = [run_of(3, slots, events, begun[0], end)]
    assert begun[0].wait(5)
    runs.append(run_of(2, slots, events, begun[1], end, application))
    assert begun[1].wait(5)
    end.set()
    for run in runs:
        run.join()
    assert not events


def test_a_run_that_failed_holds_nothing():
    with pytest.raises(ValueError, match="lost"), held_slots("two", 4, lambda: 4, print):
        raise ValueError("lost")
    with held_slots("two", 4, lambda: 4, pytest.fail):
        pass


@pytest.mark.parametrize(
    ("ours", "all_tasks", "slots", "said"),
    [
        (3, 3, 3, "wait: every worker has its task, and is starting or reads its rows"),
        (3, 9, None, "wait: every worker has its task, and is starting or reads its rows"),
        (1, 4, 4, "other jobs hold 3 of 4 slots: end them, or ask for fewer workers"),
        (0, 1, 3, "other jobs hold 1 of 3 slots: end them, or ask for fewer workers"),
        (0, 0, 3, "wait: slots are free, and Spark is still starting the tasks"),
        (1, 2, 8, "wait: slots are free, and Spark is still starting the tasks"),
        (2, 2, 2, "there are 2 slots: free slots, or ask for fewer workers"),
        (0, 5, None, "wait: slots are free, and Spark is still starting the tasks"),
    ],
)
def test_what_to_do_about_missing_workers_is_what_sparks_tasks_say(ours, all_tasks, slots, said):
    configs = {1: SimpleNamespace(numActiveTasks=all_tasks), 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(configs), getStageInfo=configs.get)
    context = SimpleNamespace(statusTracker=lambda: tracker)
    absent = AbsenceReasons(context, 3, lambda: slots)
    absent.look(SimpleNamespace(running=lambda: ours))
    assert absent.advice() == said


@pytest.mark.parametrize(("present", "is_told"), [(0, True), (2, True), (3, False)])
def test_a_cluster_that_has_given_too_few_slots_yet_is_told_so(present, is_told):
    tracker = SimpleNamespace(getActiveStageIds=lambda: [], getStageInfo={}.get)
    manager = SimpleNamespace(defaultResourceProfile=lambda: "default")
    scala = SimpleNamespace(
        resourceProfileManager=lambda: manager, maxNumConcurrentTasks={"default": present}.get
    )
    java = SimpleNamespace(sc=lambda: scala)
    context = SimpleNamespace(statusTracker=lambda: tracker, _jsc=java)
    advice = AbsenceReasons(context, 3, lambda: 3).advice()
    assert (f"the cluster has given {present} slots so far" in advice) == is_told
    assert ("slots are free" in advice) != is_told


def test_where_spark_is_gone_there_is_still_something_to_do():
    def gone():
        raise ConnectionError

    assert AbsenceReasons(SimpleNamespace(statusTracker=gone), 3, gone).advice().startswith("wait")


@pytest.mark.parametrize(("cores", "looks"), [("4", 1), ("6", 2)])
def test_executors_are_waited_for_only_where_they_may_have_the_slots(monkeypatch, cores, looks):
    conf = {"spark.master": "spark://host:7077", "spark.cores.max": cores, "spark.task.cpus": "2"}
    looked_at = []

    def two_slots(*arguments):
        looked_at.append(arguments)
        return 2

    monkeypatch.setattr(spark_engine, "slots_of", two_slots)
    monkeypatch.setattr(spark_engine, "_REGISTER_SECONDS", 0.5)
    with pytest.raises(UsageError, match="3 workers need 3 slots at the same time; got 2 slots"):
        check_slots(SimpleNamespace(conf=conf), 3)
    assert len(looked_at) == looks


@pytest.mark.parametrize(
    ("slots", "warning", "error"),
    [
        (
            2,
            "got 2 so far; executors are waited for, 0.5 s at most; workers=2 fits",
            "workers=2 or",
        ),
        (0, "got 0 so far; executors are waited for, 0.5 s at most", "got 0 slots; look in Spark"),
    ],
)
def test_while_executors_are_waited_for_a_warning_says_how_many_workers_fit(
    monkeypatch, slots, warning, error
):
    conf, events = {"spark.master": "spark://host:7077"}, []
    monkeypatch.setattr(spark_engine, "slots_of", lambda *_: slots)
    monkeypatch.setattr(spark_engine, "_REGISTER_SECONDS", 1.0)
    monkeypatch.setattr(spark_engine, "_WARN_SECONDS", 0.5)
    with pytest.raises(UsageError, match=error):
        check_slots(SimpleNamespace(conf=conf), 3, emit=events.append)
    (event,) = events
    assert event.text.startswith(f"3 workers need 3 slots at the same time; {warning}")


def test_before_a_run_has_begun_the_warning_of_few_slots_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(spark_engine, "slots_of", lambda *_: 2)
    monkeypatch.setattr(spark_engine, "_REGISTER_SECONDS", 0.5)
    monkeypatch.setattr(spark_engine, "_WARN_SECONDS", 0.0)
    with pytest.raises(UsageError, match="got 2 slots"):
        check_slots(SimpleNamespace(conf={"spark.master": "spark://host:7077"}), 3)
    assert "workers=2 fits the slots that are there" in caplog.text
