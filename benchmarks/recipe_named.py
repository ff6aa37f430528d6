"""Recipes by name: "NAME alone" has no start by gradients, "NAME until 0.9" has one of that share.

What is measured of rounds must say which: with nothing set the first 7,500 steps agree on the
gradient of every step.
"""

from typing import Any

from photinus.strategies.recipes import RECIPES
from photinus.strategies.spec import StrategySpec

ALONE, UNTIL = " alone", " until "


def recipe_named(name: str, **parts: Any) -> StrategySpec:
    """Returns the recipe with these parts, and all else as it is."""
    name, _, share = name.partition(UNTIL)
    if share or name.endswith(ALONE):
        parts["gradients_until"] = float(share or 0.0)
    return RECIPES[name.removesuffix(ALONE)].build(**parts)
