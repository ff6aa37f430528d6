"""What is not trained is sent once to each executor, however many workers it has."""

import numpy as np
import pytest

from photinus.core.errors import FencedError
from photinus.engine.frozen_parameters import FrozenFile, fetch_once
from photinus.strategies.base import Message
from photinus.training.requests import Close, Grant, Hello

FROZEN = np.arange(5, dtype=np.float32)


class Executor:
    """Workers of one executor: what they say, and what a coordinator answers them."""

    def __init__(self, folder):
        self.path, self.sent, self.got = folder / "frozen.npy", 0, []

    def life(self):
        def plain():
            history, grant = [], (yield Hello(3, 0))
            while grant is not None:
                history += grant.history
                self.got.append(tuple(history))
                try:
                    grant = yield Close(3)
                except FencedError:
                    grant = yield Hello(3, len(history))

        return fetch_once(plain(), FrozenFile(self.path))

    def grant(self, hello, history=(FROZEN,)):
        missing = history[hello.has :]
        self.sent += sum(vector.size for vector in missing)
        heal = Message("heal", np.zeros(1))
        return Grant(
            phase=0,
            lease=1,
            sequence=0,
            position=0,
            budget=1,
            progress=0.0,
            heal=heal,
            is_fresh=True,
            history=missing,
        )


@pytest.fixture
def executor(tmp_path):
    return Executor(tmp_path)


def over(life):
    with pytest.raises(StopIteration):
        life.send(None)


def test_one_worker_of_an_executor_fetches_and_the_others_map_its_file(executor):
    lives = [executor.life() for _ in range(3)]
    hellos = [next(life) for life in lives]
    assert [hello.has for hello in hellos] == [0, 1, 1]
    for life, hello in zip(lives, hellos, strict=True):
        assert isinstance(life.send(executor.grant(hello)), Close)
    assert executor.sent == FROZEN.size, "the counter: one copy for three workers"
    for [vector] in executor.got:
        np.testing.assert_array_equal(vector, FROZEN)
        assert isinstance(vector, np.memmap)
    assert executor.path.stat().st_mode & 0o777 == 0o600
    for life in lives:
        over(life)
    assert not executor.path.exists()


def test_who_fetched_is_lost_and_another_one_fetches(executor):
    first, second = executor.life(), executor.life()
    next(first)
    hello = next(second)
    first.close()
    again = second.send(executor.grant(hello))
    assert isinstance(again, Hello)
    assert again.has == 0
    assert isinstance(second.send(executor.grant(again)), Close)
    np.testing.assert_array_equal(executor.got[0][0], FROZEN)


def test_a_worker_that_lost_its_seat_keeps_what_it_has(executor):
    life = executor.life()
    life.send(executor.grant(next(life)))
    again = life.throw(FencedError("lost"))
    assert (type(again), again.has) == (Hello, 1)
    life.send(executor.grant(again))
    assert executor.sent == FROZEN.size


def test_where_nothing_is_sent_nothing_is_waited_for(executor):
    lives = [executor.life() for _ in range(2)]
    for life, hello in [(life, next(life)) for life in lives]:
        assert isinstance(life.send(executor.grant(hello, ())), Close)
    assert executor.got == [(), ()]
