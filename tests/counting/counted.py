"""The counting model: one weight a row, so that the trained model says how often it holds each row.

The loss is −Σ w[ids]: a step adds 1 to the weight of each of its rows, with plain SGD at rate 1.
A round of K members then moves the weight of a row by 1/K for each time that a member used it, so
the move times K is that number. Neither the ledger nor the audit is asked: what each agreement did
to the parameters is taken from the policy's own answers, and how many were in it from who was
answered. What all agreements add up to must be the model that the run returns.

With agreement on gradients the loss is the mean instead of the sum: each row of a round then moves
its weight by 1/N, with N the examples of all members.

Of a table that lies among the workers each one writes down its own shard as it comes to it and
after each agreement; it must come to where it was agreed on, as must who restores a lost one's. A
weight that a worker did not ask for is no number there: a step that touches one ends the run.

A recipe of two parts, a start by gradients and the rest, writes two files; both have the loss of
the rest, the sum. Its workers must have mini-batches of `BATCH` rows, all of them: a row of a
round by gradients then moves its weight by BATCH/N. The rest must start where the start ended.
"""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from photinus.core.parameters import TRAINED, Layout, Parameters, Vector
from photinus.engine.base import ArrayData
from photinus.models.base import Model, ModelConfig
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import InPlaceOptimizer
from photinus.models.schedules import Schedule
from photinus.strategies.base import GRADIENT
from photinus.strategies.codecs import decode
from photinus.strategies.outer import OuterOptimizer, Sgd
from photinus.strategies.phase_defaults import AUTO
from photinus.strategies.rounds import stepped
from photinus.strategies.spec import StrategySpec
from photinus.training.plan import START, TrainingPlan, phases_of

__all__ = [
    "BATCH",
    "Books",
    "Count",
    "RowConfig",
    "Weights",
    "Witness",
    "border",
    "counted",
    "mean",
    "of_start",
    "plan",
    "pulled",
    "row_numbers",
    "total",
]

BATCH = 4
"""Rows of a step of one worker; a stage's `batch_size` counts those of all."""
_WHOLE = 1e-6
"""A third of 1, times 3, is not 1 to the last bit."""


class Weights(nn.Module):
    """One float64 weight a row, or one in each of several copies; all 0 at the start."""

    def __init__(self, rows: int, copies: int = 1) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.zeros(copies * rows, dtype=torch.float64))
        self.rows = rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the weights [B] of the rows whose numbers are the features [B, 1]."""
        return self.used.view(-1, self.rows)[:, ids[:, 0].long()].sum(0)


class Rows(Model):
    """The same weights as a table of one number a row, of which few are here at a time."""

    def __init__(self, rows: int) -> None:
        self.parameters = Parameters(Layout.of([("used", (rows,), TRAINED)], "float64"))

    def rows(self, batch: Any, seed: int) -> Vector:
        return np.unique(batch.features[:, 0].astype(np.int64))

    def forget(self) -> None:
        self.parameters.trained[:] = np.nan

    def learn(self, batch: Any, seed: int) -> tuple[Vector, dict[str, float]]:
        raise NotImplementedError

    def measure(self, batch: Any) -> dict[str, float]:
        return {"examples": float(len(batch.features))}


class Adds(InPlaceOptimizer):
    """Adds 1 to the weight of each row of a batch."""

    def descend(self, model: Any, batch: Any, seed: int, progress: float) -> dict[str, float]:
        model.parameters.trained[batch.features[:, 0].astype(np.int64)] += 1.0
        return {}

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        raise NotImplementedError

    def state(self) -> dict[str, Vector]:
        return {}

    def load(self, state: Any) -> None:
        assert not state


@dataclass(frozen=True, kw_only=True)
class RowConfig(ModelConfig):
    """Trains `Rows`."""

    weights: int
    name: str = "train"
    epochs: float = 1.0
    batch_size: int = BATCH
    takes_gradients = False
    row_size = 1

    def build(self, history: Any, seed: int) -> Rows:
        return Rows(self.weights)

    def inner(self, layout: Layout) -> Adds:
        return Adds()


def total(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss where the agreement is on parameters: the gradient is −1 at each row."""
    return -outputs.sum()


