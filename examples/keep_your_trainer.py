"""An unmodified transformers.Trainer on the workers of a Spark cluster: five lines are new.

A small model learns from a DataFrame whether a sentence is about the sea or the mountains.
"""

import random
import tempfile

import torch
from transformers import Trainer, TrainingArguments

import photinus  # new

SEA, LAND = ["wave", "sail", "harbour", "salt", "tide"], ["peak", "snow", "cliff", "trail", "pine"]
COMMON = ["the", "a", "we", "saw", "and", "then", "old", "cold"]
NUMBER = {word: n for n, word in enumerate([*SEA, *LAND, *COMMON])}


class Bag(torch.nn.Module):
    """Means of word vectors, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.EmbeddingBag(len(NUMBER), 16), torch.nn.Linear(16, 2)

    def forward(self, ids, labels):
        logits = self.head(self.words(ids))  # [B, 2]
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(rows):
    ids = torch.tensor([[NUMBER[word] for word in row["text"].split()] for row in rows])  # [B, 8]
    return {"ids": ids, "labels": torch.tensor([row["label"] for row in rows])}


def train(rows):  # new: the rows are this worker's
    torch.manual_seed(0)
    model, folder = Bag(), tempfile.mkdtemp()
    agreed = photinus.agree(model, photinus.averaging(every=photinus.Steps(10)))  # new
    arguments = TrainingArguments(folder, num_train_epochs=3, learning_rate=0.02, report_to=[],
                                  per_device_train_batch_size=8, save_strategy="no",
                                  disable_tqdm=True, remove_unused_columns=False)  # fmt: skip
    callbacks = [agreed.transformers_callback()]  # new
    Trainer(model, arguments, collate, rows, callbacks=callbacks).train()


def main(spark, workers=2):
    def sentence(label):
        return " ".join(random.sample(COMMON, 6) + random.sample([SEA, LAND][label], 2)), label

    random.seed(0)
    frame = spark.createDataFrame([sentence(n % 2) for n in range(600)], "text string, label int")
    model = Bag()
    model.load_state_dict(photinus.launch(train, workers=workers, data=frame))  # new
    batch = collate([{"text": text, "label": label} for text, label in map(sentence, [0, 1] * 99)])
    return (model(**batch)["logits"].argmax(1) != batch["labels"]).float().mean().item()


if __name__ == "__main__":
    print(f"test error {main(photinus.spark_session(2)):.1%}")
