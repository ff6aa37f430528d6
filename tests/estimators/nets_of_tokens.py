"""Taggers that workers import by name: tests send this file to them."""

import numpy as np
from torch import nn


class Tagger(nn.Module):
    """One number for each class of each word: [B, T, 3], or [B, 3, T]."""

    def __init__(self, is_transposed=False):
        super().__init__()
        self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 3)
        self.is_transposed = is_transposed

    def forward(self, words):
        scores = self.head(self.table(words))
        return scores.transpose(1, 2) if self.is_transposed else scores


class Whole(Tagger):
    """One number for each class of a row."""

    def forward(self, words):
        return super().forward(words).mean(1)


class Levels(nn.Module):
    """One number for each class of each of a row's numbers: [B, T, 3]."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.net(x[..., None])


class Framed(Tagger):
    """One number for each class of each word, whatever else a row holds."""

    def forward(self, frame, words):
        return super().forward(words) + self.table(frame).mean((1, 2))[:, None, None]


def joined(rows):
    """Makes one input of two: the words of `first` and those of `second`."""
    words = [np.concatenate([row["first"], row["second"]]) for row in rows]
    longest = max(map(len, words))
    return {"words": [np.pad(row, (0, longest - len(row))) for row in words]}
