import pytest

from photinus.coordinator.row_checks import soon_used_up, uneven

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


@pytest.mark.parametrize(
    ("rows", "batch_size", "slots"),
    [
        ([490, 490, 20], 32, "2"),
        ([400, 300, 10, 290, 9], 32, "2, 4"),
        ([490, 490, 20], 64, None),  # a row for each step
        ([13, 12, 12, 9], 4, None),  # as many as the others: they end together
        ([490, 0, 10], 32, "2"),
        ([5, 1], 32, None),  # all in one step
        ([490, 490, 20], 0, None),  # no steps of all together
        ([0, 0], 32, None),
    ],
)
def test_workers_with_less_than_a_row_for_each_step_use_theirs_up_early(rows, batch_size, slots):
    found = [wrong for wrong, _, _ in soon_used_up(rows, batch_size)]
    wrong = f"the rows of workers {slots} are used up early: less than one for each step"
    assert found == ([] if slots is None else [wrong])
