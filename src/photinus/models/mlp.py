"""A network of dense layers with a hand-written backward pass.

The weights lie as [inputs, outputs], so that a stack of RBMs is taken over as it is.
Shapes: B examples; layer l maps n[l] to n[l+1] numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from photinus.core.errors import DataError, UsageError
from photinus.core.parameters import TRAINED, Layout, Parameters, Vector
from photinus.core.seeds import generator
from photinus.core.settings import Limit, between, one_of, validate
from photinus.models.base import BatchLike
from photinus.models.heads import errors_of, head_under
from photinus.models.losses import loss_named, target_for, whole_target, wrong_label
from photinus.models.matmul import PRODUCTS, dtype_of, linear, outer
from photinus.models.placement import MEASURED_EVERY, DeviceParameters, PlacedModel, SentBatch
from photinus.models.random import RandomStream
from photinus.models.recording import Recorder
from photinus.models.tensors import WorkBuffers, as_rows, tensor_of

Vectors = Mapping[str, Vector]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """The network's shape, its loss, and how it is computed."""

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "sizes": Limit(
            "two or more whole numbers above 0", lambda v: len(v) > 1 and all(n > 0 for n in v)
        ),
        "label_smoothing": between(0, 1),
        "products": one_of(*PRODUCTS),
    }

    sizes: tuple[int, ...]
    """Inputs, hidden layers, outputs."""
    dropout: tuple[float, ...] = (0.0,)
    """Share of units left out: of the inputs, then of each hidden layer; the last one repeats."""
    loss: str = "cross_entropy"
    """One of `losses.LOSSES`, or "package.module:function"; it reads the last layer's outputs."""
    label_smoothing: float = 0.0
    reconstructs: bool = False
    """The inputs are the target, whatever labels come along."""
    products: str = "mkl"
    """One of `matmul.PRODUCTS`."""

    def __post_init__(self) -> None:
        validate(self)
        if not self.dropout or not all(0 <= rate < 1 for rate in self.dropout):
            raise UsageError("dropout of Dense must be numbers from 0 to below 1", got=self.dropout)

    def rate(self, layer: int) -> float:
        """Returns the share left out of layer `layer`'s inputs."""
        return self.dropout[min(layer, len(self.dropout) - 1)]


def mlp_layout(sizes: tuple[int, ...]) -> Layout:
    """Returns W1 [n0, n1], b1 [n1], W2 [n1, n2], b2 [n2], ..."""
    entries: list[tuple[str, tuple[int, ...], str]] = []
    for number, (i, o) in enumerate(pairwise(sizes), 1):
        entries += [(f"W{number}", (i, o), TRAINED), (f"b{number}", (o,), TRAINED)]
    return Layout.of(entries)


