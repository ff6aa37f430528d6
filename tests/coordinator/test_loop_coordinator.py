"""The start of a loop of the user's own, as worker 0 tells it."""

import numpy as np
import pytest

from photinus import CustomStrategy, averaging, diloco
from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.loop_coordinator import LoopCoordinator, start_frame
from photinus.core.errors import UsageError
from photinus.core.parameters import TRAINED, Layout, Parameters
from photinus.protocol.messages import Seat
from photinus.strategies.recipes import to_plain

RUN = b"r" * 16


def start_header(**fields):
    return {"model": "m", "strategy": to_plain(averaging()), "is_counted": False, **fields}


def hello(slot, **fields):
    note = {"attempt": f"a{slot}", "hello": 1, "rows": 1, "has": 0, **start_header(**fields)}
    return Seat(RUN, 1, 0, slot).frame("hello", note)


def start(value=1.0, **fields):
    parameters = Parameters(Layout.of([("w", (2, 2), TRAINED)]))
    parameters.trained[:] = value
    return start_frame(Seat(RUN, 1, 0, 0), parameters, start_header(**fields))


@pytest.fixture
def coordinator():
    return LoopCoordinator(2, averaging(), Callbacks(run=RUN))


def test_hellos_wait_for_the_start_and_all_begin_there(coordinator):
    assert coordinator.hear(hello(1), 0.0) == []
    assert [f.kind for f in coordinator.hear(start(), 0.1)] == ["busy"]
    grants = coordinator.hear(hello(0), 0.2)
    assert sorted((f.kind, f.slot) for f in grants) == [("grant", 0), ("grant", 1)]
    assert np.array_equal(grants[0].arrays["vector"], np.ones(4, "f4"))


def test_the_first_start_counts(coordinator):
    coordinator.hear(start(), 0.0)
    assert [f.kind for f in coordinator.hear(start(5.0), 0.1)] == ["busy"]
    coordinator.hear(hello(0), 0.2)
    grants = coordinator.hear(hello(1), 0.3)
    assert np.array_equal(grants[0].arrays["vector"], np.ones(4, "f4"))


def test_another_model_ends_the_run(coordinator):
    coordinator.hear(start(), 0.0)
    coordinator.hear(hello(1, model="other"), 0.1)
    assert coordinator.is_over
    assert coordinator.failure_kind == "UsageError"
    assert coordinator.failure.startswith("worker 1 and worker 0 differ in the model; got other")


def test_a_strategy_of_ones_own_is_not_imported_by_its_name_on_the_wire(coordinator, monkeypatch):
    custom = {"recipe": "os.path:join"}
    with pytest.raises(UsageError, match=r"name it in photinus\.launch, too"):
        coordinator.hear(start(strategy=custom), 0.0)
    outer = {"recipe": "averaging", "outer": {"name": "descent", "function": "os.path:join"}}
    with pytest.raises(UsageError, match=r"name it in photinus\.launch, too"):
        coordinator.hear(start(strategy=outer), 0.0)


def test_a_recipe_that_a_worker_names_is_taken(coordinator):
    coordinator.hear(start(strategy=to_plain(diloco())), 0.0)
    assert coordinator._phases.strategy.recipe == "diloco"


def test_a_strategy_that_launch_names_may_be_ones_own():
    custom = CustomStrategy("photinus.strategies.recipes:averaging")
    coordinator = LoopCoordinator(2, custom, Callbacks(run=RUN))
    coordinator.hear(start(strategy=to_plain(custom)), 0.0)
    assert coordinator._phases.strategy == custom


def test_an_error_before_the_start_ends_the_run(coordinator):
    coordinator.hear(hello(1), 0.0)
    bye = Seat(RUN, 1, 0, 0).frame("bye", {"error": "no model", "type": "OSError"})
    assert [f.kind for f in coordinator.hear(bye, 0.1)][-1] == "stop"
    assert coordinator.failure == "no model"
    assert [f.kind for f in coordinator.hear(hello(1), 0.2)] == ["stop"]
