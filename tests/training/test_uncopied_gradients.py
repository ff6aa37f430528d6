"""Where workers train by themselves, a large gradient goes to the optimizer without a copy."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.data.base import Batch
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import TorchOptimizer
from photinus.strategies.base import Message
from photinus.strategies.recipes import all_reduce, averaging
from photinus.training.loop import work
from photinus.training.phase_context import PhaseContext, PhaseProgress
from photinus.training.placement import fresh
from photinus.training.requests import Exchange, StepReply

LARGE = {"module": "torch.nn:Linear", "arguments": {"in_features": 300, "out_features": 256}}
ROWS, STEPS = 8, 6


def trained_by(strategy, **settings):
    """Returns the parameters that one worker has in the end."""
    rng = np.random.default_rng(0)
    batches = [
        Batch(rng.random((ROWS, 300), np.float32), rng.integers(0, 256, ROWS)) for _ in range(STEPS)
    ]

    class Feed:
        epochs, position = 0.0, 0

        def __iter__(self):
            for batch in batches:
                self.position += ROWS
                yield batch

    model, inner = fresh(ModuleConfig(**LARGE, **settings), (), 0, "cpu")
    policy, p = strategy.owner(), model.parameters.copy()
    state = policy.init(Message("heal", p.trained, floats=p.floats, integers=p.integers))
    loop = work(
        PhaseContext(
            model=model,
            inner=inner,
            feed=Feed(),
            strategy=strategy.worker(),
            phase_progress=PhaseProgress(0.0, 0, 1e-3),
            seed=lambda position: position,
        )
    )
    answer = None
    while True:
        try:
            ask = loop.send(answer)
        except StopIteration:
            return model.parameters.trained.copy()
        answer = StepReply()
        if isinstance(ask, Exchange):
            replies, state = policy.receive(0, ask.message, frozenset([0]), state)
            answer = StepReply(messages=tuple(reply.message for reply in replies))


@pytest.fixture
def taken(monkeypatch):
    """Notes how many numbers of a gradient were taken; `allowed` decides whether any are."""
    noted = type("Taken", (), {"numbers": 0, "allowed": True})()
    take = TorchOptimizer.take

    def note(self, start, gradient):
        is_taken = noted.allowed and take(self, start, gradient)
        noted.numbers += gradient.numel() if is_taken else 0
        return is_taken

    monkeypatch.setattr(TorchOptimizer, "take", note)
    return noted


ALONE = averaging(every=Steps(3), gradients_until=0.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad", "rmsprop", "adafactor"])
def test_training_has_the_bits_that_it_has_with_copies(taken, optimizer):
    settings = {"momentum": 0.9} if optimizer == "sgd" else {}
    uncopied = trained_by(ALONE, optimizer=optimizer, settings=settings, lr=0.01)
    assert taken.numbers == STEPS * 256 * 300, "the weights; the 256 biases are copied"
    taken.allowed = False
    copied = trained_by(ALONE, optimizer=optimizer, settings=settings, lr=0.01)
    np.testing.assert_array_equal(uncopied, copied)


def test_a_gradient_that_others_read_is_written_to_its_vector(taken):
    trained_by(all_reduce())
    assert taken.numbers == 0


@pytest.mark.parametrize(
    "settings",
    [{"accumulate": 2}, {"l2": {"wei*": 0.1}}, {"clip": 1.0}],
    ids=["a sum of parts", "with a penalty", "scaled by its length"],
)
def test_a_gradient_that_is_not_whole_yet_is_written_to_its_vector(taken, settings):
    uncopied = trained_by(ALONE, **settings)
    assert taken.numbers == 0
    taken.allowed = False
    np.testing.assert_array_equal(uncopied, trained_by(ALONE, **settings))
