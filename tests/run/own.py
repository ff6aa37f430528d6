"""What jobs of these tests name: a Model of one's own, a loss, a module."""

import numpy as np
import torch
from torch import nn

from photinus.core.parameters import TRAINED, Layout, Parameters
from photinus.models.base import Model


class Mean(Model):
    """Predicts Σ wᵢ xᵢ under the mean squared error: the four methods, and outputs."""

    def __init__(self, width=3):
        self.parameters = Parameters(Layout.of([("w", (width,), TRAINED)]))

    def learn(self, batch, seed):
        residuals = batch.features @ self.parameters.view("w") - batch.labels
        gradient = 2 * residuals @ batch.features / len(residuals)
        return gradient.astype(np.float32), {"loss": float((residuals**2).mean())}

    def measure(self, batch):
        residuals = batch.features @ self.parameters.view("w") - batch.labels
        return {"examples": float(len(residuals)), "loss": float((residuals**2).sum())}

    def outputs(self, features):
        return (features @ self.parameters.view("w"))[:, None]


class Coder(nn.Module):
    """4 numbers to a code of 2 and back."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


def pairwise(scores, labels):
    """RankNet's loss over all pairs of a batch."""
    differences = scores.reshape(-1)[:, None] - scores.reshape(-1)  # [B, B]
    is_preferred = labels[:, None] > labels
    return (nn.functional.softplus(-differences) * is_preferred).sum() / is_preferred.sum().clamp(
        min=1
    )


def focal(outputs, labels):
    """The focal loss of classes, or of one logit."""
    if outputs.shape[1] == 1:
        losses = nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], labels.float(), reduction="none"
        )
    else:
        losses = nn.functional.cross_entropy(outputs, labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


def labelled(outputs, labels):
    """A loss of one's own for several labels a row."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels.float())


def near(outputs, labels):
    """A metric of one's own: whether a row is predicted within a half."""
    return (outputs[:, 0] - labels).abs() < 0.5


class LastChannels(nn.Module):
    """Refuses to learn from images whose channels are not last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        if self.training and not x.is_contiguous(memory_format=torch.channels_last):
            raise ValueError("the channels are not last")
        return self.head(x.flatten(1))


def images(features, draws):
    """Rows of 4 numbers as images of two channels."""
    return features.reshape(-1, 2, 2, 1)


class BatchRows(nn.Module):
    """Returns for each row how many there are at once."""

    def __init__(self):
        super().__init__()
        self.none = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.none + torch.full((len(x), 1), float(len(x)))


def softmaxed(softmax):
    """Returns a module whose outputs are probabilities, if so wished."""
    return nn.Sequential(nn.Linear(4, 2), nn.Softmax(1) if softmax else nn.Identity())


def squashed(outputs):
    """Returns a module that ends with a sigmoid."""
    return nn.Sequential(nn.Linear(4, outputs), nn.Sigmoid())
