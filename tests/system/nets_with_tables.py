"""Modules with a table of which a batch reads few rows, for workers in any process."""

import torch
from torch import nn

WIDTH, CLASSES = 16, 3


class Words(nn.Module):
    """The mean of the words' vectors, and a layer behind it."""

    def __init__(self, rows=4_000, sparse=True):
        super().__init__()
        self.words = nn.Embedding(rows, WIDTH, sparse=sparse)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.out(self.words(x.long()).mean(1))


class Bags(nn.Module):
    """The same by a bag, with a table that is not sparse beside it."""

    def __init__(self, rows=4_000, sparse=True):
        super().__init__()
        self.first = nn.Embedding(5, WIDTH)
        self.words = nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=sparse)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        ids = x.long()
        return self.out(torch.tanh(self.words(ids)) + self.first(ids[:, 0] % 5))


class Tied(Words):
    """Its table is a layer's weights, too."""

    def __init__(self):
        super().__init__()
        self.back = nn.Linear(WIDTH, 4_000, bias=False)
        self.back.weight = self.words.weight


class Used(Words):
    """Its forward pass reads the whole table."""

    def forward(self, x):
        return super().forward(x) + self.words.weight.sum()
