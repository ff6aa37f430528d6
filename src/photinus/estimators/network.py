"""A trained network as plain values and bytes, for saving and for scoring tasks."""

from __future__ import annotations

import atexit
import functools
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from photinus.checkpoint.export import WEIGHTS, SavedModel, load_model
from photinus.checkpoint.files import Tensors, from_safetensors, to_safetensors
from photinus.checkpoint.mapped import digest_of, write_arrays
from photinus.core.errors import UsageError
from photinus.core.factories import functions_by_value, take_by_value
from photinus.core.masks import mask_of
from photinus.core.parameters import Vector
from photinus.core.settings import from_dict
from photinus.data.base import Array
from photinus.data.columns import InputSpec
from photinus.data.rows import scaled
from photinus.engine.spark.session import application_of, is_connect
from photinus.estimators.thresholds import chosen_classes
from photinus.models.base import Model
from photinus.models.dbn import DBN
from photinus.models.heads import BINARY, CLASSES, LABELS, LOGS, NUMBERS, TOKENS
from photinus.models.logistic import LogisticConfig
from photinus.models.one_row import unsqueezed
from photinus.models.reading import FeatureReading, input_rows, layer_of, main_output, output_of
from photinus.run.evaluate import trained_of
from photinus.run.job import MODELS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _squeeze(raw: Array) -> Array:
    """One number a row stands alone: [B, 1] becomes [B]."""
    return raw.reshape(len(raw), -1)[:, 0] if raw.size == len(raw) else raw


def _softmax(raw: Array) -> Array:
    return torch.softmax(torch.from_numpy(raw), 1).numpy()


def _sigmoid(raw: Array) -> Array:
    return torch.sigmoid(torch.from_numpy(raw)).numpy()


def _two_columns(first: Array, second: Array) -> Array:
    return np.stack([first.reshape(-1), second.reshape(-1)], 1)


