"""Supervised losses by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from photinus.core.errors import DataError, UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.masks import NO_LABEL
from photinus.core.parameters import Vector
from photinus.core.settings import unknown_name
from photinus.models.tensors import tensor_of

Outputs = Any
"""[B, ...]: a tensor, or a tuple or dict of tensors, which a loss of the user's own reads."""

Loss = Callable[[Outputs, Tensor, Vector | Tensor | None], Tensor]
"""(outputs, targets, weights [B] or None) → the mean of weight · loss over the batch [].

It is not divided by the sum of the weights: a batch without heavy rows would count as much as one
with them, and the mean over workers would not be that of one process.
"""

_LossFunction = Callable[..., Tensor]

SEQUENCE_LOSS = "token_cross_entropy"
"""The loss with a label for each token of a row."""

GROUP_ROWS = 32
"""Of `in_batch`: so many rows, or a few more, are each other's negatives."""


def in_batch(outputs: Tensor, items: Tensor, reduction: str = "mean") -> Tensor:
    """Compares each row's item with the items of other rows: −log softmax(uᵢ·vⱼ − log qⱼ)ᵢ.

    The negatives come from a group of 32 to 63 rows, however large the batch is. So K workers with
    a K-th of each batch learn what one does. An item is no negative of itself.

    Args:
        outputs: [B, 2, D]: the vectors u and v of a row.
        items: [B], the number of v's item; or [B, 2], with log q, the log of its share of all rows,
            beside it: then frequent items, which are often negatives, are not held back.
        reduction: "mean", or "none" for one number a row [B].

    Raises:
        UsageError: the outputs have another shape.

    Example:
        >>> both = torch.tensor([[[1.0, 0.0], [9.0, 0.0]], [[0.0, 1.0], [0.0, 9.0]]])
        >>> round(float(in_batch(both, torch.tensor([3, 5]))), 4)
        0.0001

    Reference: Yi et al., Sampling-bias-corrected neural modeling for large corpus item
    recommendations (2019).
    """
    if outputs.ndim != 3 or outputs.shape[1] != 2:
        wrong = "the loss in_batch reads two vectors a row, [B, 2, D]"
        do = "return torch.stack([user, item], 1)"
        raise UsageError(wrong, got=f"outputs of shape {list(outputs.shape)}", do=do)
    ids, shares = (items, None) if items.ndim == 1 else items.unbind(1)
    parts = []
    row_index = torch.arange(len(outputs), device=outputs.device)
    for rows in row_index.tensor_split(max(1, len(outputs) // GROUP_ROWS)):
        user_vectors, item_vectors = outputs[rows].unbind(1)  # [G, D] each
        scores = user_vectors @ item_vectors.T  # [G, G]
        if shares is not None:
            scores = scores - shares[rows].to(scores.dtype)
        is_same = ids[rows, None] == ids[rows]
        scores = scores.masked_fill(is_same.fill_diagonal_(fill_value=False), -torch.inf)
        parts.append(functional.cross_entropy(scores, row_index[: len(rows)], reduction="none"))
    losses = torch.cat(parts)
    return losses if reduction == "none" else losses.mean()


def token_cross_entropy(
    outputs: Tensor, labels: Tensor, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Returns the mean of −log softmax(z)ᵧ over all tokens of a batch that have a label y.

    Args:
        outputs: [B, T, C]: a number for each class of each token.
        labels: int64 [B, T]; -100 where a token has none, as padding has.
        reduction: "mean", or "none" for one number a row [B], whose mean that is.
        label_smoothing: as of cross_entropy.

    Example:
        >>> outputs = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[9.0, 0.0], [9.0, 9.0]]])
        >>> round(float(token_cross_entropy(outputs, torch.tensor([[0, 1], [0, -100]]))), 4)
        0.0001
    """
    losses = functional.cross_entropy(
        outputs.flatten(0, -2),
        labels.flatten(),
        reduction="none",
        ignore_index=NO_LABEL,
        label_smoothing=label_smoothing,
    )  # [B · T]
    labelled = (labels != NO_LABEL).sum().clamp(min=1)  # a batch may have no label at all
    if reduction == "none":
        return losses.reshape(len(outputs), -1).sum(1) * (len(outputs) / labelled)
    return losses.sum() / labelled


LOSSES: Mapping[str, _LossFunction] = {
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    "cross_entropy": functional.cross_entropy,
    "huber": functional.huber_loss,
    "in_batch": in_batch,
    "l1": functional.l1_loss,
    "mse": functional.mse_loss,
    "multi_margin": functional.multi_margin_loss,
    "poisson": functional.poisson_nll_loss,
    "reconstruction_cross_entropy": functional.binary_cross_entropy_with_logits,
    "reconstruction_mse": lambda z, t, **how: functional.mse_loss(torch.sigmoid(z), t, **how),
    SEQUENCE_LOSS: token_cross_entropy,
}
"""All read outputs before any softmax or sigmoid. The two reconstructions are sums over an
example's units, as in Hinton and Salakhutdinov (2006); the others are means over them."""

