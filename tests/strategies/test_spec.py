"""What a strategy says of itself, refuses and is guarded against."""

import pytest

from photinus.core.clock import Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies import recipes
from photinus.strategies.outer import Adagrad, DelayedNesterov, Descent, Nesterov, Sgd
from photinus.strategies.phase_defaults import PhaseFacts
from photinus.strategies.recipes import RECIPES, averaging, diloco, downpour, elastic


def test_a_strategy_says_what_it_is():
    assert str(recipes.all_reduce()) == "all_reduce every step, merge examples, fp32"
    assert str(recipes.iterative_reduce()).startswith("iterative_reduce every 1 epoch, sgd(lr=1)")
    flowing = recipes.streaming(codec_down="int8")
    assert str(flowing) == (
        "streaming every 100 steps in 4 fragments, nesterov(lr=0.4, momentum=0.9), "
        "merge nova, int4 up, int8 down"
    )
    assert str(recipes.post_local()) == "post_local every 16 steps, sgd(lr=1), merge nova, fp32"
    late = downpour(fetch=Steps(20), outer=Descent(max))
    assert str(late) == (
        "downpour every 10 steps, fetch every 20 steps, descent(function=max), "
        "staleness none, bf16 up, fp32 down"
    )
    assert str(elastic()) == "elastic every 10 steps, alpha 0.9/K, fp32 up, bf16 down"


@pytest.mark.parametrize(
    ("strategy", "same"),
    [
        (averaging(every=Steps(5)), True),
        (averaging(), True),
        (averaging(every=Steps(50) | Seconds(2.0)), False),
        (averaging(every=Steps(5), quorum=0.5), False),
        (recipes.all_reduce(), True),
        (recipes.full_gradient(), True),
        (recipes.iterative_reduce(), True),
        (downpour(), False),
        (elastic(), False),
    ],
    ids=str,
)
def test_bits_repeat_with_a_barrier_and_triggers_that_count_work(strategy, same):
    assert strategy.is_deterministic is same


EIGHT = PhaseFacts(workers=8, steps=1000)


def every_ten(recipe, **parts):
    """A recipe with a trigger of its own, which no length of a run changes."""
    return recipe(every=Steps(10), **parts)


def test_the_guard_clamps_what_carries_too_far():
    tamed, (warning,) = every_ten(averaging, outer=Nesterov(0.7, 0.9)).settled(EIGHT)
    assert tamed == every_ten(averaging, outer=Nesterov(0.7, 0.65))
    assert tamed.outer.gain == pytest.approx(2.0)
    assert "the outer gain lr/(1-momentum) is above 2, " in warning
    unsafe = every_ten(averaging, outer=Nesterov(0.7, 0.9), gain="unsafe")
    assert unsafe.settled(EIGHT) == (unsafe, [])


def test_the_guard_watches_what_is_released_at_once():
    tamed, (warning,) = downpour(outer=Sgd(2.0)).settled(EIGHT)
    assert tamed.outer == Sgd(1.0)
    assert "the outer gain lr/(1-momentum) is above 1/K for each push" in warning
    naive, (warning,) = every_ten(diloco, release="immediate").settled(EIGHT)
    assert naive.outer.gain == pytest.approx(1.0)
    assert "above 1/K for each push" in warning
    unsafe = downpour(outer=Sgd(2.0), gain="unsafe")
    assert unsafe.settled(EIGHT) == (unsafe, [])


@pytest.mark.parametrize(
    "strategy",
    [
        downpour(),
        downpour(outer=Adagrad()),
        downpour(payload="gradient", outer=Sgd(3.0)),
        downpour(outer=Descent(max)),
        elastic(),
    ],
    ids=str,
)
def test_the_guard_leaves_learning_rates_and_the_users_functions_alone(strategy):
    assert strategy.settled(EIGHT) == (strategy, [])


def test_a_delayed_momentum_waits_for_as_many_pushes_as_there_are_workers():
    spec = every_ten(diloco, release="immediate", outer=DelayedNesterov())
    tamed, warnings = spec.settled(EIGHT)
    assert (tamed.outer.pushes, warnings) == (8, [])


@pytest.mark.parametrize("gain", ["safe", "unsafe"])
def test_a_quorum_that_can_never_come_together_is_refused(gain):
    with pytest.raises(
        UsageError, match="a quorum of 9 is more than there are workers; got 8 workers"
    ):
        averaging(quorum=9, gain=gain).check_workers(8)
    averaging(quorum=8, gain=gain).check_workers(8)
    assert averaging(quorum=8).settled(EIGHT) == (averaging(quorum=8), [])


def test_a_grace_needs_a_quorum():
    with pytest.raises(UsageError, match="grace_seconds of averaging needs a quorum"):
        averaging(grace_seconds=2.0)


def test_a_quorum_and_its_grace_are_shown():
    assert "nova, quorum of 0.75 and 2 s, bf16" in str(averaging(quorum=0.75, grace_seconds=2.0))


