import os

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.estimators.serialization import changed_attribute, rebuild_object, split_object
from photinus.protocol.serialization import packed, unpacked


class Layer:
    def __init__(self, weights):
        self.weights, self.name = weights, "layer"


class Net:
    def __init__(self):
        self.bias, self.steps, self.words = np.ones(2), 0, {"a": 1}
        self.layers = [Layer(np.arange(6.0).reshape(2, 3)), Layer(np.zeros(2, np.uint32))]
        self.first, self.again = self.layers[0].weights, self.bias
        self.me = self


def round_trip(model):
    """A model as a worker has it."""
    outline, tree = split_object(model)
    return rebuild_object(outline, unpacked(packed(tree)))


def test_an_object_arrives_with_all_its_arrays_and_values():
    net, twin = Net(), round_trip(Net())
    assert twin.steps == 0
    assert twin.words == {"a": 1}
    assert twin.me is twin
    assert np.array_equal(twin.bias, net.bias)
    for layer, twin_layer in zip(net.layers, twin.layers, strict=True):
        assert np.array_equal(layer.weights, twin_layer.weights)
        assert layer.weights.dtype == twin_layer.weights.dtype


def test_an_array_that_two_places_share_is_shared_where_it_arrives():
    twin = round_trip(Net())
    assert twin.layers[0].weights is twin.first
    assert twin.again is twin.bias


def test_the_outline_holds_no_array():
    net = Net()
    net.layers[0].weights = np.frombuffer(os.urandom(1 << 20), np.float64)
    outline, tree = split_object(net)
    assert len(outline) < 2_000
    assert len(packed(tree)) > 1 << 20


def test_arrays_and_plain_values_may_change_and_keep_the_outline():
    net = Net()
    outline, _ = split_object(net)
    net.steps += 1
    net.bias = net.again = np.zeros(5, np.float32)
    net.layers[1].weights += 1
    net.sums = 0
    net.sums += net.bias
    now, tree = split_object(net)
    assert now == outline
    twin = rebuild_object(outline, tree)
    assert (twin.steps, twin.bias.size, twin.layers[1].weights[0], twin.sums.size) == (1, 5, 1, 5)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda net: net.words.update(b=2), "model.words"),
        (lambda net: setattr(net, "extra", []), "model.extra"),
        (lambda net: delattr(net, "words"), "model.words"),
    ],
)
def test_any_other_change_shows_and_is_named(change, place):
    net = Net()
    net.layers, net.me = [], None
    outline, tree = split_object(net)
    change(net)
    assert split_object(net)[0] != outline
    assert changed_attribute(rebuild_object(outline, tree), net) == place


class Own:
    """Pickles itself in its own way."""

    def __init__(self):
        self.weights, self.count = np.ones(3), 7

    def __getstate__(self):
        return {"kept": [self.weights, self.count]}

    def __setstate__(self, state):
        self.weights, self.count = state["kept"]


@pytest.mark.parametrize(
    "model", [{"w": np.arange(3.0), "n": 2, "words": ["a"]}, np.arange(3.0), [np.arange(3.0)]]
)
def test_dicts_lists_and_arrays_are_models_too(model):
    twin = round_trip(model)
    assert type(twin) is type(model)
    assert repr(sorted(map(str, twin))) == repr(sorted(map(str, model)))


def test_an_object_that_pickles_itself_is_taken_as_it_wants():
    twin = round_trip(Own())
    assert (twin.weights.tolist(), twin.count) == ([1, 1, 1], 7)


def test_every_copy_is_fresh():
    outline, tree = split_object(Net())
    data = packed(tree)
    rebuild_object(outline, unpacked(data.copy())).words["b"] = 2
    assert rebuild_object(outline, unpacked(data.copy())).words == {"a": 1}


def test_a_module_that_is_missing_is_named(tmp_path, monkeypatch):
    import importlib
    import sys

    (tmp_path / "only_here.py").write_text("class Here:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outline, tree = split_object(importlib.import_module("only_here").Here())
    del sys.modules["only_here"]
    monkeypatch.undo()
    with pytest.raises(NotReadyError, match="No module named 'only_here'; install the module"):
        rebuild_object(outline, tree)
