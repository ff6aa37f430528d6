"""Real executors, each a Java process with Python workers of its own, meet and agree."""

import numpy as np
import pytest

from photinus.core.clock import Epochs, Steps
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.job import Job, Source
from photinus.strategies.recipes import all_reduce, averaging, gossip, iterative_reduce, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def dbn_plan():
    """A small deep belief network as it was published: the plain average after every epoch."""
    dbn = DBN(
        inputs=6,
        hidden=(8, 5),
        classes=3,
        pretraining=Pretraining(epochs=2.0, batch_size=20),
        fine_tuning=FineTuning(epochs=4.0, batch_size=20),
        precision="mkl",
    )
    job = Job(
        model=dbn,
        data=Source(name="given"),
        strategy=averaging(every=Steps(2), codec="fp32"),
        strategies={"pretraining": iterative_reduce(every=Epochs(1))},
        workers=4,
    )
    return job.plan()


def assert_same_bits(vectors, plan, data, tiny):
    expected = SimulatedEngine().run(tiny.assignment(plan, data=data)).vectors
    assert len(vectors) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(vectors, expected, strict=True))


def test_two_executors_train_a_dbn_to_the_bits_of_the_simulator(clusters, applications, tiny):
    """Four workers on a cluster that authenticates and encrypts; photinus comes as an archive."""
    cluster = clusters()
    driver = applications(cluster)
    plan = dbn_plan()
    vectors = driver.train("dbn", plan, tiny.data)
    assert_same_bits(vectors, plan, tiny.data, tiny)
    pids = {line["pid"] for line in driver.of("WorkerJoined")}
    executors = {cluster.executor_of(pid) for pid in pids}
    assert (len(pids), len(executors)) == (4, 2)
    assert {name for name, _ in executors} == {"worker0", "worker1"}


def test_every_way_of_agreeing_works_between_executors(clusters, applications, tiny):
    """Where nobody waits there are no bits to compare: the workers meet, and learn."""
    cluster = clusters()
    driver = applications(cluster)
    driver.say("homes")
    homes = driver.wait("Homes")["rows"]
    assert all("photinus.zip/" in home for home, _ in homes), homes
    assert len({executor for _, executor in homes}) == 2

    fixed = tiny.plan(workers=4, recipes=(*tiny.recipes, all_reduce(codec="fp32", owners=2)))
    assert_same_bits(driver.train("fixed", fixed, tiny.data), fixed, tiny.data, tiny)

    ways = (publish(every=Steps(4), exact_every=5), gossip(every=Steps(4), exact_every=5))
    free = tiny.plan(workers=4, recipes=ways, epochs=60.0)
    driver.train("free", free, tiny.data)
    ends, met = driver.of("PhaseEnded", "free"), driver.of("PeersMet", "free")
    assert [end["phase"] for end in ends] == [0, 1]
    assert all(end["metrics"]["loss"] < 0.6 for end in ends)
    assert sum(meeting["taken"] for meeting in met) > 0
    assert all(m["published"] == m["taken"] + m["missing"] for m in met)
    assert not driver.of("WorkerLost")


def test_a_cluster_that_the_application_starts_gives_the_same_bits(clusters, applications, tiny):
    cluster = clusters(master="local-cluster[2,2,1024]")
    driver = applications(cluster)
    plan = dbn_plan()
    assert_same_bits(driver.train("dbn", plan, tiny.data), plan, tiny.data, tiny)
    driver.say("homes")
    assert len({executor for _, executor in driver.wait("Homes")["rows"]}) == 2
