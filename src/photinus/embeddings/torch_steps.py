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
from photinus.embeddings.draws import DEAD, DrawTables, longest
from photinus.embeddings.kernel import draw
from photinus.embeddings.reference import OUTPUTS, Rule, Tables

TOGETHER = 4096
"""So many inputs take a step together at most, and those of a centre always."""
_MEMBERS = 1 << 16
"""So many rows of inputs are gathered at once, and those of a centre always."""
_FAR = 1.0
"""Rate times the pairs of the row that has most of them in such a step, at most: with twice as much
some tables grow without bound."""
_LEAST = 1e-12


class Drawn(NamedTuple):
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
    """1, 0, or DEAD where an output takes no part [n, O] float32."""


def drawn(texts: Vector, chances: DrawTables, rule: Rule, states: Vector) -> Drawn:
    """Draws what `plain.centres` draws, for rows of text [B, T]."""
    most = longest(chances, rule.negatives)
    made = _room(0, 0, 0, most)
    made = _room(*draw(texts, chances, rule, states, made), most)
    draw(texts, chances, rule, states, made)
    return made


def _room(centres: int, inputs: int, members: int, outputs: int) -> Drawn:
    return Drawn(
        np.empty(members, np.int64),
        np.zeros(inputs + 1, np.int64),
        np.zeros(centres + 1, np.int64),
        np.zeros((centres, outputs), np.int64),
        np.full((centres, outputs), DEAD, np.float32),
    )


class _Side(NamedTuple):
    """The rows of a table that a batch reads, on the device."""

    rows: Vector
    """Their numbers in the table [r]."""
    held: Tensor
    """The rows [r, D]."""
    gains: Tensor
    """By what the steps of each are multiplied [r, 1]."""
    numbers: Tensor
    """Which of them are asked for, in the shape of the question."""

    @staticmethod
    def of(table: Vector, gains: Vector, asked: Vector, device: torch.device) -> _Side:
        rows, numbers = np.unique(asked, return_inverse=True)
        sent = [torch.from_numpy(a) for a in (table[rows], gains[rows, None], numbers)]
        return _Side(rows, *(one.to(device) for one in sent))


@dataclass(frozen=True, slots=True)
class TorchSteps:
    """Learns rows of text in place, on a device.

    The equations are those of `plain.descend`. Centres that step together read both tables as they
    were before the step.
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
            chances: as of the vocabulary.
            rule: window, negatives, CBOW or skip-gram.
            rate: the learning rate.
            states: of the generator, for each row of text [B].
        """
        found = drawn(texts, chances, rule, states)
        if not len(found.members):
            return 0.0, 0
        ins = _Side.of(tables.inputs, tables.input_gain, found.members, self.device)
        outs = _Side.of(tables.outputs, tables.output_gain, found.outputs, self.device)
        labels = torch.from_numpy(found.labels).to(self.device)
        is_mean = rule.cbow or len(chances.grams.rows) > 0
        loss = torch.zeros((), device=self.device)
        for first, last in _groups(found, self.together or _most(found, ins, outs, rate)):
            x, of, bags, members = _inputs(found, ins, first, last)
            gains = ins.gains[members]  # [M, 1]
            some = outs._replace(numbers=outs.numbers[first:last])
            moved, told = _step(x, of, some, labels[first:last], None if is_mean else gains, rate)
            change = (moved - x)[bags]
            ins.held.index_add_(0, members, gains * change if is_mean else change)
            loss += told
        tables.inputs[ins.rows], tables.outputs[outs.rows] = ins.held.cpu(), outs.held.cpu()
        return float(loss), int(found.input_ends[-1])


def _inputs(
    found: Drawn, ins: _Side, first: int, last: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns inputs [N, D] of some centres, the centre of each [N], and of members the input [M].

    The last are the members' own rows [M].
    """
    device = ins.held.device
    start, stop = found.input_ends[first], found.input_ends[last]
    ends = found.member_ends[start : stop + 1]
    sizes = torch.from_numpy(np.diff(ends)).to(device)
    each = torch.from_numpy(np.diff(found.input_ends[first : last + 1])).to(device)
    of, bags = torch.repeat_interleave(each), torch.repeat_interleave(sizes)
    members = ins.numbers[int(ends[0]) : int(ends[-1])]
    x = torch.zeros((len(sizes), ins.held.shape[1]), device=device)
    return x.index_add_(0, bags, ins.held[members]) / sizes[:, None], of, bags, members


def _most(found: Drawn, ins: _Side, outs: _Side, rate: float) -> int:
    """Returns how many inputs may step together without throwing a frequent row too far."""
    inputs, members = (
        torch.from_numpy(np.diff(ends)).to(ins.held.device)
        for ends in (found.input_ends, found.member_ends)
    )
    alive = (torch.from_numpy(found.labels).to(inputs.device) != DEAD).float()  # [n, O]
    of_input = alive.sum(1).repeat_interleave(inputs).repeat_interleave(members)  # [M]
    of_output = (alive * inputs[:, None]).flatten()  # [n O]
    most = max(
        float(torch.bincount(side.numbers.flatten(), pairs).max())
        for side, pairs in ((ins, of_input), (outs, of_output))
    )
    return min(TOGETHER, max(1, int(_FAR * len(members) / (rate * most))))


def _groups(found: Drawn, together: int) -> list[tuple[int, int]]:
    """Returns (first, last + 1) of the centres that step together."""
    inputs = found.input_ends[:-1]
    steps = inputs // together if together > 1 else np.arange(len(inputs))
    rooms = found.member_ends[inputs] // _MEMBERS
    starts = np.flatnonzero(np.diff(steps, prepend=-1) + np.diff(rooms, prepend=0))
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(inputs)], strict=True))


def _step(
    x: Tensor, of: Tensor, outs: _Side, labels: Tensor, gains: Tensor | None, rate: float
) -> tuple[Tensor, Tensor]:
    """Moves the outputs of some centres; returns the moved inputs and the loss.

    Args:
        x: the inputs [N, D].
        of: the centre of each [N].
        outs: the outputs' rows, and which of them are of each centre [n, O].
        labels: of the outputs [n, O].
        gains: by what each input's steps are multiplied [N, 1]; None: its members' are, later.
        rate: the learning rate.
    """
    loss = torch.zeros((), device=x.device)
    for start in range(0, labels.shape[1], OUTPUTS):
        numbers, label = outs.numbers[:, start : start + OUTPUTS], labels[:, start:][:, :OUTPUTS]
        o = outs.held[numbers]  # [n, 6, D]
        own, label = o[of], label[of]  # [N, 6, D], [N, 6]
        near = torch.sigmoid(torch.bmm(own, x[:, :, None])[:, :, 0])  # [N, 6]
        miss = torch.where(label == DEAD, 0.0, label - near)
        steps = rate * miss
        change = torch.zeros_like(o).index_add_(0, of, steps[:, :, None] * x[:, None])
        change *= outs.gains[numbers]
        moved = torch.bmm(steps[:, None], own)[:, 0]  # [N, D]
        x = x + (moved if gains is None else gains * moved)
        outs.held.index_add_(0, numbers.flatten(), change.flatten(0, 1))
        loss -= torch.log((1.0 - miss.abs()).clamp(min=_LEAST)).sum()
    return x, loss
