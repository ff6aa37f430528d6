"""What the ways to agree put on the wire, by the wire's own counter."""

import numpy as np
import pytest

from photinus.coordinator import advice
from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.server import Service
from photinus.core.clock import Steps
from photinus.data.arrays import PartitionFeed
from photinus.data.rows import Rows
from photinus.models.logistic import LogisticConfig
from photinus.protocol.messages import Seat
from photinus.protocol.worker_client import Worker
from photinus.strategies.codecs import size_bytes
from photinus.strategies.recipes import all_reduce, diloco
from photinus.testing.memory_link import MemoryListener, MemoryPeer
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.worker_loop import WorkerData, live

FEATURES, CLASSES, BATCHES, BATCH = 4000, 5, 24, 2
NUMBERS = FEATURES * CLASSES + CLASSES
HEAD_BYTES = 900
"""More than a frame takes beside its numbers."""


class Meter:
    """A link that counts the bytes of pushes and of their answers."""

    def __init__(self, link):
        self.link, self.up, self.down, self.pushes = link, 0, 0, 0

    def exchange(self, frame, seconds):
        sent, received = self.link.bytes_sent, self.link.bytes_received
        reply = self.link.exchange(frame, seconds)
        if frame is not None and frame.kind == "push":
            self.pushes += 1
            self.up += self.link.bytes_sent - sent
            self.down += self.link.bytes_received - received
        return reply

    def close(self):
        self.link.close()


def measured(strategy, events=None):
    """One worker's pushes through the bytes of a real wire, in one thread."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(BATCHES * BATCH, FEATURES)).astype("f4")
    rows = Rows.of(features, rng.integers(0, CLASSES, BATCHES * BATCH))
    config = LogisticConfig(features=FEATURES, classes=CLASSES, epochs=1, batch_size=BATCH)
    plan = TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=1)
    callbacks = Callbacks(emit=(events if events is not None else []).append)
    service = Service(Coordinator(plan, callbacks), MemoryListener)
    part = WorkerData(len(rows), lambda order: PartitionFeed(rows, order))
    meters = []

    def connect():
        meters.append(Meter(service.listener.link()))
        return meters[-1]

    Worker(live(plan, 0, part), connect, Seat(bytes(16), 1), about={"attempt": "a"}).run()
    service.close()
    (meter,) = meters
    return meter


@pytest.mark.parametrize("tau", [4, 12])
def test_diloco_sends_a_fourth_of_a_taus_part_of_what_all_reduce_does(tau):
    every_step, rarely = measured(all_reduce()), measured(diloco(every=Steps(tau)))
    assert (every_step.pushes, rarely.pushes) == (BATCHES, BATCHES // tau)
    scales = size_bytes("int8", NUMBERS) / NUMBERS  # 1 and a little
    assert 1 < scales < 1.005
    for one, other in ((every_step.up, rarely.up), (every_step.down, rarely.down)):
        heads = HEAD_BYTES * rarely.pushes / one
        assert scales / (4 * tau) * 0.98 < other / one < scales / (4 * tau) + heads


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_the_wire_carries_the_bytes_that_are_computed(codec):
    meter = measured(diloco(every=Steps(8), codec=codec))
    wanted = size_bytes(codec, NUMBERS)
    for counted in (meter.up, meter.down):
        assert wanted < counted / meter.pushes < wanted + HEAD_BYTES


def test_a_codec_that_cannot_pay_is_told_of_as_an_event(monkeypatch):
    monkeypatch.setattr(advice, "LEAST_BYTES", 1000)
    for rate, warned in ((1e15, 1), (1e3, 0)):
        monkeypatch.setattr(MemoryPeer, "bytes_per_second", rate)
        events = []
        measured(diloco(every=Steps(4)), events)
        warnings = [e.text for e in events if type(e).__name__ == "Warned"]
        assert len([t for t in warnings if t.startswith("codec int8 cannot pay")]) == warned


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_fewer_bits_reach_the_same_loss(field, codec):
    """Deltas lose nothing: within a hundredth of the loss that fp32 reaches, for fewer bytes."""
    exact, coded = (
        field.play(diloco(every=Steps(10), codec=c), epochs=10).run() for c in ("fp32", codec)
    )
    assert field.loss(coded.vector) == pytest.approx(field.loss(exact.vector), rel=1e-2)
    assert coded.simulation.bytes < exact.simulation.bytes


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_gradients_in_fewer_bits_with_error_feedback_reach_the_same_loss(field, codec):
    exact = field.play(all_reduce(), epochs=10).run()
    coded = field.play(all_reduce(codec=codec, error_feedback=True), epochs=10).run()
    assert field.loss(coded.vector) == pytest.approx(field.loss(exact.vector), rel=1e-2)
    assert coded.simulation.bytes < exact.simulation.bytes
