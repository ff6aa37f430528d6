"""Deep belief networks, trained in stages: one RBM per layer, then fine-tuning.

Reference: Hinton, Osindero and Teh, A fast learning algorithm for deep belief nets (2006);
Hinton and Salakhutdinov, Reducing the dimensionality of data with neural networks (2006), the
unrolled autoencoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.core.parameters import Layout, Parameters, Vector
from photinus.core.seeds import derive
from photinus.core.settings import (
    Limit,
    above,
    at_least,
    between,
    named_settings,
    one_of,
    unknown_name,
    validate,
    whole,
)
from photinus.models.base import ModelConfig
from photinus.models.losses import CLASSES, LOSSES, SEQUENCE_LOSS
from photinus.models.matmul import PRECISIONS, PRODUCTS, resolve
from photinus.models.mlp import MLP, Dense
from photinus.models.optimizers import (
    InnerOptimizer,
    Momentum,
    TorchOptimizer,
    check_optimizer_named,
    usual_rate,
)
from photinus.models.rbm import RBM, ContrastiveDivergence, first_parameters, rbm_layout
from photinus.models.schedules import SCHEDULE, Schedule, as_schedule, keep_schedules

_DEFAULT_LR = Schedule(((0.0, 0.1), (0.7, 0.1), (1.0, 0.005)))
_DEFAULT_MOMENTUM = Schedule(((0.0, 0.5), (0.25, 0.5), (0.25, 0.9)))
_FRACTION = Limit("a number from 0 to below 1", lambda v: 0 <= v < 1)


@named_settings
@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How each RBM is trained."""

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "epochs": Limit.optional(at_least(0)),
        "batch_size": whole(1),
        "lr": SCHEDULE,
        "momentum": SCHEDULE,
        "weight_decay": at_least(0),
        "cd_steps": whole(1),
        "reads": one_of("means", "samples"),
        "visible": one_of("bernoulli", "gaussian"),
        "deviation": above(0),
    }

    epochs: float | None = None
    """A layer; 0 leaves pre-training out. Left out, as many as make 2,000 steps, from 20 to 200."""
    batch_size: int = 100
    """Examples of one step of all workers together."""
    lr: Schedule | float = _DEFAULT_LR
    """Learning rate; by default .1 until 70 % of the phase, then falling to .005."""
    momentum: Schedule | float = _DEFAULT_MOMENTUM
    """By default .5 in the first quarter of the phase, then .9."""
    weight_decay: float = 2e-4
    """Of the weights, not of the biases."""
    cd_steps: int = 1
    """Gibbs steps of contrastive divergence."""
    persistent: bool = False
    """The Gibbs chains continue from step to step (persistent contrastive divergence)."""
    reads: str = "means"
    """What the next layer reads of the one below: "means", or "samples" drawn anew each time."""
    visible: str = "bernoulli"
    """The job's inputs: "bernoulli" (0..1), or "gaussian" (mean 0, variance 1: take lr .001)."""
    deviation: float = 0.1
    """Of the first weights, drawn from a normal distribution."""
    device: str = ""
    """What the layers are trained on; left out, the job's device."""

    def __post_init__(self) -> None:
        keep_schedules(self, "lr", "momentum")
        validate(self)


