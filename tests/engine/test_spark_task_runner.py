"""Units over the encrypted link, in threads of this process: what a task of Spark would do."""

import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.task_server import (
    FAILURES,
    TaskServer,
    UnitWork,
    WorkUnits,
    unit_requests,
)
from photinus.core.errors import NotReadyError, RunFailedError, UsageError
from photinus.engine.driver_session import ListeningService
from photinus.engine.spark.task_runner import (
    Parts,
    loaded,
    parts_of_frame,
    pickle_function,
    run_units,
)
from photinus.protocol.serialization import packed, unpacked


class Sum:
    """Adds what comes, for so many rounds."""

    def __init__(self, rounds=1):
        self.total, self.left = np.zeros(3), rounds

    def state(self, has):
        return packed(self.total.copy())

    def take(self, results):
        for result in results:
            self.total += result
        self.left -= 1
        return self.left <= 0


def owned(rule, **units):
    return TaskServer(WorkUnits(**{"count": 3, **units}), rule, Callbacks(run=os.urandom(16)))


def task(service, unit, work, errors):
    """One attempt after the other, as Spark would start them, until one returns."""
    for attempt in range(2 * FAILURES):
        try:
            begin = lambda: unit_requests(UnitWork(work(unit)), can_repeat=False)  # noqa: E731
            return service.call().run_worker(unit, f"{unit}-{attempt}", begin)
        except Exception as error:
            errors.append(error)


def run_all(owner, work, security="tls"):
    errors = []
    with ListeningService(owner, security=security) as service:
        threads = [
            threading.Thread(target=task, args=(service, unit, work, errors)) for unit in range(3)
        ]
        for thread in threads:
            thread.start()
        assert service.wait(60)
        assert service.slots == 3
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    return errors


@pytest.mark.parametrize("security", ["tls", "none"])
@pytest.mark.parametrize("together", [False, True])
def test_units_meet_and_each_counts_once(security, together):
    def work(unit):
        return lambda state: packed(np.eye(3)[unit] + 0 * unpacked(state))

    rule = Sum(rounds=4)
    assert run_all(owned(rule, together=together), work, security) == []
    assert rule.total.tolist() == ([4, 4, 4] if together else [1, 1, 1])


def test_a_failing_attempt_is_raised_for_spark_and_followed_by_another():
    tries = []

    def work(unit):
        def run_plan_once(state):
            tries.append(unit)
            if tries.count(1) < FAILURES and unit == 1:
                raise ValueError(f"bad row, try {tries.count(1)}")
            return packed(np.eye(3)[unit])

        return run_plan_once

    rule = Sum()
    errors = run_all(owned(rule), work)
    assert [str(error) for error in errors] == [
        f"bad row, try {number}" for number in range(1, FAILURES)
    ]
    assert rule.total.tolist() == [1, 1, 1]


def test_a_failure_that_comes_again_is_told_with_its_place_and_the_user_s_own_traceback():
    tries = []

    def work(unit):
        def run_plan_once(state):
            tries.append(unit)
            return 1 / 0

        return run_plan_once

    owner = owned(Sum())
    run_all(owner, work)
    message, *trace = owner.failure.splitlines()
    assert message.startswith("gradient failed twice in the same way on partition ")
    assert "got ZeroDivisionError: division by zero (test_spark_task_runner.py, line " in message
    assert max(tries.count(unit) for unit in tries) == 2
    files = [line for line in trace if line.startswith("  File ")]
    assert len(files) == 1, "photinus' own lines are left out"
    assert "test_spark_task_runner.py" in files[0]
    assert trace[-1] == "ZeroDivisionError: division by zero"


def test_an_error_of_ours_is_told_at_once_and_raised_nowhere():
    def work(unit):
        raise NotReadyError("no module")

    owner = owned(Sum())
    assert run_all(owner, work) == []
    assert (owner.failure, owner.failure_kind) == ("no module", "NotReadyError")


class Context:
    """As much of Spark as a job without tasks needs: an application that runs."""

    applicationId, pythonExec = "app", sys.executable  # noqa: N815
    _jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))

    def getConf(self):  # noqa: N802
        return {}

    def setJobGroup(self, *_, **__):  # noqa: N802
        pass


def test_a_job_without_tasks_ends_and_says_so():
    parts = Parts(Context(), 3, lambda task: lambda: [])
    with pytest.raises(RunFailedError, match="gave the job up; got all its tasks ended early"):
        run_units(parts, owned(Sum()), lambda unit, rows: None, security="none", again=True)
    with pytest.raises(UsageError, match="there are no partitions"):
        run_units(
            Parts(Context(), 0, list), owned(Sum()), lambda n, r: None, security="none", again=True
        )


def test_a_frame_of_connect_is_refused():
    class OfConnect:
        sparkSession = object()  # noqa: N815

    with pytest.raises(NotReadyError, match=r"Spark Connect .*; use a classic session"):
        parts_of_frame(OfConnect())


def test_functions_travel_and_what_cannot_be_loaded_is_named():
    three = 3
    assert loaded(pickle_function(lambda x: x + three), "gradient")(4) == 7
    with pytest.raises(NotReadyError, match=r"^gradient cannot be loaded on a worker; got "):
        loaded(b"nothing", "gradient")
