"""photinus, for Apache Spark: trains neural networks where the data lives.

Every public name is imported at its first use: `import photinus` alone loads neither
torch nor pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photinus import nn
    from photinus.core import events
    from photinus.core.clock import Clock, Epochs, Examples, Partitions, Seconds, Steps, Trigger
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
    from photinus.core.factories import by_value
    from photinus.core.parameters import Layout, Parameters
    from photinus.data.base import Batch, Feed
    from photinus.data.films import film_sentences
    from photinus.data.image_files import image_frame
    from photinus.data.spark import cifar_frame
    from photinus.data.tokens import Tokenizer
    from photinus.embeddings.vectors import WordVectors
    from photinus.embeddings.word2vec import Word2VecConfig
    from photinus.engine.agree import Agreed, agree
    from photinus.engine.base import ArrayData, Engine
    from photinus.engine.local.engine import LocalEngine
    from photinus.engine.simulation.cluster import SimulatedCluster
    from photinus.engine.simulation.engine import SimulatedEngine
    from photinus.engine.spark.engine import FrameData, SparkEngine
    from photinus.engine.spark.session import spark_session
    from photinus.estimators.dbn import DBNClassificationModel, DBNClassifier
    from photinus.estimators.deepdist import DeepDist, Stepper
    from photinus.estimators.item2vec import Item2Vec
    from photinus.estimators.iterate import Iterated, iterate
    from photinus.estimators.launch import launch
    from photinus.estimators.module import (
        TorchClassificationModel,
        TorchClassifier,
        TorchEstimator,
        TorchModel,
        TorchMultiLabelModel,
        TorchRegressionModel,
        TorchRegressor,
        TorchTokenModel,
    )
    from photinus.estimators.node_vectors import NodeVectors
    from photinus.estimators.summary import Evaluation
    from photinus.estimators.vector_models import Item2VecModel, NodeVectorsModel, Word2VecModel
    from photinus.estimators.wikipedia import wikipedia_sentences
    from photinus.estimators.word2vec import Word2Vec
    from photinus.models.base import Model, ModelConfig
    from photinus.models.dbn import DBN, FineTuning, Pretraining
    from photinus.models.logistic import LogisticConfig
    from photinus.models.module import ModuleConfig
    from photinus.models.schedules import Schedule
    from photinus.models.text import text_classifier
    from photinus.report.trackers.mlflow import MLflowCallback
    from photinus.report.trackers.tensorboard import TensorBoardCallback
    from photinus.report.trackers.trackio import TrackioCallback
    from photinus.run.data import TestRows
    from photinus.run.evaluate import TrainedModel, load_trained, measure
    from photinus.run.job import Job, Source, read_job
    from photinus.run.presets import preset
    from photinus.run.train import Outcome, resume, train
    from photinus.strategies.base import Message, Policy, Reply, Strategy, Turn
    from photinus.strategies.compress import compress
    from photinus.strategies.custom import CustomStrategy
    from photinus.strategies.fragments import fragments
    from photinus.strategies.outer import (
        Adagrad,
        Adam,
        DelayedNesterov,
        Descent,
        Nesterov,
        OuterOptimizer,
        RowAdagrad,
        RowAdam,
        Sgd,
        SlowMo,
    )
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
    from photinus.strategies.rounds import Averaging, Rounds
    from photinus.strategies.spec import StrategySpec
    from photinus.transport.link import Link

__all__ = [
    "DBN",
    "Adagrad",
    "Adam",
    "Agreed",
    "ArrayData",
    "AuthenticationError",
    "Averaging",
    "Batch",
    "CheckpointError",
    "Clock",
    "CustomStrategy",
    "DBNClassificationModel",
    "DBNClassifier",
    "DataError",
    "DeepDist",
    "DelayedNesterov",
    "Descent",
    "Engine",
    "Epochs",
    "Evaluation",
    "Examples",
    "Feed",
    "FencedError",
    "FineTuning",
    "FrameData",
    "FrameError",
    "Item2Vec",
    "Item2VecModel",
    "Iterated",
    "Job",
    "Layout",
    "Link",
    "LinkError",
    "LinkLostError",
    "LocalEngine",
    "LogisticConfig",
    "MLflowCallback",
    "Message",
    "Model",
    "ModelConfig",
    "ModuleConfig",
    "Nesterov",
    "NodeVectors",
    "NodeVectorsModel",
    "NotReadyError",
    "Outcome",
    "OuterOptimizer",
    "Parameters",
    "Partitions",
    "PhotinusError",
    "Policy",
    "Pretraining",
    "Reply",
    "Rounds",
    "RowAdagrad",
    "RowAdam",
    "RunFailedError",
    "Schedule",
    "Seconds",
    "Sgd",
    "SimulatedCluster",
    "SimulatedEngine",
    "SlowMo",
    "Source",
    "SparkEngine",
    "Stepper",
    "Steps",
    "Strategy",
    "StrategySpec",
    "TensorBoardCallback",
    "TestRows",
    "Tokenizer",
    "TorchClassificationModel",
    "TorchClassifier",
    "TorchEstimator",
    "TorchModel",
    "TorchMultiLabelModel",
    "TorchRegressionModel",
    "TorchRegressor",
    "TorchTokenModel",
    "TrackioCallback",
    "TrainedModel",
    "Trigger",
    "Turn",
    "UsageError",
    "Word2Vec",
    "Word2VecConfig",
    "Word2VecModel",
    "WordVectors",
    "agree",
    "all_reduce",
    "averaging",
    "by_value",
    "cifar_frame",
    "compress",
    "diloco",
    "downpour",
    "elastic",
    "events",
    "film_sentences",
    "fragments",
    "full_gradient",
    "gossip",
    "image_frame",
    "iterate",
    "iterative_reduce",
    "launch",
    "load_trained",
    "measure",
    "nn",
    "post_local",
    "preset",
    "publish",
    "read_job",
    "resume",
    "spark_session",
    "streaming",
    "text_classifier",
    "train",
    "wikipedia_sentences",
]

__version__ = "0.1.0"

_MODULES = {"events": "core.events", "nn": "nn"}
_HOMES = {
    "core.clock": ("Clock", "Epochs", "Examples", "Partitions", "Seconds", "Steps", "Trigger"),
    "core.factories": ("by_value",),
    "core.parameters": ("Layout", "Parameters"),
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
    "engine.agree": ("Agreed", "agree"),
    "engine.base": ("ArrayData", "Engine"),
    "engine.local.engine": ("LocalEngine",),
    "engine.spark.session": ("spark_session",),
    "engine.simulation.cluster": ("SimulatedCluster",),
    "engine.simulation.engine": ("SimulatedEngine",),
    "engine.spark.engine": ("FrameData", "SparkEngine"),
    "estimators.dbn": ("DBNClassificationModel", "DBNClassifier"),
    "estimators.deepdist": ("DeepDist", "Stepper"),
    "estimators.summary": ("Evaluation",),
    "estimators.iterate": ("Iterated", "iterate"),
    "estimators.launch": ("launch",),
    "estimators.item2vec": ("Item2Vec",),
    "estimators.node_vectors": ("NodeVectors",),
    "estimators.vector_models": ("Item2VecModel", "NodeVectorsModel", "Word2VecModel"),
    "estimators.wikipedia": ("wikipedia_sentences",),
    "estimators.word2vec": ("Word2Vec",),
    "embeddings.vectors": ("WordVectors",),
    "embeddings.word2vec": ("Word2VecConfig",),
    "estimators.module": (
        "TorchClassificationModel",
        "TorchClassifier",
        "TorchEstimator",
        "TorchModel",
        "TorchMultiLabelModel",
        "TorchRegressionModel",
        "TorchRegressor",
        "TorchTokenModel",
    ),
    "data.base": ("Batch", "Feed"),
    "data.films": ("film_sentences",),
    "data.image_files": ("image_frame",),
    "data.spark": ("cifar_frame",),
    "data.tokens": ("Tokenizer",),
    "models.base": ("Model", "ModelConfig"),
    "models.dbn": ("DBN", "FineTuning", "Pretraining"),
    "models.logistic": ("LogisticConfig",),
    "models.module": ("ModuleConfig",),
    "models.schedules": ("Schedule",),
    "models.text": ("text_classifier",),
    "report.trackers.mlflow": ("MLflowCallback",),
    "report.trackers.tensorboard": ("TensorBoardCallback",),
    "report.trackers.trackio": ("TrackioCallback",),
    "run.data": ("TestRows",),
    "run.evaluate": ("TrainedModel", "load_trained", "measure"),
    "run.job": ("Job", "Source", "read_job"),
    "run.presets": ("preset",),
    "run.train": ("Outcome", "resume", "train"),
    "strategies.base": ("Message", "Policy", "Reply", "Strategy", "Turn"),
    "strategies.compress": ("compress",),
    "strategies.fragments": ("fragments",),
    "strategies.spec": ("StrategySpec",),
    "strategies.outer": (
        "Adagrad",
        "Adam",
        "DelayedNesterov",
        "Descent",
        "Nesterov",
        "OuterOptimizer",
        "RowAdagrad",
        "RowAdam",
        "Sgd",
        "SlowMo",
    ),
    "strategies.custom": ("CustomStrategy",),
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
    "strategies.rounds": ("Averaging", "Rounds"),
    "transport.link": ("Link",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Imports a public name from its module."""
    if name in _MODULES:
        return importlib.import_module(f"photinus.{_MODULES[name]}")
    if name not in _HOME_OF:
        import difflib

        near = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"photinus has no {name!r}{hint}")
    value = getattr(importlib.import_module(f"photinus.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