HEADS: Mapping[str, Mapping[str, Callable[[Array], Array]]] = {
    CLASSES: {"raw": _squeeze, "probability": _softmax, "prediction": lambda z: z.argmax(1)},
    BINARY: {
        "raw": lambda z: _two_columns(-z, z),
        "probability": lambda z: _two_columns(_sigmoid(-z), _sigmoid(z)),
        "prediction": lambda z: z.reshape(-1) > 0,
    },
    LABELS: {"raw": _squeeze, "probability": _sigmoid, "prediction": lambda z: z > 0},
    LOGS: {"prediction": lambda z: np.exp(_squeeze(z))},
    NUMBERS: {"prediction": _squeeze},
    TOKENS: {"prediction": lambda z: z.argmax(-1)},
}
"""What the outputs [B, n] stand for: classes, one logit, labels that are or are not, logarithms of
numbers, or numbers; or, of [B, T, n], a class for each token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Settings and weights of a trained model."""

    kind: str
    """One of `MODELS`."""
    settings: Mapping[str, Any]
    """Of the model, plain."""
    tensors: Tensors
    """A `state_dict` as arrays by name."""
    shape: tuple[int, ...]
    """Of one row's features."""
    classes: int
    """Numbers that the module returns for one row."""
    scale: float | None = None
    seed: int = 0
    head: str = CLASSES
    """One of `HEADS`."""
    inputs: Mapping[str, Any] | None = None
    """An `InputSpec`, plain, where the module takes several inputs."""

    @property
    def input_spec(self) -> InputSpec | None:
        """What the module takes by names; None where it takes one array."""
        return None if self.inputs is None else from_dict(InputSpec, self.inputs)

    @classmethod
    def from_run(cls, folder: Path, **fields: Any) -> Network:  # noqa: ANN401 - the other fields
        """Returns what a run saved in its `model` folder; tables of many rows stay in the file."""
        return cls.of_saved(load_model(folder, is_mapped=True), folder, **fields)

    @classmethod
    def of_saved(cls, model: SavedModel, folder: Path, **fields: Any) -> Network:  # noqa: ANN401
        """Returns a model that was read, mapped, from a folder; `fields` are the other fields."""
        kind, settings = str(model.meta["kind"]), model.meta["settings"]
        if settings.get("sharded"):
            tensors = _map_tensors(folder / WEIGHTS)
        else:
            tensors = {name: np.array(array) for name, array in model.tensors.items()}
        return cls(kind=kind, settings=settings, tensors=tensors, **fields)

    @classmethod
    def of(cls, meta: Mapping[str, Any], weights: bytes | str) -> Network:
        """Returns the network that `meta` and `weights` describe.

        Args:
            meta: plain.
            weights: the bytes of a safetensors file, or the path of one, which is mapped.

        Raises:
            CheckpointError: the weights are no safetensors file.
        """
        shape = tuple(int(size) for size in meta["shape"])
        if isinstance(weights, bytes):
            tensors: Tensors = from_safetensors(weights, "the saved model")
        else:
            tensors = _map_tensors(Path(weights))
        return cls(**{**meta, "shape": shape}, tensors=tensors)

    def meta(self) -> dict[str, Any]:
        """Returns all but the weights, plain."""
        names = ("kind", "settings", "shape", "classes", "scale", "seed", "head", "inputs")
        return {name: getattr(self, name) for name in names} | {"shape": list(self.shape)}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a row as the module reads it."""
        return (math.prod(self.shape),) if self.kind == "dbn" else self.shape

    @property
    def loss(self) -> str:
        """The module's loss, "" of a model that has its own."""
        return str(self.settings.get("loss", ""))

    @property
    def predicts_several(self) -> bool:
        """Whether a prediction is an array of numbers."""
        return self.head in (LABELS, TOKENS) or (self.head in (LOGS, NUMBERS) and self.classes > 1)

    def model(self) -> Model:
        """Returns the model to measure with; processes of a machine share a table of many rows."""
        settings: Any = from_dict(MODELS[self.kind], self.settings)
        if getattr(settings, "sharded", 0):
            sharded_model: Model = settings.around(self.module(is_copy=False))
            return sharded_model
        return trained_of(settings, self.tensors, self.seed).model()

    def weights(self) -> bytes:
        """Returns the weights as the bytes of a safetensors file."""
        return to_safetensors(self.tensors)

    def on(self, spark: SparkSession) -> Callable[[], Network]:
        """Returns what opens the network on a worker, once its weights lie in a file there.

        All processes of a machine map that one file, so that its memory is theirs together.
        """
        meta, name = self.meta(), f"photinus-{digest_of(self.tensors)[:32]}.safetensors"
        _send_file(spark, name, self.tensors)
        functions = functions_by_value(meta)

        def open_network() -> Network:
            from pyspark import SparkFiles

            take_by_value(functions)
            return Network.of(meta, SparkFiles.get(name))

        return open_network

    def module(self, *, is_copy: bool = True) -> nn.Module:
        """Returns a plain torch module in evaluation mode.

        Args:
            is_copy: the module gets parameters of its own; else it shares the network's.
        """
        settings: Any = from_dict(MODELS[self.kind], self.settings)
        if isinstance(settings, DBN):
            module: Any = settings.module(
                np.zeros(sum(t.size for t in self.tensors.values()), "f4")
            )
        elif isinstance(settings, LogisticConfig):
            return trained_of(settings, self.tensors).module()
        else:
            module = settings.made(self.seed)  # constants that are no parameters are not saved
        if not isinstance(module, nn.Module):
            do = "use its own class with the saved tensors"
            raise UsageError("a photinus.Model of one's own is no torch module", do=do)
        prefix = "average." if getattr(settings, "average", 0.0) else ""
        for name, parameter in module.named_parameters():
            saved = self.tensors.get(f"{prefix}{name}", self.tensors.get(name))
            if saved is not None:
                parameter.data = _tensor(saved, parameter.dtype, is_copy=is_copy)
        for name, buffer in module.named_buffers():
            if name in self.tensors:
                path, _, last = name.rpartition(".")
                value = _tensor(self.tensors[name], buffer.dtype, is_copy=is_copy)
                module.get_submodule(path)._buffers[last] = value.reshape(buffer.shape)
        return module.eval()

    def outputs(self, layer: str = "") -> Callable[[Array], Vector]:
        """Returns the function from features [B, ...], as stored, to outputs [B, ...].

        Outputs of float32 and float64 stay what they are. Half types become float32.

        Args:
            layer: a submodule's name: its outputs [B, ...] instead.

        Raises:
            UsageError: there is no such layer, or a model of one's own has no outputs.
        """
        settings: Any = from_dict(MODELS[self.kind], self.settings)
        is_flat = isinstance(settings, (DBN, LogisticConfig))
        if not is_flat and isinstance(own_model := settings.made(self.seed), Model):
            return self._own_outputs(own_model, layer)
        module = self.module(is_copy=False)
        dtype = next(module.parameters()).dtype
        read_features = FeatureReading.of(module, dtype, "" if is_flat else settings.reads)
        layer_output = _LayerOutput(module, layer) if layer else None

        def run(features: Any) -> Vector:  # noqa: ANN401 - an array, or a dict of them by input
            rows = self.rows(features)
            x = read_features(
                rows.reshape(len(rows), -1).astype(np.float32, copy=False) if is_flat else rows
            )
            # no inference_mode: in it `enable_grad` has no effect, of which a module may make use
            with torch.no_grad():
                out = module(**x) if isinstance(x, dict) else module(x)
            if layer_output is None:
                tensor = output_of("", unsqueezed(main_output(out, self.loss), input_rows(x)))
            else:
                tensor = layer_output.take()
            return _full_precision(tensor.detach()).numpy()

        return run

    def _own_outputs(self, model: Any, layer: str) -> Callable[[Array], Vector]:  # noqa: ANN401
        if layer or not hasattr(model, "outputs"):
            wrong = "a photinus.Model of one's own has no such outputs"
            do = "give it a method outputs(features) that returns [B, ...]"
            raise UsageError(wrong, got=layer or type(model).__name__, do=do)
        for name, view in model.parameters.tensors().items():
            np.copyto(view, self.tensors[name].reshape(view.shape))

        def run(features: Array) -> Vector:
            own_outputs = torch.tensor(np.asarray(model.outputs(self.rows(features))))
            return _full_precision(own_outputs).numpy()

        return run

    def rows(self, features: Any) -> Any:  # noqa: ANN401 - an array, or a dict of them by input
        """Returns features [B, ...], as they are stored, as the model reads them."""
        if isinstance(features, Mapping):
            return features
        if features.dtype == object:  # bytes, a row each
            features = np.frombuffer(b"".join(features), np.uint8)
        rows = features.reshape(-1, *self.shape)
        return rows if self.scale is None else scaled(rows.astype(np.float32), self.scale)


