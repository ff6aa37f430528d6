"""Lets a user's own training loop agree with those on other workers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from photinus.coordinator.loop_coordinator import start_frame
from photinus.core.errors import NotReadyError, RunFailedError, UsageError
from photinus.core.parameters import fingerprint
from photinus.core.settings import Limit, whole
from photinus.engine.hooks import Hooks
from photinus.engine.worker_bootstrap import OpenWorker, Rendezvous
from photinus.protocol.messages import Seat
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.recipes import to_plain
from photinus.strategies.spec import StrategySpec
from photinus.training.own_loop import OwnLoop, loop_data, plan_of, strategy_pair
from photinus.training.worker_loop import live

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from torch import nn
    from transformers import TrainerCallback

_log = logging.getLogger("photinus")


@dataclass(frozen=True, slots=True)
class Loop:
    """What is sent to every worker: where to say hello, and how all agree.

    Args:
        rendezvous: where, and with which key.
        workers: how many there are.
        strategy: how they agree, where `agree` names no other.
    """

    rendezvous: Rendezvous
    workers: int
    strategy: StrategySpec | CustomStrategy

    def run(
        self,
        slot: int,
        attempt: str,
        function: Callable[..., object],
        read: Callable[[], Sequence[Any]],
    ) -> None:
        """Calls the user's function in a slot, and ends what it agreed on when it returns.

        Args:
            slot: the seat to take.
            attempt: distinguishes this call from others of the same slot.
            function: the user's.
            read: reads its arguments.

        Raises:
            LinkLostError: the coordinator cannot be found any more.
        """

        def work(open_worker: OpenWorker) -> None:
            arguments = read()
            with _as_current(ThisWorker(self, slot, open_worker)) as this_worker:
                function(*arguments)
                if this_worker.agreed is None:
                    wrong = "the function has returned, and its model agreed with nobody"
                    raise UsageError(wrong, do="call photinus.agree(model) in it")
                this_worker.agreed._close()

        self.rendezvous.hooked(Hooks(), slot).serve(slot, attempt, work)


@dataclass(eq=False, slots=True)
class ThisWorker:
    """The worker that this process is."""

    loop: Loop
    slot: int
    open_worker: OpenWorker
    agreed: Agreed | None = field(default=None)


_CURRENT: list[ThisWorker] = []


@contextmanager
def _as_current(this_worker: ThisWorker) -> Iterator[ThisWorker]:
    _CURRENT.append(this_worker)
    try:
        yield this_worker
    finally:
        _CURRENT.remove(this_worker)


def agree(
    model: nn.Module,
    strategy: StrategySpec | CustomStrategy | None = None,
    *,
    steps: int | None = None,
) -> Agreed:
    """Joins the other workers: all continue from one point, and agree by the strategy.

    Call it in the function that `photinus.launch` runs, once the model is made. It returns when all
    workers have come; the model then has the parameters of worker 0's.

    Args:
        model: its parameters with `requires_grad` are agreed on, and its buffers.
        strategy: a recipe that acts after steps; left out, that of `launch`.
        steps: how many optimizer steps this worker will take, where that is known: rounds are then
            shortened in a short training, and progress is reported.

    Raises:
        UsageError: outside of `launch`, called twice, or the strategy acts inside of a step.

    Example:
        >>> agreed = agree(model)  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     model(batch).backward()
        ...     optimizer.step()
        ...     agreed.step()
    """
    if not _CURRENT:
        wrong = "photinus.agree was called outside of a function that photinus.launch runs"
        raise UsageError(wrong, do="photinus.launch(function, workers=4, data=df)")
    this_worker = _CURRENT[-1]
    if this_worker.agreed is not None:
        do = "put the models into one torch.nn.ModuleList"
        raise UsageError("photinus.agree was called twice in one function", do=do)
    if not Limit.optional(whole(1)).holds(steps):
        raise UsageError("steps must be a whole number of at least 1, or None", got=repr(steps))
    this_worker.agreed = Agreed(this_worker, model, strategy or this_worker.loop.strategy, steps)
    return this_worker.agreed


class Agreed:
    """A model that agrees with those of other workers, as `agree` returns it.

    Args:
        here: which worker this is.
        model: what is trained.
        strategy: how all agree.
        steps: how many this worker will take.
    """

    def __init__(
        self,
        here: ThisWorker,
        model: nn.Module,
        strategy: StrategySpec | CustomStrategy,
        steps: int | None,
    ) -> None:
        pair = strategy_pair(strategy, here.loop.workers)
        rendezvous = here.loop.rendezvous
        seat = Seat(rendezvous.key.run, rendezvous.term, 0, here.slot)
        self._loop = OwnLoop(model)
        layout = self._loop.parameters.layout
        plan = plan_of(pair, here.loop.workers, is_counted=steps is not None, loop=self._loop)
        warning = pair.table_warning(layout) if isinstance(pair, StrategySpec) else ""
        if warning and here.slot == 0:
            _log.warning(warning)
        if plan.has_peers and not rendezvous.has_peers:
            do = "name it in photinus.launch"
            raise UsageError("workers speak to each other in this strategy", got=strategy, do=do)
        hello_fields = {
            "model": layout.fingerprint(),
            "strategy": to_plain(strategy),
            "is_counted": steps is not None,
        }
        if here.slot == 0:
            rendezvous.send(start_frame(seat, self._loop.parameters, hello_fields))
        part = loop_data(self._loop, steps)
        self._worker = here.open_worker(live(plan, here.slot, part), hello_fields)
        self._is_open = self._worker.pump()
        if not self._is_open:
            raise RunFailedError("all workers are done")
        self._loop.scatter()
        self._first = fingerprint(self._loop.parameters.trained)
        self.begin: int = self._loop.steps
        """The steps of earlier attempts in this worker's place that are agreed on; else 0."""

    def step(self, **metrics: float) -> None:
        """Reports that the optimizer has stepped; agrees with the others where that is due.

        Args:
            metrics: what was measured in the step, such as its loss: for the journal.

        Raises:
            RunFailedError: the run was stopped.
        """
        if not self._is_open:
            return
        self._loop.metrics = {name: float(value) for name, value in metrics.items()}
        self._loop.steps += 1
        self._loop.gather()
        self._is_open = self._worker.pump()
        self._loop.scatter()

    def _close(self) -> None:
        """Agrees on what is not yet agreed on, and waits until all workers are done.

        Raises:
            UsageError: the model has changed without a step.
        """
        if self._is_open:
            self._is_open = False
            self._loop.gather()
            if not self._loop.steps and fingerprint(self._loop.parameters.trained) != self._first:
                wrong = "the function has trained its model, and never called agreed.step()"
                do = "call it after each step of the optimizer, or use its callback"
                raise UsageError(wrong, do=do)
            self._worker.finish()
            self._loop.scatter()

    def transformers_callback(self) -> TrainerCallback:
        """Returns what `callbacks=[...]` of a `transformers.Trainer` takes.

        A trainer of sentence-transformers takes it, too. Where this worker takes the place of one
        that was lost, training continues at its step: in number, learning rate and logs.

        Raises:
            NotReadyError: transformers is not installed.
        """
        _check_installed("transformers")
        callback: TrainerCallback = _for_transformers(self)
        return callback

    def lightning_callback(self) -> Callback:
        """Returns what `callbacks=[...]` of a `lightning.Trainer` takes; else as the other.

        Raises:
            NotReadyError: lightning is not installed.
        """
        _check_installed("lightning")
        callback: Callback = _for_lightning(self)
        return callback


