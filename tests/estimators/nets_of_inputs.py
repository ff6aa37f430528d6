"""Modules and functions that workers import by name: tests send this file to them."""

import numpy as np
import torch
from torch import nn

EXPECTED = {
    "whole": (torch.int64, []),
    "number": (torch.float32, []),
    "truth": (torch.bool, []),
    "vector": (torch.float32, [6]),
    "raw": (torch.uint8, [4]),
    "picture": (torch.uint8, [2, 3, 3]),
    "png": (torch.uint8, [3, 4, 3]),
    "pair": (torch.float32, [2]),
    "tokens": (torch.int64, None),
    "floats": (torch.float32, None),
    "matrix": (torch.float32, None),
    "text": (torch.int64, None),
}


class All(nn.Module):
    """Refuses an input of another type or shape than a column of its kind shall have."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(
        self,
        whole,
        number,
        truth,
        vector,
        raw,
        picture,
        png,
        pair,
        tokens,
        floats,
        matrix,
        text,
        tokens_mask,
        floats_mask,
        mask,
        attention_mask,
    ):
        inputs = dict(locals())
        for name, (dtype, shape) in EXPECTED.items():
            x = inputs[name]
            assert x.dtype == dtype, (name, x.dtype)
            assert shape is None or list(x.shape[1:]) == shape, (name, x.shape)
        assert tokens_mask.dtype == torch.bool
        assert tokens_mask.shape == tokens.shape
        assert torch.equal(tokens_mask, tokens > 0), "padding is zeros"
        assert floats_mask.shape == floats.shape
        assert torch.equal(mask, tokens_mask), "that of the first input that has one"
        assert torch.equal(attention_mask, mask.long())
        assert list(matrix.shape[2:]) == [3]
        return torch.zeros(len(whole), 2) + self.weight


class Bag(nn.Module):
    """The mean of the tokens' vectors, and other numbers beside it."""

    def __init__(self, others=0, classes=2, outputs=None, tokens=50):
        super().__init__()
        self.table = nn.Embedding(tokens, 8)
        self.head = nn.Linear(8 + others, outputs or classes)

    def forward(self, tokens, mask, price=None):
        own = mask[..., None]  # [B, T, 1]
        x = (self.table(tokens) * own).sum(1) / own.sum(1).clamp(min=1)  # [B, D]
        return self.head(x if price is None else torch.cat([x, price.reshape(len(x), -1)], 1))


class Named(Bag):
    """Its logits under their name, and what they are made of."""

    def forward(self, tokens, mask):
        return {"hidden": self.table(tokens), "logits": super().forward(tokens, mask)}


class Towers(nn.Module):
    """A vector for each of 40 users, and one for each of 4 items."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(4, 8)

    def forward(self, whole, item):
        return torch.stack([self.users(whole), self.items(item)], 1)  # [B, 2, D]


class Sequences(nn.Module):
    """An LSTM over tokens; what it said last is read."""

    def __init__(self, tokens=20, width=16):
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens, mask):
        out, _ = self.lstm(self.table(tokens))  # [B, T, D]
        last = mask.sum(1).clamp(min=1) - 1
        return self.head(out[torch.arange(len(out)), last])


class Ends(nn.Module):
    """Reads what `ends` made."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, first_and_last):
        return self.head(first_and_last)


class Means(nn.Module):
    """Reads rows of any width."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, x):
        return self.head(x.mean(1, keepdim=True))


def letters(texts):
    """Each text as its letters' numbers, of any length."""
    return [np.array([ord(c) % 50 for c in text], np.int32) for text in texts]


def worded(texts):
    """As tokenizers return it: a dict of lists of lists; and a number for each text."""
    rows = [[ord(c) % 50 for c in text] for text in texts]
    return {"tokens": rows, "price": [float(len(row)) for row in rows]}


def no_digits(texts):
    """Refuses a text with a digit."""
    if any(c.isdigit() for text in texts for c in text):
        raise ValueError("a digit")
    return np.array([len(text) for text in texts])


def short(texts):
    """Returns a row too few."""
    return np.zeros(len(texts) - 1)


def ends(rows):
    """The first and the last number of every row: a collate."""
    return {"first_and_last": np.array([[r["x"][0], r["x"][-1]] for r in rows], np.float32)}


def weighed_mse(outputs, targets, weights=None):
    losses = (outputs[:, 0] - targets).square()
    return losses.mean() if weights is None else (losses * weights).mean()


class NextToken(nn.Module):
    """Scores of every next token: outputs [B, T, 8]."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 8)

    def forward(self, tokens):
        return self.table(tokens)


def next_token(outputs, tokens):
    return nn.functional.cross_entropy(outputs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Apart(nn.Module):
    """Two columns as vectors: outputs [B, 2, 3]."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, one, other):
        return torch.stack([self.layer(one[:, None]), self.layer(other[:, None])], 1)


def apart(outputs, inputs):
    near = (inputs["one"] - inputs["other"]).abs()
    return ((outputs[:, 0] - outputs[:, 1]).square().sum(1) - near).square().mean()


class Spots(nn.Module):
    """A class for each of four places of a row: outputs [B, 3, 4]."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(1, 3, 1)

    def forward(self, x):
        return self.layer(x[:, None])


class Heads(nn.Module):
    """A price and a kind, of four numbers."""

    def __init__(self):
        super().__init__()
        self.price, self.kind = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, x):
        return {"price": self.price(x), "kind": self.kind(x)}


def of_heads(outputs, labels):
    price, kind = outputs["price"][:, 0], outputs["kind"]
    squares = nn.functional.mse_loss(price, labels[:, 0])
    return squares + nn.functional.cross_entropy(kind, labels[:, 1].long())


class Bare(Heads):
    """Returns the kind alone, by a name that no loss knows."""

    def forward(self, x):
        return {"other": self.kind(x)}


class Puzzled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return {}["no such key"]


def by_spot(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)


def unsized():
    return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