CLASSES = ("cross_entropy", "multi_margin")
"""Those whose targets are numbers of classes."""

NUMBERS = ("huber", "l1", "mse", "poisson")
"""Those of a regression."""

SIGMOIDS = ("binary_cross_entropy", "reconstruction_cross_entropy", "reconstruction_mse")
"""Those that take the outputs' sigmoid."""

FAR_LOSSES = {"huber": 100.0, "l1": 100.0, "mse": 10_000.0}
"""What they are where labels are 100 from the outputs. A usual rate of 0.001 moves an output by
some hundredths a step."""

UNSCALED_LOSSES = {"binary_cross_entropy": 300.0, "cross_entropy": 300.0, SEQUENCE_LOSS: 300.0}
"""What a new module has only of features in the thousands. Pixels of 0..255 stay below half of it,
and train well."""


def loss_named(name: str, label_smoothing: float = 0.0) -> Loss:
    """Returns one of `LOSSES`, or the user's own "package.module:function" of outputs and targets.

    A class, as "torch.nn:CrossEntropyLoss", is called without arguments for the function.

    Args:
        name: its name.
        label_smoothing: share of a label given to all classes alike; `cross_entropy` and
            `token_cross_entropy` only.

    Raises:
        UsageError: there is no such loss.
    """
    if ":" in name:
        own = resolve_user_code(name, "loss", nn.Module)
        return _own_loss(name, own() if isinstance(own, type) else own)
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    options = (
        {"label_smoothing": label_smoothing} if name in ("cross_entropy", SEQUENCE_LOSS) else {}
    )
    is_sum = name.startswith("reconstruction")
    function = LOSSES[name]

    def loss(outputs: Tensor, targets: Tensor, weights: Vector | Tensor | None) -> Tensor:
        if weights is None and is_sum:
            return function(outputs, targets, reduction="sum") / len(outputs)
        if weights is None:
            return function(outputs, targets, **options)
        element_losses = function(outputs, targets, reduction="none", **options).reshape(
            len(outputs), -1
        )
        row_losses = element_losses.sum(1) if is_sum else element_losses.mean(1)  # [B]
        w = tensor_of(weights).to(row_losses.dtype)
        return (row_losses * w).mean()

    return loss


def _own_loss(name: str, function: _LossFunction) -> Loss:
    takes_weights = "weights" in inspect.signature(function).parameters

    def loss(outputs: Outputs, targets: Tensor, weights: Vector | Tensor | None) -> Tensor:
        dtype = outputs.dtype if isinstance(outputs, Tensor) else torch.float32
        kwargs = {} if weights is None else {"weights": tensor_of(weights).to(dtype)}
        if kwargs and not takes_weights:
            do = "give it a third parameter weights [B], take a loss by name, or no weights"
            raise UsageError(f"the loss {name} cannot weigh examples", do=do)
        result = function(outputs, targets, **kwargs)
        if not isinstance(result, Tensor) or result.ndim:
            is_tensor = isinstance(result, Tensor)
            got = f"a tensor of shape {list(result.shape)}" if is_tensor else type(result).__name__
            do = "return the batch's mean: .mean()"
            raise UsageError(f"the loss {name} must return one number", got=got, do=do)
        return result

    return loss


