"""A trained network as plain values and bytes, for saving and for scoring tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from photinus.checkpoint.export import load_model
from photinus.checkpoint.files import Tensors, decode, encode
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import from_dict
from photinus.core.threads import use_threads
from photinus.data.base import Array
from photinus.data.columns import InputSpec
from photinus.data.rows import scaled
from photinus.models.dbn import DBN
from photinus.models.module import ModuleModel, ModuleStage
from photinus.run.job import MODELS

__all__ = ["Network", "layer_reader", "named_layer", "predictor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Settings and weights of a trained classifier."""

    kind: str
    """One of `MODELS`."""
    settings: Mapping[str, Any]
    """Of the model, plain."""
    tensors: Tensors
    """A `state_dict` as arrays by name."""
    shape: tuple[int, ...]
    """Of one row's features."""
    classes: int
    scale: float | None = None
    seed: int = 0
    inputs: Mapping[str, Any] | None = None
    """An `InputSpec`, plain, where the module takes several inputs."""

    @property
    def named(self) -> InputSpec | None:
        """What the module takes by names; None where it takes one array."""
        return None if self.inputs is None else from_dict(InputSpec, self.inputs)

    @classmethod
    def saved(cls, folder: Path, **others: Any) -> Network:  # noqa: ANN401 - the other fields
        """Returns what a run saved in its `model` folder."""
        model = load_model(folder)
        kind, settings = str(model.meta["kind"]), model.meta["settings"]
        return cls(kind=kind, settings=settings, tensors=model.tensors, **others)

    @classmethod
    def of(cls, meta: Mapping[str, Any], weights: bytes) -> Network:
        """The inverse of `meta` and `weights`.

        Raises:
            CheckpointError: the weights are no safetensors file.
        """
        shape = tuple(int(size) for size in meta["shape"])
        return cls(**{**meta, "shape": shape}, tensors=decode(weights, "the saved model"))

    def meta(self) -> dict[str, Any]:
        """Returns all but the weights, plain."""
        names = ("kind", "settings", "shape", "classes", "scale", "seed", "inputs")
        return {name: getattr(self, name) for name in names} | {"shape": list(self.shape)}

    def weights(self) -> bytes:
        """Returns the weights as the bytes of a safetensors file."""
        return encode(self.tensors)

    def module(self) -> nn.Module:
        """Returns a plain torch module in evaluation mode, with parameters of its own."""
        settings: Any = from_dict(MODELS[self.kind], self.settings)
        if isinstance(settings, DBN):
            return settings.module(settings.trained(self.tensors)).eval()
        model = self._model(settings)
        with model.shown():
            made = copy.deepcopy(model.module) if settings.average else model.module
        return made.eval()

    def _model(self, settings: ModuleStage) -> ModuleModel:
        # the seed makes the parts again that are not trained, and so not saved
        model = replace(settings, precision="float32", memory="contiguous").build((), self.seed)
        for name, view in model.parameters.tensors().items():
            np.copyto(view, self.tensors[name].reshape(view.shape))
        return model

    def outputs(self, layer: str = "") -> Callable[[Array], Vector]:
        """Returns the function from features [B, ...], as stored, to outputs [B, classes].

        Args:
            layer: a submodule's name: its outputs [B, ...] instead; not of a DBN.

        Raises:
            UsageError: a DBN's layer is asked for.
        """
        settings: Any = from_dict(MODELS[self.kind], self.settings)
        if not isinstance(settings, DBN):
            model = self._model(settings)
            model.layer(layer)  # a wrong name is told of before any row is read
            return lambda features: model.outputs(self._rows(features), layer).astype(
                np.float32, copy=False
            )
        if layer:
            raise UsageError("layers have names in a module only", got=repr(layer))
        module = self.module()
        dtype = next(module.parameters()).dtype

        def run(features: Array) -> Vector:
            rows = self._rows(features)
            with torch.inference_mode():
                z = module(torch.from_numpy(rows.reshape(len(rows), -1)).to(dtype))
            outputs: Vector = z.float().numpy()
            return outputs

        return run

    def _rows(self, features: Any) -> Any:  # noqa: ANN401 - an array, or a dict of them by input
        if isinstance(features, Mapping):
            return features
        if features.dtype == object:  # bytes, a row each
            features = np.frombuffer(b"".join(features), np.uint8)
        return scaled(np.array(features).reshape(-1, *self.shape), self.scale)


def layer_reader(
    load: Callable[[], tuple[Mapping[str, Any], bytes]], threads: int, layer: str
) -> Callable[[Array], Vector]:
    """Makes the network on a worker, and returns what a layer makes of a batch there, [B, n].

    Args:
        load: returns `meta` and `weights`.
        threads: with which one task computes.
        layer: the submodule's name.
    """
    use_threads(threads)
    outputs = Network.of(*load()).outputs(layer)

    def read(features: Array) -> Vector:
        made = outputs(features)
        return made.reshape(len(made), -1)

    return read


def named_layer(
    load: Callable[[], tuple[Mapping[str, Any], bytes]], threads: int, layer: str
) -> Callable[[Array], dict[str, Array]]:
    """Returns `layer_reader`'s function, with "layer" as the name of what it returns."""
    read = layer_reader(load, threads, layer)
    return lambda features: {"layer": read(features)}


def predictor(
    load: Callable[[], tuple[Mapping[str, Any], bytes]], threads: int, names: Sequence[str]
) -> Callable[[Array], dict[str, Array]]:
    """Makes the network on a worker, and returns what scores a batch there.

    Args:
        load: returns `meta` and `weights`.
        threads: with which one task computes.
        names: what is wanted of "raw", "probability" and "prediction".
    """
    use_threads(threads)
    network = Network.of(*load())
    outputs = network.outputs()

    def predict(features: Array) -> dict[str, Array]:
        raw = outputs(features)  # [B, classes]
        scores: dict[str, Callable[[], Array]] = {
            "raw": lambda: raw,
            "probability": lambda: torch.softmax(torch.from_numpy(raw), 1).numpy(),
            "prediction": lambda: raw.argmax(1),
        }
        return {name: scores[name]().astype(np.float64) for name in names}

    return predict
