"""A small pre-trained transformer of this file: adapters and head alone are trained and sent."""

import json
import os

import numpy as np
import pytest
import torch

from photinus import (
    Job,
    ModuleStage,
    Source,
    Steps,
    averaging,
    preset,
    text_classifier,
    text_rows,
    train,
)
from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.data.films import film_sentences
from photinus.models.text import TextClassifier
from photinus.run.data import read_test, read_train
from photinus.run.evaluate import load_trained

GOOD, BAD = ["lovely", "grand", "funny"], ["dull", "weak", "tired"]


@pytest.fixture(scope="module")
def sentences():
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 2, 320)
    texts = [f"a {chance.choice([BAD, GOOD][label])} film" for label in labels]
    return text_rows(texts), labels


def job(small_encoder, **settings):
    model = ModuleStage(
        module="photinus.models.text:text_classifier",
        arguments={"base": str(small_encoder), "rank": 2},
        epochs=4.0,
        batch_size=16,
        lr=0.003,
    )
    strategy = averaging(every=Steps(5), gradients_until=0.0)
    source = Source(name="given")
    return Job(model=model, workers=2, data=source, strategy=strategy, **settings)


@pytest.fixture(scope="module")
def outcome(small_encoder, sentences, tmp_path_factory):
    """One run of two workers, and its events."""
    events = []
    rows, labels = sentences
    done = train(
        job(small_encoder, engine="simulate"),
        (rows[:256], labels[:256]),
        test=(rows[256:], labels[256:]),
        folder=tmp_path_factory.mktemp("run") / "run",
        callbacks=(events.append,),
    )
    return done, events


def test_adapters_learn_and_only_they_and_the_head_travel(outcome, small_encoder):
    done, events = outcome
    assert done.metrics["error"] < 0.05
    net = text_classifier(str(small_encoder), rank=2)
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    [started] = [e for e in events if type(e).__name__ == "PhaseStarted"]
    assert started.parameters == trained < 0.25 * sum(p.numel() for p in net.parameters())
    rounds = [e for e in events if type(e).__name__ == "RoundClosed"]
    beside = sum(b.numel() * b.element_size() for b in net.buffers())
    assert {e.bytes_up for e in rounds} == {2 * (2 * trained + beside)}  # two workers, bf16


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks for what will be renamed
def test_the_adapter_is_loaded_by_peft_as_it_is(outcome, small_encoder, sentences):
    from peft import PeftModel
    from tokenizers import Tokenizer
    from transformers import AutoModelForSequenceClassification

    done, _ = outcome
    whole = AutoModelForSequenceClassification.from_pretrained(small_encoder, num_labels=2)
    theirs = PeftModel.from_pretrained(whole, done.folder / "adapter").eval()
    tokenizer = Tokenizer.from_file(str(small_encoder / "tokenizer.json"))
    tokenizer.enable_padding()
    rows = sentences[0][256:]
    with torch.no_grad():
        ours = done.model()(torch.from_numpy(rows))
        again = TextClassifier(theirs, tokenizer)(torch.from_numpy(rows))
    assert torch.equal(ours, again)
    assert json.loads((done.folder / "adapter" / "adapter_config.json").read_text())["r"] == 2


def test_a_saved_text_classifier_is_loaded_again(outcome, sentences):
    done, _ = outcome
    loaded, _ = load_trained(done.folder / "model")
    rows = torch.from_numpy(sentences[0][:8])
    with torch.no_grad():
        assert torch.equal(loaded.module()(rows), done.model()(rows))


def test_token_ids_and_texts_give_the_same(small_encoder):
    net = text_classifier(str(small_encoder)).eval()
    ids = torch.tensor([[2, 4, 8, 5, 3], [2, 6, 3, 0, 0]])
    with torch.no_grad():
        by_text = net(torch.from_numpy(text_rows(["a lovely film", "plot"])))
        assert torch.equal(by_text, net(ids))


def test_a_long_text_is_cut_after_a_whole_character():
    rows = text_rows(["aé", "abc"], 2)
    assert [bytes(row) for row in rows] == [b"a\0", b"ab"]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"base": "no_such_model"}, NotReadyError, "there is no pre-trained model 'no_such_model'"),
        ({"base": "/tmp"}, NotReadyError, "there is no pre-trained model '/tmp'"),
        ({"rank": 0}, UsageError, "a text classifier has at least 2 classes, rank 1"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(arguments, error, says):
    pytest.importorskip("peft", reason="photinus[text] is not installed")
    with pytest.raises(error, match=says):
        text_classifier(**arguments)


def test_numbers_that_are_no_text_are_refused(small_encoder):
    with pytest.raises(DataError, match="a text is read as bytes or token ids"):
        text_classifier(str(small_encoder))(torch.zeros(2, 3))


def test_the_preset_is_a_job_like_any_other():
    asked = preset("text-sentiment", 4)
    assert Job.from_dict(asked.to_dict()) == asked
    assert (asked.model.epochs, asked.model.batch_size) == (2.0, 32)


def test_the_films_are_split_alike_each_time():
    if not os.environ.get("PHOTINUS_FILMS"):
        pytest.skip("PHOTINUS_FILMS names no archive of the films")
    first, last = film_sentences()
    assert (len(first), len(last)) == (9005, 1600)
    assert film_sentences()[1] == last
    assert first[0].keys() == {"text", "label"}
    assert 0.45 < np.mean([row["label"] for row in first + last]) < 0.55


def test_sentences_to_train_and_to_test_on_have_one_length(monkeypatch):
    parts = [{"text": "dull", "label": 0}] * 3, [{"text": "lovely", "label": 1}]
    monkeypatch.setattr("photinus.run.data.film_sentences", lambda path: parts)
    asked = preset("text-sentiment", 2)
    first, last = read_train(asked), read_test(asked.data)
    assert (first.features.shape, last.features.shape) == ((3, 6), (1, 6))
    assert bytes(last.features[0]) == b"lovely"
    assert first.labels.tolist() == [0, 0, 0]


def test_another_archive_than_the_published_one_is_refused(tmp_path):
    (tmp_path / "films.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is not the published vaderSentiment"):
        film_sentences(str(tmp_path / "films.tar.gz"))
    with pytest.raises(DataError, match="cannot be read"):
        film_sentences(str(tmp_path / "none.tar.gz"))
