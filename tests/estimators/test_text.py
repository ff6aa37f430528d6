"""A text column fine-tunes an encoder whose weights only the driver has."""

import shutil

import numpy as np
import pytest
import torch

from photinus import TorchClassificationModel, TorchClassifier, text_classifier
from photinus.coordinator import membership
from photinus.core.errors import UsageError

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

FROZEN = ["*.base_layer.*", "*embeddings*", "*LayerNorm*", "*original_module*"]


@pytest.fixture
def bare(small_encoder, tmp_path):
    """What the executors have of the encoder: no weights."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(small_encoder / name, tmp_path)
    return str(tmp_path)


@pytest.fixture
def whole(small_encoder):
    """What the driver has."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return text_classifier(str(small_encoder), rank=2)


def classifier(whole, bare, **params):
    return TorchClassifier(
        module="photinus.models.text:text_classifier",
        moduleArgs={"base": bare, "rank": 2, "weights": False},
        start=whole.state_dict(),
        inputs={"input_ids": "text"},
        encoders={"input_ids": bare},
        **{"frozen": FROZEN, "numWorkers": 2, "epochs": 6, "learningRate": 0.01} | params,
    )


@pytest.fixture
def table(spark):
    words = ["dull", "weak"], ["lovely", "grand"]
    labels = np.random.default_rng(0).integers(0, 2, 160).tolist()
    rows = [(f"a {words[y][n // 2 % 2]} film" + " and" * (n % 4), y) for n, y in enumerate(labels)]
    return spark.createDataFrame(rows, "text string, label int").repartition(2)


def test_frozen_weights_reach_an_executor_once(table, whole, bare, tmp_path):
    history_sizes = []

    def count_history(frame, grant):
        history_sizes.extend(vector.size for vector in grant.history)
        return original(frame, grant)

    original = membership.grant_to
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "grant_to", count_history)
        model = classifier(whole, bare).fit(table)
    frozen = {name: p.detach() for name, p in whole.named_parameters() if not p.requires_grad}
    assert history_sizes == [sum(p.numel() for p in frozen.values())], "one copy for two workers"
    for name, p in model.module().named_parameters():
        if name in frozen:
            assert p.equal(frozen[name]), name
    assert model.evaluate(table).error < 0.1
    model.write().save(str(tmp_path / "model"))
    loaded = TorchClassificationModel.load(str(tmp_path / "model"), trust_code=True)
    predictions, loaded_predictions = (
        m.transform(table).select("prediction").collect() for m in (model, loaded)
    )
    assert predictions == loaded_predictions


def test_a_constant_that_no_worker_would_get_is_named(table, whole, bare):
    frozen = [name for name in FROZEN if "embed" not in name]
    with pytest.raises(UsageError, match=r"does not train .*embeddings.*; name it in frozen"):
        classifier(whole, bare, frozen=frozen, seed=1).fit(table)  # by 0 its numbers are the same
