"""Faults by name: one plain object for the simulator and for real processes.

Nothing goes wrong unless a caller says so in code: the object travels with a worker's errand, and
no setting of a job, file or environment can name one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from photinus.core.errors import FencedError, UsageError
from photinus.core.parameters import Vector
from photinus.core.seeds import derive
from photinus.core.settings import Limit, at_least, between, one_of, validate, whole
from photinus.feed.base import Array
from photinus.models.base import Batch, Model, Stage
from photinus.models.inner import Inner
from photinus.nodes.life import Ask, Close, Hello, Life, Part, live
from photinus.nodes.loop import Stepped
from photinus.nodes.mail import Grant
from photinus.nodes.program import Program

__all__ = ["COPY", "CUT", "FREEZE", "KILL", "NAN", "SLOW", "Fault", "Faults", "Lot", "Victim"]

COPY, CUT, FREEZE, KILL, NAN, SLOW = "copy", "cut", "freeze", "kill", "nan", "slow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong in one slot, and when."""

    kind: str
    slot: int
    step: int | None = None
    """After so many steps under the lease; of `nan` the step itself."""
    at_seconds: float | None = None
    """Instead: so long after the lease was granted, whatever the worker does then."""
    lease: int = 1
    """Of the seat: 2 is the first one after a loss."""
    seconds: float = 0.0
    """How long it lasts; of `kill`, when the simulator starts the worker again."""
    factor: float = 1.0
    """How many times as long a step takes."""
    executor: bool = False
    """It befalls the Java process of the worker's executor; a simulated one has one worker."""
    LIMITS = {  # noqa: RUF012
        "kind": one_of(COPY, CUT, FREEZE, KILL, NAN, SLOW),
        "slot": whole(0),
        "step": Limit.optional(whole(1)),
        "at_seconds": Limit.optional(at_least(0)),
        "lease": whole(1),
        "seconds": at_least(0),
        "factor": at_least(1),
    }

    def __post_init__(self) -> None:
        validate(self)
        if (self.step is None) == (self.at_seconds is None):
            got = f"step={self.step}, at_seconds={self.at_seconds}"
            raise UsageError("a fault happens at a step, or at a time", got=got, do="name one")

    def told(self) -> dict[str, object]:
        """Returns what a diary says of it."""
        names = ("kind", "slot", "lease", "step", "at_seconds", "executor")
        pairs = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in pairs if value is not None and value is not False}


