import pytest

from photinus.coordinator.row_checks import uneven

BOTH = "repartition the data, or use fewer workers"


@pytest.mark.parametrize(
    ("rows", "findings"),
    [
        ([1, 0], [("1 of 2 partitions are empty", "1 row for 2 workers", "use fewer workers")]),
        ([2, 0, 1, 0], [("2 of 4 partitions are empty", "3 rows for 4 workers",
                         "use fewer workers")]),
        ([5, 0, 5], [("1 of 3 partitions are empty", "", BOTH)]),
        ([9, 0], [("1 of 2 partitions are empty", "", BOTH)]),
        ([90, 10, 0], [("1 of 3 partitions are empty", "", BOTH),
                       ("worker 0 holds 90% of the rows", "3 workers", BOTH)]),
        ([1, 1], []),
        ([0, 0], [("2 of 2 partitions are empty", "", BOTH)]),
    ],
)  # fmt: skip
def test_fewer_rows_than_workers_are_one_finding_and_empty_partitions_are_told_of_once(
    rows, findings
):
    assert uneven(rows) == findings
