"""What workers ask of Spark's resources; real executors are in tests/clusters/test_resources.py."""

from types import SimpleNamespace

import pyspark.sql
import pytest

from photinus.core.errors import NotReadyError
from photinus.engine.spark.engine import max_slots
from photinus.engine.spark.resources import amounts_of, executor_amounts, profile_of


class Conf:
    """The settings of an application on a cluster, and nothing else of a session."""

    def __init__(self, **settings):
        self.settings = {"spark.master": "spark://host:7077"} | settings
        self.conf, self.sparkContext, self._jsparkSession = self, self, None

    def get(self, key, default=None):
        return self.settings.get(key, default)

    def getConf(self):  # noqa: N802 - Spark's name
        return self

    def getAll(self):  # noqa: N802 - Spark's name
        return list(self.settings.items())


@pytest.mark.spark
def test_a_local_spark_hands_out_nothing_and_says_so(spark):
    events = []
    assert profile_of(spark, {"gpu": 1}, events.append) is None
    assert events[0].text == (
        "a local Spark hands out no resources; got gpu 1; each worker sees every device of this "
        "machine"
    )
    assert profile_of(spark, {}, pytest.fail) is None


def test_a_job_that_asks_for_nothing_gets_what_the_application_has_tasks_ask_for():
    conf = Conf(
        **{
            "spark.task.resource.gpu.amount": "0.25",
            "spark.executor.resource.gpu.amount": "1",
            "spark.executor.resource.gpu.discoveryScript": "/found",
        }
    )
    assert amounts_of(conf, {}) == {"gpu": 0.25}
    assert amounts_of(conf, {"gpu": 0.5, "fpga": 1}) == {"gpu": 0.5, "fpga": 1}


def test_a_pyspark_whose_stages_have_no_profiles_is_refused(monkeypatch):
    class DataFrame:
        def mapInArrow(self, func, schema, barrier=False):  # noqa: N802 - Spark's name
            """As before Spark 4."""

    monkeypatch.setattr(pyspark.sql, "DataFrame", DataFrame)
    with pytest.raises(
        NotReadyError, match=r"resources to the training alone; got gpu 1; start the app"
    ):
        profile_of(Conf(), {"gpu": 1}, pytest.fail)


def test_executors_that_are_started_for_the_training_have_room_for_one_worker_or_as_is_set():
    assert executor_amounts(Conf(), {"gpu": 0.25, "fpga": 2}) == {"gpu": 1, "fpga": 2}
    conf = Conf(**{"spark.executor.resource.gpu.amount": "4"})
    assert executor_amounts(conf, {"gpu": 0.5}) == {"gpu": 4}


@pytest.mark.parametrize(
    ("settings", "amounts", "slots"),
    [
        ({}, {"gpu": 1}, 2),
        ({"spark.executor.resource.gpu.amount": "2"}, {"gpu": 1}, 4),
        ({"spark.executor.resource.gpu.amount": "2"}, {"gpu": 0.25}, 8),
        ({"spark.executor.resource.gpu.amount": "2"}, {"gpu": 1, "fpga": 1}, 2),
        ({"spark.task.cpus": "2"}, {"gpu": 0.25}, 4),
    ],
)
def test_the_scarcest_of_cores_and_resources_bounds_the_slots_under_dynamic_allocation(
    settings, amounts, slots
):
    elastic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.executor.cores": "4",
    }
    requests = {name: SimpleNamespace(amount=amount) for name, amount in amounts.items()}
    profile = SimpleNamespace(taskResources={"cpus": SimpleNamespace(amount=1.0)} | requests)
    assert max_slots(Conf(**elastic | settings), profile) == slots
