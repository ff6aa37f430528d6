import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from photinus.core.errors import UsageError
from photinus.data import rows as rows_module
from photinus.data.rows import Rows, content_hash


def in_order(rows):
    labels = np.zeros(len(rows)) if rows.labels is None else rows.labels
    return [(rows.features[i].tobytes(), labels[i].tobytes()) for i in rows.order]


small = arrays.arrays(
    st.sampled_from([np.uint8, np.float32, np.float64, np.int16]),
    st.tuples(st.integers(1, 12), st.integers(1, 5)),
    elements=st.integers(0, 2),
)


@given(small, st.randoms(use_true_random=False))
def test_rows_and_labels_sort_the_same_whatever_the_arrival(features, random):
    labels = np.arange(len(features)) % 3
    arrival = list(range(len(features)))
    random.shuffle(arrival)
    assert in_order(Rows.of(features, labels)) == in_order(
        Rows.of(features[arrival], labels[arrival])
    )


@given(small, st.randoms(use_true_random=False))
def test_colliding_hashes_are_told_apart_by_content(features, random):
    arrival = list(range(len(features)))
    random.shuffle(arrival)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            rows_module, "content_hash", lambda f, y=None, w=None: (f[:, 0] > 0).astype(np.uint64)
        )
        assert in_order(Rows.of(features)) == in_order(Rows.of(features[arrival]))


def test_colliding_hashes_are_told_apart_by_label(monkeypatch):
    monkeypatch.setattr(
        rows_module, "content_hash", lambda f, y=None, w=None: np.zeros(len(f), np.uint64)
    )
    features, labels = np.ones((6, 2)), np.array([3, 1, 2, 1, 0, 5])
    rows = Rows.of(features, labels)
    assert rows.labels[rows.order].tolist() == [0, 1, 1, 2, 3, 5]


def test_different_rows_have_different_hashes():
    bits = (np.arange(2**12)[:, None] >> np.arange(12)) & 1
    for dtype in (np.uint8, np.float32, np.float64):
        assert len(np.unique(content_hash((2 * bits - 1).astype(dtype)))) == 2**12


def test_a_hash_of_many_chunks_equals_the_hash_of_each_row():
    features = np.random.default_rng(0).random((3000, 25), np.float32)
    whole = content_hash(features)
    assert all(content_hash(features[i : i + 1])[0] == whole[i] for i in range(0, 3000, 97))


def test_the_hash_does_not_change_between_releases():
    assert content_hash(np.arange(6, dtype="<f4").reshape(2, 3), np.array([1, 2])).tolist() == [
        3309937167441348191,
        16126202032181275828,
    ]


def test_a_label_is_part_of_the_content():
    features = np.ones((2, 3))
    hashes = content_hash(features, np.array([0, 1]))
    assert hashes[0] != hashes[1]


def test_memory_mapped_rows_are_the_same_rows(tmp_path):
    features = np.random.default_rng(0).random((50, 3))
    np.save(tmp_path / "features.npy", features)
    mapped = Rows.of(np.load(tmp_path / "features.npy", mmap_mode="r"))
    assert in_order(mapped) == in_order(Rows.of(features))
    assert type(mapped.batch(mapped.order[:3]).features) is np.ndarray


def test_features_and_labels_are_equally_many():
    with pytest.raises(UsageError, match="must be equally many; got 3 and 2"):
        Rows.of(np.ones((3, 1)), np.ones(2))


def test_a_transform_keeps_the_number_of_rows():
    with pytest.raises(UsageError, match="a transform of 3 rows must give as many; got 1"):
        Rows.of(np.ones((3, 1))).mapped(lambda features: features[:1])


def test_a_transform_sees_the_rows_as_they_are_handed_out():
    rows = Rows.of(np.full((3, 2), 255, np.uint8), scale=1 / 255)
    doubled = rows.mapped(lambda features: features * 2)
    assert doubled is not None
    assert doubled.batch(np.array([1])).features.tolist() == [[2.0, 2.0]]


def test_no_rows_map_to_no_rows():
    empty = Rows.of(np.ones((0, 2)))
    assert empty.mapped(np.negative) is empty


def test_transformed_rows_do_not_know_the_order_of_arrival():
    """The last bits of a product depend on the rows beside: shown by the rows' own places."""
    features = np.random.default_rng(0).random((23, 6), dtype=np.float32)
    shuffled = np.random.default_rng(1).permutation(23)

    def with_positions(chunk):
        return chunk.sum(axis=1, keepdims=True) + np.arange(len(chunk))[:, None]

    original, other_order = (
        Rows.of(rows).mapped(with_positions) for rows in (features, features[shuffled])
    )
    assert np.array_equal(
        original.features[original.order], other_order.features[other_order.order]
    )
