"""What is compared with what, and the orderings that must hold: E1 to E11."""

from __future__ import annotations

from typing import Any

from photinus.core.clock import Seconds, Steps
from photinus.strategies.immediate import Downpour, Elastic
from photinus.strategies.outer import Adagrad, Adam, DelayedNesterov, Nesterov, Sgd, SlowMo
from photinus.strategies.recipes import downpour, elastic, gossip, publish
from strategies.claims import (
    WORKERS,
    Claim,
    Experiment,
    at_once,
    beats,
    per_step,
    rounds,
    untrained,
    within,
)
from strategies.rules import Compensated, Overwrites, Own
from strategies.trial import Trial

PUBLISHED = Nesterov(lr=0.7, momentum=0.9)
"""DiLoCo's outer step: a gain of 7."""

_TAU = {f"every {n}": Trial(strategy=rounds(n)) for n in (1, 2, 10, 50)}

E1 = Experiment(
    "steps between rounds",
    {
        "one worker": Trial(strategy=rounds(), workers=1),
        "each gradient": per_step(),
        **_TAU,
        **{f"each gradient, K={k}": per_step(workers=k) for k in (2, 4, 16)},
        **{f"every 10, K={k}": Trial(strategy=rounds(), workers=k) for k in (2, 4, 16)},
    },
    (
        Claim(
            "each gradient is no worse than rounds of 10",
            ("each gradient", "every 10"),
            beats(-0.3),
        ),
        Claim(
            "rounds of 10 cost at most a point over rounds of 1", ("every 1", "every 10"), within(1)
        ),
        Claim(
            "rounds of 50 cost at most a point over 1",
            ("every 1", "every 50"),
            within(1),
            is_short=False,
        ),
        Claim(
            "one worker does more steps in a row than eight", ("one worker", "every 10"), beats(0.3)
        ),
    ),
)

E2 = Experiment(
    "the outer step",
    {
        **{
            f"{name}, every {n}": Trial(strategy=rounds(n, outer))
            for n in (2, 10, 50)
            for name, outer in {
                "mean": Sgd(),
                "slowmo(.5)": SlowMo(momentum=0.5),
                "nesterov(.7, .5)": Nesterov(),
                "nesterov(.7, .9)": PUBLISHED,
            }.items()
        },
        **{
            f"AdamW inside: {name}": Trial(strategy=rounds(10, outer), optimizer="adamw", lr=0.003)
            for name, outer in {
                "mean": Sgd(),
                "nesterov(.7, .9)": PUBLISHED,
                "adam(.01) outside": Adam(),
            }.items()
        },
    },
    (
        *(
            Claim(
                f"nesterov(.7, .5) is not worse than the mean, every {n}",
                (f"mean, every {n}", f"nesterov(.7, .5), every {n}"),
                within(0.3),
                is_short=n == 10,
            )
            for n in (2, 10, 50)
        ),
        Claim(
            "a gain of 7 at 2 steps a round is at least three times worse",
            ("mean, every 2", "nesterov(.7, .9), every 2"),
            lambda mean, far: not far.error < 3 * mean.error,
        ),
    ),
)

E3 = Experiment(
    "the inner optimizer's state at a round",
    {
        **{f"kept, every {n}": Trial(strategy=rounds(n)) for n in (2, 10, 50)},
        **{f"lost, every {n}": Trial(strategy=rounds(n), forgets_every=n) for n in (2, 10, 50)},
    },
    (
        Claim("keeping it gains half a point", ("kept, every 10", "lost, every 10"), beats(0.5)),
        Claim("and more at 2 steps", ("kept, every 2", "lost, every 2"), beats(1)),
    ),
)

_GAINS = (0.5, 1, 2, 4)
E4 = Experiment(
    "the gain of a push that is applied at once",
    {
        **{
            f"{g:g}/K, K={k}": Trial(strategy=at_once(outer=Sgd(lr=g)), workers=k)
            for k in (2, 4, 8, 16)
            for g in _GAINS
        },
        **{f"rounds, K={k}": Trial(strategy=rounds(), workers=k) for k in (4, 8)},
    },
    tuple(
        claim
        for k in (4, 8)
        for claim in (
            Claim(
                f"K={k}: 1/K is within a point of rounds",
                (f"rounds, K={k}", f"1/K, K={k}"),
                within(1),
                is_short=k == 8,
            ),
            Claim(
                f"K={k}: 2/K is 1.5 times worse than 1/K",
                (f"1/K, K={k}", f"2/K, K={k}"),
                lambda one, two: not two.error < 1.5 * one.error,
                is_short=False,
            ),
            Claim(f"K={k}: 4/K does not train", (f"4/K, K={k}",), untrained, is_short=k == 8),
        )
    ),
)