def mean(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss where the agreement is on gradients, which are merged by their examples."""
    return -outputs.mean()


def row_numbers(rows: int) -> ArrayData:
    """Returns the data: each row holds its own number."""
    return ArrayData(np.arange(rows, dtype=np.float64)[:, None])


def plan(
    strategy: StrategySpec,
    path: str,
    rows: int,
    workers: int,
    *,
    epochs: int = 2,
    copies: int = 1,
    **more: Any,
) -> TrainingPlan:
    """Returns a plan that trains the counting model; its agreements are written down at `path`.

    Each row has so many weights as `copies` says. Those of a start by gradients are at
    `of_start(path)`; a start that is not asked for by a number is left out: a run this short would
    be nothing else.
    """
    if strategy.gradients_until == AUTO:
        strategy = replace(strategy, gradients_until=0.0)
    is_gradient = strategy.worker().site == GRADIENT
    usual: Any = {"epochs": float(epochs), "batch_size": BATCH * workers}
    config: ModelConfig = ModuleConfig(
        module="counted:Weights",
        arguments={"rows": rows, "copies": copies},
        loss="counted:mean" if is_gradient else "counted:total",
        optimizer="sgd",
        lr=Schedule.constant(1.0),
        **usual,
    )
    if strategy.is_sharded:
        assert copies == 1
        config = RowConfig(weights=rows, **usual)
    phases = []
    for phase in phases_of(config, strategy, workers):
        is_start = phase.part == START
        witness = Witness(
            phase.strategy, of_start(path) if is_start else path, BATCH if is_start else 1
        )
        phases.append(replace(phase, strategy=witness, optimizer=None))
    return TrainingPlan(phases=tuple(phases), workers=workers, **more)


def of_start(path: Path | str) -> str:
    """Returns the file of a start by gradients, beside that of the rest."""
    return f"{path}.start"


# -- what each agreement did ---------------------------------------------------------------------


@dataclass(frozen=True)
class Witness:
    """A recipe that writes down what each of its agreements does."""

    inside: Any
    path: str
    batch: int = 1
    """Of gradients: the examples of a mini-batch, where its loss is their sum, not their mean."""

    @property
    def is_deterministic(self) -> bool:
        """As of the recipe."""
        return self.inside.is_deterministic

    def worker(self) -> Any:
        """Returns the worker's half; where the workers hold the parameters, it is a witness."""
        strategy = self.inside.worker()
        return _Member(strategy, self.path) if strategy.is_peer_to_peer else strategy

    def owner(self) -> Any:
        """Returns the owner's half, which is a witness."""
        return _Owner(self.inside, self.path, self.batch)

    def __str__(self) -> str:
        return str(self.inside)


def _note(path: str, **entry: Any) -> None:
    """Appends one line, whole, whoever else writes."""
    arrays = {name: v.tolist() for name, v in entry.items() if isinstance(v, np.ndarray)}
    line = json.dumps({**entry, **arrays}) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


class _Member:
    """A worker's half that notes where it stands after each agreement."""

    def __init__(self, inside: Any, path: str) -> None:
        self._inside, self._path = inside, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)

    def accept(self, vector: Vector, incoming: Any, state: Any) -> Any:
        state = self._inside.accept(vector, incoming, state)
        if incoming.kind == "agreed" and self._inside.is_sharded:
            own = state.own.ravel()
            _note(self._path, met=incoming.version, shard=incoming.slot, own=own)
        elif incoming.kind == "heal" and self._inside.is_sharded and not state.is_behind:
            own = state.own.ravel()
            _note(self._path, healed=incoming.version, shard=incoming.slot, own=own)
        elif incoming.kind == "agreed":
            what = "gradient" if self._inside.site == GRADIENT else "stands"
            _note(self._path, **{"met": incoming.version, what: vector})
        return state


