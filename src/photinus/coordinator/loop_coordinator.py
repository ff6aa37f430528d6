"""The coordinator of loops of the user's own: the model is known once worker 0 has sent it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.core.errors import RunFailedError, UsageError, user_message
from photinus.core.parameters import Entry, Layout, Parameters
from photinus.protocol.messages import Seat
from photinus.strategies.base import StrategyPair
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.recipes import RECIPES, from_plain, to_plain
from photinus.strategies.single_worker import SingleWorker
from photinus.strategies.spec import StrategySpec
from photinus.training.own_loop import plan_of, strategy_pair
from photinus.training.plan import TrainingPlan
from photinus.transport.frames import Frame

_SAME_FIELDS = {
    "model": "the model",
    "strategy": "the strategy",
    "is_counted": "whether agree is given steps",
}
"""A header field that must be the same for all workers -> what it is, for people."""
_SAME_HINT = "give every worker the same model and strategy, and all of them steps or none"


def start_frame(seat: Seat, parameters: Parameters, header: Mapping[str, Any]) -> Frame:
    """Returns the frame that worker 0 sends before its first hello: the point all start from.

    Args:
        seat: its own.
        parameters: of its model.
        header: fields that the hello of every worker has, too.
    """
    entries = [asdict(entry) for entry in parameters.layout.entries]
    layout = json.dumps({"entries": entries, "dtype": parameters.layout.dtype}).encode()
    arrays = {
        "layout": np.frombuffer(layout, np.uint8),
        "trained": parameters.trained,
        "floats": parameters.floats,
        "integers": parameters.integers,
    }
    return seat.frame("state", {"version": 0, "position": 0, **header}, arrays)


class LoopCoordinator(Coordinator):
    """A `Coordinator` without parameters until worker 0 has sent the start; then with those.

    Args:
        workers: how many.
        strategy: how they agree, where `agree` names no other.
        callbacks: receive events and ledger lines.
    """

    def __init__(
        self, workers: int, strategy: StrategySpec | CustomStrategy, callbacks: Callbacks
    ) -> None:
        self._workers, self._strategy = workers, strategy
        nothing = Parameters(Layout(()))
        self._early_hellos: dict[int, Frame] | None = {}
        """Slot -> its hello that arrived before the start; None after the start."""
        self._header: Mapping[str, Any] = {}
        self._layout = nothing.layout
        super().__init__(self._plan(SingleWorker(), nothing), callbacks)

    def _plan(self, strategy: StrategyPair, start: Parameters) -> TrainingPlan:
        vectors = (start.trained, start.floats, start.integers)
        is_counted = bool(self._header.get("is_counted"))
        return plan_of(strategy, self._workers, is_counted=is_counted, start=vectors)

    def ask_for_snapshot(self) -> bool:
        """There is no run folder to save one in."""
        return False

    def tick(self, now: float) -> list[Frame]:
        """Lets time pass, once there is a model."""
        return [] if self._early_hellos is not None else super().tick(now)

    def stop(self, reason: str, kind: str = "") -> list[Frame]:
        """Ends it without a result."""
        frames, early_hellos = super().stop(reason, kind), self._early_hellos or {}
        return frames + [
            answer for hello in early_hellos.values() for answer in self.hear(hello, 0.0)
        ]

    # -- the start -------------------------------------------------------------------------------

    def hear(self, frame: Frame, now: float) -> list[Frame]:
        """Takes one frame in; returns the frames to send, each to its slot's worker."""
        run_and_term = (self.callbacks.run, self.callbacks.term)
        is_known = (frame.run, frame.term) == run_and_term and frame.slot in self.leases
        if is_known and not self.is_over and not frame.lease:
            if frame.kind == "state":
                return self._take_start(frame, now)
            if frame.kind == "hello" and self._early_hellos is not None:
                self._early_hellos[frame.slot] = frame
                return []
            if frame.kind == "hello" and (wrong := self._difference(frame)):
                return self.stop(wrong, UsageError.__name__)
        return super().hear(frame, now)

    def _take_start(self, frame: Frame, now: float) -> list[Frame]:
        """Takes the first start; the sender of any start is answered."""
        answer = Seat(frame.run, frame.term, 0, frame.slot).frame("busy")
        if self._early_hellos is None:
            return [answer]
        arrays, early_hellos = frame.arrays, self._early_hellos
        layout = json.loads(arrays["layout"].tobytes())
        self._layout = Layout(
            tuple(Entry(**{**e, "shape": tuple(e["shape"])}) for e in layout["entries"]),
            str(layout["dtype"]),
        )
        vectors = (arrays[name] for name in ("trained", "floats", "integers"))
        start = Parameters(self._layout, *vectors)
        self._header = {name: frame.header.get(name) for name in _SAME_FIELDS}
        strategy = strategy_pair(self._named_strategy(), self._workers)
        self._set_up(self._plan(strategy, start), self.callbacks, now)
        self._early_hellos = None
        return [answer, *(f for hello in early_hellos.values() for f in self.hear(hello, now))]

    def _named_strategy(self) -> StrategySpec | CustomStrategy:
        """Returns the strategy that the workers named; never imports a name from the network."""
        named = self._header["strategy"]
        if named == to_plain(self._strategy):
            return self._strategy
        if (
            not isinstance(named, Mapping)
            or named.get("recipe") not in RECIPES
            or _names_code(named)
        ):
            do = "name it in photinus.launch, too"
            raise UsageError("agree names a strategy of one's own", got=named, do=do)
        return from_plain(named)

    def _difference(self, hello: Frame) -> str:
        """Returns how a worker's model or strategy differs from worker 0's; empty if not at all."""
        for name, description in _SAME_FIELDS.items():
            if (got := hello.header.get(name)) != self._header[name]:
                wrong = f"worker {hello.slot} and worker 0 differ in {description}"
                return user_message(wrong, got=f"{got} and {self._header[name]}", do=_SAME_HINT)
        return ""

    # -- the end ---------------------------------------------------------------------------------

    def trained(self) -> Parameters:
        """Returns what was agreed.

        Raises:
            RunFailedError: the run ended without a result.
        """
        result = self.result
        if result is None:
            raise RunFailedError("the run ended before its workers were done")
        return Parameters(self._layout, result.vectors[-1], result.floats, result.integers)


def _names_code(strategy: Mapping[str, Any]) -> bool:
    outer = strategy.get("outer")
    return isinstance(outer, Mapping) and "function" in outer
