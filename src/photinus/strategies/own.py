"""A user's own strategy, by the name of its factory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from photinus.core.errors import UsageError
from photinus.core.factories import code_named
from photinus.strategies.base import Policy, Strategy


@dataclass(frozen=True, slots=True)
class Own:
    """`package.module:name`, called without arguments, makes an object with both halves.

    Args:
        recipe: that name; every worker must be able to import it. The object has `strategy()`, the
            worker's half, and `policy()`, the owner's; with `is_deterministic = True` the workers'
            shares are fixed in advance. `check_strategy` tells whether it keeps the contract.

    Raises:
        UsageError: it cannot be imported, or has not both halves.

    Example:
        >>> str(Own("photinus.strategies.recipes:averaging"))
        'photinus.strategies.recipes:averaging'
    """

    recipe: str

    def __post_init__(self) -> None:
        _made(self.recipe)

    def __str__(self) -> str:
        return self.recipe

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits."""
        return bool(getattr(_made(self.recipe), "is_deterministic", False))

    def strategy(self) -> Strategy:
        """Returns the worker's half."""
        half: Strategy = _made(self.recipe).strategy()
        return half

    def policy(self) -> Policy:
        """Returns the owner's half."""
        half: Policy = _made(self.recipe).policy()
        return half


@functools.cache
def _made(name: str) -> Any:  # noqa: ANN401 - an object of the user's
    made = code_named(name, "strategy")()
    missing = [half for half in ("strategy", "policy") if not callable(getattr(made, half, None))]
    if missing:
        wrong, got = f"the strategy {name!r} needs strategy() and policy()", type(made).__name__
        raise UsageError(wrong, got=f"{got} without {' and '.join(missing)}")
    return made
