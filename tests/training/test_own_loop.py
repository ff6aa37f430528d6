"""What stands for a loop of the user's own."""

import pytest
import torch
from torch import nn

from photinus import Steps, averaging, diloco, elastic
from photinus.core.clock import Clock
from photinus.core.errors import UsageError
from photinus.strategies.base import Turn
from photinus.strategies.outer import Sgd
from photinus.strategies.single_worker import SingleWorker
from photinus.strategies.sparse import to_dense
from photinus.training.offer_accept import offer
from photinus.training.own_loop import OwnLoop, strategy_pair


def test_an_exchange_reads_and_writes_the_modules_own_memory():
    module = nn.Linear(2, 1)
    loop = OwnLoop(module)
    loop.parameters.trained[:] = 7.0
    assert module.weight.tolist() == [[7.0, 7.0]]
    assert not list(loop._elsewhere())


def test_tensors_that_were_moved_elsewhere_are_copied_from_and_to():
    module = nn.BatchNorm1d(2)
    loop = OwnLoop(module)
    module.weight.data = torch.full((2,), 3.0)
    module._buffers["running_mean"] = torch.full((2,), 5.0)
    loop.gather()
    assert loop.parameters.view("weight").tolist() == [3.0, 3.0]
    assert loop.parameters.view("running_mean").tolist() == [5.0, 5.0]
    loop.parameters.trained[:] = 1.0
    loop.scatter()
    assert module.weight.tolist() == [1.0, 1.0]


def test_of_a_sparse_table_only_the_rows_that_the_loop_changed_are_offered():
    module = nn.Embedding(1_000, 16, sparse=True)
    loop, strategy = OwnLoop(module), averaging(codec="fp32").worker()
    trained = loop.parameters.trained
    state = strategy.init(trained)
    with torch.no_grad():
        module.weight[7] += 1
    message, _ = offer(strategy, loop, Turn("swap"), trained, Clock(1, 1), state)
    assert message.vector.nbytes + message.kept.nbytes < trained.nbytes / 100
    assert set((to_dense(message).vector.reshape(1_000, 16) != 0).any(1).nonzero()[0]) == {7}


def test_frozen_parameters_are_not_agreed_on():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    module[0].requires_grad_(requires_grad=False)
    assert OwnLoop(module).parameters.layout.names() == ("1.weight", "1.bias")


def test_a_start_by_gradients_that_nobody_asked_for_is_left_out():
    assert averaging().gradients_until == "auto"
    assert strategy_pair(averaging(), 4).gradients_until == 0.0


def test_a_single_worker_keeps_its_bits():
    assert strategy_pair(diloco(every=Steps(9)), 1) == SingleWorker(every=Steps(9))
    assert strategy_pair(elastic(), 1) == SingleWorker(every=elastic().every)


def test_as_many_owners_as_there_are_workers():
    with pytest.raises(UsageError, match="owners must be 1, or 4"):
        strategy_pair(averaging(owners=3, outer=Sgd()), 4)
