import inspect
import json

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.estimators.dbn import DBNClassifier
from photinus.estimators.item2vec import Item2Vec
from photinus.estimators.module import (
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
    TorchRegressor,
)
from photinus.estimators.network import Network
from photinus.estimators.node_vectors import NodeVectors
from photinus.estimators.param_table import CLASSIFIER_ROWS, DBN_ROWS, ESTIMATOR_ROWS, MODEL_ROWS
from photinus.estimators.params import defaults, plain_job
from photinus.estimators.summary import Evaluation
from photinus.estimators.word2vec import Word2Vec
from photinus.models.dbn import DBN
from photinus.models.module import ModuleConfig
from photinus.run.job import Job
from photinus.strategies.recipes import averaging

ALL = [
    (DBNClassifier, DBN_ROWS),
    (TorchClassifier, CLASSIFIER_ROWS),
    (TorchEstimator, ESTIMATOR_ROWS),
    (TorchRegressor, ESTIMATOR_ROWS),
]
NUMBERS = ModuleConfig(module="torch.nn:Linear", loss="mse")
MODELS = {
    DBNClassifier: DBN(),
    TorchClassifier: ModuleConfig(module="torch.nn:Linear"),
    TorchEstimator: NUMBERS,
    TorchRegressor: NUMBERS,
}
NON_DEFAULTS = {
    "featuresCol": "pixels",
    "labelCol": "digit",
    "predictionCol": "said",
    "probabilityCol": "chances",
    "rawPredictionCol": "outputs",
    "thresholds": [0.75, 0.25],
    "predictBatchSize": 64,
    "numClasses": 7,
    "scale": 0.25,
    "strategy": "diloco",
    "preTrainStrategy": "all_reduce",
    "fineTuneStrategy": "iterative_reduce",
    "preTrainDevice": "stand-in",
    "fineTuneDevice": "cpu",
    "numWorkers": 3,
    "shuffle": False,
    "share": "fastest",
    "learningRateScale": "sqrt",
    "numThreads": 2,
    "device": "auto",
    "bandwidth": 2e6,
    "cpuShare": 0.5,
    "memory": 1 << 30,
    "priority": 2,
    "weight": 1.5,
    "jobsFolder": "/shared/jobs",
    "deadlineSeconds": 600.0,
    "seed": 5,
    "security": "none",
    "runDir": "kept",
    "checkpointSeconds": 7.0,
    "leaseSeconds": 3.0,
    "hiddenSizes": [30, 20],
    "preTrainEpochs": 2.0,
    "preTrainBatchSize": 11,
    "preTrainLearningRate": 0.4,
    "visibleUnits": "gaussian",
    "fineTuneEpochs": 3.0,
    "batchSize": 13,
    "optimizer": "sgd",
    "learningRate": 0.2,
    "weightDecay": 0.01,
    "inputDropout": 0.05,
    "hiddenDropout": [0.1],
    "labelSmoothing": 0.3,
    "precision": "bfloat16",
    "inputs": {"tokens": "ids", "numbers": ["a", "b"]},
    "encoders": {"tokens": "mynets:encode"},
    "collate": "mynets:collate",
    "weightCol": "w",
    "module": "torch.nn:Bilinear",
    "moduleArgs": {"in_features": 4},
    "loss": "multi_margin",
    "optimizerArgs": {"momentum": 0.5},
    "decays": "weights",
    "epochs": 4.0,
    "activationMemory": "recompute",
    "activationBytes": 100_000_000,
    "cudaGraph": True,
    "metrics": ["f1"],
    "validation": 0.1,
    "validationIndicatorCol": "aside",
    "patience": 2,
    "start": "kept/model",
    "perTensor": True,
    "accumulate": 3,
    "maxSteps": 40,
    "clip": 1.5,
    "l2": {"*weight": 0.1},
    "movingAverage": 0.99,
    "frozen": ["*bias"],
    "reads": "photinus.models.images:crops",
    "memoryFormat": "channels_last",
    "phase": "first",
}
"""For each Param a value that is not its default."""


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_every_param_is_in_the_table_and_the_other_way_round(cls, rows):
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    assert sorted(p.name for p in cls().params) == sorted(names)
    assert list(inspect.signature(cls).parameters) == [*names, "callbacks", "verbose"]
    assert set(names) <= set(NON_DEFAULTS)


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_the_constructor_shows_the_defaults_that_hold(cls, rows):
    for row in rows:
        signature_default = inspect.signature(cls).parameters[row.name].default
        param_default = cls().getOrDefault(row.name) if cls().hasDefault(row.name) else None
        if signature_default is None:
            assert param_default in (None, {}), row.name
        else:
            assert row.convert(signature_default) == param_default, row.name


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_a_param_that_is_left_out_or_none_is_not_set(cls, rows):
    bare, configured = cls(), cls(batchSize=7, learningRate=None)
    assert [p.name for p in bare.params if bare.isSet(p)] == []
    assert [p.name for p in configured.params if configured.isSet(p)] == ["batchSize"]
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        cls(7)


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_a_getter_of_what_is_left_out_and_has_no_default_returns_none(cls, rows):
    for row in rows:
        value = getattr(cls(), f"get{row.name[0].upper()}{row.name[1:]}")()
        assert (value is None) != cls().hasDefault(row.name), row.name
    assert cls().getLearningRate() is None


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_every_param_can_be_set_and_got_by_keyword_and_by_setter(cls, rows):
    values = {row.name: NON_DEFAULTS[row.name] for row in rows}
    by_keyword, by_setter = cls(**values), cls()
    for row in rows:
        suffix = row.name[0].upper() + row.name[1:]
        assert getattr(by_setter, f"set{suffix}")(NON_DEFAULTS[row.name]) is by_setter
        value = getattr(by_setter, f"get{suffix}")()
        assert value == getattr(by_keyword, f"get{suffix}")()
        assert value == row.convert(NON_DEFAULTS[row.name])
        assert json.loads(json.dumps(value)) == value
        assert f"{row.name}: {row.meaning}" in by_setter.explainParams()


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_every_setting_of_a_job_takes_the_params_value(cls, rows):
    kind = {"model": {"kind": "dbn" if cls is DBNClassifier else "module"}}
    if cls is not DBNClassifier:
        kind["model"] |= {"module": "torch.nn:Linear", "loss": MODELS[cls].loss}
    default_job = Job.from_dict(kind).to_dict()
    for row in rows:
        if not row.job_path:
            continue
        plain, needs = plain_job(rows, {row.name: row.convert(NON_DEFAULTS[row.name])}), {}
        if row.name == "patience":  # without rows set aside a job takes none
            needs = {"validation": 0.2}
        plain |= needs
        plain["model"] = {**kind["model"], **plain.get("model", {})}
        job = Job.from_dict(plain).to_dict()
        changed = [name for name in job if job[name] != (default_job | needs).get(name)]
        assert changed == [row.job_path.partition(".")[0]], row.name