def test_alone_or_on_gradients_there_is_nothing_to_guard():
    alone = PhaseFacts(workers=1, steps=100)
    wild = averaging(outer=Nesterov(0.7, 0.9))
    assert wild.settled(alone) == (wild, [])
    assert recipes.all_reduce().settled(EIGHT) == (recipes.all_reduce(), [])


@pytest.mark.parametrize(
    ("recipe", "steps", "every"),
    [
        (averaging, 500, 50),
        (averaging, 400, 40),
        (diloco, 600, 60),
        (recipes.streaming, 900, 90),
        (downpour, 60, 6),
        (recipes.post_local, 5, 1),
    ],
)
def test_a_usual_trigger_leaves_room_for_ten_rounds(recipe, steps, every):
    settled, _ = recipe().settled(PhaseFacts(workers=4, steps=steps))
    assert settled.every == Steps(every)
    assert PhaseFacts(workers=4, steps=steps).rounds(settled.every) >= min(10, steps)


def test_a_strategy_with_other_settings_may_be_a_key():
    other = averaging().with_settings({"every": Steps(3)})
    assert {other: 1}[averaging(every=Steps(3))] == 1


@pytest.mark.parametrize(
    ("strategy", "workers", "exact_every"),
    [
        (recipes.gossip(), 8, 10),
        (recipes.gossip(), 9, 5),
        (recipes.gossip(exact_every=10), 16, 10),
        (recipes.publish(), 16, 10),
    ],
    ids=["few", "many", "many, as set", "publish"],
)
def test_many_workers_that_gossip_average_more_often(strategy, workers, exact_every):
    settled, warnings = strategy.settled(PhaseFacts(workers=workers, steps=1000))
    assert (settled.exact_every, warnings) == (exact_every, [])
    assert f"exact every {exact_every} rounds, " in str(settled)
    assert settled.settled(PhaseFacts(workers=workers, steps=1000))[0] == settled


def test_gossip_says_that_its_exact_averages_follow_the_number_of_workers():
    assert "exact every 10 or 5 rounds, " in str(recipes.gossip())
    assert "exact every 10 rounds, " in str(recipes.gossip(exact_every=10))


def test_rounds_of_less_than_half_their_usual_length_are_told():
    _, warnings = diloco().settled(PhaseFacts(workers=4, steps=600))
    assert warnings[0] == (
        "diloco: 600 steps leave no room for 10 rounds of 500 steps; a round has 60 steps; "
        "train longer, or set every=500 steps to keep it"
    )
    assert averaging().settled(PhaseFacts(workers=4, steps=400))[1] == []


def test_a_trigger_that_was_asked_for_is_kept():
    few = PhaseFacts(workers=4, steps=60)
    for spec in (averaging(every=Steps(50)), recipes.post_local(every=Steps(16))):
        settled, warnings = spec.settled(few)
        assert settled.every == spec.every
        assert warnings == []


def test_a_start_by_gradients_is_all_reduce_over_the_same_owners():
    assert averaging().start(4).worker() == recipes.all_reduce().worker()
    assert averaging().start(4).owner() == recipes.all_reduce().owner()
    assert averaging(owners=4).start(4).owners == 4
    assert recipes.gossip().start(3).owners == 3
    assert averaging(quorum=0.75, grace_seconds=2.0).start(4).quorum == 0.75
    for recipe in ("averaging", "diloco", "streaming", "downpour", "elastic", "publish", "gossip"):
        assert RECIPES[recipe].build().gradients_until == "auto"
    assert recipes.post_local().gradients_until == 0.8
    assert recipes.iterative_reduce().gradients_until == 0.0


@pytest.mark.parametrize("until", [-0.1, 1.1, "half"])
def test_a_start_is_a_share_or_auto(until):
    with pytest.raises(UsageError, match="gradients_until of averaging must be a number from 0"):
        averaging(gradients_until=until)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"every": 5}, r"every of averaging must be a trigger, such as Steps\(10\); got 5"),
        ({"outer": "nesterov"}, "outer of averaging must be an outer optimizer"),
    ],
)
def test_a_part_of_another_kind_is_named(parts, said):
    with pytest.raises(UsageError, match=said):
        RECIPES["averaging"].build(**parts)


@pytest.mark.parametrize("steps", [1, 30, 200])
def test_rounds_by_fragments_are_never_shorter_than_their_delay(steps):
    few = PhaseFacts(workers=8, steps=steps)
    for flowing in (recipes.streaming(), recipes.streaming(delay=3, fragments=5)):
        settled, _ = flowing.settled(few)
        assert settled.worker().gap.steps > flowing.delay


@pytest.mark.parametrize(("parts", "steps"), [({}, 64), ({"every": Steps(500)}, 500)])
def test_a_usual_round_over_sharded_tables_has_64_steps_at_most(parts, steps):
    table = {"rows": 8, "owners": 4, "merge": "uniform", "gradients_until": 0.0}
    strategy = recipes.diloco(**table, **parts)
    settled, _ = strategy.settled(PhaseFacts(workers=4, steps=10_000))
    assert (settled.every, f"every {steps} steps, " in str(strategy)) == (Steps(steps), True)