E5 = Experiment(
    "rules for pushes that are applied at once",
    {
        "rounds": Trial(strategy=rounds()),
        "sum": Trial(strategy=at_once(outer=Sgd(lr=WORKERS))),
        "1/K": Trial(strategy=at_once()),
        "1/tau": Trial(strategy=at_once(outer=Sgd(lr=WORKERS / 10))),
        "1/(1 + staleness)": Trial(strategy=at_once(outer=Sgd(lr=WORKERS), staleness="inverse")),
        "nesterov(.7, .9) at each push": Trial(
            strategy=at_once(outer=Nesterov(lr=0.7 * WORKERS, momentum=0.9))
        ),
        **{
            f"delayed nesterov({lr:g}, {momentum:g})": Trial(
                strategy=at_once(outer=DelayedNesterov(lr=lr, momentum=momentum, pushes=WORKERS))
            )
            for lr, momentum in ((0.7, 0.3), (0.4, 0.5), (1.0, 0.5), (0.7, 0.9))
        },
        "elastic(.9)": Trial(strategy=elastic(every=Steps(10), codec_down="fp32")),
    },
    (
        Claim("1/K is near rounds", ("rounds", "1/K"), within(0.6)),
        Claim(
            "delayed nesterov(.7, .3) is near rounds",
            ("rounds", "delayed nesterov(0.7, 0.3)"),
            within(0.6),
        ),
        Claim(
            "nesterov at each push does not train", ("nesterov(.7, .9) at each push",), untrained
        ),
        Claim("adding all deltas does not train", ("sum",), untrained),
    ),
)


def _each_gradient(lr: float, strength: float | None = None, **more: Any) -> Trial:
    """Gradients of stale parameters, one after the other, at a constant learning rate."""
    strategy: Any = downpour(
        every=Steps(1), payload="gradient", outer=Sgd(lr=lr), codec="fp32", **more
    )
    if strength is not None:
        worker = Downpour(every=Steps(1), payload="gradient")
        owner = Compensated(outer=Sgd(lr=lr), strength=strength)
        strategy = Own(name="compensated", halves=(worker, owner))
    return Trial(strategy=strategy, lr=lr, momentum=0.0)


E6 = Experiment(
    "a push after every step, applied at once",
    {
        **{f"plain, lr {lr:g}": _each_gradient(lr) for lr in (0.05, 0.1, 0.2)},
        **{
            f"compensated({s:g}), lr {lr:g}": _each_gradient(lr, s)
            for lr, s in ((0.05, 2), (0.1, 0.04), (0.1, 0.5), (0.1, 2), (0.2, 2))
        },
        "1/(1 + staleness), lr 0.2": _each_gradient(0.2, staleness="inverse"),
        "adagrad(.01)": Trial(
            strategy=downpour(
                every=Steps(1), payload="gradient", outer=Adagrad(lr=0.01), codec="fp32"
            ),
            momentum=0.0,
        ),
    },
    (
        Claim(
            "compensation gains a point",
            ("compensated(2), lr 0.1", "plain, lr 0.1"),
            beats(1),
        ),
    ),
)

E7 = Experiment(
    "one worker four times slower",
    {
        "each gradient": per_step(is_uneven=True),
        "10 steps": Trial(strategy=rounds(), is_uneven=True),
        **{
            f"0.1 seconds, {merge}": Trial(
                strategy=rounds(every=Seconds(0.0999), merge=merge), is_uneven=True
            )
            for merge in ("uniform", "examples", "nova")
        },
        "at once, 1/K": Trial(strategy=at_once(), is_uneven=True),
        "gossip": Trial(strategy=gossip(every=Steps(10), codec="fp32"), is_uneven=True),
        "publish": Trial(strategy=publish(every=Steps(10), codec="fp32"), is_uneven=True),
        "0.1 seconds, two deaths": Trial(
            strategy=rounds(every=Seconds(0.0999), merge="nova"),
            is_uneven=True,
            dies=((0.35, 1, 0.1), (0.52, 4, 0.2)),
        ),
    },
    (
        *(
            Claim(
                f"{name} takes less than half of the time of 10 steps",
                ("10 steps", name),
                lambda steps, other: other.seconds < steps.seconds / 2,
            )
            for name in ("0.1 seconds, nova", "at once, 1/K", "gossip")
        ),
        Claim("rounds in seconds cost nothing", ("10 steps", "0.1 seconds, nova"), within(0.6)),
        Claim(
            "two lost rounds cost little",
            ("0.1 seconds, nova", "0.1 seconds, two deaths"),
            within(0.6),
        ),
    ),
)

