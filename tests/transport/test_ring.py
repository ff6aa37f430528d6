"""Sums through torch.distributed: the members' own group, and a clear end when one is lost."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from photinus.core.errors import LinkLostError, UsageError
from photinus.core.parameters import FLOATS, INTEGERS
from photinus.transport.ring import Ring, RingMembers, gpu

pytestmark = pytest.mark.processes
NUMBERS = itertools.count()


@pytest.fixture
def rings():
    return [Ring("127.0.0.1", seconds=3.0) for _ in range(3)]


def summed(rings, states, name=""):
    """What each of some members gets, all at once."""
    name = name or f"group {next(NUMBERS)}"
    with ThreadPoolExecutor(len(rings)) as pool:
        futures = [
            pool.submit(ring.sum, RingMembers(name, place, len(rings), rings[0].address), state)
            for place, (ring, state) in enumerate(zip(rings, states, strict=True))
        ]
        return [future.result() for future in futures]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_get_the_sum_of_all_bit_for_bit_and_what_they_held_stays(rings, dtype):
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=10_007).astype(dtype) for _ in rings]
    before = [vector.copy() for vector in vectors]
    states = [
        {"vector": vector, FLOATS: np.full(2, n, "f4"), INTEGERS: np.array([n, 5 - n])}
        for n, vector in enumerate(vectors)
    ]
    sums = summed(rings, states)
    for one in sums:
        np.testing.assert_array_equal(one["vector"], sums[0]["vector"])
        np.testing.assert_allclose(one["vector"], sum(before), rtol=0, atol=1e-5)
        assert one[FLOATS].tolist() == [3.0, 3.0]
        assert one[INTEGERS].tolist() == [2, 5], "of integers the largest"
    for vector, original in zip(vectors, before, strict=True):
        np.testing.assert_array_equal(vector, original)


def test_the_same_members_keep_their_group_and_others_make_a_new_one(rings):
    states = [{"vector": np.ones(4, "f4")} for _ in rings]
    summed(rings, states, "all")
    groups = [ring._group for ring in rings]
    summed(rings, states, "all")
    assert [ring._group for ring in rings] == groups
    pair = summed(rings[1:], states[1:], "the last two")
    assert [one["vector"][0] for one in pair] == [2.0, 2.0]
    assert all(ring._group is not group for ring, group in zip(rings[1:], groups[1:], strict=True))


def test_who_waits_in_vain_is_told_and_can_sum_with_those_who_are_left(rings):
    state = {"vector": np.ones(4, "f4")}
    alone = RingMembers("waits", 0, 2, rings[0].address)
    with pytest.raises(LinkLostError, match="the group waits broke"):
        rings[0].sum(alone, state)
    assert [one["vector"][0] for one in summed(rings[:2], [state] * 2)] == [2.0, 2.0]


def test_a_member_that_is_gone_is_noticed_long_before_the_patience_ends():
    rings = [Ring("127.0.0.1", seconds=60.0) for _ in range(2)]
    states = [{"vector": np.ones(4, "f4")}] * 2
    summed(rings, states, "two")
    began = threading.Event()

    def waits():
        began.set()
        with pytest.raises(LinkLostError):
            rings[0].sum(RingMembers("two", 0, 2, rings[0].address), states[0])

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waits)
        began.wait()
        rings[1]._group = None  # its process ends, and its connections with it
        waiting.result(timeout=20)


def test_sums_that_are_made_elsewhere_come_back(rings, monkeypatch):
    """Another place than the host's memory, as that of a GPU is."""
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, _: tensor.clone())
    states = [{"vector": np.full(4, n, "f4")} for n in range(3)]
    assert [one["vector"].tolist() for one in summed(rings, states)] == [[3.0] * 4] * 3
    assert [one["vector"][0] for one in states] == [0.0, 1.0, 2.0]


def test_each_slot_sums_on_a_gpu_of_its_own_as_far_as_they_go(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert [gpu(slot) for slot in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


@pytest.mark.parametrize(("gpus", "has_nccl"), [(0, True), (2, False)])
def test_nccl_without_gpus_or_without_itself_is_refused(monkeypatch, gpus, has_nccl):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: has_nccl)
    with pytest.raises(UsageError, match=f"got {gpus} GPUs on .*, PyTorch .* NCCL"):
        gpu(0)