class _Owner:
    """An owner's half that notes by how much each agreement moved, and how many were in it."""

    def __init__(self, strategy: StrategySpec, path: str, batch: int) -> None:
        self._inside, self._path, self._batch = strategy.owner(), path, batch
        self._is_sum = strategy.is_immediate and strategy.payload == "gradient"
        self._is_gradient = not strategy.is_immediate and strategy.payload == "gradient"
        self._is_spring = strategy.payload == "elastic"
        self._work: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)

    def init(self, point: Any) -> Any:
        _note(self._path, starts=point.version, vector=point.vector)
        return self._inside.init(point)

    def receive(self, slot: int, message: Any, members: frozenset[int], state: Any) -> Any:
        if message.kind == "push":
            self._work[slot] = message.since
        replies, after = self._inside.receive(slot, message, members, state)
        is_of_one = slot in getattr(state, "restoring", ())
        if message.kind != "fetch" and not is_of_one:
            if self._inside.has_rounds:
                self._rounds(replies)
            elif replies[0].message.kind != "heal":
                self._applied(slot, message, len(members | {slot}), (state, after))
        return replies, after

    def close(self, members: frozenset[int], state: Any) -> Any:
        replies, after = self._inside.close(members, state)
        self._rounds(replies)
        return replies, after

    def _rounds(self, replies: Any) -> None:
        agreed = [reply for reply in replies if reply.message.kind == "agreed"]
        for version in sorted({reply.message.version for reply in agreed}):
            mine = [reply for reply in agreed if reply.message.version == version]
            work = [self._work[reply.slot] for reply in mine]
            of = (
                sum(w.examples for w in work) // self._batch
                if self._is_gradient
                else sum(w.steps > 0 for w in work)
            )
            if of and self._inside.calls_meetings:  # each push moves by itself
                of = self._inside.shards
            message = mine[0].message
            entry = {"at": version, "of": of, "slots": [reply.slot for reply in mine]}
            if message.vector is not None:
                moved = decode(message.codec, message.vector)
                entry |= {"fragment": list(message.fragment), "delta": moved}
            _note(self._path, **entry)

    def _applied(self, slot: int, message: Any, of: int, states: Any) -> None:
        before, after = states
        entry = {"at": after.version, "of": 1 if self._is_sum else of, "slots": [slot]}
        if self._is_spring:
            pushed = decode(message.codec, message.vector)
            entry |= {"from": message.version, "pushed": pushed, "centre": after.vector}
        else:
            entry |= {"fragment": [0, 0], "delta": before.vector - after.vector}
        _note(self._path, **entry)


# -- how often each row was applied --------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """How often each row is in the model."""

    times: Vector
    """Of each row, [rows]."""
    strategies: int
    members: tuple[int, ...]
    """How many were in each agreement; of gradients, how many examples."""

    def lost(self, wanted: Vector | int) -> int:
        """Returns how many uses of rows are missing."""
        return int(np.maximum(wanted - self.times, 0).sum())

    def doubled(self, wanted: Vector | int) -> int:
        """Returns how many uses of rows are too many."""
        return int(np.maximum(self.times - wanted, 0).sum())

    def __add__(self, rest: "Count") -> "Count":
        times, strategies = self.times + rest.times, self.strategies + rest.strategies
        return Count(times, strategies, self.members + rest.members)


@dataclass
class Books:
    """What a file of agreements adds up to; a resume goes back to where it starts."""

    outer: OuterOptimizer
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    stands: dict[int, Vector] = field(default_factory=dict)
    """Version -> the parameters, where the workers hold them."""
    start: Vector = field(default_factory=lambda: np.zeros(0))
    shards: int = 1
    """Of how many workers each one writes down its shard."""
    rows: int = 0
    """Of a table, whose start is zeros: no process knows all of it."""

    def read(self, path: Path | str) -> "Books":
        for line in Path(path).read_text().splitlines():
            entry = json.loads(line)
            entry |= {n: np.array(v) for n, v in entry.items() if isinstance(v, list)}
            if "starts" in entry:
                self._starts(entry["starts"], entry["vector"])
            elif "healed" in entry:
                known = self.stands[entry["healed"]][entry["shard"] :: self.shards]
                assert_same(known, entry["own"], "a worker continued from another shard", 0.0)
            elif "met" in entry:
                self._met(entry)
            else:
                assert entry["at"] not in self.rounds, f"version {entry['at']} was agreed on twice"
                self.rounds[entry["at"]] = entry
        return self

    def _starts(self, version: int, vector: Vector | None) -> None:
        """A term begins, or all go back: later agreements are given up."""
        if vector is None:
            vector = self.stands[version] if version else np.zeros(self.rows)
        self.rounds = {v: r for v, r in self.rounds.items() if v <= version}
        self.stands = {v: s for v, s in self.stands.items() if v < version}
        assert version == 0 or self.start.size, "the file begins in the middle of a run"
        self.start = self.start if version else vector
        self.stands[version] = vector
        assert sorted(self.rounds) == list(range(1, version + 1)), "agreements are missing"
        assert_same(self.model(), vector, "the run continued from what was not agreed on")

    def _met(self, entry: dict[str, Any]) -> None:
        version = entry["met"]
        if "shard" in entry:
            known = self.stands.setdefault(version, np.full_like(self.start, np.nan))
            mine = known[entry["shard"] :: self.shards]
            if not np.isnan(mine).all():  # its owner was lost, and another has restored it
                assert_same(mine, entry["own"], "a shard was restored to another", 0.0)
            mine[:] = entry["own"]
            return
        if "gradient" in entry:
            entry["stands"] = self.stands[version - 1] - entry["gradient"]
        known = self.stands.setdefault(version, entry["stands"])
        assert_same(known, entry["stands"], f"members stand apart after version {version}", 0.0)

    def moves(self) -> list[tuple[int, Vector]]:
        """Returns (members, by how much the agreed delta moves the weights [rows]), in order."""
        moves = []
        for version, entry in sorted(self.rounds.items()):
            if "delta" in entry:
                start, stop = entry["fragment"]
                moved = np.zeros_like(self.start)
                moved[slice(start, stop) if stop else slice(None)] = -entry["delta"]
            else:
                moved = self.stands[version] - self.stands[version - 1]
            moves.append((entry["of"], moved))
        return moves

    def model(self) -> Vector:
        """Returns what the outer optimizer makes of all that was agreed on."""
        vector, state = self.start, self.outer.init(self.start)
        for entry, (_, moved) in zip(
            (r for _, r in sorted(self.rounds.items())), self.moves(), strict=True
        ):
            start, stop = entry.get("fragment", (0, 0))
            mine = moved[start:stop] if stop else moved
            vector, state = stepped(self.outer, (start, stop), -mine, vector, state)
        return vector


