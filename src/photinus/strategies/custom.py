"""A user's own strategy, by the name of its factory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from photinus.core.errors import UsageError, reason_of
from photinus.core.factories import resolve_user_code
from photinus.strategies.base import GRADIENT, SITES, Policy, Strategy, former_names
from photinus.strategies.outer import OUTERS

_NEEDED = {
    "worker": ("site", "init", "due", "offer", "accept"),
    "owner": ("init", "receive", "close", "agreed", *Policy.__annotations__),
}
"""What each half must have; `check_strategy` checks what they do."""


@dataclass(frozen=True, slots=True)
class CustomStrategy:
    """`package.module:name`, called without arguments, makes an object with both halves.

    Args:
        recipe: that name; every worker must be able to import it. The object has `worker()`, the
            worker's half, and `owner()`, the owner's; with `is_deterministic = True` the workers'
            shares are fixed in advance. `check_strategy` checks whether it keeps the contract.

    Raises:
        UsageError: it is no name, cannot be imported or called, has not both halves, or these do
            not belong together.

    Example:
        >>> str(CustomStrategy("photinus.strategies.recipes:averaging"))
        'photinus.strategies.recipes:averaging'
    """

    recipe: str

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, str):
            do = 'write its class into a file, and name it "package.module:name"'
            got = type(self.recipe).__name__
            raise UsageError("a strategy of your own is named, not handed over", got=got, do=do)
        _build_strategy(self.recipe)

    def __str__(self) -> str:
        return self.recipe

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits."""
        return bool(getattr(_build_strategy(self.recipe), "is_deterministic", False))

    def worker(self) -> Strategy:
        """Returns the worker's half."""
        half: Strategy = _build_strategy(self.recipe).worker()
        return half

    def owner(self) -> Policy:
        """Returns the owner's half."""
        half: Policy = _build_strategy(self.recipe).owner()
        return half


@functools.cache
def _build_strategy(name: str) -> Any:  # noqa: ANN401 - an object of the user's
    factory = resolve_user_code(name, "strategy")
    try:
        strategy = factory()
    except Exception as error:  # whatever the user's code raises
        wrong, do = f"the strategy {name!r} cannot be made", "it is called without arguments"
        raise UsageError(wrong, got=reason_of(error), do=do) from error
    missing = [half for half in ("worker", "owner") if not callable(getattr(strategy, half, None))]
    if missing:
        wrong, got = f"the strategy {name!r} needs worker() and owner()", type(strategy).__name__
        raise UsageError(wrong, got=f"{got} without {' and '.join(missing)}")
    halves = {half: _made_half(name, strategy, half) for half in _NEEDED}
    _check_site(name, halves)
    _check_outer(name, halves)
    return strategy


def _made_half(name: str, strategy: Any, half: str) -> Any:  # noqa: ANN401 - likewise
    try:
        made = getattr(strategy, half)()
    except Exception as error:  # as above; of a class, that it leaves functions out
        wrong = f"{half}() of the strategy {name!r} cannot be called"
        raise UsageError(wrong, got=reason_of(error)) from error
    for former, present in former_names(made).items():
        wrong = f"{former} of {half}() of the strategy {name!r} is not read any more"
        raise UsageError(wrong, got=type(made).__name__, do=f"name it {present}")
    if absent := [needed for needed in _NEEDED[half] if not hasattr(made, needed)]:
        wrong = f"{half}() of the strategy {name!r} returns something without {absent[0]}"
        is_plain = absent[0] in Policy.__annotations__
        do = "derive its class from photinus.Policy" if is_plain else f"add {absent[0]}"
        raise UsageError(wrong, got=type(made).__name__, do=do)
    return made


def _check_site(name: str, halves: dict[str, Any]) -> None:
    """Refuses a site that there is not, and gradients for an owner that waits for deltas."""
    site = halves["worker"].site
    if site not in SITES:
        wrong = f"site of worker() of the strategy {name!r} must be one of {', '.join(SITES)}"
        raise UsageError(wrong, got=repr(site))
    if site == GRADIENT and halves["owner"].holds_parameters:
        wrong = f"workers of the strategy {name!r} push gradients, but its owner holds parameters"
        got = f"site {site!r} and holds_parameters {halves['owner'].holds_parameters!r}"
        raise UsageError(wrong, got=got, do="return Rounds(holds_parameters=False) from owner()")


def _check_outer(name: str, halves: dict[str, Any]) -> None:
    """Refuses halves that step differently: the result would be that of neither."""
    worker, owner = (getattr(half, "outer", None) for half in halves.values())
    if {type(worker), type(owner)} <= set(OUTERS.values()) and worker != owner:
        wrong = f"the two halves of the strategy {name!r} have different outer optimizers"
        raise UsageError(wrong, got=f"{worker} and {owner}", do="set outer of both")
