"""Random faults at random times, over every recipe: the promises hold, and the run ends."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from photinus.core.clock import Seconds, Steps
from photinus.strategies.outer import Adagrad, DelayedNesterov
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
    diloco,
    downpour,
    elastic,
    full_gradient,
    gossip,
    iterative_reduce,
    post_local,
    publish,
    streaming,
)

AGREEMENTS = {
    "all_reduce": all_reduce(),
    "all_reduce by shards": all_reduce(owners=3),
    "averaging": averaging(every=Steps(5)),
    "averaging in seconds": averaging(every=Steps(9) | Seconds(0.15)),
    "averaging by quorum": averaging(every=Steps(5), quorum=0.5),
    "averaging by two": averaging(every=Steps(5), quorum=2),
    "diloco": diloco(every=Steps(12)),
    "diloco at once": diloco(every=Steps(4), release="immediate", outer=DelayedNesterov()),
    "downpour": downpour(every=Steps(3), fetch=Steps(5), staleness="inverse"),
    "downpour dropped": downpour(every=Steps(2), fetch=Steps(9), staleness=4),
    "downpour of gradients": downpour(every=Steps(3), payload="gradient", outer=Adagrad()),
    "elastic": elastic(every=Steps(4)),
    "full_gradient": full_gradient(),
    "gossip": gossip(every=Steps(3), exact_every=3),
    "iterative_reduce": iterative_reduce(),
    "publish": publish(every=Steps(3), exact_every=3),
    "post_local": post_local(every=Steps(7)),
    "streaming": streaming(every=Steps(12)),
}

FAULTS = st.lists(
    st.tuples(
        st.floats(0.0, 4.0),
        st.sampled_from(("kill", "freeze", "seat")),
        st.integers(0, 2),
        st.floats(0.0, 8.0),
    ),
    max_size=6,
)
WORLDS = st.builds(
    dict,
    step_seconds=st.sampled_from((0.01, (0.01, 0.05, 0.02))),
    loses=st.sampled_from((None, 3, 7, (5, 2), (7, 3))),
    doubles=st.sampled_from((None, 2, 5)),
    resend_seconds=st.sampled_from((0.05, 0.6)),
)


def losing(loses):
    """By chance one message in so many; or strictly each n-th, counted from one of them."""
    if isinstance(loses, int):
        return lambda n: random.Random(n).random() < 1 / loses
    return None if loses is None else lambda n: n % loses[0] == loses[1]


def test_every_recipe_meets_random_faults():
    assert {a.recipe for a in AGREEMENTS.values()} == set(RECIPES)


@pytest.mark.parametrize("name", AGREEMENTS)
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(faults=FAULTS, world=WORLDS, cuts=st.sampled_from((None, 0.2)))
def test_random_faults_keep_every_promise(field, name, faults, world, cuts):
    loses, doubles = world["loses"], world["doubles"]
    world = world | {
        "loses": losing(loses),
        "doubles": None if doubles is None else lambda n: n % doubles == 0,
    }
    stages = [field.stage(name=n, epochs=2) for n in ("first", "second")]
    played = field.play(
        AGREEMENTS[name],
        3,
        world=world,
        stages=stages,
        parts=field.parts(3, [60, 20, 100]),
        desk={"checkpoint_seconds": cuts},
    )
    simulation = played.simulation
    for at, fault, slot, seconds in faults:
        extra = () if fault == "seat" else (seconds,)
        simulation.at(at, getattr(simulation, fault), slot, *extra)
    played.run(until=400.0)
    assert played.result is not None, "the run ends"
    assert all(np.isfinite(v).all() for v in played.result.vectors)
    applied = played.tape.assert_exact()
    told = [w for w in played.tape.warnings() if "all workers were lost" not in w]
    assert not told
    if simulation.program.phases[0].agreement.is_deterministic:
        examples = [
            played.tape.examples({n: f for n, f in applied.items() if f.phase == p})
            for p in range(len(stages))
        ]
        assert examples == [2 * 180] * 2, "every example counts exactly once"
