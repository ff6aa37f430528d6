import numpy as np
import pytest

from photinus.core.errors import DataError, UsageError
from photinus.data.base import Block
from photinus.data.checks import RowChecker, RowChecks


def checked(features, labels=None, *, partition=3, opened=0, **checks):
    checker = RowChecker(RowChecks(**checks), partition)
    if opened:
        checker.open(opened)
    checker.open(len(features))
    return (*checker.checked(Block(features, labels))[:2], checker)


def test_good_rows_pass_untouched():
    features, labels = np.ones((4, 2), np.float32), np.arange(4)
    checked_features, checked_labels, checker = checked(features, labels, classes=4, shape=(2,))
    assert checked_features is features
    assert checked_labels is labels
    assert checker.rows_seen == 4


LIMIT = " in float32, up to 3.4e+38"
"""A larger number of a column of doubles reaches a worker as infinity."""


@pytest.mark.parametrize(
    ("value", "limit"), [(np.nan, ""), (1e39, LIMIT), (-np.inf, LIMIT)], ids=str
)
def test_a_number_that_is_not_finite_is_named_with_the_largest_that_is(value, limit):
    features = np.ones((5, 3), np.float32)
    with np.errstate(over="ignore"):
        features[2, 1] = value
    with pytest.raises(DataError) as caught:
        checked(features, opened=1205)
    assert str(caught.value) == (
        f"partition 3 row 1207 column features: {features[2, 1]} at 1, expected finite numbers"
        f"{limit}; "
        "mend the row, or leave it out"
    )


@pytest.mark.parametrize(("label", "said"), [(10, "10"), (-1, "-1"), (2.5, "2.5")])
def test_a_label_outside_the_classes_is_named(label, said):
    wrong = rf"partition 3 row 1 column label: label {said} outside 0\.\.9"
    with pytest.raises(DataError, match=wrong):
        checked(np.ones((2, 1)), np.array([0, label]), classes=10)


@pytest.mark.parametrize(
    ("label", "cure"),
    [
        (10, "set classes to 11, or mend the row"),
        (9999, "set classes to 10000, or mend the row"),
        (10_000, "number the classes 0, 1, 2, ... (StringIndexer does), or mend the row"),
        (5e9, "number the classes 0, 1, 2, ... (StringIndexer does), or mend the row"),
        (2.5, "number the classes 0, 1, 2, ... (StringIndexer does), or mend the row"),
        (-1, "number the classes 0, 1, 2, ... (StringIndexer does), or mend the row"),
    ],
)
def test_what_to_do_about_a_label_depends_on_it(label, cure):
    labels = np.array([0, label])
    with pytest.raises(DataError) as caught:
        checked(np.ones((2, 1)), labels, classes=10, more_classes="set classes to {}")
    assert str(caught.value).partition("; ")[2] == cure


@pytest.mark.parametrize(("first", "advised"), [(1, True), (0, False)])
def test_where_labels_begin_at_1_it_is_said_to_subtract_1(first, advised):
    checker = RowChecker(RowChecks(classes=2, more_classes="give the module {} outputs or more"))
    checker.open(2)
    with pytest.raises(DataError) as caught:
        checker.checked(Block(np.ones((2, 1)), np.array([first, 2])))
    advice = "give the module 3 outputs or more, or mend the row"
    advice += ", or subtract 1 where labels begin at 1" * advised
    assert str(caught.value).endswith(f"label 2 outside 0..1; {advice}")


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_a_label_that_is_no_count_is_named_where_counts_are_expected(shape):
    labels = np.array([7.0, -0.5]).reshape(shape)
    message = "row 1 column label: -0.5.*, expected at least 0, as poisson counts"
    with pytest.raises(DataError, match=message):
        checked(np.ones((2, 1)), labels, counts=True)
    assert len(checked(np.ones((1, 1)), labels[:1], counts=True)[1]) == 1


@pytest.mark.parametrize(("wrong", "said"), [(2, "2"), (-1, "-1"), (np.nan, "nan")])
def test_one_of_several_labels_that_is_no_share_is_named(wrong, said):
    labels = np.array([[1.0, 0.25], [0, wrong]])
    with pytest.raises(DataError, match=rf"row 1 column label: {said} at 1, expected"):
        checked(np.ones((2, 1)), labels, shares=True)
    assert checked(np.ones((1, 1)), labels[:1], shares=True)[1].tolist() == [[1.0, 0.25]]
    with pytest.raises(DataError, match=rf"row 1 column label: {said}, expected"):
        checked(np.ones((2, 1)), labels[:, 1] * [0, 1], shares=True)
    targets = np.array([[2.0, -1.0]])  # several targets of a regression, say
    assert checked(np.ones((1, 1)), targets)[1].tolist() == [[2.0, -1.0]]


def test_class_labels_come_out_as_whole_numbers():
    _, labels, _ = checked(np.ones((3, 1)), np.array([0.0, 2.0, 1.0]), classes=3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 2, 1]


def test_targets_of_a_regression_stay_as_they_are():
    _, labels, _ = checked(np.ones((2, 1)), np.array([0.5, -2.0]))
    assert labels.tolist() == [0.5, -2.0]


def test_another_shape_and_another_type_are_named():
    with pytest.raises(DataError) as caught:
        checked(np.ones((2, 2)), opened=7, shape=(3,))
    assert str(caught.value) == "partition 3 row 7 column features: shape (2,), expected (3,)"
    with pytest.raises(DataError, match="column label: values of type <U1, expected numbers"):
        checked(np.ones((2, 2)), np.array(["a", "b"]))


def in_float32():
    return "float32"


@pytest.mark.parametrize("value", [1e300, -1e300, 3.5e38])
def test_a_number_that_is_infinite_in_what_is_trained_on_is_named(value):
    features = np.ones((4, 3))
    features[2, 1] = value
    checker = RowChecker(RowChecks(), 5, in_float32)
    checker.open(4)
    with pytest.raises(DataError) as caught:
        checker.checked(Block(features))
    assert str(caught.value) == (
        f"partition 5 row 2 column features: {value:g} at 1 is infinite in float32, "
        "in which it is trained on; mend the row, or leave it out"
    )


def test_a_number_that_its_scale_makes_infinite_is_named():
    features = np.ones((4, 3), np.float32)
    features[1, 0] = 1e30
    checker = RowChecker(RowChecks())
    checker.open(4)
    with pytest.raises(DataError, match=r"row 1 column features: 1e\+30 at 0 times 1e\+10 is inf"):
        checker.checked(Block(features), scale=1e10)


def test_a_target_that_is_infinite_in_what_is_trained_on_is_named():
    checker = RowChecker(RowChecks(), 0, in_float32)
    checker.open(2)
    with pytest.raises(DataError, match=r"row 1 column label: 1e\+40 is infinite in float32"):
        checker.checked(Block(np.ones((2, 3)), np.array([0.5, 1e40])))


def test_what_is_trained_on_is_asked_for_only_where_it_matters():
    def refuse():
        raise AssertionError

    checker = RowChecker(RowChecks(), 0, refuse)
    checker.open(3)
    checker.checked(Block(np.full((3, 2), 1e38), np.array([1.0, -1e30, 0.0])))
    wide = RowChecker(RowChecks(), 0, lambda: "float64")
    wide.open(1)
    wide.checked(Block(np.full((1, 2), 1e300)))


def test_limits_are_checked():
    with pytest.raises(UsageError, match="classes of RowChecks must be a whole number"):
        RowChecks(classes=0)
