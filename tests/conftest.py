"""One Spark for all tests that are marked `spark`."""

import warnings

import pytest

from photinus.engine.session import spark_session

QUICK = "-XX:TieredStopAtLevel=1"


PYSPARK_IS_FORGIVEN = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",  # it leaves sockets to the garbage collector
    "ignore::FutureWarning",  # it uses what pandas and pyarrow are about to change
    "ignore::DeprecationWarning",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(PYSPARK_IS_FORGIVEN)


@pytest.fixture(scope="session")
def spark():
    """A local Spark of 4 task slots in which a failed task is tried again and again."""
    settings = {
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "4",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = spark_session(4, name="photinus tests", extra=settings)
    yield session
    session.stop()