def target_for(
    name: str,
    outputs: Tensor,
    labels: Any,  # noqa: ANN401 - of own losses
    label_name: str = "a label",
) -> Any:  # noqa: ANN401
    """Returns labels in the type and shape that the loss compares with outputs [B, ...].

    Args:
        name: of the loss.
        outputs: [B, ...].
        labels: [B, ...]; a loss of the user's own may have several, by name.
        label_name: what an error calls one of them.

    Raises:
        DataError: a class is no whole number.
        UsageError: a row has more or fewer outputs than the loss compares.
    """
    if ":" in name or name == "in_batch":
        return labels
    if name in CLASSES:
        return whole_target(name, labels)
    if name == SEQUENCE_LOSS:
        return whole_target(name, _token_target(outputs, labels))
    rows = len(outputs) if outputs.ndim else 0
    if rows and len(labels) == rows and labels.numel() != outputs.numel():
        output_count, label_count = outputs.numel() // rows, labels.numel() // rows
        wrong = (
            f"the module returns {output_count} number{'s' * (output_count != 1)} a row, "
            f"and {label_name} has "
        )
        do = f"let it return {label_count}, or take a loss of your own"
        raise UsageError(f"{wrong}{label_count}", got=f"loss {name}", do=do)
    return labels.to(outputs.dtype).reshape(outputs.shape)


def no_token_labels(got: str) -> UsageError:
    """Returns the error of rows without labels of their tokens."""
    do = "name a column of labels; for a language model that of its tokens"
    return UsageError(f"{SEQUENCE_LOSS} needs a label for each token", got=got, do=do)


def _token_target(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns labels, one for each token, in the shape of the tokens [B, T]."""
    tokens = outputs.shape[:-1]
    if outputs.ndim < 3 or labels.numel() != tokens.numel() or len(labels) != len(outputs):
        wrong = f"the loss {SEQUENCE_LOSS} reads a label for each token of outputs [B, T, classes]"
        got = f"outputs {list(outputs.shape)} and labels {list(labels.shape)}"
        do = "return as many tokens as a row has labels, and the classes last"
        raise UsageError(wrong, got=got, do=do)
    return labels.reshape(tokens)


def labelled_tokens(name: str, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what is measured: under `token_cross_entropy` each token with a label is an example.

    Args:
        name: of the loss.
        outputs: [B, ...].
        labels: [B, ...].

    Returns:
        [N, C] and [N] of tokens; what was given under another loss.
    """
    if name != SEQUENCE_LOSS:
        return outputs, labels
    labels = labels.reshape(outputs.shape[:-1])
    is_labelled = labels != NO_LABEL
    return outputs[is_labelled], labels[is_labelled]


def class_count(name: str, outputs: Outputs) -> int:
    """Returns how many classes outputs tell apart: [B, C], of tokens [B, T, C]; 0 of others."""
    has_classes = isinstance(outputs, Tensor) and (outputs.ndim == 2 or name == SEQUENCE_LOSS)
    return int(outputs.shape[-1]) if has_classes else 0


def whole_target(name: str, labels: Tensor) -> Tensor:
    """Returns labels [B, ...] as whole numbers, where they are of classes; others as they are.

    They are looked at: those of the host before they are sent, for a device is to be waited for.

    Args:
        name: of the loss.
        labels: [B, ...].

    Raises:
        DataError: a class is no whole number.
    """
    if name != SEQUENCE_LOSS and (name not in CLASSES or labels.ndim != 1):
        return labels
    classes = labels.long()
    if labels.is_floating_point() and not torch.equal(classes.to(labels.dtype), labels):
        wrong = f"{name} needs whole numbers as labels"
        bad_label = float(labels[classes != labels][0])
        raise DataError(wrong, got=bad_label, do="number the classes 0, 1, 2, ...")
    return classes


def wrong_label(name: str, classes: int, labels: Tensor) -> tuple[int, float] | None:
    """Returns the first example, and its label, that is none of the classes; None if all are.

    Args:
        name: of the loss.
        classes: how many there are.
        labels: [B, ...] on the host.
    """
    has_classes = name == SEQUENCE_LOSS or (name in CLASSES and labels.ndim == 1)
    if not has_classes or not labels.numel():
        return None
    smallest, largest = labels.aminmax()
    if smallest >= 0 and largest < classes:
        return None
    is_wrong = (labels < 0) | (labels >= classes)
    if name in ("cross_entropy", SEQUENCE_LOSS):
        is_wrong &= labels != NO_LABEL
    wrong_rows = is_wrong.nonzero()  # [n, labels.ndim]
    if not len(wrong_rows):
        return None
    return int(wrong_rows[0, 0]), float(labels[is_wrong][0])


def predicted(name: str, outputs: Tensor) -> Tensor:
    """Returns what outputs predict under a loss: `poisson` reads logarithms."""
    return outputs.exp() if name == "poisson" else outputs
