"""A module and a loss that the workers import by name: tests send this file to them."""

import torch
from torch import nn


class Basket(nn.Module):
    """A number from an item and its price."""

    def __init__(self):
        super().__init__()
        self.items, self.line = nn.Embedding(9, 3), nn.Linear(4, 1)

    def forward(self, item, price):
        return self.line(torch.cat([self.items(item), price[:, None]], 1))


def margin(outputs, labels):
    """A loss of classes whose name does not say so."""
    return nn.functional.cross_entropy(outputs, labels)
