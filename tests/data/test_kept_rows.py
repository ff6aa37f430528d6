"""Which rows are kept on two executors; that it helps is shown in tests/fault/test_yarn.py."""

import pytest

from photinus.data.kept_rows import ReplicatedRows, run_plan_once


class Node:
    """A node of a plan, as Java gives it away."""

    def __init__(self, name, *below):
        self.name, self.below = name, below

    def nodeName(self):  # noqa: N802 - Spark's name
        return self.name

    def children(self):
        return self

    def size(self):
        return len(self.below)

    def apply(self, number):
        return self.below[number]

    def initialPlan(self):  # noqa: N802 - Spark's name
        return Node("Project", Node("Exchange", Node("Scan parquet")))


UNSHUFFLED = Node("Coalesce", Node("Scan parquet"))
SHUFFLED = Node("Project", Node("Exchange", Node("Scan parquet")))
ADAPTIVE = Node("AdaptiveSparkPlan")
CACHED = Node("Coalesce", Node("InMemoryTableScan"))


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
        return self.plan

    def persist(self, level):
        self.levels.append(level)
        return self

    def select(self, columns):
        assert columns == "*"
        return self

    def unpersist(self):
        self.is_free = True


@pytest.mark.parametrize("plan", [SHUFFLED, ADAPTIVE])
@pytest.mark.parametrize("master", ["yarn", "spark://host:7077"])
def test_rows_that_were_dealt_out_anew_are_kept_on_two_disks_while_they_are_needed(master, plan):
    frame = Frame(master, plan)
    with ReplicatedRows() as rows:
        rows.keep(frame)
        [level] = rows.frame.levels
        assert (level.useDisk, level.useMemory, level.replication) == (True, False, 2)
        assert not frame.is_free
    assert frame.is_free


@pytest.mark.parametrize(
    ("master", "plan"),
    [("yarn", UNSHUFFLED), ("local[4,20]", SHUFFLED), ("yarn", None), ("yarn", CACHED)],
)
def test_rows_that_lie_where_they_are_read_or_on_one_machine_are_not(master, plan):
    frame = Frame(master, plan)
    with ReplicatedRows() as rows:
        rows.keep(frame)
        assert rows.frame.levels == []


@pytest.mark.parametrize(
    ("master", "plan", "always", "disks"),
    [
        ("yarn", SHUFFLED, False, 2),
        ("local[4]", ADAPTIVE, False, 1),
        ("local[4]", UNSHUFFLED, True, 1),
        ("yarn", None, True, 2),
    ],
)
def test_a_plan_that_would_run_twice_leaves_its_rows_on_disk(master, plan, always, disks):
    frame = Frame(master, plan)
    with run_plan_once(frame, always=always) as rows:
        [level] = rows.levels
        assert (level.useDisk, level.useMemory, level.replication) == (True, False, disks)
        assert not frame.is_free
    assert frame.is_free


@pytest.mark.parametrize("plan", [UNSHUFFLED, CACHED, None])
def test_a_plan_that_runs_once_anyway_leaves_nothing_on_disk(plan):
    frame = Frame("yarn", plan)
    with run_plan_once(frame) as rows:
        assert rows.levels == []


def test_rows_of_an_application_that_has_ended_hide_no_error_of_the_run(monkeypatch):
    def fail_to_unpersist():
        raise ConnectionError("driverEndpoint() is null")

    frame = Frame("yarn", SHUFFLED)
    monkeypatch.setattr(frame, "unpersist", fail_to_unpersist)

    def run():
        with ReplicatedRows() as rows:
            rows.keep(frame)
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        run()
