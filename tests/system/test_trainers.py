"""Trainers of others, unmodified, in a function that `launch` runs: one worker is the plain run."""

import os
import signal
import sys
import tempfile

import pytest
import torch
from torch import nn

from photinus import Steps, agree, averaging, launch
from photinus.core.threads import limit_threads

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore"),  # theirs
]

ROWS = [{"x": [float(n % 7), float(n % 5)], "labels": float(n % 3)} for n in range(48)]
OFTEN = averaging(every=Steps(4))


class Net(nn.Module):
    """As a `transformers.Trainer` wants it: the loss is the first output."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x, labels):
        y = self.net(x).squeeze(-1)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


def transformers_run(rows, callbacks=lambda model: [agree(model).transformers_callback()]):
    import transformers

    transformers.set_seed(4)
    model = Net()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=3,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=0.05,
            warmup_steps=4,
            weight_decay=0.01,
            report_to=[],
            save_strategy="no",
            logging_steps=5,
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=rows, callbacks=callbacks(model)
        )
        trainer.train()
    assert trainer.state.global_step == 18
    return model


def lightning_run(rows, callbacks=lambda model: [agree(model).lightning_callback()]):
    import lightning

    lightning.seed_everything(4)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, number):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            return [optimizer], [schedule]

    def joined(batch):
        return {name: torch.tensor([row[name] for row in batch]) for name in ("x", "labels")}

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        callbacks=callbacks(module),
    )
    batches = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, collate_fn=joined)
    trainer.fit(module, batches)
    return module


def sentence_run(rows, callbacks=lambda model: [agree(model).transformers_callback()]):
    import transformers
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CosineSimilarityLoss
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: n for n, word in enumerate(["?", *"abcdefg"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.set_seed(4)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    pairs = [
        {"one": "abcdefg"[int(r["x"][0])], "two": "a b", "score": r["labels"] / 2} for r in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=12,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(pairs),
            loss=CosineSimilarityLoss(model),
            callbacks=callbacks(model),
        ).train()
    return model


RUNS = {
    "transformers": (transformers_run, ("accelerate",)),
    "lightning": (lightning_run, ()),
    "sentence_transformers": (sentence_run, ("datasets",)),
}


@pytest.mark.parametrize("name", RUNS)
def test_one_worker_is_the_plain_trainer_bit_for_bit(name):
    run, needed = RUNS[name]
    for package in (name, *needed):
        pytest.importorskip(package, reason=f"{package} is not installed")
    state_dict = launch(run, workers=1, data=ROWS, engine="local", strategy=OFTEN)
    with limit_threads(1):
        plain = run(ROWS, callbacks=lambda model: []).state_dict()
    assert state_dict
    assert all(torch.equal(tensor, plain[name]) for name, tensor in state_dict.items())
    assert not any("frozen" in name for name in state_dict)


@pytest.fixture
def by_value():
    """Spark's tasks cannot import this file: its functions travel by value, as a notebook's do."""
    from pyspark import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.slow
@pytest.mark.spark
def test_one_worker_on_spark_is_the_plain_lightning_trainer_bit_for_bit(spark, by_value):
    pytest.importorskip("lightning", reason="lightning is not installed")
    frame = spark.createDataFrame(ROWS, "x array<float>, labels float").coalesce(1)
    state_dict = launch(lightning_run, workers=1, data=frame, strategy=OFTEN)
    with limit_threads(1):
        plain = lightning_run(ROWS, callbacks=lambda model: []).state_dict()
    assert state_dict
    assert all(torch.equal(tensor, plain[name]) for name, tensor in state_dict.items())


def dies_once(rows):
    """A trainer whose worker is killed at its 11th step, after it has told of 8."""
    from transformers import TrainerCallback

    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **of):
            if state.global_step == 11 and not os.path.exists(os.environ["DIED"]):
                os.mkdir(os.environ["DIED"])
                os.kill(os.getpid(), signal.SIGKILL)

    transformers_run(rows, lambda model: [agree(model).transformers_callback(), Dies()])


def test_a_trainer_that_takes_the_place_of_a_lost_one_continues_at_its_step(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    events = []
    launch(
        dies_once, workers=1, data=ROWS, engine="local", strategy=OFTEN, callbacks=[events.append]
    )
    joined = [e for e in events if type(e).__name__ == "WorkerJoined"]
    assert [e.lease for e in joined] == [1, 2]
    [ended] = [e for e in events if type(e).__name__ == "PhaseEnded"]
    assert ended.passes == {"0": 18.0}
