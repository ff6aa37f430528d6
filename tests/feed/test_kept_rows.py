"""Which rows are kept on two executors; that it helps is shown in tests/fault/test_yarn.py."""

import pytest

from photinus.feed.spark import kept

DEALT, AS_THEY_LIE = "Exchange hashpartitioning(key, 2)\n+- Scan", "Coalesce 2\n+- Scan"


class Frame:
    """A DataFrame with a plan, which notes how it is kept."""

    def __init__(self, master, plan):
        self.sparkSession, self.conf = self, {"spark.master": master}
        self.plan, self.levels, self.is_free = plan, [], False
        if plan is not None:
            self._jdf = self

    def queryExecution(self):  # noqa: N802 - Spark's name
        return self

    def executedPlan(self):  # noqa: N802 - Spark's name
        return self

    def toString(self):  # noqa: N802 - Java's name
        return self.plan

    def persist(self, level):
        self.levels.append(level)
        return self

    def unpersist(self):
        self.is_free = True


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077"])
def test_rows_that_were_dealt_out_anew_are_kept_on_two_disks_while_they_are_needed(master):
    frame = Frame(master, DEALT)
    with kept(frame) as rows:
        [level] = rows.levels
        assert (level.useDisk, level.useMemory, level.replication) == (True, False, 2)
        assert not frame.is_free
    assert frame.is_free


@pytest.mark.parametrize(
    ("master", "plan"), [("yarn", AS_THEY_LIE), ("local[4,20]", DEALT), ("yarn", None)]
)
def test_rows_that_lie_where_they_are_read_or_on_one_machine_are_not(master, plan):
    frame = Frame(master, plan)
    with kept(frame) as rows:
        assert rows.levels == []


def test_rows_of_an_application_that_has_ended_hide_no_error_of_the_run(monkeypatch):
    def gone():
        raise ConnectionError("driverEndpoint() is null")

    frame = Frame("yarn", DEALT)
    monkeypatch.setattr(frame, "unpersist", gone)
    with pytest.raises(ValueError, match="of the run"), kept(frame):
        raise ValueError("of the run")
