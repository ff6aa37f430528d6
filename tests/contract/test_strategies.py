"""Every recipe keeps the contract, and the suite sees each way of breaking it."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest

from photinus.core.clock import Clock, Epochs, Examples, Seconds, Steps
from photinus.strategies.base import Message, Reply, Turn
from photinus.strategies.outer import Adagrad, Adam, DelayedNesterov, Descent, SlowMo
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
    diloco,
    downpour,
    from_plain,
    streaming,
)
from photinus.strategies.rounds import AllReduce, Averaging, Rounds
from photinus.testing import check_strategy

VARIANTS = {
    "seconds": averaging(every=Seconds(1.0)),
    "examples": averaging(every=Examples(50)),
    "either": averaging(every=Steps(9) | Epochs(0.5)),
    "slowmo": averaging(outer=SlowMo(lr=0.9, momentum=0.4)),
    "adagrad": averaging(outer=Adagrad()),
    "adam": diloco(every=Steps(4), outer=Adam()),
    "quorum": averaging(quorum=0.5, grace_seconds=0.2),
    "three of them": averaging(quorum=3),
    "fp32": averaging(codec="fp32"),
    "at once": diloco(every=Steps(4), release="immediate", outer=DelayedNesterov(pushes=3)),
    "fetch apart": downpour(every=Steps(2), fetch=Steps(5)),
    "fetch more": downpour(every=Steps(5), fetch=Steps(2)),
    "gradients": downpour(payload="gradient", outer=Adagrad()),
    "descent": downpour(payload="gradient", outer=Descent(lambda held, g: held - 0.1 * g)),
    "inverse": downpour(staleness="inverse"),
    "dropped": downpour(staleness=1),
    "by examples": averaging(merge="examples"),
    "int8": averaging(codec="int8"),
    "fragments at once": streaming(every=Steps(8), delay=0),
    "one fragment": streaming(every=Steps(8), delay=3, fragments=1, codec="bf16"),
    "fragments in seconds": streaming(every=Seconds(2.0), fragments=3, codec="fp32"),
    "int4": averaging(codec="int4", every=Steps(5)),
    "int4 up": averaging(codec="int4", codec_down="bf16"),
    "gradient in int8": all_reduce(codec="int8"),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_keeps_the_contract(name, dtype):
    check_strategy(from_plain(name), dtype=dtype)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_part_keeps_the_contract(name):
    check_strategy(VARIANTS[name])


class Mine:
    """A way of one's own, of plain objects: swap every step, meet in the middle."""

    site = "parameters"

    def init(self, vector):
        return {"anchor": vector.copy(), "version": 0, "sent": Clock()}

    def due(self, clock, state):
        return (Turn("swap"),) if clock.steps > state["sent"].steps else ()

    def offer(self, turn, vector, clock, state):
        since = clock.since(state["sent"])
        delta = state["anchor"] - vector
        return Message("push", delta, since=since, version=state["version"]), state

    def accept(self, vector, incoming, state):
        anchor = state["anchor"] - incoming.vector
        sent = state["sent"]
        if incoming.kind == "heal":
            anchor = incoming.vector.copy()
            vector -= state["anchor"] - anchor
        else:
            vector[:] = anchor
            sent = Clock(10**6)
        return {"anchor": anchor, "version": incoming.version, "sent": sent}


class MyOwner:
    """Its owner, from the parts of the house."""

    holds_parameters, has_rounds, quorum, grace_seconds = True, True, 1.0, 0.0

    def __init__(self):
        self._rounds = Rounds()
        self.init, self.receive = self._rounds.init, self._rounds.receive
        self.close, self.agreed = self._rounds.close, self._rounds.agreed


def test_a_strategy_of_ones_own_is_any_object_with_the_functions():
    class Counting(Mine):
        def accept(self, vector, incoming, state):
            after = super().accept(vector, incoming, state)
            if incoming.kind == "agreed":
                after["sent"] = state["now"]
            return after | {"now": state.get("now", Clock())}

        def offer(self, turn, vector, clock, state):
            message, state = super().offer(turn, vector, clock, state)
            return message, state | {"now": clock}

    check_strategy(SimpleNamespace(worker=Counting, owner=MyOwner))


