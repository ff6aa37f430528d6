"""Rows a second, processor seconds and bytes copied, by device, beside a bare loop of PyTorch.

    python benchmarks/devices.py [--models "CIFAR-10 network" ...] [--devices cpu cuda:0]
        [--steps 20] [--turns 5] [--workers 1 2 4] [--words]

Every device of this machine, and the stand-in, takes its turn in each model; after so many steps
the parameters pass to the host and back, as when workers agree. The median turn counts. A bare loop
reads its batches from the host, too: as arrays, and on a card also from pinned memory, as from a
loader whose threads have pinned them. Stored images are cut and mirrored by chance: the first of
the loops does that by NumPy, the one from pinned memory on the card, as photinus does. Modules are
measured with `cuda_graph`, too; a DBN's phases record their steps by themselves. With --workers, so
many processes of a job train the CIFAR-10 network on the last device at once, with averaging every
50 steps; rows a second are all workers'. With --words, words a second of the last device's word
vectors, and of numba's, on words with Zipf's frequencies. The encoder has MiniLM's sizes, adapters
of rank 8, and random weights; it needs transformers and peft. Without --models those are left out
that take minutes on a processor.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import begin
from torch import Tensor, nn
from torch.nn import functional

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed
from photinus.data.base import Batch
from photinus.devices.discovery import found
from photinus.devices.names import OPENCL, kind_of
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models import images
from photinus.models.base import ModelConfig
from photinus.models.dbn import DBN
from photinus.models.low_precision import LOW_PRECISION_DTYPES
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import InPlaceOptimizer
from photinus.models.placement import DeviceOptimizer, torch_device
from photinus.strategies.recipes import averaging
from photinus.training.ahead import AheadFeed
from photinus.training.placement import fresh
from photinus.training.plan import Phase, TrainingPlan

CHANCE = np.random.default_rng(0)
STEP = Callable[[Tensor, Tensor], None]
ROUND = Callable[[int], tuple[int, int]]


def encoder() -> nn.Module:
    """Returns an encoder of MiniLM's sizes with low-rank adapters."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    bert = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=1536))
    model: nn.Module = get_peft_model(
        bert, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules="all-linear")
    )
    return model


class Sentences(nn.Module):
    """The encoder, on token ids [B, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Returns logits [B, 2]."""
        logits: Tensor = self.encoder(input_ids=input_ids).logits
        return logits


def dense() -> nn.Module:
    """Returns 784-500-500-2000-10, with dropout as a DBN's fine-tuning has it."""
    sizes, rates = (784, 500, 500, 2000, 10), (0.2, 0.2, 0.2, 0.3)
    net = nn.Sequential()
    for i, o, rate in zip(sizes, sizes[1:], rates, strict=False):
        if len(net):
            net.append(nn.Sigmoid())
        net.extend([nn.Dropout(rate), nn.Linear(i, o)])
    return net


def machine_step(device: torch.device) -> STEP:
    """Returns a step of contrastive divergence in plain torch, 784-500."""
    w, a, b = (
        torch.randn(784, 500, device=device) / 10,
        *(torch.zeros(n, device=device) for n in (784, 500)),
    )
    moved = [torch.zeros_like(t) for t in (w, a, b)]

    def step(v0: Tensor, _: Tensor) -> None:
        with torch.no_grad():
            h0 = torch.sigmoid(torch.addmm(b, v0, w))
            v1 = torch.sigmoid(torch.addmm(a, torch.bernoulli(h0), w.t()))
            h1 = torch.sigmoid(torch.addmm(b, v1, w))
            slopes = v0.t() @ h0 - v1.t() @ h1, (v0 - v1).sum(0), (h0 - h1).sum(0)
            for tensor, velocity, slope in zip((w, a, b), moved, slopes, strict=True):
                velocity.mul_(0.9).add_(slope / len(v0) - 2e-4 * tensor)
                tensor.add_(velocity, alpha=0.1)

    return step


def net_step(net: nn.Module, device: torch.device, precision: str, memory: str) -> STEP:
    """Returns a step of a network in plain torch: AdamW, fused."""
    net.to(device)
    if memory == "channels_last":
        net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(
        [p for p in net.parameters() if p.requires_grad], lr=0.001, fused=True
    )

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        if memory == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        is_low = precision in LOW_PRECISION_DTYPES
        with torch.autocast(device.type, torch.bfloat16) if is_low else nullcontext():
            outputs = net(x)
        functional.cross_entropy(outputs.float(), y, label_smoothing=0.0).backward()
        optimizer.step()

    return step


class Case(NamedTuple):
    """A model, and how the bare loop has it."""

    config: ModelConfig
    batch: Batch
    bare: Callable[[torch.device], STEP]
    is_small: bool = True
    reads: Any = None
    """Prepares stored images by NumPy; its `tensors` does so on a device."""