class MLP(PlacedModel):
    """Sigmoid hidden layers, a linear last one, dropout, any loss.

        x₀ = features    xₗ₊₁ = σ(xₗ Wₗ + bₗ)    loss(x_L−1 W_L + b_L, labels)

    Example:
        >>> from types import SimpleNamespace
        >>> model = MLP(Dense(sizes=(4, 3, 2)))
        >>> batch = SimpleNamespace(features=np.ones((5, 4), np.float32), labels=np.zeros(5, int))
        >>> gradient, metrics = model.learn(batch, seed=0)
        >>> gradient.shape, sorted(metrics)
        ((23,), ['loss'])
    """

    def __init__(self, settings: Dense, parameters: Parameters | None = None) -> None:
        """Takes the buffers as they are, without a copy.

        Args:
            settings: the network.
            parameters: of `mlp_layout(settings.sizes)`; zeros without them.
        """
        self.settings = settings
        self._loss = loss_named(settings.loss, settings.label_smoothing)
        self._depth = len(settings.sizes) - 1
        self._dtype = dtype_of(settings.products)
        self._bind(DeviceParameters(mlp_layout(settings.sizes), parameters=parameters))

    def _bind(self, storage: DeviceParameters) -> None:
        """Makes its tensors views of flat vectors."""
        self._storage, self.parameters = storage, storage.parameters
        can_record = ":" not in self.settings.loss  # what a user's own does is not known
        self._recorder = Recorder(storage, "the network", can_record=can_record, is_required=False)
        self._work_buffers = WorkBuffers(storage.device)
        self._gradient_views = _layers(self.parameters.layout, storage.tensor(storage.gradient))
        self._full_precision = storage.tensor(self.parameters.trained)
        is_exact = self._dtype == torch.float32
        self._low_precision = (
            self._full_precision if is_exact else self._full_precision.to(self._dtype)
        )
        self._layers = _layers(self.parameters.layout, self._low_precision)

    def learn(self, batch: BatchLike | SentBatch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient of the batch's mean loss, and the loss."""
        self._storage.sync()
        loss = self._recorder.take(self._step, self._ready_inputs(batch), seed)
        self._storage.mark_changed(self._storage.gradient)
        if self._storage.is_on_device and seed % MEASURED_EVERY:
            return self._storage.gradient, {}
        return self._storage.gradient, {"loss": float(loss)}

    def _inputs(self, batch: BatchLike) -> dict[str, Tensor]:
        """Returns the rows [B, n0], and any labels and weights [B], on the host."""
        s = self.settings
        inputs = {"rows": as_rows(batch.features, s.sizes[0])}
        if batch.labels is not None and not s.reconstructs:
            labels = tensor_of(batch.labels)
            inputs["labels"] = (
                self._validated_labels(labels) if self._storage.is_on_device else labels
            )
        weights = getattr(batch, "weights", None)
        return inputs if weights is None else {**inputs, "weights": tensor_of(weights)}

    def _validated_labels(self, labels: Tensor) -> Tensor:
        """Returns labels of the host; after one that is no class a card is lost to the process."""
        name, classes = self.settings.loss, self.settings.sizes[-1]
        labels = whole_target(name, labels)
        if (wrong := wrong_label(name, classes, labels)) is not None:
            row, label = wrong
            raise DataError(
                f"the loss {name} does not take these labels",
                got=f"label {label:g} outside 0..{classes - 1} in the batch's example {row}",
                do="compare the labels with the number of outputs",
            )
        return labels

    def _step(self, inputs: Mapping[str, Tensor], seed: int | None) -> Tensor:
        """Writes the gradient, and returns the loss []."""
        rng = RandomStream(seed or 0, self._work_buffers)
        with torch.no_grad():
            rows = inputs["rows"].to(self._dtype)
            layer_inputs, masks = self._forward(rows, rng)
        outputs = layer_inputs[-1].float().requires_grad_()
        loss = self._loss_and_labels(outputs, rows, inputs)[0]
        (grad,) = torch.autograd.grad(loss, outputs)
        with torch.no_grad():
            self._backward(layer_inputs, masks, grad.to(self._dtype))
        return loss.detach()

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns examples, the summed loss and, with classes, the errors."""
        with torch.no_grad():
            self._storage.sync()
            inputs = self._device_inputs(batch)
            rows = inputs["rows"].to(self._dtype)
            outputs = self._forward(rows, None)[0][-1].float()
            loss, labels = self._loss_and_labels(outputs, rows, inputs)
        size = len(rows)
        sums = {"examples": float(size), "loss": float(loss) * size}
        head = head_under(self.settings.loss, outputs, labels)
        return {**sums, **errors_of(head, outputs, labels)}

    def outputs(self, features: Vector, layer: int = -1) -> Vector:
        """Returns a layer's outputs, float32 [B, n]; the last one's are before softmax or sigmoid.

        Args:
            features: [B, ...].
            layer: 0 is the inputs, 1 the first hidden layer, -1 the last one.
        """
        with torch.no_grad():
            parts = [
                self._forward(part, None)[0][layer].float()
                for part in torch.split(self._rows(features), 4096)
            ]
        result: Vector = torch.cat(parts).cpu().numpy()
        return result

    def _rows(self, features: Vector) -> Tensor:
        """Returns features [B, ...] as rows [B, n0], where the network lies."""
        self._storage.sync()
        return self._storage.on_device(as_rows(features, self.settings.sizes[0])).to(self._dtype)

    def _loss_and_labels(
        self, outputs: Tensor, rows: Tensor, inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        s = self.settings
        if s.reconstructs:
            labels = rows.float()
        elif "labels" not in inputs:
            raise DataError("the batch has no labels", do=f"{s.loss} needs them")
        else:
            labels = inputs["labels"]
        try:
            target = target_for(s.loss, outputs, labels)
            return self._loss(outputs, target, inputs.get("weights")), labels
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise DataError(
                f"the loss {s.loss} does not take these labels",
                got=f"labels {list(labels.shape)} for outputs {list(outputs.shape)}: {error}",
                do="compare the labels with the number of outputs",
            ) from error

    def _forward(
        self, rows: Tensor, rng: RandomStream | None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Returns what each layer read, the outputs last, and the dropout masks."""
        s = self.settings
        if self._low_precision is not self._full_precision:
            self._low_precision.copy_(self._full_precision)
        layer_inputs, masks, x = list[Tensor](), list[Tensor | None](), rows
        for layer, (w, b) in enumerate(self._layers):
            rate = s.rate(layer) if rng else 0.0
            mask = rng.dropout_mask(1 - rate, x.shape, x.dtype) if rng and rate else None
            x = x if mask is None else x * mask
            layer_inputs.append(x)  # [B, n[layer]]
            masks.append(mask)
            x = linear(x, w, b, s.products)
            x = x if layer == self._depth - 1 else x.sigmoid_()
        return [*layer_inputs, x], masks

    def _backward(
        self, layer_inputs: list[Tensor], masks: list[Tensor | None], grad: Tensor
    ) -> None:
        """Writes the gradient, from the loss's gradient by the outputs [B, n[-1]]."""
        for layer in reversed(range(self._depth)):
            x, mask = layer_inputs[layer], masks[layer]
            grad_w, grad_b = self._gradient_views[layer]
            outer(x, grad, 1.0, grad_w, (self.settings.products, self._work_buffers))
            torch.sum(grad, 0, dtype=torch.float32, out=grad_b)
            if layer == 0:
                return
            grad = linear(grad, self._layers[layer][0].t(), None, self.settings.products)
            if mask is not None:
                grad.mul_(mask)
                # a unit left out has no gradient, so its activation may be anything here
                x = x * (1 - self.settings.rate(layer))
            grad = torch.ops.aten.sigmoid_backward(grad, x)

    def module(self) -> nn.Sequential:
        """Returns the network as a plain torch module with parameters of its own."""
        module = nn.Sequential()
        for w, b in _layers(self.parameters.layout, self._full_precision):
            if len(module):
                module.append(nn.Sigmoid())
            dense = nn.Linear(*w.shape)
            dense.weight.data.copy_(w.t())
            dense.bias.data.copy_(b)
            module.append(dense)
        return module

    def load_tensors(self, tensors: Vectors) -> None:
        """Loads numbers from a `module().state_dict()`, as arrays by name.

        Raises:
            UsageError: names or shapes are another network's.
        """
        expected = {n: tuple(t.shape) for n, t in self.module().state_dict().items()}
        actual = {n: tuple(t.shape) for n, t in tensors.items()}
        if expected != actual:
            raise UsageError(
                "the tensors are another network's", got=actual, do=f"due are {expected}"
            )
        for layer in range(self._depth):
            self.parameters.view(f"W{layer + 1}")[...] = np.asarray(
                tensors[f"{2 * layer}.weight"]
            ).T
            self.parameters.view(f"b{layer + 1}")[...] = np.asarray(tensors[f"{2 * layer}.bias"])

    def randomize(self, seed: int, first_layer: int = 0) -> None:
        """Draws the weights from `first_layer` on: N(0, 32/(n + n')) for sigmoids, the last small.

        Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward
        neural networks (2010), whose range is four times wider for sigmoids.
        """
        for layer in range(first_layer, self._depth):
            weights = self.parameters.view(f"W{layer + 1}")
            is_last = layer == self._depth - 1
            deviation = 0.01 if is_last else 4 * (2 / sum(weights.shape)) ** 0.5
            drawn = generator(seed, "dense", layer).standard_normal(weights.shape, np.float32)
            weights[...] = drawn * np.float32(deviation)
            self.parameters.view(f"b{layer + 1}")[...] = 0


def _layers(layout: Layout, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
    views = [flat[e.offset : e.offset + e.size].view(e.shape) for e in layout.entries]
    return list(zip(views[::2], views[1::2], strict=True))