def broken(half, **functions):
    """The averaging (or the all_reduce) halves with some functions replaced."""
    worker, owner = Averaging(every=Steps(3)), Rounds()
    if half == "gradient":
        worker, owner = AllReduce(), Rounds(holds_parameters=False)
    target = owner if half == "owner" else worker
    changed = SimpleNamespace(
        **{
            name: getattr(target, name)
            for name in dir(target)
            if not name.startswith("_") and name not in functions
        }
    )
    for name, function in functions.items():
        wrapped = function
        if callable(function):
            wrapped = functools.partial(function, getattr(target, name))
        setattr(changed, name, wrapped)
    return SimpleNamespace(
        worker=lambda: worker if half == "owner" else changed,
        owner=lambda: changed if half == "owner" else owner,
    )


def offer_that_moves(real, turn, vector, clock, state):
    message, after = real(turn, vector, clock, state)
    vector += 1
    return message, after


def offer_that_shares(real, turn, vector, clock, state):
    message, after = real(turn, vector, clock, state)
    return message._replace(vector=vector), after


def offer_that_writes_state(real, turn, vector, clock, state):
    state.anchor[0] += 1
    return real(turn, vector, clock, state)


def offer_that_remembers():
    calls = []

    def offer(real, turn, vector, clock, state):
        calls.append(1)
        message, after = real(turn, vector, clock, state)
        return message._replace(vector=message.vector + len(calls)), after

    return offer


def offer_nothing(real, turn, vector, clock, state):
    return None, state


def offer_that_forgets(real, turn, vector, clock, state):
    """Counts the work as agreed when it is only sent."""
    message, after = real(turn, vector, clock, state)
    return message, after._replace(counted=clock)


def offer_that_drops(real, turn, vector, clock, state):
    """Starts the next delta where this one was sent from."""
    message, after = real(turn, vector, clock, state)
    return message, after._replace(anchor=vector.copy())


def accept_that_overwrites(real, vector, incoming, state):
    after = real(vector, incoming, state)
    if incoming.kind == "heal":
        vector[:] = incoming.vector
    return after


def accept_of_its_own(real, vector, incoming, state):
    after = real(vector, incoming, state)
    vector += np.float32(0.1) * np.random.default_rng().random()
    return after


def accept_that_writes_message(real, vector, incoming, state):
    after = real(vector, incoming, state)
    if incoming.vector is not None:
        incoming.vector[0] += 1
    return after


def accept_that_writes_state(real, vector, incoming, state):
    after = real(vector, incoming, state)
    state.anchor[0] += 1
    return after


def accept_nan(real, vector, incoming, state):
    after = real(vector, incoming, state)
    vector[0] = np.nan
    return after


def accept_another_outer(real, vector, incoming, state):
    after = real(vector, incoming, state)
    return after._replace(outer=(np.ones(3),))


def receive_that_broadcasts(real, slot, message, members, state):
    replies, state = real(slot, message, members, state)
    extra = [Reply(s, replies[0].message) for s in (0, 1, 2)] if replies else []
    return extra, state


def close_that_broadcasts(real, members, state):
    replies, state = real(members, state)
    return [Reply(s, replies[0].message) for s in (0, 1, 2)] if replies else [], state


def close_at_once(real, slot, message, members, state):
    return real(slot, message, frozenset({slot}), state)


def close_twice(real, members, state):
    replies, _ = real(members, state)
    return replies, state


def receive_that_writes(real, slot, message, members, state):
    state.vector[0] += 1
    return real(slot, message, members, state)


def close_that_writes(real, members, state):
    state.vector[0] += 1
    return real(members, state)


def receive_deaf(real, slot, message, members, state):
    if message.version != state.version:
        return [], state
    return real(slot, message, members, state)


def receive_agreed(real, slot, message, members, state):
    replies, state = real(slot, message, members, state)
    return [r._replace(message=r.message._replace(kind="agreed")) for r in replies], state


def due_never(real, clock, state):
    return ()


def due_always(real, clock, state):
    return (Turn("swap"),)


def due_open_end(real, clock, state):
    return () if clock.closing else real(clock, state)


def due_without_end(real, clock, state):
    return (Turn("swap"),) if clock.closing and clock.steps else real(clock, state)


def init_elsewhere(real, point):
    return real(point._replace(vector=point.vector + 1))