def _case(
    size: int, net: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, **how: Any
) -> Case:
    config = ModuleConfig(module=how.pop("module"), batch_size=size, lr=0.001, **how)
    labels = CHANCE.integers(0, classes, size)
    if config.reads:
        x = CHANCE.integers(0, 256, (size, *shape), np.uint8)
        batch = Batch(x, labels, None, CHANCE.integers(0, 2**64, size, np.uint64))
    else:
        batch = Batch(CHANCE.standard_normal((size, *shape)).astype(np.float32), labels)

    def bare(device: torch.device) -> STEP:
        return net_step(net(), device, config.precision, config.memory)

    reads = getattr(images, config.reads.partition(":")[2]) if config.reads else None
    return Case(config, batch, bare, size * int(np.prod(shape)) < 1e6, reads)


def cases() -> dict[str, Case]:
    """Returns the models by name."""
    from photinus.zoo import cifar10_tutorial, resnet18

    rbm, *_, tuning = DBN(precision="mkl").configs()
    rows = CHANCE.random((250, 784), dtype=np.float32)
    labels = CHANCE.integers(0, 10, 250)
    tokens = Batch(CHANCE.integers(0, 30000, (64, 64)), CHANCE.integers(0, 2, 64))
    resnet = {"module": "photinus.zoo:resnet18", "memory": "channels_last"}
    big = 128, resnet18, (3, 224, 224), 1000
    stored = 128, resnet18, (3 * 256 * 256,), 1000
    cifar = {"module": "photinus.zoo:cifar10_tutorial"}
    lora = ModuleConfig(module="devices:Sentences", batch_size=64, lr=0.001, precision="bfloat16")
    return {
        "CIFAR-10 network": _case(64, cifar10_tutorial, (3, 24, 24), 10, **cifar),
        "CIFAR-10 network, stored images": _case(
            64, cifar10_tutorial, (3072,), 10, **cifar, reads="photinus.models.images:crops"
        ),
        "RBM 784-500": Case(rbm, Batch(rows[:100], None), machine_step),
        "dense 784-500-500-2000-10": Case(
            tuning, Batch(rows, labels), lambda d: net_step(dense(), d, "float32", "")
        ),
        "ResNet-18, float32": _case(*big, **resnet),
        "ResNet-18, bfloat16": _case(*big, **resnet, precision="bfloat16"),
        "ResNet-18, bfloat16, stored images": _case(
            *stored, **resnet, precision="bfloat16", reads="photinus.models.images:imagenet"
        ),
        "MiniLM with LoRA, bfloat16": Case(
            lora, tokens, lambda d: net_step(Sentences(), d, "bfloat16", ""), is_small=False
        ),
    }


def bare(case: Case, device: str, *, is_pinned: bool) -> ROUND:
    """Returns a round of plain PyTorch."""
    at = torch.device(device)
    step, batch = case.bare(at), case.batch
    labels = np.zeros(0) if batch.labels is None else batch.labels
    x, y = torch.from_numpy(batch.features), torch.from_numpy(labels)
    chance = None if batch.draws is None else torch.from_numpy(batch.draws.view(np.int64))
    if is_pinned:
        x, y = x.pin_memory(), y.pin_memory()

    def prepared() -> Tensor:
        if case.reads is None:
            return x.to(at, non_blocking=is_pinned)
        if not is_pinned:
            return torch.from_numpy(case.reads(batch.features, batch.draws)).to(at)
        tensors: Tensor = case.reads.tensors(x.to(at, non_blocking=True), chance.to(at))
        return tensors

    def run(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            step(prepared(), y.to(at, non_blocking=is_pinned))
        wait(at)
        return 0, 0

    return run


def ours(case: Case, device: str) -> ROUND:
    """Returns a round on a device, which tells the bytes to the host and to the device."""
    model, inner = fresh(case.config, (), 0, device)
    trained = model.parameters.trained

    def run(steps: int) -> tuple[int, int]:
        placed = inner.placed if isinstance(inner, DeviceOptimizer) else None
        before = (placed.bytes_to_host, placed.bytes_to_device) if placed else (0, 0)
        feed: Any = Same(case.batch, steps)
        feed = feed if model.send is None else AheadFeed(feed, model.send)
        for step, batch in enumerate(feed):
            gradient, _ = model.learn(batch, step)
            inner.step(trained, gradient, 0.0)
        model.to_host(trained)
        model.to_device(trained)
        if placed is None:
            return 0, 0
        placed.sync()
        wait(torch_device(device))
        return placed.bytes_to_host - before[0], placed.bytes_to_device - before[1]

    return run


class Same:
    """The same batch so many times: what `AheadFeed` reads of a feed."""

    rows = position = 0

    def __init__(self, batch: Batch, steps: int) -> None:
        self._batch, self._steps = batch, steps

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._steps):
            yield self._batch