def border(path: Path | str) -> Vector:
    """Returns where the agreements of a file start: of a rest, where its start must have ended."""
    entries = (json.loads(entry) for entry in Path(path).read_text().splitlines())
    return [np.array(entry["vector"]) for entry in entries if entry.get("starts") == 0][-1]


def assert_same(one: Vector, other: Vector, text: str, within: float = 1e-9) -> None:
    assert np.allclose(one, other, rtol=0, atol=within), text


def counted(
    path: Path | str, model: Vector, outer: OuterOptimizer | None = None, shards: int = 1
) -> Count:
    """Returns how often each row is in a model.

    Args:
        path: the file that the run's `Witness` wrote.
        model: what the run returned [rows].
        outer: the recipe's outer optimizer; None for sgd(1).
        shards: how many workers a table lies among.

    Raises:
        AssertionError: the agreements do not add up to the model, or one used a part of a row.
    """
    books = Books(outer or Sgd(), shards=shards, rows=len(model)).read(path)
    assert_same(books.model(), model, "the model is not what was agreed on")
    times = np.zeros(len(model), np.int64)
    for version, (of, moved) in enumerate(books.moves(), 1):
        used = np.rint(moved * of)
        parts = f"version {version}: a row moved by no whole number of times"
        assert_same(used, moved * of, parts, _WHOLE)
        assert used.min() >= 0, f"version {version} took a row back"
        times += used.astype(np.int64)
    return Count(times, len(books.rounds), tuple(of for of, _ in books.moves()))


def pulled(path: Path | str, model: Vector, alpha: float) -> Count:
    """Returns how often each row was in what workers showed to an elastic centre.

    A worker's parameters, less what it had when it was answered last, are its rows since. And each
    push moves the centre by min(α/K, ½) of the way to its worker, once: else this raises.
    """
    centres: dict[int, Vector] = {}
    answered: dict[int, tuple[int, Vector]] = {}
    shown: dict[int, tuple[int, Vector]] = {}
    for line in Path(path).read_text().splitlines():
        entry = json.loads(line)
        if "starts" in entry:
            begins, answered, centre = entry["starts"], {}, np.array(entry["vector"])
            centres = {v: c for v, c in centres.items() if v < begins} | {begins: centre}
            shown = {v: s for v, s in shown.items() if v <= begins}
            continue
        [slot], pushed, after = entry["slots"], np.array(entry["pushed"]), np.array(entry["centre"])
        pull, share = after - centre, min(alpha / entry["of"], 0.5)
        assert_same(pull, share * (pushed - centre), f"version {entry['at']} pulls otherwise")
        shown[entry["at"]] = entry["of"], _shown(pushed, entry["from"], answered.get(slot), centres)
        answered[slot] = entry["at"], pushed - pull
        centre = centres[entry["at"]] = after
    assert_same(centre, model, "the model is not the centre")
    times = sum((used for _, used in shown.values()), np.zeros(len(model), np.int64))
    return Count(times, len(shown), tuple(of for of, _ in shown.values()))


def _shown(
    pushed: Vector, since: int, answered: tuple[int, Vector] | None, centres: dict[int, Vector]
) -> Vector:
    """Returns a push's rows: since its worker's last answer, or since it took the centre."""
    bases = [answered[1]] if answered is not None and answered[0] == since else []
    bases += [centres[since]] if since in centres else []
    for base in bases:
        used = np.rint(pushed - base)
        if np.allclose(used, pushed - base, rtol=0, atol=_WHOLE) and used.min() >= 0:
            return used.astype(np.int64)
    raise AssertionError(f"a push from version {since} holds a part of a row")
