"""What workers ask of Spark's resources; real executors are in tests/clusters/test_resources.py."""

import pyspark.sql
import pytest

from photinus.core.errors import NotReadyError
from photinus.engine.spark.resources import amounts_of, profile_of


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
    with pytest.raises(NotReadyError, match=r"no resources of its own; got gpu 1; start the app"):
        profile_of(Conf(), {"gpu": 1}, pytest.fail)