def _map_tensors(path: Path) -> Tensors:
    """Returns the arrays of a safetensors file, which all processes of a machine share."""
    return {name: tensor.numpy() for name, tensor in load_file(path).items()}


def _tensor(array: Array, dtype: torch.dtype, *, is_copy: bool) -> Tensor:
    tensor = torch.from_numpy(np.array(array) if is_copy else array)
    return tensor.to(dtype)


class _LayerOutput:
    """The output of a layer in a forward pass; of a layer that runs several times the last one.

    Args:
        module: that is called.
        layer: its submodule's name.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        self._layer = layer
        self._output: Tensor | None = None
        module.register_forward_pre_hook(self._clear)  # a pass that raised has left its output
        layer_of(module, layer).register_forward_hook(self._keep)

    def _clear(self, _module: nn.Module, _inputs: object) -> None:
        self._output = None

    def _keep(self, _module: nn.Module, _inputs: object, out: Any) -> None:  # noqa: ANN401
        self._output = output_of(self._layer, out)

    def take(self) -> Tensor:
        """Returns the output, and keeps it no longer.

        Raises:
            UsageError: the layer did not run.
        """
        output, self._output = self._output, None
        if output is None:
            wrong = f"the layer {self._layer!r} does not run in forward"
            raise UsageError(wrong, do="name a layer that forward calls")
        return output


def _full_precision(outputs: Tensor) -> Tensor:
    """Returns outputs in a type that holds each of their numbers, and that numpy has."""
    if outputs.dtype in (torch.float32, torch.float64):
        return outputs
    # whole numbers above 2^24 have no float32
    return outputs.float() if outputs.is_floating_point() else outputs.double()


_files_sent: set[tuple[str, str]] = set()


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="photinus-models-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _send_file(spark: SparkSession, name: str, tensors: Tensors) -> None:
    """Has Spark bring a file to every executor, once."""
    application = application_of(spark)
    if (application, name) in _files_sent:
        return
    path = _folder() / name
    path.unlink(missing_ok=True)
    write_arrays(path, tensors)
    if is_connect(spark):
        spark.addArtifact(str(path), file=True)
    else:
        spark.sparkContext.addFile(str(path))
    _files_sent.add((application, name))


def predictor(
    network: Network,
    names: Sequence[str],
    layer: str = "",
    thresholds: Sequence[float] | None = None,
) -> Callable[[Array], dict[str, Array]]:
    """Returns what scores a batch of features.

    Args:
        network: what was trained.
        names: what is wanted: "raw", "probability" and "prediction", or "layer".
        layer: a submodule's name.
        thresholds: of the classes, one for each; None: the likeliest is predicted.
    """
    outputs, head = network.outputs(layer), dict(HEADS[network.head])
    if thresholds is not None:
        probability_of = head["probability"]
        head["prediction"] = lambda raw: chosen_classes(probability_of(raw), thresholds)

    def predict(features: Array) -> dict[str, Array]:
        raw = outputs(features)  # [B, ...]
        if layer:
            flat = raw.reshape(len(raw), -1).astype(np.float32, copy=False)
            return {name: flat for name in names}
        scores = {name: head[name](raw).astype(np.float64) for name in names}
        if network.head != TOKENS:
            return scores
        return {
            name: _without_padding(values, _token_counts(outputs, features, values.shape))
            for name, values in scores.items()
        }

    return predict


def _token_counts(
    outputs: Callable[[Any], Array],
    features: Any,  # noqa: ANN401 - an array, or a dict of them by input
    shape: tuple[int, ...],
) -> Sequence[int | None]:
    """Returns how many tokens each row has, [B]; None where all places of a row are tokens.

    Where several inputs are as long as the batch's predictions by chance, one row alone, without
    its padding, tells which of them has the tokens.

    Args:
        outputs: as `Network.outputs` returns it.
        features: a batch.
        shape: of the predictions [B, T].
    """
    masks = _masks(features)
    counts = [mask.sum(1) for mask in masks.values() if mask.shape == shape]
    while len(counts) > 1:
        first, second = counts[:2]
        rows = np.flatnonzero(first != second)[:1]
        widths = [outputs(_row_alone(features, row)).shape[1] for row in rows]
        is_second = bool(widths) and widths[0] == second[rows[0]]
        del counts[0 if is_second else 1]
    return counts[0] if counts else [None] * shape[0]


def _masks(features: Any) -> dict[str, Array]:  # noqa: ANN401 - as of `_token_counts`
    """Returns which places of a batch's sequences are theirs, by input."""
    inputs = features if isinstance(features, Mapping) else {}
    return {name: inputs[mask_of(name)] for name in inputs if mask_of(name) in inputs}


def _row_alone(features: Mapping[str, Array], row: int) -> dict[str, Array]:
    """Returns a batch of one row, without padding."""
    alone = {name: array[row : row + 1] for name, array in features.items()}
    for name, mask in _masks(alone).items():
        length = max(1, int(mask.sum()))
        alone |= {key: alone[key][:, :length] for key in (name, mask_of(name))}
    return alone


def _without_padding(predictions: Array, counts: Sequence[int | None]) -> Array:
    """Returns the predictions [B, T] of each row's own tokens: B arrays, as objects."""
    rows = np.empty(len(predictions), object)
    for row, count in enumerate(counts):
        rows[row] = predictions[row].reshape(-1)[:count]
    return rows
