"""Restricted Boltzmann machines, trained by contrastive divergence.

Shapes: B examples, V visible units, H hidden units. Energies, with W [V, H], a [V], b [H]:
    Bernoulli  E(v, h) = −aᵀv − bᵀh − vᵀW h
    Gaussian   E(v, h) = ½|v − a|² − bᵀh − vᵀW h      (unit variance: standardise the inputs)

Reference: Hinton, Training products of experts by minimizing contrastive divergence (2002);
Tieleman, Training RBMs using approximations to the likelihood gradient (2008), the persistent one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from photinus.core.parameters import TRAINED, Layout, Parameters, Vector
from photinus.core.seeds import generator
from photinus.core.settings import Limit, one_of, validate, whole
from photinus.models.base import BatchLike
from photinus.models.matmul import PRODUCTS, dtype_of, linear, outer
from photinus.models.placement import DeviceParameters, PlacedModel, SentBatch
from photinus.models.random import RandomStream
from photinus.models.recording import Recorder
from photinus.models.tensors import WorkBuffers, as_rows

_MEASURED_EVERY = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastiveDivergence:
    """How the negative statistics are sampled, and how products are computed."""

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "steps": whole(1),
        "visible": one_of("bernoulli", "gaussian"),
        "products": one_of(*PRODUCTS),
    }

    steps: int = 1
    """k of CD-k: how often the chain is sampled down and up."""
    persistent: bool = False
    """Continue with the last batch's chain. This process holds it: a retry starts it anew."""
    visible: str = "bernoulli"
    """What the inputs are: "bernoulli" (0..1), or "gaussian" (mean 0, variance 1)."""
    samples_inputs: bool = False
    """Read each input as a probability and draw the unit; otherwise it is taken as it is."""
    samples_visible: bool = False
    """Draw the reconstruction, as a true chain does; its means have less noise and train better."""
    products: str = "mkl"
    """One of `matmul.PRODUCTS`."""

    def __post_init__(self) -> None:
        validate(self)


def rbm_layout(visible: int, hidden: int) -> Layout:
    """Returns W [V, H], a [V], b [H], one behind the other."""
    return Layout.of(
        [("W", (visible, hidden), TRAINED), ("a", (visible,), TRAINED), ("b", (hidden,), TRAINED)]
    )


def first_parameters(visible: int, hidden: int, seed: int, deviation: float = 0.1) -> Parameters:
    """Returns W from N(0, deviation²) and biases of 0."""
    parameters = Parameters(rbm_layout(visible, hidden))
    weights = generator(seed, "rbm").standard_normal((visible, hidden), np.float32)
    parameters.view("W")[...] = weights * np.float32(deviation)
    return parameters


