"""Callbacks of well-known trainers that agree after each optimizer step."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

__all__ = ["Agrees", "for_lightning", "for_transformers"]


class Agrees(Protocol):
    """What a callback drives: `engine.agree.Agreed`."""

    begin: int

    def step(self) -> None:
        """The optimizer has stepped."""


def for_transformers(agreed: Agrees) -> Any:  # noqa: ANN401 - a TrainerCallback
    """Returns a callback of `transformers.Trainer`."""
    from transformers import TrainerCallback

    class Agreeing(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:  # noqa: ANN401, ARG002
            state.global_step = agreed.begin
            _forward(of.get("lr_scheduler"), agreed.begin)

        def on_step_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:  # noqa: ANN401, ARG002
            agreed.step()

    return Agreeing()


def for_lightning(agreed: Agrees) -> Any:  # noqa: ANN401 - a Callback
    """Returns a callback of `lightning.Trainer`."""
    from lightning.pytorch import Callback

    class Agreeing(Callback):  # type: ignore[misc]
        stepped = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:  # noqa: ANN401, ARG002
            self.stepped = trainer.global_step
            for config in trainer.lr_scheduler_configs:
                _forward(config.scheduler, agreed.begin)

        def on_train_batch_end(self, trainer: Any, module: Any, *of: Any) -> None:  # noqa: ANN401, ARG002
            if trainer.global_step == self.stepped:  # gradients were accumulated
                return
            self.stepped = trainer.global_step
            agreed.step()
            if agreed.begin + self.stepped >= trainer.estimated_stepping_batches:
                trainer.should_stop = True

    return Agreeing()


def _forward(scheduler: Any, steps: int) -> None:  # noqa: ANN401 - any of torch's
    """Steps a learning-rate schedule that begins anew to where the lost worker was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a schedule that is ahead of its optimizer
        for _ in range(steps if scheduler is not None else 0):
            scheduler.step()
