"""Batches of sentences are looked up together."""

import pyarrow as pa
import pytest

from photinus.estimators import sentences
from photinus.estimators.sentences import merge_batches


def batch(*lists):
    return pa.RecordBatch.from_arrays([pa.array(lists, pa.list_(pa.string()))], ["words"])


@pytest.mark.parametrize(
    ("known", "sizes"), [(1, [2, 1, 1]), (4, [3, 1]), (9, [4]), (1 << 30, [3, 1])]
)
def test_batches_have_as_many_words_as_are_known_up_to_a_limit(known, sizes, monkeypatch):
    monkeypatch.setattr(sentences, "_LOOKUP_VALUES", 4)
    if known == 9:
        monkeypatch.setattr(sentences, "_LOOKUP_VALUES", 100)
    batches = [batch(["a", "b"], ["c"]), batch(["d", "e"]), batch(["f"])]
    merged = list(merge_batches(iter(batches), known))
    assert [len(record_batch) for record_batch in merged] == sizes
    assert pa.Table.from_batches(merged).combine_chunks() == (
        pa.Table.from_batches(batches).combine_chunks()
    )


def test_no_batch_is_none():
    assert list(merge_batches(iter([]), 10)) == []
