"""What passes between a device and the host: a vector each way a round, and the batches."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.data.base import Batch
from photinus.models.module import ModuleConfig
from photinus.strategies.base import Message
from photinus.strategies.recipes import all_reduce, averaging
from photinus.training.loop import work
from photinus.training.phase_context import PhaseContext, PhaseProgress
from photinus.training.placement import fresh
from photinus.training.requests import Exchange, StepReply

CONFIG = ModuleConfig(module="torch.nn:Linear", arguments={"in_features": 9, "out_features": 4})
STEPS, ROWS = 12, 8
BATCH = Batch(np.ones((ROWS, 9), np.float32), np.zeros(ROWS, np.int64))


class Feed:
    """The same batch so many times."""

    epochs = 0.0

    def __init__(self):
        self.position = 0

    def __iter__(self):
        for _ in range(STEPS):
            self.position += ROWS
            yield BATCH


@pytest.fixture
def traffic():
    """Trains one worker, alone, on the stand-in; returns the vectors down, up, and the exchanges.

    The batches are left out; the vectors are counted in their length.
    """

    def run(strategy):
        model, inner = fresh(CONFIG, (), 0, "stand-in")
        model.load(model.parameters.trained)
        placed, feed = inner.placed, Feed()
        policy = strategy.owner()
        p = model.parameters.copy()
        state = policy.init(Message("heal", p.trained, floats=p.floats, integers=p.integers))
        before = placed.bytes_to_host
        loop = work(
            PhaseContext(
                model=model,
                inner=inner,
                feed=feed,
                strategy=strategy.worker(),
                phase_progress=PhaseProgress(0.0, 0, 1e-3),
                seed=lambda position: position,
            )
        )
        ask, exchanges = next(loop), 0
        try:
            while True:
                answer = StepReply()
                if isinstance(ask, Exchange):
                    replies, state = policy.receive(0, ask.message, frozenset([0]), state)
                    answer = StepReply(messages=tuple(reply.message for reply in replies))
                    exchanges += 1
                ask = loop.send(answer)
        except StopIteration:
            size, batches = p.trained.nbytes, STEPS * (BATCH.features.nbytes + BATCH.labels.nbytes)
            down = (placed.bytes_to_host - before) / size
            return down, (placed.bytes_to_device - batches) / size, exchanges

    return run


def test_with_rounds_a_vector_passes_each_way_a_round_and_nothing_between(traffic):
    down, up, rounds = traffic(averaging(every=Steps(4), gradients_until=0.0))
    assert rounds == STEPS / 4
    assert down == rounds
    assert up <= rounds + 1, "and where it starts from"


def test_with_gradients_one_passes_each_way_a_step(traffic):
    down, up, steps = traffic(all_reduce(codec="fp32"))
    assert steps == STEPS
    assert down == steps + 1, "and the parameters at the end"
    assert up <= steps + 1
