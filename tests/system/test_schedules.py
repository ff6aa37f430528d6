"""Random faults at random times, over every recipe: the promises hold, and the run ends."""

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
from photinus.testing import Faults

STRATEGIES = {
    "all_reduce": all_reduce(),
    "all_reduce by owners": all_reduce(owners=3),
    "all_reduce as int4": all_reduce(codec="int4"),
    "averaging": averaging(every=Steps(5)),
    "averaging by owners": averaging(every=Steps(5), owners=2),
    "averaging as int8": averaging(every=Steps(5), codec="int8"),
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

WHEN = st.one_of(
    st.builds(dict, step=st.integers(1, 40), lease=st.integers(1, 3)),
    st.builds(dict, at_seconds=st.floats(0.0, 4.0), lease=st.integers(1, 3)),
)
FAULT = st.one_of(
    st.builds(
        lambda *a: (Faults.kill, *a), WHEN, st.builds(dict, back_seconds=st.floats(0.0, 8.0))
    ),
    st.builds(
        lambda do, *a: (do, *a),
        st.sampled_from((Faults.freeze, Faults.cut)),
        WHEN,
        st.builds(dict, seconds=st.floats(0.0, 8.0)),
    ),
    st.builds(lambda *a: (Faults.copy, *a), WHEN, st.just({})),
    st.builds(
        lambda *a: (Faults.slow, *a),
        st.builds(dict, step=st.integers(1, 40)),
        st.builds(dict, factor=st.floats(1.0, 6.0)),
    ),
)


@st.composite
def planned(draw):
    """Up to six faults, on a network that may lose and double messages."""
    faults = Faults()
    for do, when, how in draw(st.lists(FAULT, max_size=6)):
        faults = do(faults, slot=draw(st.integers(0, 2)), **when, **how)
    lost = ({}, {"share": 0.15}, {"share": 0.35}, {"each": 5, "first": 2}, {"each": 7, "first": 3})
    faults = faults.lose(**draw(st.sampled_from(lost)))
    return faults.double(draw(st.sampled_from((0.0, 0.2, 0.5))))


WORLDS = st.builds(
    dict,
    step_seconds=st.sampled_from((0.01, (0.01, 0.05, 0.02))),
    resend_seconds=st.sampled_from((0.05, 0.6)),
    faults=planned(),
)


def test_every_recipe_meets_random_faults():
    assert {a.recipe for a in STRATEGIES.values()} == set(RECIPES)


def randomly(schedules):
    """Gives a test of one agreement so many schedules of faults."""

    def drawn(test):
        usual = settings(
            max_examples=schedules,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )
        test = usual(given(cluster=WORLDS, cuts=st.sampled_from((None, 0.2)))(test))
        return pytest.mark.parametrize("name", STRATEGIES)(test)

    return drawn


@randomly(6)
def test_random_faults_keep_every_promise(field, name, cluster, cuts):
    assert_promises(field, name, cluster, cuts)


@pytest.mark.slow
@randomly(120)
def test_two_thousand_schedules_of_faults_keep_every_promise(field, name, cluster, cuts):
    assert_promises(field, name, cluster, cuts)


def assert_promises(field, name, cluster, cuts):
    configs = [field.config(name=n, epochs=2) for n in ("first", "second")]
    played = field.play(
        STRATEGIES[name],
        3,
        cluster=cluster,
        configs=configs,
        parts=field.parts(3, [60, 20, 100]),
        callbacks={"checkpoint_seconds": cuts},
    )
    played.run(until=400.0)
    assert played.result is not None, "the run ends"
    assert all(np.isfinite(v).all() for v in played.result.vectors)
    applied = played.tape.assert_exact()
    expected = ["all workers were lost", "holds 56% of the rows"]
    expected += ["examples of worker"] if name in ("downpour dropped", "streaming") else []
    unexpected = [w for w in played.tape.warnings() if not any(words in w for words in expected)]
    assert not unexpected
    if played.simulation.plan.phases[0].strategy.is_deterministic:
        examples = [
            played.tape.examples({n: f for n, f in applied.items() if f.phase == p})
            for p in range(len(configs))
        ]
        assert examples == [2 * 180] * 2, "every example counts exactly once"
