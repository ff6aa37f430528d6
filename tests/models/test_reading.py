"""How a module reads batches."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from photinus.core.errors import DataError
from photinus.models.module_model import ModuleModel

BYTES = np.zeros((4, 3), np.uint8)


@pytest.mark.parametrize(
    ("module", "features"),
    [
        (nn.Linear(3, 2), BYTES),
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten()), BYTES[:, None]),
    ],
    ids=["linear", "convolution"],
)
def test_a_module_that_does_not_take_bytes_is_told_with_scale(module, features):
    batch = SimpleNamespace(features=features, labels=np.zeros(4, np.int64))
    with pytest.raises(DataError, match="; bytes stay bytes without scale: set scale=1/255"):
        ModuleModel(module, "cross_entropy").learn(batch, 0)


def test_bytes_of_a_wrong_shape_are_not_told_with_scale():
    module = nn.Sequential(nn.Unflatten(1, (7, 7)), nn.Linear(7, 2))
    batch = SimpleNamespace(features=BYTES, labels=np.zeros(4, np.int64))
    with pytest.raises(DataError, match="compare the columns with what the module reads"):
        ModuleModel(module, "cross_entropy").learn(batch, 0)


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(1, 2, 3), nn.Conv1d(1, 2, 3), nn.BatchNorm2d(1), nn.BatchNorm3d(1)], ids=str
)
def test_a_flat_row_before_a_convolution_is_told_to_be_given_a_shape(layer):
    batch = SimpleNamespace(features=np.zeros((4, 49), np.float32), labels=np.zeros(4, np.int64))
    advice = r"a row is a list of 49 numbers: begin forward with x = x.unflatten\(1, \(channels"
    with pytest.raises(DataError, match=advice):
        ModuleModel(nn.Sequential(layer, nn.Flatten()), "cross_entropy").learn(batch, 0)


class Cities(nn.Embedding):
    def forward(self, city, size):
        return super().forward(city) * size[:, None]


def test_an_index_without_a_row_in_an_embedding_is_told_with_the_columns_of_whole_numbers():
    rows = {"city": np.array([1, 2]), "size": np.ones(2, np.float32)}
    batch = SimpleNamespace(features=rows, labels=np.zeros(2, np.int64))
    advice = r"give nn.Embedding as many rows as the largest index \+ 1; here are city 1..2$"
    with pytest.raises(DataError, match=advice):
        ModuleModel(Cities(2, 3), "cross_entropy").learn(batch, 0)
