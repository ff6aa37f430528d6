"""Networks whose tables lie among the workers, for tests on Spark."""

import torch
from torch import nn

from photinus.nn import ShardedEmbedding


class Scores(nn.Module):
    def __init__(self, users=60, items=40, dim=4):
        super().__init__()
        self.users, self.items = ShardedEmbedding(users, dim), ShardedEmbedding(items, dim)
        self.bias, self.out = nn.Linear(1, 1), nn.Linear(dim, 2)

    def forward(self, user, item, price):
        vectors = self.users(user) * self.items(item).mean(1)
        return self.out(vectors) + self.bias(price[:, None])


class Wide(nn.Module):
    """One huge table, of which the rows of a test read next to nothing."""

    def __init__(self, rows, dim=64):
        super().__init__()
        self.table, self.out = ShardedEmbedding(rows, dim), nn.Linear(dim, 2)

    def forward(self, user):
        return self.out(torch.tanh(self.table(user)))
