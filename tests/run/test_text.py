"""A small pre-trained transformer of this file: adapters and head alone are trained and sent."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from photinus import (
    Job,
    ModuleConfig,
    Source,
    Steps,
    Tokenizer,
    averaging,
    preset,
    text_classifier,
    train,
)
from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.core.events import PhaseEnded, Warned, WorkerLost
from photinus.data.films import film_sentences
from photinus.engine.local.engine import LocalEngine
from photinus.models.text import TextClassifier
from photinus.nn import ShardedEmbedding
from photinus.report.ledger import audit
from photinus.run.data import read_test, read_train
from photinus.run.evaluate import LazyModel, load_trained
from photinus.run.sharded import with_sharded_tables
from photinus.run.usual_settings import is_pretrained, with_usual_passes, with_usual_rate
from photinus.testing import Faults


class Logits(torch.nn.Module):
    """Returns the logits of a classifier of transformers."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, input_ids, attention_mask=None):
        return self.inside(input_ids=input_ids, attention_mask=attention_mask).logits


def transformer(base, *, is_loaded=True, is_bare=False):
    """A classifier of transformers as it is, its logits alone, or with random weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    factory = AutoModelForSequenceClassification
    if is_loaded:
        made = factory.from_pretrained(base, num_labels=2)
    else:
        made = factory.from_config(AutoConfig.from_pretrained(base, num_labels=2))
    return Logits(made) if is_bare else made


GOOD, BAD = ["lovely", "grand", "funny"], ["dull", "weak", "tired"]


@pytest.fixture(scope="module")
def sentences():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 320)
    texts = [
        f"a {rng.choice([BAD, GOOD][label])} film" + " and a plot" * (n % 3)
        for n, label in enumerate(labels)
    ]
    return texts, labels


def job(small_encoder, **settings):
    model = ModuleConfig(
        module="photinus.models.text:text_classifier",
        arguments={"base": str(small_encoder), "rank": 2},
        epochs=4.0,
        batch_size=16,
        lr=0.003,
    )
    strategy = averaging(every=Steps(5), gradients_until=0.0)
    tokenizer = str(small_encoder)
    source = Source(name="given", inputs={"input_ids": "text"}, encoders={"input_ids": tokenizer})
    return Job(model=model, workers=2, data=source, strategy=strategy, **settings)


@pytest.fixture(scope="module")
def outcome(small_encoder, sentences, tmp_path_factory):
    """One run of two workers, and its events."""
    events = []
    texts, labels = sentences
    result = train(
        job(small_encoder, engine="simulate"),
        ({"input_ids": texts[:256]}, labels[:256]),
        test=({"input_ids": texts[256:]}, labels[256:]),
        folder=tmp_path_factory.mktemp("run") / "run",
        callbacks=(events.append,),
    )
    return result, events


def test_adapters_learn_and_only_they_and_the_head_travel(outcome, small_encoder):
    result, events = outcome
    assert result.metrics["error"] < 0.05
    net = text_classifier(str(small_encoder), rank=2)
    trained_count = sum(p.numel() for p in net.parameters() if p.requires_grad)
    [started] = [e for e in events if type(e).__name__ == "PhaseStarted"]
    assert started.parameters == trained_count < 0.25 * sum(p.numel() for p in net.parameters())
    rounds = [e for e in events if type(e).__name__ == "RoundClosed"]
    buffer_bytes = sum(b.numel() * b.element_size() for b in net.buffers())
    assert {e.bytes_up for e in rounds} == {
        2 * (2 * trained_count + buffer_bytes)
    }  # two workers, bf16


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks for what will be renamed
def test_the_adapter_is_loaded_by_peft_as_it_is(outcome, small_encoder, sentences):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    result, _ = outcome
    base_model = AutoModelForSequenceClassification.from_pretrained(small_encoder, num_labels=2)
    peft_model = PeftModel.from_pretrained(base_model, result.folder / "adapter").eval()
    batch = padded_batch(small_encoder, sentences[0][256:])
    with torch.no_grad():
        assert torch.equal(result.model()(**batch), TextClassifier(peft_model)(**batch))
    assert json.loads((result.folder / "adapter" / "adapter_config.json").read_text())["r"] == 2


@pytest.mark.processes
@pytest.mark.fault
def test_a_worker_killed_in_the_middle_loses_no_sentence_and_no_adapter(
    small_encoder, sentences, tmp_path
):
    events = []
    texts, labels = sentences
    local_job = job(small_encoder, engine="local")
    result = train(
        replace(local_job, model=replace(local_job.model, lr=0.001)),
        ({"input_ids": texts[:256]}, labels[:256]),
        test=({"input_ids": texts[256:]}, labels[256:]),
        folder=tmp_path / "run",
        callbacks=(events.append,),
        engine=LocalEngine(Faults().kill(slot=1, step=32)),
    )
    assert [e.slot for e in events if isinstance(e, WorkerLost)] == [1]
    [ended] = [e for e in events if isinstance(e, PhaseEnded)]
    assert list(ended.passes.values()) == pytest.approx([4.0, 4.0])
    assert audit(result.folder / "ledger.jsonl").is_exact
    assert result.metrics["error"] < 0.05
    assert (result.folder / "adapter" / "adapter_model.safetensors").exists()


def padded_batch(base, texts):
    ids = [torch.from_numpy(row).long() for row in Tokenizer(str(base))(texts)]
    masks = [torch.ones_like(row) for row in ids]
    padded_rows = (torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) for rows in (ids, masks))
    return dict(zip(("input_ids", "attention_mask"), padded_rows, strict=True))


def test_a_saved_text_classifier_is_loaded_again(outcome, small_encoder, sentences):
    result, _ = outcome
    loaded, _ = load_trained(result.folder / "model")
    batch = padded_batch(small_encoder, sentences[0][:8])
    with torch.no_grad():
        assert torch.equal(loaded.module()(**batch), result.model()(**batch))


class WithTable(torch.nn.Module):
    """An encoder beside a table of many rows, which has an optimizer of its own."""

    def __init__(self, base, optimizer="adam"):
        super().__init__()
        self.inside = transformer(base)
        self.items = ShardedEmbedding(1000, 2, optimizer=optimizer)

    def forward(self, input_ids, item, attention_mask=None):
        return self.inside(input_ids, attention_mask).logits + self.items(item)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_an_encoder_beside_sharded_tables_has_the_low_rate_too(small_encoder, optimizer):
    whole = ModuleConfig(
        module=f"{__name__}:WithTable",
        arguments={"base": str(small_encoder), "optimizer": optimizer},
    )
    draft = with_sharded_tables(LazyModel(Job(model=whole, workers=2)))
    trained, told = with_usual_rate(draft, is_unset=True)
    assert trained.job.model.rate().at(0.5) == 5e-5
    assert "pre-trained" in told


def test_the_rate_that_is_told_is_the_one_for_the_batch(small_encoder):
    whole = ModuleConfig(
        module=f"{__name__}:transformer",
        arguments={"base": str(small_encoder)},
        batch_size=128,
        lr_scale="linear",
    )
    draft, told = with_usual_rate(LazyModel(Job(model=whole)), is_unset=True)
    assert draft.job.model.rate().at(0.5) == pytest.approx(4 * 5e-5)
    assert "to 0.0002, which" in told


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, 3.0),
        ({"optimizer": "sgd"}, 3.0),
        ({"frozen": ("*.encoder.*",)}, 3.0),
        ({"lr": 0.002}, 3.0),
        ({"epochs": 7.0}, 7.0),
        ({"max_steps": 40}, None),
        ({"arguments": {"is_loaded": False}}, None),
    ],
    ids=["usual", "sgd", "frozen", "a rate that is set", "set", "steps are set", "random weights"],
)
def test_what_transformers_has_loaded_gets_three_passes(small_encoder, settings, passes):
    arguments = {"base": str(small_encoder), **settings.get("arguments", {})}
    module = f"{__name__}:transformer"
    whole = ModuleConfig(**settings | {"module": module, "arguments": arguments})
    assert with_usual_passes(LazyModel(Job(model=whole))).job.model.epochs == passes


def test_a_job_that_starts_from_a_trained_model_has_three_passes(tmp_path):
    line = {"in_features": 2, "out_features": 2}
    model = ModuleConfig(module="torch.nn:Linear", arguments=line)
    started = LazyModel(Job(model=model, start=str(tmp_path / "model")))
    assert with_usual_passes(started).job.model.epochs == 3.0
    assert with_usual_passes(LazyModel(Job(model=model))).job.model.epochs is None


def trained_whole(small_encoder, sentences, folder, *, lr=None, optimizer="adamw", **arguments):
    """One run that trains the whole encoder, and its warnings."""
    whole = ModuleConfig(
        module=f"{__name__}:transformer",
        arguments={"base": str(small_encoder), **arguments},
        epochs=8.0,
        batch_size=16,
        lr=lr,
        optimizer=optimizer,
    )
    texts, labels = sentences
    warnings = []
    result = train(
        replace(job(small_encoder, engine="simulate"), model=whole),
        ({"input_ids": texts[:256]}, labels[:256]),
        test=({"input_ids": texts[256:]}, labels[256:]),
        folder=folder,
        callbacks=(lambda e: isinstance(e, Warned) and warnings.append(e.text),),
    )
    return result, warnings


def test_a_classifier_of_transformers_is_trained_as_it_is(small_encoder, sentences, tmp_path):
    whole, _ = trained_whole(small_encoder, sentences, tmp_path / "whole", lr=0.003)
    assert whole.metrics["error"] < 0.05
    bare, _ = trained_whole(small_encoder, sentences, tmp_path / "bare", lr=0.003, is_bare=True)
    states = [outcome.state_dict() for outcome in (whole, bare)]
    assert all(torch.equal(states[0][n.removeprefix("inside.")], v) for n, v in states[1].items())
    loaded, _ = load_trained(whole.folder / "model")
    batch = padded_batch(small_encoder, sentences[0][:8])
    with torch.no_grad():
        assert torch.equal(loaded.module()(**batch).logits, bare.model()(**batch))


def test_what_transformers_has_loaded_gets_a_twentieth_of_the_usual_rate(
    small_encoder, sentences, tmp_path
):
    result, warnings = trained_whole(small_encoder, sentences, tmp_path / "run")
    saved = Job.from_dict(json.loads((result.folder / "job.json").read_text())["job"])
    rate = saved.model.rate()
    assert [round(rate.at(p), 9) for p in (0.0, 0.1, 0.8, 1.0)] == [5e-6, 5e-5, 5e-5, 0.0]
    [told] = [w for w in warnings if "pre-trained" in w]
    assert "the learning rate is divided by 20, to 5e-05" in told
    assert "learningRate" in told


@pytest.mark.parametrize(
    ("settings", "peak"),
    [
        ({"lr": 0.002}, 0.002),
        ({"is_loaded": False}, 0.001),
        ({"optimizer": "sgd"}, 0.1),
    ],
    ids=["a rate that is set", "random weights", "no adaptive optimizer"],
)
def test_all_other_rates_stay_as_they_are(settings, peak, small_encoder, sentences, tmp_path):
    result, warnings = trained_whole(small_encoder, sentences, tmp_path / "run", **settings)
    saved = Job.from_dict(json.loads((result.folder / "job.json").read_text())["job"])
    assert saved.model.rate().at(0.2) == peak
    assert not [w for w in warnings if "pre-trained" in w]


def test_adapters_on_a_pretrained_encoder_have_the_usual_rate(small_encoder):
    adapters = replace(job(small_encoder).model, lr=None)
    assert not is_pretrained(adapters.build((), 0))
    frozen = replace(
        adapters, module=f"{__name__}:transformer", arguments={"base": str(small_encoder)}
    )
    assert is_pretrained(frozen.build((), 0))
    assert not is_pretrained(replace(frozen, frozen=("bert.*",)).build((), 0))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"base": "no_such_model"}, NotReadyError, "there is no pre-trained model 'no_such_model'"),
        ({"base": "/tmp"}, NotReadyError, "there is no pre-trained model '/tmp'"),
        ({"rank": 0}, UsageError, "a text classifier has at least 2 classes and rank 1"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(arguments, error, says):
    pytest.importorskip("peft", reason="photinus[text] is not installed")
    with pytest.raises(error, match=says):
        text_classifier(**arguments)


def test_the_preset_is_a_job_like_any_other():
    preset_job = preset("text-sentiment", 4)
    assert Job.from_dict(preset_job.to_dict()) == preset_job
    assert (preset_job.model.epochs, preset_job.model.batch_size) == (2.0, 32)


def test_the_films_are_split_alike_each_time():
    if not os.environ.get("PHOTINUS_FILMS"):
        pytest.skip("PHOTINUS_FILMS names no archive of the films")
    first, last = film_sentences()
    assert (len(first), len(last)) == (9005, 1600)
    assert film_sentences()[1] == last
    assert first[0].keys() == {"text", "label"}
    assert 0.45 < np.mean([row["label"] for row in first + last]) < 0.55


FILMS = [{"text": "dull", "label": 0}] * 3, [{"text": "a lovely film", "label": 1}]


def test_sentences_to_train_and_to_test_on_are_tokenised(monkeypatch, small_encoder):
    monkeypatch.setattr("photinus.run.data.film_sentences", lambda path: FILMS)
    preset_job = replace(preset("text-sentiment", 2), engine="local")
    source = replace(preset_job.data, encoders={"input_ids": str(small_encoder)})
    first, last = read_train(replace(preset_job, data=source)), read_test(source)
    assert first.features.batch(np.arange(3))["input_ids"].tolist() == [[2, 11, 3]] * 3
    assert first.labels.tolist() == [0, 0, 0]
    assert last.features.batch(np.arange(1))["input_ids"].tolist() == [[2, 4, 8, 5, 3]]


@pytest.mark.spark
def test_on_spark_the_workers_get_a_column_of_text(monkeypatch, spark, small_encoder):
    monkeypatch.setattr("photinus.run.data.film_sentences", lambda path: FILMS)
    preset_job = preset("text-sentiment", 2)
    source = replace(preset_job.data, encoders={"input_ids": str(small_encoder)})
    frame, spec = read_train(replace(preset_job, data=source)).selected()
    assert dict(frame.dtypes)["input_ids"] == "string"
    assert spec.inputs.encoders == {"input_ids": str(small_encoder)}


def test_another_archive_than_the_published_one_is_refused(tmp_path):
    (tmp_path / "films.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is not the published vaderSentiment"):
        film_sentences(str(tmp_path / "films.tar.gz"))
    with pytest.raises(DataError, match="cannot be read"):
        film_sentences(str(tmp_path / "none.tar.gz"))
