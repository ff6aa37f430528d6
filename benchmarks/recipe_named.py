"""Recipes by name; "NAME alone" is one without its start by gradients.

What is measured of rounds must say which: with nothing set a short training agrees on the gradient
of every step.
"""

from typing import Any

from photinus.strategies.recipes import RECIPES
from photinus.strategies.spec import StrategySpec

ALONE = " alone"


def recipe_named(name: str, **parts: Any) -> StrategySpec:
    """Returns the recipe with these parts, and all else as it is."""
    if name.endswith(ALONE):
        parts["gradients_until"] = 0.0
    return RECIPES[name.removesuffix(ALONE)].build(**parts)