BREAKS = [
    ("worker", {"site": "nowhere"}, "site is"),
    ("owner", {"quorum": 1.5}, "share of the members"),
    ("owner", {"grace_seconds": -1}, "is a time"),
    ("worker", {"due": due_never}, "nothing was due"),
    ("worker", {"due": due_always}, "nothing is unsent before"),
    ("worker", {"due": due_open_end}, "holds more than was agreed"),
    ("worker", {"due": due_without_end}, "leaves something unsent"),
    ("worker", {"offer": offer_that_moves}, "the same offer|offer changed the vector"),
    ("worker", {"offer": offer_that_shares}, "copy the vector"),
    ("gradient", {"offer": offer_that_shares}, "copy the vector"),
    ("worker", {"offer": offer_that_writes_state}, "offer changed the state"),
    ("worker", {"offer": offer_that_remembers()}, "the same offer"),
    ("worker", {"offer": offer_nothing}, "offers a message"),
    ("worker", {"offer": offer_that_forgets}, "loses the work|more than was agreed"),
    ("worker", {"offer": offer_that_drops}, "differ after a round|loses progress|accept"),
    ("worker", {"accept": accept_that_overwrites}, "unsent progress on top"),
    ("worker", {"accept": accept_of_its_own}, "differ"),
    ("worker", {"accept": accept_that_writes_message}, "accept changed the message"),
    ("worker", {"accept": accept_that_writes_state}, "accept changed the state"),
    ("worker", {"accept": accept_nan}, "not finite"),
    ("owner", {"receive": receive_that_broadcasts}, "or others were|answered"),
    ("owner", {"close": close_that_broadcasts}, "or others were"),
    ("owner", {"receive": close_at_once}, "too soon"),
    ("owner", {"close": close_twice}, "answered twice"),
    ("owner", {"receive": receive_that_writes}, "receive changed the state"),
    ("owner", {"close": close_that_writes}, "close changed the state"),
    ("owner", {"receive": receive_deaf}, "answered at once"),
    ("owner", {"receive": receive_agreed}, "must heal"),
    ("owner", {"init": init_elsewhere}, "owner and workers differ"),
    ("worker", {"due": lambda real, *args: None}, "due returns a tuple of Turns, not None"),
    ("worker", {"due": lambda real, *args: ("swap",)}, "due returns a tuple of Turns, not .'swap'"),
    ("worker", {"due": lambda real, *args: (Turn("send"),)}, "a turn is one of .* not 'send'"),
    ("worker", {"offer": lambda real, *args: None}, "offer returns a Message and the state"),
    ("worker", {"offer": lambda real, *args: args[1:3]}, "offer returns a Message and the state"),
    ("owner", {"receive": lambda real, *args: None}, "receive returns a list of Replies and the"),
    ("owner", {"close": lambda real, *args: (None, args[-1])}, "close returns a list of Replies"),
    ("owner", {"agreed": lambda real, state: None}, "agreed returns a Message"),
]


@pytest.mark.parametrize(("half", "functions", "claim"), BREAKS)
def test_what_breaks_the_contract_is_named(half, functions, claim):
    with pytest.raises(AssertionError, match=claim):
        check_strategy(broken(half, **functions))


@pytest.mark.parametrize(
    ("halves", "claim"),
    [
        ("averaging", r"worker\(\) is missing"),
        (SimpleNamespace(worker=averaging().worker), r"owner\(\) is missing"),
        (
            SimpleNamespace(worker=lambda: SimpleNamespace(site="x"), owner=averaging().owner),
            r"worker\(\) is without init, due, offer, accept",
        ),
        (
            SimpleNamespace(worker=averaging().worker, owner=dict),
            r"owner\(\) is without holds_parameters, has_rounds",
        ),
    ],
)
def test_what_is_missing_of_the_contract_is_named(halves, claim):
    with pytest.raises(AssertionError, match=claim):
        check_strategy(halves)


def test_another_outer_state_is_seen():
    strategy = averaging(every=Steps(2))
    worker = strategy.worker()
    changed = SimpleNamespace(
        site=worker.site,
        init=worker.init,
        due=worker.due,
        offer=worker.offer,
        accept=lambda *a: accept_another_outer(worker.accept, *a),
    )
    halves = SimpleNamespace(worker=lambda: changed, owner=strategy.owner)
    with pytest.raises(AssertionError, match="another outer state"):
        check_strategy(halves)


def test_the_state_may_be_a_dataclass_too():
    @dataclasses.dataclass
    class Held:
        round: object

    real = Averaging(every=Steps(2))

    def offer(turn, vector, clock, held):
        message, state = real.offer(turn, vector, clock, held.round)
        return message, Held(state)

    boxed = SimpleNamespace(
        site=real.site,
        init=lambda vector: Held(real.init(vector)),
        due=lambda clock, held: real.due(clock, held.round),
        offer=offer,
        accept=lambda vector, message, held: Held(real.accept(vector, message, held.round)),
    )
    check_strategy(SimpleNamespace(worker=lambda: boxed, owner=Rounds))