@named_settings
@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How the whole network is trained after it."""

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "epochs": Limit.optional(above(0)),
        "batch_size": whole(1),
        "lr": Limit.optional(SCHEDULE),
        "weight_decay": at_least(0),
        "dropout_input": _FRACTION,
        "dropout_hidden": Limit(
            "a list of numbers from 0 to below 1",
            lambda v: isinstance(v, (tuple, list)) and all(map(_FRACTION.holds, v)),
        ),
        "label_smoothing": between(0, 1),
    }

    epochs: float | None = None
    """Passes over the rows. Left out, as many as make 2,000 steps, from 60 to 200."""
    batch_size: int = 250
    """Examples of one step of all workers together."""
    optimizer: str = "adam"
    """One of torch's by name in lower case, or "package.module:Class"."""
    lr: Schedule | float | None = None
    """Left out: the optimizer's usual rate, after a rise of 1 % falling to 0 by a cosine."""
    weight_decay: float = 0.0
    """The optimizer's own; 0 for none."""
    dropout_input: float = 0.2
    """The share of the inputs that is left out in each step."""
    dropout_hidden: tuple[float, ...] = (0.2, 0.2, 0.3)
    """One a hidden layer; in a deeper network the last one repeats."""
    loss: str = "cross_entropy"
    """One of `losses.LOSSES`, or "package.module:function"."""
    label_smoothing: float = 0.1
    """Of cross_entropy."""
    device: str = ""
    """What the whole network is trained on; left out, the job's device."""

    def __post_init__(self) -> None:
        keep_schedules(self, "lr")
        validate(self)
        # found here, not when the layers under it have been trained
        losses = [name for name in LOSSES if name != SEQUENCE_LOSS]
        if ":" not in self.loss and self.loss not in losses:
            raise unknown_name("loss", self.loss, losses)
        check_optimizer_named(self.optimizer)
        self.rate()

    def rate(self) -> Schedule:
        """Returns the learning rate over progress."""
        lr: Schedule | None = as_schedule(self.lr)
        return lr or Schedule.cosine(usual_rate(self.optimizer, {}), warm_up=0.01)

    @property
    def is_of_classes(self) -> bool:
        """Whether a label is one of 0..classes-1."""
        return self.loss in CLASSES


@dataclass(frozen=True, kw_only=True)
class RBMConfig(ModelConfig):
    """Trains one layer on the means of those below."""

    name: str
    epochs: float | None
    batch_size: int
    sizes: tuple[int, ...]
    """Inputs, the layers below, this layer."""
    settings: Pretraining
    products: str = "mkl"
    least_passes: ClassVar[int] = 20

    @property
    def device(self) -> str:
        """What this phase is trained on; "" where its settings name none."""
        return self.settings.device

    @property
    def reads_probabilities(self) -> bool:
        return len(self.sizes) == 2 and self.settings.visible == "bernoulli"

    def build(self, history: tuple[Vector, ...], seed: int) -> RBM:  # noqa: ARG002
        """Returns the machine with small random weights."""
        *_, visible, hidden = self.sizes
        weights_seed = derive(seed, self.name)
        parameters = first_parameters(visible, hidden, weights_seed, self.settings.deviation)
        return RBM(parameters, self._divergence())

    def _divergence(self) -> ContrastiveDivergence:
        is_first, s = len(self.sizes) == 2, self.settings
        return ContrastiveDivergence(
            steps=s.cd_steps,
            persistent=s.persistent,
            visible=s.visible if is_first else "bernoulli",
            samples_inputs=s.reads == "samples" and not is_first,
            products=self.products,
        )

    def prepare(self, features: Vector, history: tuple[Vector, ...]) -> Vector:
        """Returns the top layer's means so far, float32 [B, V]."""
        lower_rbms = _pretrained_rbms(self.sizes[:-1], history, self.products)
        for rbm in lower_rbms:
            features = rbm.up(features)
        return features

    @property
    def prepares(self) -> bool:
        """The first layer reads the rows as they are."""
        return len(self.sizes) > 2

    def inner(self, layout: Layout) -> Momentum:
        """Returns descent with momentum."""
        s = self.settings
        return Momentum(layout, as_schedule(s.lr), as_schedule(s.momentum), s.weight_decay)


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig(ModelConfig):
    """Trains all layers together, from what the RBMs found, or from random weights without them."""

    name: str
    epochs: float | None
    batch_size: int
    network: Dense
    settings: FineTuning
    least_passes: ClassVar[int] = 60

    @property
    def device(self) -> str:
        """What this phase is trained on; "" where its settings name none."""
        return self.settings.device

    def build(self, history: tuple[Vector, ...], seed: int) -> MLP:
        """Unrolls the RBMs into the network; what they do not fill is drawn from the seed."""
        model, layers = MLP(self.network), len(self.network.sizes) - 1
        expected = layers // 2 if self.network.reconstructs else layers - 1
        if history and len(history) != expected:
            raise UsageError(f"fine-tuning needs {expected} pre-trained layers", got=len(history))
        rbms = _pretrained_rbms(self.network.sizes[: len(history) + 1], history, "mkl")
        for number, rbm in enumerate(rbms, 1):
            view = rbm.parameters.view
            model.parameters.view(f"W{number}")[...] = view("W")
            model.parameters.view(f"b{number}")[...] = view("b")
            if self.network.reconstructs:
                model.parameters.view(f"W{layers - number + 1}")[...] = view("W").T
                model.parameters.view(f"b{layers - number + 1}")[...] = view("a")
        if not (history and self.network.reconstructs):
            model.randomize(derive(seed, self.name), first_layer=len(history))
        return model

    def inner(self, layout: Layout) -> InnerOptimizer:
        """Returns the optimizer on the flat buffer."""
        s = self.settings
        optimizer_settings = {"weight_decay": s.weight_decay} if s.weight_decay else {}
        return TorchOptimizer(layout, s.optimizer, optimizer_settings, s.rate(), decays="weights")