@dataclass(frozen=True, slots=True)
class Lot:
    """On which messages it falls: a share of them by chance, or strictly each n-th."""

    share: float = 0.0
    each: int = 0
    """0 for none."""
    first: int = 0
    """Which of each `each`."""
    LIMITS = {"share": between(0, 1), "each": whole(0), "first": whole(0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    @property
    def is_some(self) -> bool:
        """True when it falls on any."""
        return self.share > 0 or self.each > 0

    def falls_on(self, number: int, what: str) -> bool:
        """Tells whether it falls on a message: on the same ones in every run."""
        if self.each:
            return number % self.each == self.first
        return self.share > 0 and derive(number, what) < self.share * (1 << 63)


class _When(NamedTuple):
    step: int | None
    at_seconds: float | None
    lease: int

    def fault(self, kind: str, slot: int, seconds: float = 0.0, *, executor: bool = False) -> Fault:
        return Fault(kind=kind, slot=slot, seconds=seconds, executor=executor, **self._asdict())


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """What shall go wrong in a run: each method returns these faults and one more.

    Example:
        >>> faults = Faults().kill(slot=2, step=40).freeze(slot=1, step=10, seconds=8.0)
        >>> [(fault.kind, fault.slot) for fault in faults.planned]
        [('kill', 2), ('freeze', 1)]
    """

    planned: tuple[Fault, ...] = ()
    lost: Lot = Lot()
    """The messages that never arrive; the simulator's alone."""
    doubled: Lot = Lot()
    """Those that arrive twice; likewise."""
    diary: str = ""
    """A file in which real workers note each fault as JSON, just before it happens."""

    def kill(
        self,
        slot: int,
        step: int | None = None,
        *,
        at_seconds: float | None = None,
        lease: int = 1,
        back_seconds: float = 0.5,
        executor: bool = False,
    ) -> Faults:
        """A worker dies (SIGKILL), and is started again, in the simulator after `back_seconds`.

        With `executor` its executor's Java process does, and all workers there with it.
        """
        when = _When(step, at_seconds, lease)
        return self._and(when.fault(KILL, slot, seconds=back_seconds, executor=executor))

    def freeze(
        self,
        slot: int,
        step: int | None = None,
        *,
        seconds: float,
        at_seconds: float | None = None,
        lease: int = 1,
        executor: bool = False,
    ) -> Faults:
        """A worker stands still (SIGSTOP) with its links open, and goes on after `seconds`.

        With `executor` its executor's Java process does, while the workers there live.
        """
        when = _When(step, at_seconds, lease)
        return self._and(when.fault(FREEZE, slot, seconds=seconds, executor=executor))

    def cut(
        self,
        slot: int,
        step: int | None = None,
        *,
        seconds: float,
        at_seconds: float | None = None,
        lease: int = 1,
    ) -> Faults:
        """A worker's links close, and none can be made for `seconds`."""
        when = _When(step, at_seconds, lease)
        return self._and(when.fault(CUT, slot, seconds=seconds))

    def slow(self, slot: int, factor: float, *, step: int = 1, lease: int = 1) -> Faults:
        """From a step on, every step takes `factor` times as long, in later lives too."""
        return self._and(Fault(kind=SLOW, slot=slot, factor=factor, step=step, lease=lease))

    def nan(self, slot: int, step: int, *, lease: int = 1) -> Faults:
        """A worker's gradient is not a number, in one step."""
        return self._and(Fault(kind=NAN, slot=slot, step=step, lease=lease))

    def copy(
        self,
        slot: int,
        step: int | None = None,
        *,
        at_seconds: float | None = None,
        lease: int = 1,
    ) -> Faults:
        """A second attempt of the same seat comes, as with speculation; the simulator's alone."""
        return self._and(_When(step, at_seconds, lease).fault(COPY, slot))

    def lose(self, share: float = 0.0, *, each: int = 0, first: int = 0) -> Faults:
        """Messages never arrive, by chance or strictly each n-th; the simulator's alone."""
        return replace(self, lost=Lot(share, each, first))

    def double(self, share: float = 0.0, *, each: int = 0, first: int = 0) -> Faults:
        """What workers say arrives twice, likewise; the simulator's alone."""
        return replace(self, doubled=Lot(share, each, first))

    def noted_in(self, path: str) -> Faults:
        """Real workers note each fault in a file, just before it happens."""
        return replace(self, diary=path)

    def of(self, slot: int) -> tuple[Fault, ...]:
        """Returns what is planned for a slot."""
        return tuple(fault for fault in self.planned if fault.slot == slot)

    def checked(self, workers: int, *, is_real: bool) -> Faults:
        """Returns itself, if an engine can do all that.

        Raises:
            UsageError: a fault is of a slot that the run has not, or only the simulator can do it.
        """
        for fault in self.planned:
            if fault.slot >= workers:
                wrong = f"a fault names a slot from 0 to {workers - 1}"
                raise UsageError(wrong, got=fault.slot)
        imagined = [fault.kind for fault in self.planned if fault.kind == COPY]
        imagined += ["lose"] * self.lost.is_some + ["double"] * self.doubled.is_some
        if is_real and imagined:
            do = "use photinus.SimulatedEngine"
            raise UsageError("only the simulator can do that", got=imagined[0], do=do)
        return self

    def _and(self, fault: Fault) -> Faults:
        return replace(self, planned=(*self.planned, fault))


@dataclass(eq=False)
class Victim:
    """One worker's life, with the faults that are planned for it.

    Args:
        planned: of its slot.
        happen: does a fault; of `slow`, after every step, with the seconds that the step took.
        later: calls `happen` with a fault after so many seconds.
    """

    planned: tuple[Fault, ...]
    happen: Callable[[Fault, float], None]
    later: Callable[[float, Fault], None]
    lease: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    """Under the present lease."""

    def life(self, program: Program, slot: int, part: Part) -> Life:
        """Returns the life of `nodes.life.live`, in which the faults happen."""
        spoiled = [fault for fault in self.planned if fault.kind == NAN]
        if spoiled:
            phases = (replace(p, stage=_SpoiledStage(p.stage, self)) for p in program.phases)
            program = replace(program, phases=tuple(phases))
        life = live(program, slot, part)
        return self._followed(life) if self.planned else life

    @property
    def is_spoiled(self) -> bool:
        """True when the gradient of the step under way is to be no number."""
        now = (self.lease, self.steps + 1)
        return any(f.kind == NAN and (f.lease, f.step) == now for f in self.planned)

    def _followed(self, life: Life) -> Life:
        began = time.perf_counter()
        try:
            ask = next(life)
            while True:
                self._asks(ask, time.perf_counter() - began)
                try:
                    answer = yield ask
                except FencedError as error:
                    ask = life.throw(error)
                    continue
                if isinstance(answer, Grant) and isinstance(ask, (Hello, Close)):
                    self._granted(answer)
                began = time.perf_counter()
                ask = life.send(answer)
        except StopIteration:
            return

    def _granted(self, grant: Grant) -> None:
        if grant.lease == self.lease:  # another phase
            return
        self.lease, self.steps = grant.lease, 0
        for fault in self.planned:
            if fault.lease == self.lease and fault.at_seconds is not None:
                self.later(fault.at_seconds, fault)

    def _asks(self, ask: Ask, seconds: float) -> None:
        if not isinstance(ask, Stepped):
            return
        self.steps += 1
        now = (self.lease, self.steps)
        for fault in self.planned:
            at = (fault.lease, fault.step or 0)
            if (now >= at) if fault.kind == SLOW else (now == at):
                self.happen(fault, seconds)


class _SpoiledStage(Stage):
    """A stage whose models can be told to spoil a gradient."""

    def __init__(self, stage: Stage, victim: Victim) -> None:
        self.name, self.epochs, self.batch_size = stage.name, stage.epochs, stage.batch_size
        self._stage, self._victim = stage, victim

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        return _SpoiledModel(self._stage.build(history, seed), self._victim)

    def prepare(self, features: Array, history: tuple[Vector, ...]) -> Array:
        return self._stage.prepare(features, history)

    def inner(self) -> Inner:
        return self._stage.inner()


class _SpoiledModel(Model):
    """A model whose gradient is not a number when its victim's turn has come."""

    def __init__(self, model: Model, victim: Victim) -> None:
        self.parameters, self._model, self._victim = model.parameters, model, victim

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        gradient, metrics = self._model.learn(batch, seed)
        return np.full_like(gradient, np.nan) if self._victim.is_spoiled else gradient, metrics

    def measure(self, batch: Batch) -> Mapping[str, float]:
        return self._model.measure(batch)