E8 = Experiment(
    "no owner",
    {
        **_TAU,
        **{
            f"gossip, {graph}, every {n}": Trial(
                strategy=gossip(every=Steps(n), codec="fp32", graph=graph)
            )
            for n in (1, 10, 50)
            for graph in (("exponential", "ring", "random") if n == 10 else ("exponential",))
        },
        "publish, every 10": Trial(strategy=publish(every=Steps(10), codec="fp32")),
        "rounds, K=16": Trial(strategy=rounds(), workers=16),
        **{
            f"gossip, every {n}, exact every {exact}, K=16": Trial(
                strategy=gossip(every=Steps(n), codec="fp32", exact_every=exact), workers=16
            )
            for n, exact in ((5, 5), (10, 5), (10, 10))  # a run's default is 5 of so many workers
        },
        "publish, every 10, K=16": Trial(
            strategy=publish(every=Steps(10), codec="fp32"), workers=16
        ),
    },
    (
        *(
            Claim(
                f"{name} of 16 workers is near averaging",
                ("rounds, K=16", f"{name}, K=16"),
                within(0.5),
                is_short=False,
            )
            for name in (
                "gossip, every 5, exact every 5",
                "gossip, every 10, exact every 5",
                "publish, every 10",
            )
        ),
        Claim(
            "gossip at 10 steps is near averaging",
            ("every 10", "gossip, exponential, every 10"),
            within(0.5),
            is_short=False,
        ),
        Claim(
            "gossip at 1 step is near averaging",
            ("every 1", "gossip, exponential, every 1"),
            within(0.5),
            is_short=False,
        ),
        Claim(
            "gossip trains to within two points in a few rounds",
            ("every 10", "gossip, exponential, every 10"),
            within(2),
        ),
    ),
)

E9 = Experiment(
    "weights that overwrite, and deltas",
    {
        **{
            f"overwritten, every {n}": Trial(
                strategy=Own(name="overwrites", halves=(Elastic(every=Steps(n)), Overwrites()))
            )
            for n in (10, 50)
        },
        "published, 1/K": Trial(strategy=publish(every=Steps(10), codec="fp32")),
        **{f"owner, {g:g}/K": Trial(strategy=at_once(outer=Sgd(lr=g))) for g in (1, 2, WORKERS)},
    },
    (
        Claim(
            "published deltas beat overwriting by a point",
            ("published, 1/K", "overwritten, every 10"),
            beats(1),
        ),
        Claim("deltas of gain 1 each do not train", ("owner, 8/K",), untrained),
    ),
)

E10 = Experiment(
    "codecs",
    {
        **{
            f"rounds, {codec}": Trial(strategy=rounds(codec=codec))
            for codec in ("fp32", "bf16", "int8", "int4")
        },
        **{f"each gradient, {codec}": per_step(codec) for codec in ("fp32", "int8", "int4")},
    },
    (
        *(
            Claim(f"{codec} costs nothing", ("rounds, fp32", f"rounds, {codec}"), within(0.3))
            for codec in ("bf16", "int8", "int4")
        ),
        Claim(
            "int4 sends less than a fifth",
            ("rounds, fp32", "rounds, int4"),
            lambda whole, small: small.megabytes < whole.megabytes / 5,
        ),
    ),
)

E11 = Experiment(
    "each worker has a range of the labels",
    {
        "shuffled, every 10": Trial(strategy=rounds()),
        "each gradient": per_step(is_sorted=True),
        **{f"every {n}": Trial(strategy=rounds(n), is_sorted=True) for n in (10, 50)},
        **{
            f"at once, every {n}": Trial(strategy=at_once(n), is_sorted=True, lr=0.02)
            for n in (10, 50)
        },
        "gossip, every 10": Trial(
            strategy=gossip(every=Steps(10), codec="fp32"), is_sorted=True, lr=0.02
        ),
    },
    (
        Claim("rounds of 10 lose", ("each gradient", "every 10"), beats(1)),
        Claim("rounds of 50 lose more", ("every 10", "every 50"), beats(1)),
        Claim(
            "the user is warned, and only then",
            ("every 10", "shuffled, every 10"),
            lambda skewed, even: skewed.is_warned_of_skew and not even.is_warned_of_skew,
        ),
    ),
)

EXPERIMENTS = {
    f"E{number}": experiment
    for number, experiment in enumerate((E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11), 1)
}
