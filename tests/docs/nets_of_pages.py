"""What pages name as a module of the reader's: the tests send this file to the workers."""

import numpy as np
import torch
from torch import nn


def net(hidden=8):
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def price():
    return nn.Linear(4, 1)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def autoencoder():
    return Coder()


class Reviews(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(8, 4), nn.Linear(6, 2)

    def forward(self, tokens, price, mask):
        words = (self.words(tokens) * mask.unsqueeze(-1)).sum(1)
        return self.head(torch.cat([words, price], 1))


def tokenize(texts):
    return [np.array([len(word) % 8 for word in text.split()]) for text in texts]


def sentiment(base):
    """As it stands on the page of text."""
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)


def tagger(base):
    """As it stands there, too."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(base, num_labels=3)
