"""Two runs on one cluster: of two applications, and of one with Spark's fair pools."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def plan_of(tiny, workers, epochs=300.0, **fields):
    recipe = averaging(every=Steps(4), codec="fp32")
    return tiny.plan(workers=workers, recipes=(recipe,), epochs=epochs, **fields)


def slowed(workers):
    """So that one run lasts until the other has begun; it changes no bit."""
    faults = Faults()
    for slot in range(workers):
        faults = faults.slow(slot, 20.0)
    return faults


def assert_same_bits(vectors, plan, tiny):
    expected = SimulatedEngine().run(tiny.assignment(plan)).vectors
    assert all(np.array_equal(a, b) for a, b in zip(vectors, expected, strict=True))


def assert_side_by_side(one, other):
    """Rounds of each closed while the other had some left."""
    assert max(one[0]["at"], other[0]["at"]) < min(one[-1]["at"], other[-1]["at"])


@pytest.fixture(scope="module")
def drivers(clusters, applications):
    """Two applications of four slots each, with fair pools."""
    cluster = clusters({"spark.cores.max": "4", "spark.scheduler.mode": "FAIR"}, cores=4)
    return [applications(cluster) for _ in range(2)]


def test_two_applications_share_a_cluster(drivers, tiny):
    plan = plan_of(tiny, 4)
    for driver in drivers:
        driver.start("run", plan, tiny.data, faults=slowed(4))
    for driver in drivers:
        assert_same_bits(driver.result("run"), plan, tiny)
    assert_side_by_side(*(driver.of("RoundClosed") for driver in drivers))


def test_two_runs_of_one_application_train_in_fair_pools(drivers, tiny):
    """Two and two workers at once; four and four one after the other, and the second says so."""
    driver, pair, four = drivers[0], plan_of(tiny, 2), plan_of(tiny, 4)
    for name in ("first", "second"):
        driver.start(name, pair, tiny.data, pool=name, faults=slowed(2))
    for name in ("first", "second"):
        assert_same_bits(driver.result(name), pair, tiny)
    assert_side_by_side(driver.of("RoundClosed", "first"), driver.of("RoundClosed", "second"))
    driver.say("pools")
    assert {"first", "second"} <= set(driver.wait("Pools")["names"])

    for name in ("third", "fourth"):
        driver.start(name, four, tiny.data, pool=name)
    for name in ("third", "fourth"):
        assert_same_bits(driver.result(name), four, tiny)
    waited = [line["text"] for line in driver.of("Warned") if "this run waits" in line["text"]]
    assert waited == [
        "4 workers need 4 slots at the same time; got 4 slots, of which other runs of this "
        "application hold 4; this run waits for them"
    ]
