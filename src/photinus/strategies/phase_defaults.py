"""Follows from a phase's length: start by gradients, rounds, and outer gain."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from photinus.core.clock import Trigger
from photinus.core.errors import user_message
from photinus.strategies.outer import OuterOptimizer

AUTO = "auto"
ENOUGH_STEPS = 7500
"""With "auto", so many steps of a phase begin it by gradients."""
_FEW_ROUNDS = 10
_FEW_STEPS = 200
"""Of workers that train alone."""
_ENOUGH_WHOLE_STEPS = 100
"""Of gradients over all rows: as many as MLlib's optimizers take."""
_LONG_STEPS = 100
"""For rounds of so many steps, or more, the user is advised to shorten them."""
_FEW_WORKERS = 8
_USUAL_STEPS = 50
"""How long a round is assumed to be where its trigger does not count steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseFacts:
    """What is known of a phase, or of a part of it."""

    workers: int
    steps: int
    """Of each worker."""
    epochs: float = 1.0
    is_adaptive: bool = False
    """True with Adam, AdamW and the like inside."""

    def rounds(self, every: Trigger) -> float:
        """Returns how many rounds a trigger leaves room for."""
        if every.steps is None and every.epochs is not None:
            return self.epochs / every.epochs
        return self.steps / (every.steps or _USUAL_STEPS)


def gradient_share(gradients_until: float | str, steps: int) -> float:
    """Returns until which share of a phase the workers agree on gradients.

    K workers that train alone between rounds learn less from the same examples than one process
    does while the run is short: on 20,000 digits, 2 epochs of SGD with momentum and K = 16,
    `averaging` from the start ends 12 points above the plain loop, after three quarters by
    gradients 0.04. "auto" takes the first 7,500 steps of a phase, which may be all of them: what
    small batches of workers that train alone cost, a short run has no steps to make up for.

    Example:
        >>> [gradient_share("auto", steps) for steps in (100, 6000, 10_000, 50_000)]
        [1.0, 1.0, 0.75, 0.15]
    """
    return min(1.0, ENOUGH_STEPS / steps) if gradients_until == AUTO else float(gradients_until)


def shorten(every: Trigger, phase: PhaseFacts, min_steps: int = 1) -> tuple[Trigger, str]:
    """Returns a trigger in steps that leaves room for ten rounds, and a warning or "".

    With fewer rounds a worker's last parameters weigh more than what was agreed on.

    Args:
        every: the recipe's usual trigger.
        phase: what is known of it.
        min_steps: steps that a round must have.

    Example:
        >>> from photinus.core.clock import Steps
        >>> str(shorten(Steps(500), PhaseFacts(workers=4, steps=600))[0])
        '60 steps'
    """
    if every.steps is None or phase.workers == 1 or phase.rounds(every) >= _FEW_ROUNDS:
        return every, ""
    steps = max(min_steps, phase.steps // _FEW_ROUNDS)
    shorter = dataclasses.replace(every, steps=steps)
    if every.steps < _LONG_STEPS:
        return shorter, ""
    wrong = f"{phase.steps} steps leave no room for {_FEW_ROUNDS} rounds of {every}"
    do = f"train longer, or set every={every.steps} steps to keep it"
    return shorter, user_message(wrong, then=f"a round has {shorter}", do=do)


def seldom_agreed(every: Trigger, phase: PhaseFacts) -> str:
    """Returns a warning where rounds of epochs are too few, or the steps in all of them, or "".

    Args:
        every: when the workers agree.
        phase: what is known of it.

    Example:
        >>> from photinus.core.clock import Epochs
        >>> seldom_agreed(Epochs(1), PhaseFacts(workers=4, steps=3000, epochs=30.0))
        ''
    """
    is_by_epochs = every.steps is None and every.epochs is not None
    is_long = phase.rounds(every) >= _FEW_ROUNDS and phase.steps >= _FEW_STEPS
    if not is_by_epochs or is_long or phase.workers == 1:
        return ""
    rounds = max(1, math.floor(phase.rounds(every)))
    return user_message(
        f"workers that agree every {every} learn less than one process in a short training",
        got=f"{phase.steps} steps in {rounds} round{'s' * (rounds > 1)}",
        do='train longer, or set gradients_until="auto" to begin by gradients',
    )


def few_whole_steps(phase: PhaseFacts) -> str:
    """Returns a warning where steps of all rows are few, or "".

    Args:
        phase: what is known of it.

    Example:
        >>> few_whole_steps(PhaseFacts(workers=4, steps=900, epochs=100.0))
        ''
    """
    if phase.epochs >= _ENOUGH_WHOLE_STEPS:
        return ""
    steps = max(1, math.ceil(phase.epochs))
    return user_message(
        "one step an epoch learns little",
        got=f"{steps} step{'s' * (steps > 1)} in all",
        do=f"train for {_ENOUGH_WHOLE_STEPS} epochs or more, or use all_reduce",
    )


def no_start(phase: PhaseFacts) -> str:
    """Returns a warning where a short phase over sharded tables has no start by gradients, or "".

    Args:
        phase: what is known of it.

    Example:
        >>> no_start(PhaseFacts(workers=4, steps=10_000))
        ''
    """
    if phase.workers == 1 or phase.steps >= ENOUGH_STEPS:
        return ""
    return user_message(
        "workers without a start by gradients learn less than one process in a short training",
        got=f"{phase.steps} steps",
        do="leave per_tensor out, and use an optimizer such as adamw, to have that start",
    )


def gossip_exact_every(usual: int, workers: int = _FEW_WORKERS + 1) -> int:
    """Returns how many messages of each worker there are between two exact averages of `gossip`.

    The more workers, the longer a message takes to reach all of them. Measured on 20,000 digits, 6
    epochs, three seeds: with 10 messages, 8, 12 and 16 workers ended .18, .44 and .64 points above
    rounds, with 5 messages .19, .31 and .39.

    Example:
        >>> gossip_exact_every(10, workers=8), gossip_exact_every(10, workers=16)
        (10, 5)
    """
    return usual if workers <= _FEW_WORKERS else -(-usual // 2)


def gain_limit(every: Trigger, phase: PhaseFacts, *, is_immediate: bool) -> float:
    """Returns the largest gain lr/(1−momentum) that is taken as asked.

    Where each push is applied on arrival: 1, on top of the division by the workers. In rounds: 2
    with SGD inside, 1.5 below 5 steps a round; 7 with an adaptive optimizer inside, at least 4
    workers, 30 rounds and 5 steps a round. Measured: with SGD inside, nesterov(.7, .9) (gain 7)
    raised the error of 8 workers from 4.3 to 6.6 % at 10 steps a round and to 32.7 % at 2; of 8
    asynchronous workers, a gain of 1/K gave 4.4 %, 2/K 14.5 % and 4/K 72 %.
    """
    if is_immediate:
        return 1.0
    if every.steps is not None and every.steps < 5:
        return 1.5
    if phase.is_adaptive and phase.workers >= 4 and math.floor(phase.rounds(every)) >= 30:
        return 7.0
    return 2.0


def clamp(
    outer: OuterOptimizer, every: Trigger, phase: PhaseFacts, *, is_immediate: bool = False
) -> tuple[OuterOptimizer, str]:
    """Returns the outer optimizer with its gain within the limit, and a warning or "".

    The momentum is lowered, and the rate only where it is above the limit by itself: with a lowered
    rate the first rounds would hardly move the model.

    Example:
        >>> from photinus.core.clock import Steps
        >>> from photinus.strategies.outer import Nesterov
        >>> s = PhaseFacts(workers=8, steps=1000)
        >>> clamp(Nesterov(lr=0.7, momentum=0.9), Steps(10), s)[0]
        Nesterov(lr=0.7, momentum=0.65)
    """
    max_gain = gain_limit(every, phase, is_immediate=is_immediate)
    if outer.gain is None or outer.gain <= max_gain * (1 + 1e-9):
        return outer, ""
    lr = min(outer.lr, max_gain)  # type: ignore[attr-defined]
    changes = {"lr": lr}
    if hasattr(outer, "momentum"):
        changes["momentum"] = round(max(0.0, 1 - lr / max_gain), 6)
    clamped = dataclasses.replace(outer, **changes)  # type: ignore[type-var]
    unit = "/K for each push" if is_immediate else ""
    new_values = ", ".join(f"{name} {value:.3g}" for name, value in changes.items())
    warning = user_message(
        f"the outer gain lr/(1-momentum) is above {max_gain:g}{unit}, "
        "where training was seen to diverge",
        got=f"{outer.gain:.3g}",
        then=f"{outer.name} lowered to {new_values}",
        do='set gain="unsafe" to take it as asked',
    )
    return clamped, warning