def _for_transformers(agreed: Agreed) -> Any:  # noqa: ANN401 - a TrainerCallback
    """Returns a callback of `transformers.Trainer`."""
    from transformers import TrainerCallback

    class Agreeing(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:  # noqa: ANN401, ARG002
            state.global_step = agreed.begin
            _fast_forward(arguments.get("lr_scheduler"), agreed.begin)

        def on_step_end(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:  # noqa: ANN401, ARG002
            agreed.step()

    return Agreeing()


def _for_lightning(agreed: Agreed) -> Any:  # noqa: ANN401 - a Callback
    """Returns a callback of `lightning.Trainer`."""
    from lightning.pytorch import Callback

    class Agreeing(Callback):  # type: ignore[misc]
        last_step = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401, ARG002
            self.last_step = trainer.global_step
            for config in trainer.lr_scheduler_configs:
                _fast_forward(config.scheduler, agreed.begin)

        def on_train_batch_end(self, trainer: Any, module: Any, *arguments: Any) -> None:  # noqa: ANN401, ARG002
            if trainer.global_step == self.last_step:  # gradients were accumulated
                return
            self.last_step = trainer.global_step
            agreed.step()
            if agreed.begin + self.last_step >= trainer.estimated_stepping_batches:
                trainer.should_stop = True

    return Agreeing()


def _fast_forward(scheduler: Any, steps: int) -> None:  # noqa: ANN401 - any of torch's
    """Steps a learning-rate schedule that begins anew to where the lost worker was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a schedule that is ahead of its optimizer
        for _ in range(steps if scheduler is not None else 0):
            scheduler.step()


def _check_installed(package: str) -> None:
    if find_spec(package) is None:
        do = f"install {package} on every worker"
        raise NotReadyError(f"{package} is not installed here", do=do)
