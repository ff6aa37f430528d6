"""Where tests reach into an engine: hooks that change nothing, and faults that replace them."""

import inspect

import pytest

from photinus.core.errors import UsageError
from photinus.engine.hooks import Hooks, WorkerHooks, hooks_of
from photinus.testing import Faults
from photinus.testing.faults.process import WorkerFaults


@pytest.mark.parametrize(("plain", "faulty"), [(Hooks, Faults), (WorkerHooks, WorkerFaults)])
def test_faults_replace_every_hook_and_take_the_same(plain, faulty):
    for name, hook in vars(plain).items():
        if not name.startswith("_") and callable(hook):
            own = vars(faulty)[name]
            assert [*inspect.signature(own).parameters] == [*inspect.signature(hook).parameters]


def test_hooks_of_a_worker_add_nothing_but_the_cap_that_was_asked_for():
    hooks = Hooks()
    assert hooks.worker(0, "here", None).rate_limit is None
    assert hooks.worker(0, "here", 1e6).rate_limit is not None
    assert hooks.worker(0, "here", None).linked(lambda: "link", 1.0) == "link"
    assert hooks.checked(2, is_real=True) is hooks
    assert (hooks.taken(), hooks.comes_after(1, 2)) == ((0, 0.0), 0.0)
    assert (hooks.is_lost(3), hooks.copies(3), hooks.loses) == (False, 1, False)


def test_an_engine_takes_faults_and_nothing_else():
    assert hooks_of(None) == Hooks()
    faults = Faults().kill(slot=1, step=2)
    assert hooks_of(faults) is faults
    with pytest.raises(UsageError, match=r"faults must be photinus\.testing\.Faults; got str"):
        hooks_of("kill")
