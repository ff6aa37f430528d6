"""word2vec in torch, on any device: some centres take their steps together.

Only the rows that a batch reads are on the device, so a table of any size may be trained there.

Reference: Ji et al., Parallelizing word2vec in shared and distributed memory (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from photinus.core.parameters import Vector
from photinus.embeddings.draws import IGNORED, DrawTables, max_outputs
from photinus.embeddings.kernel import draw
from photinus.embeddings.reference import OUTPUTS, Rule, Tables

MAX_TOGETHER = 4096
"""So many inputs take a step together at most, and those of a centre always."""
_MEMBERS = 1 << 16
"""So many rows of inputs are gathered at once, and those of a centre always."""
_MAX_ROW_STEP = 1.0
"""Rate times the pairs of the row that has most of them in such a step, at most: with twice as much
some tables grow without bound."""
_MIN_PROBABILITY = 1e-12


class DrawnCentres(NamedTuple):
    """The centres of some rows of text, and what each learns from."""

    members: Vector
    """The rows whose mean is an input, of one input after the other [M] int64."""
    member_ends: Vector
    """Where those of an input begin [N + 1]."""
    input_ends: Vector
    """Where the inputs of a centre begin [n + 1]."""
    outputs: Vector
    """The rows of its outputs [n, O] int64."""
    labels: Vector
    """1, 0, or IGNORED where an output takes no part [n, O] float32."""


def draw_centres(texts: Vector, chances: DrawTables, rule: Rule, states: Vector) -> DrawnCentres:
    """Draws what `reference.centres` draws, for rows of text [B, T]."""
    outputs = max_outputs(chances, rule.negatives)
    buffers = _allocate(0, 0, 0, outputs)
    buffers = _allocate(*draw(texts, chances, rule, states, buffers), outputs)
    draw(texts, chances, rule, states, buffers)
    return buffers


def _allocate(centres: int, inputs: int, members: int, outputs: int) -> DrawnCentres:
    return DrawnCentres(
        np.empty(members, np.int64),
        np.zeros(inputs + 1, np.int64),
        np.zeros(centres + 1, np.int64),
        np.zeros((centres, outputs), np.int64),
        np.full((centres, outputs), IGNORED, np.float32),
    )


class _TableRows(NamedTuple):
    """The rows of a table that a batch reads, on the device."""

    rows: Vector
    """Their numbers in the table [r]."""
    vectors: Tensor
    """The rows [r, D]."""
    gains: Tensor
    """By what the steps of each are multiplied [r, 1]."""
    numbers: Tensor
    """Which of these rows each entry of the request is, in the request's shape."""

    @staticmethod
    def of(table: Vector, gains: Vector, requested: Vector, device: torch.device) -> _TableRows:
        rows, numbers = np.unique(requested, return_inverse=True)
        tensors = [torch.from_numpy(array) for array in (table[rows], gains[rows, None], numbers)]
        return _TableRows(rows, *(tensor.to(device) for tensor in tensors))


@dataclass(frozen=True, slots=True)
class TorchSteps:
    """Learns rows of text in place, on a device.

    The equations are those of `reference.descend`. Centres that step together read both tables as
    they were before the step.
    """

    device: torch.device
    """Where the steps are computed."""
    together: int = 0
    """Inputs of a step; 1: each centre steps alone; 0: as many as the rate allows."""

    def descend(
        self,
        texts: Vector,
        tables: Tables,
        chances: DrawTables,
        rule: Rule,
        rate: float,
        states: Vector,
    ) -> tuple[float, int]:
        """Returns the summed loss of all pairs, and how many inputs there were.

        Args:
            texts: numbers of words [B, T], below 0 between sentences.
            tables: what is trained, in the host's memory.
            chances: the vocabulary's tables of draws.
            rule: window, negatives, CBOW or skip-gram.
            rate: the learning rate.
            states: of the generator, for each row of text [B].
        """
        centres = draw_centres(texts, chances, rule, states)
        if not len(centres.members):
            return 0.0, 0
        inputs = _TableRows.of(tables.inputs, tables.input_gain, centres.members, self.device)
        outputs = _TableRows.of(tables.outputs, tables.output_gain, centres.outputs, self.device)
        labels = torch.from_numpy(centres.labels).to(self.device)
        is_mean = rule.cbow or len(chances.grams.rows) > 0
        loss = torch.zeros((), device=self.device)
        for first, last in _group_centres(
            centres, self.together or _max_together(centres, inputs, outputs, rate)
        ):
            x, centre_of_input, input_of_member, members = _gather_inputs(
                centres, inputs, first, last
            )
            gains = inputs.gains[members]  # [M, 1]
            group_outputs = outputs._replace(numbers=outputs.numbers[first:last])
            moved_x, group_loss = _step_outputs(
                x,
                centre_of_input,
                group_outputs,
                labels[first:last],
                None if is_mean else gains,
                rate,
            )
            change = (moved_x - x)[input_of_member]
            inputs.vectors.index_add_(0, members, gains * change if is_mean else change)
            loss += group_loss
        tables.inputs[inputs.rows], tables.outputs[outputs.rows] = (
            inputs.vectors.cpu(),
            outputs.vectors.cpu(),
        )
        return float(loss), int(centres.input_ends[-1])


