"""photinus, for Apache Spark: trains neural networks where the data lives.

Every public name is imported when it is first asked for: `import photinus` alone loads neither
torch nor pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photinus.core.clock import Epochs, Examples, Partitions, Seconds, Steps
    from photinus.core.errors import (
        AuthenticationError,
        CheckpointError,
        DataError,
        FencedError,
        FrameError,
        LinkError,
        LinkLostError,
        NotReadyError,
        PhotinusError,
        RunFailedError,
        UsageError,
    )
    from photinus.data.base import check_feed
    from photinus.engine.base import ArrayData
    from photinus.engine.faults.plan import Faults
    from photinus.engine.local.engine import LocalEngine
    from photinus.engine.simulation.cluster import World
    from photinus.engine.simulation.engine import SimulatedEngine
    from photinus.engine.spark.engine import FrameData, SparkEngine
    from photinus.estimators.dbn import DBNClassificationModel, DBNClassifier
    from photinus.estimators.deepdist import DeepDist
    from photinus.estimators.iterate import iterate
    from photinus.estimators.module import TorchClassificationModel, TorchClassifier
    from photinus.models.base import check_model
    from photinus.models.dbn import DBN, FineTuning, Pretraining
    from photinus.models.logistic import LogisticStage
    from photinus.models.module import ModuleStage
    from photinus.models.schedules import Schedule
    from photinus.run.data import TestRows
    from photinus.run.evaluate import load_trained, measure
    from photinus.run.job import Job, Source, read_job
    from photinus.run.presets import preset
    from photinus.run.train import Outcome, resume, train
    from photinus.strategies.check import check_strategy
    from photinus.strategies.outer import (
        Adagrad,
        Adam,
        DelayedNesterov,
        Descent,
        Nesterov,
        Sgd,
        SlowMo,
    )
    from photinus.strategies.own import Own
    from photinus.strategies.recipes import (
        all_reduce,
        averaging,
        diloco,
        downpour,
        elastic,
        full_gradient,
        gossip,
        iterative_reduce,
        post_local,
        publish,
        streaming,
    )
    from photinus.transport.link import check_link

__all__ = [
    "DBN",
    "Adagrad",
    "Adam",
    "ArrayData",
    "AuthenticationError",
    "CheckpointError",
    "DBNClassificationModel",
    "DBNClassifier",
    "DataError",
    "DeepDist",
    "DelayedNesterov",
    "Descent",
    "Epochs",
    "Examples",
    "Faults",
    "FencedError",
    "FineTuning",
    "FrameData",
    "FrameError",
    "Job",
    "LinkError",
    "LinkLostError",
    "LocalEngine",
    "LogisticStage",
    "ModuleStage",
    "Nesterov",
    "NotReadyError",
    "Outcome",
    "Own",
    "Partitions",
    "PhotinusError",
    "Pretraining",
    "RunFailedError",
    "Schedule",
    "Seconds",
    "Sgd",
    "SimulatedEngine",
    "SlowMo",
    "Source",
    "SparkEngine",
    "Steps",
    "TestRows",
    "TorchClassificationModel",
    "TorchClassifier",
    "UsageError",
    "World",
    "all_reduce",
    "averaging",
    "check_feed",
    "check_link",
    "check_model",
    "check_strategy",
    "diloco",
    "downpour",
    "elastic",
    "full_gradient",
    "gossip",
    "iterate",
    "iterative_reduce",
    "load_trained",
    "measure",
    "post_local",
    "preset",
    "publish",
    "read_job",
    "resume",
    "streaming",
    "train",
]

__version__ = "0.1.0"

_HOMES = {
    "core.clock": ("Epochs", "Examples", "Partitions", "Seconds", "Steps"),
    "core.errors": (
        "AuthenticationError",
        "CheckpointError",
        "DataError",
        "FencedError",
        "FrameError",
        "LinkError",
        "LinkLostError",
        "NotReadyError",
        "PhotinusError",
        "RunFailedError",
        "UsageError",
    ),
    "engine.base": ("ArrayData",),
    "engine.faults": ("Faults",),
    "engine.local": ("LocalEngine",),
    "engine.simulate": ("World",),
    "engine.simulated": ("SimulatedEngine",),
    "engine.spark": ("FrameData", "SparkEngine"),
    "estimators.dbn": ("DBNClassifier", "DBNClassificationModel"),
    "estimators.deepdist": ("DeepDist",),
    "estimators.iterate": ("iterate",),
    "estimators.module": ("TorchClassifier", "TorchClassificationModel"),
    "feed.base": ("check_feed",),
    "models.base": ("check_model",),
    "models.dbn": ("DBN", "FineTuning", "Pretraining"),
    "models.logistic": ("LogisticStage",),
    "models.module": ("ModuleStage",),
    "models.schedules": ("Schedule",),
    "run.data": ("TestRows",),
    "run.evaluate": ("load_trained", "measure"),
    "run.job": ("Job", "Source", "read_job"),
    "run.presets": ("preset",),
    "run.train": ("Outcome", "resume", "train"),
    "strategies.check": ("check_strategy",),
    "strategies.outer": (
        "Adagrad",
        "Adam",
        "DelayedNesterov",
        "Descent",
        "Nesterov",
        "Sgd",
        "SlowMo",
    ),
    "strategies.own": ("Own",),
    "strategies.recipes": (
        "all_reduce",
        "averaging",
        "diloco",
        "downpour",
        "elastic",
        "full_gradient",
        "gossip",
        "iterative_reduce",
        "post_local",
        "publish",
        "streaming",
    ),
    "transport.link": ("check_link",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Imports a public name from the room that it lives in."""
    if name not in _HOME_OF:
        raise AttributeError(f"photinus has no {name}")
    value = getattr(importlib.import_module(f"photinus.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
