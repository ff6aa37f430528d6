"""Questions of any length become SQL; no question of the test has a template of the training."""

import numpy as np
from torch import nn

import photinus as ph

NAMES = ["age", "salary", "height", "weight", "years"]
ASKED = {"top {}": "max", "highest {}": "max", "lowest {}": "min", "mean {}": "avg"}
MEANT = {"whose {} is above {}": ">", "with {} over {}": ">", "with {} under {}": "<"}
ORDERS = ["tell me the {0} of people {1}", "{1} find {0}", "show the {0} of {1}", "those {1} {0}"]
TEMPLATES = [(order, asked, meant) for order in ORDERS for asked in ASKED for meant in MEANT]
PIECES = ["SELECT", "avg", "max", "min", *[f"({c}) FROM us WHERE" for c in NAMES], *NAMES, "<", ">"]
PLACES = {w: n for n, w in enumerate(" ".join([*ORDERS, *ASKED, *MEANT, *NAMES]).split(), 2)}


class Reader(nn.Module):
    """Reads the words both ways, and returns how likely each piece is in the query."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(99, 64), nn.Linear(128, len(PIECES))
        self.read = nn.GRU(64, 64, batch_first=True, bidirectional=True)

    def forward(self, text, mask):
        x = self.read(self.table(text))[0].masked_fill(~mask[..., None], -1)  # [B, T, 128]
        return self.head(x.amax(1))  # [B, pieces]


def encode(texts):
    return [np.array([PLACES.get(word, 1) for word in text.split()]) for text in texts]


def questions(templates, rows):
    rng = np.random.default_rng(rows)
    for order, asked, meant in rng.choice(templates, rows).tolist():
        (shown, by), number = rng.choice(NAMES, 2, replace=False).tolist(), rng.integers(99)
        text = order.format(asked.format(shown), meant.format(by, number))
        known = ["SELECT", ASKED[asked], f"({shown}) FROM us WHERE", by, MEANT[meant]]
        yield text, [int(piece in known) for piece in PIECES], f"{' '.join(known)} {number}"


def main(spark, rows=4_000, epochs=4.0):
    seen = [template for n, template in enumerate(TEMPLATES) if n % 5]
    train = spark.createDataFrame(questions(seen, rows), ["text", "label", "sql"])
    test = spark.createDataFrame(questions(TEMPLATES[::5], 500), ["text", "label", "sql"])
    spark.sparkContext.addPyFile(__file__)
    names = {"module": "questions_to_sql:Reader", "encoders": {"text": "questions_to_sql:encode"}}
    several = {"inputs": {"text": "text"}, "loss": "binary_cross_entropy"}  # of several pieces
    reader = ph.TorchClassifier(learningRate=0.01, epochs=epochs, **names, **several)
    right = []
    for row in reader.fit(train).transform(test).collect():
        pieces = [piece for piece, is_in in zip(PIECES, row.prediction, strict=True) if is_in]
        right.append(" ".join([*pieces, *filter(str.isdigit, row.text.split())]) == row.sql)
    print(f"{np.mean(right):.1%} of the queries are exact, as {row.text!r}: {row.sql}")
    return np.mean(right)


if __name__ == "__main__":
    main(ph.spark_session(2))
