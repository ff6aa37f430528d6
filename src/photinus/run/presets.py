"""The jobs that photinus knows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from photinus.core.clock import Steps
from photinus.core.settings import unknown_name
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.job import Job
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import averaging, iterative_reduce

__all__ = ["PRESETS", "preset"]


def _mnist_dbn(workers: int) -> Job:
    """784-500-500-2000-10 on MNIST: the full recipe, for one worker or several.

    Several workers: short rounds in the pre-training, and Nesterov outside Adam in the
    fine-tuning, close the gap that averaging once an epoch leaves.
    """
    if workers == 1:
        model = DBN(
            pretraining=Pretraining(epochs=50, batch_size=100),
            fine_tuning=FineTuning(epochs=60, batch_size=250),
        )
    else:
        model = DBN(
            pretraining=Pretraining(epochs=30, batch_size=20),
            fine_tuning=FineTuning(epochs=60, batch_size=100),
        )
    return Job(
        name="mnist-dbn",
        model=model,
        workers=workers,
        strategies={
            "pretraining": averaging(every=Steps(15), outer=Nesterov(lr=0.7, momentum=0.5)),
            "fine-tune": averaging(every=Steps(10), outer=Nesterov(lr=0.7, momentum=0.9)),
        },
    )


def _mnist_dbn_demo(workers: int) -> Job:
    """The same network with fewer epochs: some minutes on two cores."""
    job = _mnist_dbn(max(2, workers))
    model = replace(
        job.model,
        pretraining=replace(job.model.pretraining, epochs=3.0, batch_size=50),
        fine_tuning=replace(job.model.fine_tuning, epochs=8.0),
    )
    return replace(job, name="mnist-dbn-demo", model=model, workers=workers)


def _mnist_dbn_published(workers: int) -> Job:
    """The published scheme: 50 CD-1 epochs a layer, the plain average after every epoch.

    How its fine-tuning was distributed is not published: here it agrees in the same way.
    """
    model = DBN(
        pretraining=Pretraining(epochs=50, batch_size=100),
        fine_tuning=FineTuning(epochs=60, batch_size=250),
    )
    return Job(
        name="mnist-dbn-published", model=model, workers=workers, strategy=iterative_reduce()
    )


PRESETS: Mapping[str, tuple[Callable[[int], Job], int]] = {
    "mnist-dbn": (_mnist_dbn, 10),
    "mnist-dbn-demo": (_mnist_dbn_demo, 4),
    "mnist-dbn-published": (_mnist_dbn_published, 10),
}
"""Name -> how it is made, and with how many workers if not said otherwise."""


def preset(name: str, workers: int | None = None, **changes: Any) -> Job:  # noqa: ANN401
    """Returns a job by name.

    Args:
        name: one of `PRESETS`.
        workers: how many; left out, the preset's own number.
        changes: settings of `Job` that replace the preset's.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in PRESETS:
        raise unknown_name("job", name, PRESETS)
    make, usual = PRESETS[name]
    return replace(make(usual if workers is None else workers), **changes)