def wait(device: torch.device) -> None:
    """Waits for what a device has to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def ways(case: Case, device: str) -> dict[str, ROUND]:
    """Returns the rounds of a device by the words for them."""
    kind = device.partition(":")[0]
    built = {device: ours(case, device)}
    if kind == "cuda" and isinstance(case.config, ModuleConfig):
        graph = case._replace(config=replace(case.config, cuda_graph=True))
        built[f"{device}, cuda_graph"] = ours(graph, device)
    if kind in ("cpu", "cuda", "xpu", "mps"):
        built[f"{device}, bare"] = bare(case, device, is_pinned=False)
    if kind in ("cuda", "xpu"):
        built[f"{device}, bare, pinned"] = bare(case, device, is_pinned=True)
    return built


def compare(name: str, case: Case, devices: list[str], steps: int, turns: int) -> None:
    """Prints a line for each device, and for its bare loops."""
    runs = {of: run for device in devices for of, run in ways(case, device).items()}
    spent: dict[str, list[tuple[float, float]]] = {of: [] for of in runs}
    copied = dict[str, tuple[int, int]]()
    for turn in range(turns + 1):
        for of, run in runs.items():
            began = time.process_time(), time.perf_counter()
            copied[of] = run(steps)
            if turn:
                took = time.perf_counter() - began[1], time.process_time() - began[0]
                spent[of].append(took)
    for of in runs:
        clock, processor = (statistics.median(one) for one in zip(*spent[of], strict=True))
        rate, (down, up) = steps * len(case.batch.features) / clock, copied[of]
        print(
            f"{name} | {of} | {rate:.0f} | {1000 * clock / steps:.2f} |"
            f" {1000 * processor / steps:.2f} | {down / 1e6:.2f} | {up / 1e6:.2f}",
            flush=True,
        )


def workers_together(device: str, count: int, steps: int) -> float:
    """Returns the rows a second of so many workers on one device."""
    size = 64
    config = ModuleConfig(
        module="photinus.zoo:cifar10_tutorial",
        batch_size=count * size,
        max_steps=steps,
        cuda_graph=device.startswith("cuda"),
    )
    at: list[tuple[float, int]] = []

    def emit(event: Event) -> None:
        if isinstance(event, RoundClosed):
            at.append((time.monotonic(), event.examples))

    strategy = averaging(every=Steps(50), gradients_until=0.0)
    images = CHANCE.random((count * size * 20, 3, 24, 24), dtype=np.float32)
    LocalEngine().run(
        RunSpec(
            plan=TrainingPlan(
                phases=(Phase(config=config, strategy=strategy),), workers=count, devices=(device,)
            ),
            data=ArrayData(images, CHANCE.integers(0, 10, len(images))),
            run=secrets.token_bytes(16),
            emit=emit,
        )
    )
    (first, before), (last, after) = at[len(at) // 4], at[-1]
    return (after - before) / (last - first)


def words_a_second(dims: int, device: str, kernel: str, rows: int) -> float:
    """Returns it for batches of so many rows of 1,000 words, of 50,000 different ones."""
    shares = 1 / (np.arange(50_000) + 10.0)
    text = CHANCE.choice(len(shares), (8 * rows, 1000), p=shares / shares.sum()).astype("<i4")
    config = Word2VecConfig(words=len(shares), dims=dims, kernel=kernel, batch_size=rows)
    model, inner = fresh(config, (), 0, device)
    assert isinstance(inner, InPlaceOptimizer)
    model.parameters.view("counts")[:] = np.maximum(1, np.bincount(text.ravel(), None, 50_000))
    began = 0.0
    for number, some in enumerate(np.split(text, 8)):
        began = time.perf_counter() if number == 2 else began  # after two that are not counted
        inner.descend(model, Batch(some), number, 0.2)
    return 6 * rows * 1000 / (time.perf_counter() - began)


def main() -> None:
    """Prints a line for each model and device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", help="by their names; left out, those for it")
    parser.add_argument("--devices", nargs="+", help="left out, all of this machine")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[])
    parser.add_argument("--words", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    devices = a.devices or [*(device.name for device in found()), "stand-in"]
    has_card = any(kind_of(one) not in ("cpu", OPENCL, "stand-in") for one in devices)
    print("model | device | rows/s | ms a step | processor ms | MB to host | MB to device")
    print("--- | --- | --- | --- | --- | --- | ---")
    for name, case in cases().items():
        if name in a.models if a.models is not None else case.is_small or has_card:
            able = [d for d in devices if case.is_small or d not in ("cpu", "stand-in")]
            compare(name, case, devices if a.models else able, a.steps, a.turns)
    for count in a.workers:
        rate = workers_together(devices[-1], count, 50 * max(8, a.steps // 10))
        print(f"CIFAR-10 network, {count} workers | {devices[-1]} | {rate:.0f}", flush=True)
    for dims in (100, 300) if a.words else ():
        for device, kernel in (("cpu", "numba"), (devices[-1], "torch")):
            rate = words_a_second(dims, device, kernel, 64)
            print(f"word vectors of {dims}, {kernel} | {device} | {rate:.0f}", flush=True)


if __name__ == "__main__":
    begin("--steps", "2", "--turns", "1", "--workers", "1")
    main()
