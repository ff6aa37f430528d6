"""Loss curves that are kept: a change that alters numbers shows here.

After a change that is meant to, write them anew: `pytest tests/system/test_golden.py --golden`.
"""

import json
from pathlib import Path

import pytest

from photinus.core.clock import Steps
from photinus.strategies.recipes import (
    RECIPES,
    diloco,
    from_plain,
    gossip,
    post_local,
    publish,
    streaming,
)

pytestmark = pytest.mark.numerics

FOLDER = Path(__file__).parents[1] / "golden"
SHORT = {
    "averaging": from_plain({"every": {"steps": 10}}),
    "diloco": diloco(every=Steps(10)),
    "streaming": streaming(every=Steps(12)),
    "post_local": post_local(gradients_until=0.5),
    "gossip": gossip(every=Steps(5), exact_every=4),
    "publish": publish(every=Steps(5), exact_every=4),
}
"""Recipes whose usual rounds, or start, are longer than this problem."""


@pytest.mark.parametrize("name", RECIPES)
def test_the_loss_curve_is_the_one_that_is_kept(field, request, name):
    cluster = {"step_seconds": (0.01, 0.02, 0.01, 0.01)}
    strategy = SHORT.get(name, from_plain(name))
    is_split = name == "post_local"  # the others start by gradients in long phases only
    played = field.play(strategy, epochs=6, cluster=cluster, is_split=is_split).run()
    losses = [r.metrics["loss"] for r in played.tape.of("RoundClosed")]
    curve = {
        "losses": losses[:: max(1, len(losses) // 12)],
        "final": field.loss(played.vector),
        "rounds": len(losses),
        "virtual_seconds": played.simulation.now,
        "bytes": played.simulation.bytes,
    }
    golden = FOLDER / f"{name}.json"
    if request.config.getoption("golden"):
        golden.write_text(json.dumps(curve, indent=1) + "\n")
    expected = json.loads(golden.read_text())
    assert curve == {
        key: pytest.approx(value, rel=1e-5, abs=1e-5) for key, value in expected.items()
    }


def test_no_curve_is_kept_of_a_recipe_that_is_gone():
    assert {p.stem for p in FOLDER.glob("*.json")} == set(RECIPES)
