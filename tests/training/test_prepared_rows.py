"""Rows that a model reads as they are have no copy; prepared ones have one at a time."""

import gc
import weakref

import numpy as np
import pytest

from photinus.data.rows import Rows
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.base import ModelConfig
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import all_reduce
from photinus.training.plan import Phase, TrainingPlan


class Halved(LogisticConfig):
    """A user's config that prepares its rows, and says so by that alone."""

    def prepare(self, features, history):
        return features / 2


def configs():
    dbn = DBN(
        inputs=6,
        hidden=(5, 4),
        classes=3,
        precision="mkl",
        pretraining=Pretraining(epochs=1, batch_size=16),
        fine_tuning=FineTuning(epochs=1, batch_size=16),
    )
    return dbn.configs()


def test_a_config_that_prepares_says_so():
    first, second, fine_tuning = configs()
    assert [s.prepares for s in (first, second, fine_tuning)] == [False, True, False]
    assert not LogisticConfig(features=2, classes=2).prepares
    assert not ModuleConfig(module="torch.nn:Linear").prepares
    assert Halved(features=2, classes=2).prepares


def test_what_a_config_needs_is_loaded_without_calling_a_factory():
    # a call without its arguments would raise
    ModuleConfig(module="torch.nn:Linear").preload()
    LogisticConfig(features=2, classes=2).preload()


def test_rows_that_are_read_as_they_are_have_no_copy(tiny, monkeypatch):
    def copied(rows, function):
        raise AssertionError("identity made a copy")

    usual = SimulatedEngine().run(tiny.assignment()).vectors
    monkeypatch.setattr(Rows, "mapped", copied)
    plain = SimulatedEngine().run(tiny.assignment()).vectors
    assert all(np.array_equal(one, two) for one, two in zip(usual, plain, strict=True))


def test_identity_by_a_copy_gives_the_same_bits(tiny, monkeypatch):
    plain = SimulatedEngine().run(tiny.assignment()).vectors
    monkeypatch.setattr(ModelConfig, "prepares", True)
    copied = SimulatedEngine().run(tiny.assignment()).vectors
    assert all(np.array_equal(one, two) for one, two in zip(plain, copied, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_layers_prepared_rows_are_gone_when_the_next_ones_are_made(tiny, monkeypatch, workers):
    references, alive = [], []
    usual = Rows.mapped

    def watched(rows, function):
        gc.collect()
        alive.append(sum(reference() is not None for reference in references))
        mapped = usual(rows, function)
        references.append(weakref.ref(mapped.features))
        return mapped

    dbn = DBN(
        inputs=6,
        hidden=(5, 4, 3),
        classes=3,
        precision="mkl",
        pretraining=Pretraining(epochs=1, batch_size=16),
        fine_tuning=FineTuning(epochs=1, batch_size=16),
    )
    monkeypatch.setattr(Rows, "mapped", watched)
    phases = tuple(Phase(config=config, strategy=all_reduce()) for config in dbn.configs())
    plan = TrainingPlan(phases=phases, workers=workers)
    SimulatedEngine().run(tiny.assignment(plan))
    assert len(references) == 2 * workers
    assert max(alive) < workers + 1, "no more than one layer's for each worker"