def _gather_inputs(
    centres: DrawnCentres, inputs: _TableRows, first: int, last: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the inputs [N, D] of some centres, and the centre of each input [N].

    Then come the input of each member [M], and the members' rows [M].
    """
    device = inputs.vectors.device
    start, stop = centres.input_ends[first], centres.input_ends[last]
    ends = centres.member_ends[start : stop + 1]
    sizes = torch.from_numpy(np.diff(ends)).to(device)
    inputs_per_centre = torch.from_numpy(np.diff(centres.input_ends[first : last + 1])).to(device)
    centre_of_input, input_of_member = (
        torch.repeat_interleave(inputs_per_centre),
        torch.repeat_interleave(sizes),
    )
    members = inputs.numbers[int(ends[0]) : int(ends[-1])]
    x = torch.zeros((len(sizes), inputs.vectors.shape[1]), device=device)
    return (
        x.index_add_(0, input_of_member, inputs.vectors[members]) / sizes[:, None],
        centre_of_input,
        input_of_member,
        members,
    )


def _max_together(
    centres: DrawnCentres, input_table: _TableRows, output_table: _TableRows, rate: float
) -> int:
    """Returns how many inputs may step together without throwing a frequent row too far."""
    inputs, members = (
        torch.from_numpy(np.diff(ends)).to(input_table.vectors.device)
        for ends in (centres.input_ends, centres.member_ends)
    )
    used = (torch.from_numpy(centres.labels).to(inputs.device) != IGNORED).float()  # [n, O]
    pairs_of_member = used.sum(1).repeat_interleave(inputs).repeat_interleave(members)  # [M]
    pairs_of_output = (used * inputs[:, None]).flatten()  # [n O]
    max_pairs = max(
        float(torch.bincount(side.numbers.flatten(), pairs).max())
        for side, pairs in ((input_table, pairs_of_member), (output_table, pairs_of_output))
    )
    return min(MAX_TOGETHER, max(1, int(_MAX_ROW_STEP * len(members) / (rate * max_pairs))))


def _group_centres(centres: DrawnCentres, together: int) -> list[tuple[int, int]]:
    """Returns (first, last + 1) of the centres that step together."""
    inputs = centres.input_ends[:-1]
    steps = inputs // together if together > 1 else np.arange(len(inputs))
    chunks = centres.member_ends[inputs] // _MEMBERS
    starts = np.flatnonzero(np.diff(steps, prepend=-1) + np.diff(chunks, prepend=0))
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(inputs)], strict=True))


def _step_outputs(
    x: Tensor,
    centre_of_input: Tensor,
    outputs: _TableRows,
    labels: Tensor,
    gains: Tensor | None,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """Moves the outputs of some centres; returns the moved inputs and the loss.

    Args:
        x: the inputs [N, D].
        centre_of_input: the centre of each [N].
        outputs: the outputs' rows, and which of them are of each centre [n, O].
        labels: of the outputs [n, O].
        gains: by what each input's steps are multiplied [N, 1]; None: its members' are, later.
        rate: the learning rate.
    """
    loss = torch.zeros((), device=x.device)
    for start in range(0, labels.shape[1], OUTPUTS):
        numbers, label = outputs.numbers[:, start : start + OUTPUTS], labels[:, start:][:, :OUTPUTS]
        o = outputs.vectors[numbers]  # [n, 6, D]
        outputs_of_input, label = o[centre_of_input], label[centre_of_input]  # [N, 6, D], [N, 6]
        predicted = torch.sigmoid(torch.bmm(outputs_of_input, x[:, :, None])[:, :, 0])  # [N, 6]
        error = torch.where(label == IGNORED, 0.0, label - predicted)
        steps = rate * error
        change = torch.zeros_like(o).index_add_(0, centre_of_input, steps[:, :, None] * x[:, None])
        change *= outputs.gains[numbers]
        change_x = torch.bmm(steps[:, None], outputs_of_input)[:, 0]  # [N, D]
        x = x + (change_x if gains is None else gains * change_x)
        outputs.vectors.index_add_(0, numbers.flatten(), change.flatten(0, 1))
        loss -= torch.log((1.0 - error.abs()).clamp(min=_MIN_PROBABILITY)).sum()
    return x, loss