def test_vectors_take_what_the_warning_of_uneven_rows_names():
    for estimator in (Word2Vec, Item2Vec, NodeVectors):
        assert estimator()._job(np.ones(9), 1).shuffle == "auto"
        assert estimator(shuffle=False)._job(np.ones(9), 1).shuffle is False


@pytest.mark.parametrize(("cls", "rows"), ALL)
def test_the_defaults_are_those_of_a_job(cls, rows):
    all_defaults = defaults(rows, MODELS[cls])
    job_defaults = {
        row.name: all_defaults[row.name]
        for row in rows
        if row.job_path and row.name in all_defaults
    }
    assert job_defaults.pop("numWorkers") == 0  # the free slots
    plain = plain_job(rows, job_defaults)
    if cls is DBNClassifier:
        plain["model"]["kind"] = "dbn"
    else:
        plain["model"]["kind"] = "module"
    assert Job.from_dict(plain) == Job(model=MODELS[cls])


def test_a_copy_has_its_own_values():
    first = DBNClassifier(numWorkers=2, strategy="diloco")
    second = first.copy({first.numWorkers: 3, first.strategy: averaging(every=Steps(7))})
    assert (first.getNumWorkers(), second.getNumWorkers()) == (2, 3)
    assert json.loads(second.getStrategy()) == {
        "recipe": "averaging",
        "every": {"steps": 7},
    }
    assert json.loads(first.getStrategy()) == {"recipe": "diloco"}


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (DBNClassifier(hiddenSizes=[]), "hiddenSizes must be one or more whole numbers"),
        (DBNClassifier(numWorkers=2, hiddenSizes=[8, 0]), "hiddenSizes must be one or more"),
        (DBNClassifier(batchSize=0), "batchSize must be a whole number of at least 1; got 0"),
        (DBNClassifier(preTrainBatchSize=0), "preTrainBatchSize must be a whole number"),
        (DBNClassifier(visibleUnits="poisson"), "visibleUnits must be one of"),
        (TorchClassifier(module="torch.nn:Linear", loss="entropy"), "loss: unknown loss; got"),
        (
            TorchClassifier(module="torch.nn:Linear", learningRate=0.1, optimizerArgs={"lr": 0.01}),
            "optimizerArgs: two learning rates are set; got learningRate=0.1, and optimizerArgs",
        ),
    ],
)
def test_a_value_that_no_job_takes_is_told_of_its_param(estimator, said):
    with pytest.raises(UsageError) as caught:
        estimator._job({"inputs": 4, "classes": 3} if "DBN" in estimator.uid else {})
    assert str(caught.value).startswith(said)


def test_no_fewer_workers_than_none_can_be_asked_for():
    message = "numWorkers must be at least 0; got -1; name how many tasks shall train, or 0 for"
    for make in (DBNClassifier, TorchClassifier, Item2Vec):
        with pytest.raises(UsageError, match=message):
            make(numWorkers=-1)


@pytest.mark.parametrize(
    ("params", "columns", "said"),
    [
        ({}, ["features"], "unknown column; got 'label'; known: features; set labelCol=\"\" wh"),
        (
            {"labelCol": "x", "featuresCol": "x"},
            ["x"],
            "taken twice; got 'x'; set labelCol=\"\" wh",
        ),
    ],
)
def test_who_has_no_labels_is_told_how_to_say_so(params, columns, said):
    with pytest.raises(UsageError, match=said):
        TorchEstimator(module="torch.nn:Linear", **params)._check_label(columns)


def test_models_share_the_columns():
    network = Network(kind="module", settings={}, tensors={}, shape=(4,), classes=3)
    model = TorchClassificationModel(network)
    assert sorted(p.name for p in model.params) == sorted(row.name for row in MODEL_ROWS)
    assert (model.numFeatures, model.numClasses, model.summary) == (4, 3, None)


@pytest.mark.parametrize("rows", [[1, 2], {"features": [1.0]}])
def test_what_is_no_dataframe_of_spark_is_refused_in_one_sentence(rows):
    with pytest.raises(UsageError, match="fit takes a DataFrame of Spark; got builtins's"):
        DBNClassifier().fit(rows)


def test_a_model_that_tells_no_classes_apart_has_no_error_and_says_what_it_has():
    evaluation = Evaluation(metrics={"loss": 0.5}, examples=3)
    with pytest.raises(UsageError, match="the metrics loss"):
        _ = evaluation.error