class RBM(PlacedModel):
    """`learn` gives the negative of contrastive divergence's direction, as a gradient to descend.

        −ΔW = (v₁ᵀh₁ − v₀ᵀh₀)/B    −Δa = mean(v₁ − v₀)    −Δb = mean(h₁ − h₀)

    Example:
        >>> from types import SimpleNamespace
        >>> rbm = RBM(first_parameters(6, 4, seed=1))
        >>> batch = SimpleNamespace(features=np.ones((5, 6), np.float32), labels=None)
        >>> rbm.learn(batch, seed=0)[0].shape  # 6·4 + 6 + 4
        (34,)
    """

    def __init__(
        self, parameters: Parameters, settings: ContrastiveDivergence | None = None
    ) -> None:
        """Takes the buffers as they are, without a copy.

        Args:
            parameters: of `rbm_layout`.
            settings: how to sample and to compute.
        """
        self.settings = settings or ContrastiveDivergence()
        self._dtype = dtype_of(self.settings.products)
        self._chain: Tensor | None = None
        self._bind(DeviceParameters(parameters.layout, parameters=parameters))

    def _bind(self, storage: DeviceParameters) -> None:
        """Makes its tensors views of flat vectors."""
        self._storage, self.parameters = storage, storage.parameters
        # each step of a persistent chain reads what the last one left
        can_record = not self.settings.persistent
        self._recorder = Recorder(storage, "the machine", can_record=can_record, is_required=False)
        self._w, self._a, self._b = (storage.view(name) for name in "Wab")  # [V, H], [V], [H]
        self._gradient_views = [storage.gradient_view(name) for name in "Wab"]
        self._work_buffers = WorkBuffers(storage.device)
        # W as products read it
        self._low_weights = self._work_buffers.get("low", self._w.shape, self._dtype)

    def learn(self, batch: BatchLike | SentBatch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the direction [n], and every 8th seed the reconstruction's squared error.

        Every example counts alike: weights belong to supervised losses.
        """
        self._storage.sync()
        inputs = self._ready_inputs(batch)
        with torch.no_grad():
            squares = self._recorder.take(self._step, inputs, seed)
        self._storage.mark_changed(self._storage.gradient)
        if seed % _MEASURED_EVERY:
            return self._storage.gradient, {}
        return self._storage.gradient, {"reconstruction": float(squares) / len(inputs["rows"])}

    def _inputs(self, batch: BatchLike) -> dict[str, Tensor]:
        """Returns the rows [B, V] on the host."""
        return {"rows": as_rows(batch.features, len(self._a))}

    def _step(self, inputs: Mapping[str, Tensor], seed: int | None) -> Tensor:
        """Writes the gradient; returns the reconstruction's squared error [].

        It is computed only where it is read, by the seed; without one it always is.
        """
        size, settings = len(inputs["rows"]), self.settings
        v, h, sample = self._work_tensors(size)  # [2B, V], [2B, H], [B, H]: data above, chain below
        v0, v1, h0, h1 = v[:size], v[size:], h[:size], h[size:]
        rng = RandomStream(seed or 0, self._work_buffers)
        v0.copy_(inputs["rows"])
        if settings.samples_inputs:
            rng.bernoulli(v0, v0)
        w, a, b = self._operands()
        self._up(v0, w, b, h0)
        if not self._resume(sample):
            rng.bernoulli(h0, sample)
        for step in range(settings.steps):
            if step:
                rng.bernoulli(h1, sample)
            self._down(sample, w, a, v1, rng)
            self._up(v1, w, b, h1)
        if settings.persistent:
            rng.bernoulli(h1, sample)
            self._chain = sample.clone()
        is_unmeasured = seed is not None and seed % _MEASURED_EVERY
        squares = self._work_buffers.get("unread", ()) if is_unmeasured else _squared_error(v0, v1)
        self._write(v, h, size)
        return squares

    def _write(self, v: Tensor, h: Tensor, size: int) -> None:
        grad_w, grad_a, grad_b = self._gradient_views
        h[:size].neg_()
        outer(v, h, 1 / size, grad_w, (self.settings.products, self._work_buffers))
        torch.sum(h, 0, dtype=torch.float32, out=grad_b)
        torch.sum(v[size:], 0, dtype=torch.float32, out=grad_a)
        grad_a.sub_(v[:size].sum(0, dtype=torch.float32))
        grad_a.div_(size)
        grad_b.div_(size)

    def _operands(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._dtype == torch.float32:
            return self._w, self._a, self._b
        return self._low_weights.copy_(self._w), self._a.to(self._dtype), self._b.to(self._dtype)

    def _work_tensors(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        v, h = self._w.shape
        get = self._work_buffers.get
        return (
            get("v", (2 * size, v), self._dtype),
            get("h", (2 * size, h), self._dtype),
            get("sample", (size, h), self._dtype),
        )

    def _resume(self, sample: Tensor) -> bool:
        """Starts from the chain, if there is one of this batch's size."""
        if self._chain is None or self._chain.shape != sample.shape:
            return False
        sample.copy_(self._chain)
        return True

    def _up(self, v: Tensor, w: Tensor, b: Tensor, out: Tensor) -> None:
        """Writes p(h = 1 | v) = σ(v W + b) [B, H]."""
        torch.sigmoid(linear(v, w, b, self.settings.products, out), out=out)

    def _down(self, h: Tensor, w: Tensor, a: Tensor, out: Tensor, rng: RandomStream) -> None:
        """Writes the visible units for h: their means or samples, of σ(h Wᵀ + a) [B, V]."""
        is_gaussian = self.settings.visible == "gaussian"
        preactivation = linear(h, w.t(), a, self.settings.products, out)
        if is_gaussian:
            out.copy_(preactivation)
        else:
            torch.sigmoid(preactivation, out=out)
        if self.settings.samples_visible:
            if is_gaussian:
                out.add_(rng.normal(out.shape))
            else:
                rng.bernoulli(out, out)

    def _rows(self, features: Vector) -> Tensor:
        """Returns features [B, ...] as rows [B, V], where the machine lies."""
        self._storage.sync()
        return self._storage.on_device(as_rows(features, len(self._a)))

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns examples, and the sums of the mean field's squared error and free energy."""
        with torch.no_grad():
            rows = self._rows(batch.features).float()  # [B, V]
            hidden = torch.sigmoid(torch.addmm(self._b, rows, self._w))
            preactivation = torch.addmm(self._a, hidden, self._w.t())
            reconstruction = (
                preactivation
                if self.settings.visible == "gaussian"
                else torch.sigmoid(preactivation)
            )
            squares = float((rows - reconstruction).square().sum())
        energy = float(self.free_energy(batch.features).sum())
        return {
            "examples": float(len(rows)),
            "reconstruction": squares,
            "free_energy": energy,
        }

    def up(self, features: Vector) -> Vector:
        """Returns p(h = 1 | v), float32 [B, H]."""
        with torch.no_grad():
            rows = self._rows(features).to(self._dtype)
            w, _, b = self._operands()
            parts = [
                torch.sigmoid(linear(part, w, b, self.settings.products)).float()
                for part in torch.split(rows, 4096)
            ]
            probabilities = torch.cat(parts).cpu() if parts else torch.empty(0, len(b))
        means: Vector = probabilities.numpy()
        return means

    def free_energy(self, features: Vector) -> Vector:
        """Returns F(v) = −log Σₕ exp(−E(v, h)), float64 [B].

        Bernoulli  −aᵀv − Σⱼ softplus(bⱼ + (vᵀW)ⱼ)
        Gaussian   ½|v − a|² − Σⱼ softplus(bⱼ + (vᵀW)ⱼ)
        """
        v = self._rows(features).double()  # [B, V]
        w, a, b = (t.double() for t in (self._w, self._a, self._b))
        visible_term = (
            (v - a).square().sum(1) / 2 if self.settings.visible == "gaussian" else -(v @ a)
        )
        energies: Vector = (
            (visible_term - torch.nn.functional.softplus(b + v @ w).sum(1)).cpu().numpy()
        )
        return energies


def _squared_error(v0: Tensor, v1: Tensor) -> Tensor:
    """Returns the squared error of all rows []."""
    return (v0.float() - v1.float()).square_().sum()