@named_settings
@dataclass(frozen=True, kw_only=True)
class DBN:
    """A deep belief network: its sizes, and how it is trained.

    Example:
        >>> dbn = DBN(inputs=6, hidden=(5, 4), classes=2, precision="mkl")
        >>> [config.name for config in dbn.configs()]
        ['rbm1', 'rbm2', 'fine-tune']
        >>> [config.name for config in dbn.autoencoder()]
        ['rbm1', 'rbm2', 'autoencoder']
    """

    LIMITS: ClassVar[Mapping[str, Limit]] = {
        "inputs": whole(1),
        "classes": whole(1),
        "hidden": Limit(
            "one or more whole numbers above 0",
            lambda v: isinstance(v, (tuple, list)) and len(v) > 0 and all(map(whole(1).holds, v)),
        ),
        "output": one_of("classes", "reconstruction"),
        "precision": one_of(*PRECISIONS, *PRODUCTS),
    }

    inputs: int = 784
    """Numbers in one row."""
    hidden: tuple[int, ...] = (500, 500, 2000)
    """Any depth."""
    classes: int = 10
    """Outputs: classes, or numbers to predict under a regression's loss."""
    output: str = "classes"
    """"reconstruction": the last phase trains the stack unrolled into a deep autoencoder."""
    pretraining: Pretraining = field(default_factory=Pretraining)
    """How each layer is trained, as an RBM."""
    fine_tuning: FineTuning = field(default_factory=FineTuning)
    """How the whole network is trained after it."""
    precision: str = "auto"
    """"float32" by the faster library, "bfloat16", or "auto": bfloat16 where it is 1.5 times
    faster. A name of `matmul.PRODUCTS` is taken as it is."""

    def __post_init__(self) -> None:
        validate(self)

    def resolved(self) -> DBN:
        """Returns the same with a plain precision, measured here: once a run, by the driver."""
        if self.precision in PRODUCTS:
            return self
        sizes = (self.inputs, *self.hidden)
        rows = self.pretraining.batch_size
        shapes = [(rows, i, o) for i, o in pairwise(sizes)]
        return replace(self, precision=resolve(self.precision, shapes))

    def configs(self) -> tuple[ModelConfig, ...]:
        """Returns rbm1 .. rbmL and the fine-tuning, with a plain precision each."""
        if self.output == "reconstruction":
            is_gaussian = self.pretraining.visible == "gaussian"
            return self.autoencoder("mse" if is_gaussian else "reconstruction_cross_entropy")
        dbn, s = self.resolved(), self.fine_tuning
        network = Dense(
            sizes=(self.inputs, *self.hidden, self.classes),
            dropout=(s.dropout_input, *s.dropout_hidden),
            loss=s.loss,
            label_smoothing=s.label_smoothing,
            products=dbn.precision,
        )
        return (*dbn._rbm_configs(), dbn._fine_tune_config("fine-tune", network))

    def autoencoder(self, loss: str = "reconstruction_cross_entropy") -> tuple[ModelConfig, ...]:
        """Returns the configs of the autoencoder: the stack, unrolled into encoder and decoder.

        Args:
            loss: how the inputs are compared with their reconstruction, from the last layer's
                outputs before the sigmoid; "mse" for gaussian inputs.
        """
        dbn = self.resolved()
        network = Dense(
            sizes=self._unrolled_sizes(), loss=loss, reconstructs=True, products=dbn.precision
        )
        return (*dbn._rbm_configs(), dbn._fine_tune_config("autoencoder", network))

    def _rbm_configs(self) -> tuple[ModelConfig, ...]:
        s, sizes = self.pretraining, (self.inputs, *self.hidden)
        if s.epochs == 0:
            return ()
        return tuple(
            RBMConfig(
                name=f"rbm{depth}",
                epochs=s.epochs,
                batch_size=s.batch_size,
                sizes=sizes[: depth + 1],
                settings=s,
                products=self.precision,
            )
            for depth in range(1, len(sizes))
        )

    def _fine_tune_config(self, name: str, network: Dense) -> FineTuneConfig:
        s = self.fine_tuning
        return FineTuneConfig(
            name=name, epochs=s.epochs, batch_size=s.batch_size, network=network, settings=s
        )

    def _unrolled_sizes(self) -> tuple[int, ...]:
        sizes = (self.inputs, *self.hidden)
        return (*sizes, *sizes[-2::-1])

    def codes(self, trained: Vector, features: Vector) -> Vector:
        """Returns the autoencoder's codes, float32 [B, hidden[-1]], each from 0 to 1.

        Args:
            trained: what the autoencoder's last stage agreed on [n].
            features: [B, ...].
        """
        model = MLP(Dense(sizes=self._unrolled_sizes()))
        model.load(trained)
        return model.outputs(features, layer=len(self.hidden))

    def _network_sizes(self) -> tuple[int, ...]:
        if self.output == "reconstruction":
            return self._unrolled_sizes()
        return (self.inputs, *self.hidden, self.classes)

    def _network(self, trained: Vector) -> MLP:
        model = MLP(Dense(sizes=self._network_sizes()))
        model.load(trained)
        return model

    def module(self, trained: Vector) -> nn.Sequential:
        """Returns the fine-tuned network as a plain torch module: Linear, Sigmoid, ..., Linear."""
        return self._network(trained).module()

    def trained(self, tensors: Mapping[str, Vector]) -> Vector:
        """Returns the flat vector of a `module().state_dict()`, arrays by name: the way back."""
        model = MLP(Dense(sizes=self._network_sizes()))
        model.load_tensors(tensors)
        return model.parameters.trained

    def predict(self, trained: Vector, features: Vector) -> Vector:
        """Returns probabilities [B, classes], or the plain outputs under a regression's loss.

        Args:
            trained: what the fine-tuning agreed on [n].
            features: [B, ...].
        """
        outputs = torch.from_numpy(self._network(trained).outputs(features))
        if self.fine_tuning.loss == "cross_entropy":
            outputs = torch.softmax(outputs, 1)
        elif self.fine_tuning.loss == "binary_cross_entropy":
            outputs = torch.sigmoid(outputs)
        probabilities: Vector = outputs.numpy()
        return probabilities


def _pretrained_rbms(
    sizes: tuple[int, ...], history: tuple[Vector, ...], products: str
) -> list[RBM]:
    """Returns the pre-trained machines between the sizes."""
    pairs = pairwise(sizes)
    return [
        RBM(
            Parameters(rbm_layout(*pair), np.require(trained, requirements="W")),
            ContrastiveDivergence(products=products),
        )
        for pair, trained in zip(pairs, history, strict=False)
    ]
