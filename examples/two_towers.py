"""Recommendations by two towers: users and the items that they took get vectors that lie close."""

import numpy as np
import torch
from pyspark.sql.functions import broadcast, expr, lit
from torch import nn
from torch.nn.functional import normalize

import photinus as ph

USERS, ITEMS, GENRES, COLUMNS = 1_000, 300, 6, ("user", "item", "genre")
TABLES = {"whole": nn.Embedding, "sharded": ph.nn.ShardedEmbedding}


class Towers(nn.Module):
    """A vector for each user, and one for each item of its number and its genre."""

    def __init__(self, size=16, table="whole"):  # "sharded": each worker owns a part of the rows
        super().__init__()
        self.users, self.item = TABLES[table](USERS, size), TABLES[table](ITEMS, 16)
        self.genre, self.items = nn.Embedding(GENRES, 16), nn.Linear(32, size)

    def forward(self, user, item, genre):
        items = self.items(torch.cat([self.item(item), self.genre(genre)], 1))
        return torch.stack([10 * normalize(self.users(user)), normalize(items)], 1)  # [B, 2, D]


def tastes():
    """Returns scores [users, items]: a user likes one genre more, and has a taste of its own."""
    fixed, genres = np.random.default_rng(0), np.arange(ITEMS) % GENRES
    own = fixed.normal(size=(USERS, 4)) @ fixed.normal(size=(4, ITEMS))
    return own + 3 * (genres == fixed.integers(0, GENRES, USERS)[:, None])


def events(count, seed):
    """Returns (user, item, genre) of so many events, whose items are drawn by softmax."""
    users = (chance := np.random.default_rng(seed)).integers(0, USERS, count)
    items = (tastes()[users] + chance.gumbel(size=(count, ITEMS))).argmax(1)
    return np.stack([users, items, items % GENRES], 1)


def main(spark, rows=50_000, epochs=10.0, table="whole"):
    train, test = (spark.createDataFrame(events(n, n), list(COLUMNS)) for n in (rows, 2_000))
    share = train.groupBy("item").agg(expr(f"ln(count(*) / {rows}) AS log_share"))
    spark.sparkContext.addPyFile(__file__)
    how = {"module": "two_towers:Towers", "loss": "in_batch", "labelCol": ["item", "log_share"]}
    how |= {"inputs": {name: name for name in COLUMNS}, "batchSize": 256, "learningRate": 0.01}
    how |= {"moduleArgs": {"table": table}, "epochs": epochs}
    model = ph.TorchEstimator(**how).fit(train.join(broadcast(share), "item"))
    shelf = train.select("item", "genre", lit(0).alias("user")).distinct()
    shelf = model.withLayer(shelf, "items", "vector").toPandas()
    items = ph.WordVectors(shelf["item"].astype(str).tolist(), np.stack(shelf["vector"]))
    asked = model.withLayer(test, "users", "vector")
    near = ph.Item2VecModel(items).withSynonyms(asked, 10, column="vector", exact=True)
    return near.agg(expr("avg(int(array_contains(synonyms.item, string(item))))")).first()[0]


if __name__ == "__main__":
    recall = main(ph.spark_session(2))
    print(f"{recall:.0%} of what users took is among the ten of {ITEMS} items nearest to them")
