"""What a user may give to a Param, and what is kept."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn, optim

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.estimators.dbn import DBNClassifier
from photinus.estimators.module import TorchClassifier
from photinus.estimators.param_table import CLASSIFIER_ROWS, DBN_ROWS, ESTIMATOR_ROWS
from photinus.strategies.recipes import RECIPES, to_plain

PER_STEP = ("all_reduce", "full_gradient")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_strategy_is_a_name_json_plain_values_or_a_strategy(recipe):
    parts = {"codec": "fp32"} if recipe in PER_STEP else {"every": Steps(7)}
    strategy = RECIPES[recipe].build(**parts)
    forms = [strategy, to_plain(strategy), json.dumps(to_plain(strategy))]
    assert len({DBNClassifier(strategy=form).getStrategy() for form in forms}) == 1
    assert DBNClassifier(strategy=recipe).getStrategy() == json.dumps({"recipe": recipe})


class Mine(optim.SGD):
    pass


def importable():
    """A factory that workers could import."""


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: DBNClassifier(numWorker=2),
            UsageError,
            "unknown Param of DBNClassifier; got 'numWorker'; did you mean 'numWorkers'?",
        ),
        (
            lambda: DBNClassifier(strategy="avraging"),
            UsageError,
            "unknown strategy; got 'avraging'; did you mean 'averaging'?",
        ),
        (lambda: DBNClassifier(strategy="{averaging"), UsageError, "the strategy is no JSON"),
        (lambda: DBNClassifier(strategy=7), UsageError, "a strategy is a recipe's name"),
        (lambda: DBNClassifier(batchSize="many"), TypeError, "Could not convert many"),
        (
            lambda: TorchClassifier(learningRate=abs),
            UsageError,
            "learningRate is a number or a Schedule; got abs; e.g. photinus.Schedule.cosine(0.1)",
        ),
        (
            lambda: TorchClassifier(learningRate=-1),
            UsageError,
            "learningRate must be a finite number of at least 0; got -1",
        ),
        (
            lambda: TorchClassifier(loss=nn.CrossEntropyLoss()),
            UsageError,
            "a loss is a function, or its name; got CrossEntropyLoss(); give one by name",
        ),
        (lambda: TorchClassifier(module=lambda: None), UsageError, "that every worker can import"),
        (lambda: TorchClassifier(moduleArgs=[1]), UsageError, "a dict of names and values"),
        (lambda: TorchClassifier(l2=0.01), UsageError, "l2: the value must be a dict of names"),
        (
            lambda: TorchClassifier(moduleArgs={"a": {1}}),
            UsageError,
            "moduleArgs: the dict must hold plain JSON values",
        ),
    ],
)
def test_a_wrong_param_is_named_when_it_is_set(make, error, said):
    with pytest.raises(error) as caught:
        make()
    assert said in str(caught.value)


def test_a_function_stands_for_its_name():
    name = f"{__name__}:importable"
    clf = TorchClassifier(
        module=importable,
        loss=importable,
        reads=importable,
        collate=importable,
        encoders={"text": importable, "picture": "image"},
        metrics=["accuracy", importable],
    )
    assert [clf.getModule(), clf.getLoss(), clf.getReads(), clf.getCollate()] == [name] * 4
    assert clf.getEncoders() == {"text": name, "picture": "image"}
    assert clf.getMetrics() == ["accuracy", name]


def test_an_optimizer_of_torch_stands_for_its_name_and_another_class_for_where_it_is():
    assert TorchClassifier(optimizer=optim.AdamW).getOptimizer() == "adamw"
    assert DBNClassifier(optimizer=optim.SGD).getOptimizer() == "sgd"
    assert TorchClassifier(optimizer=Mine).getOptimizer() == f"{__name__}:Mine"
    with pytest.raises(UsageError, match="an optimizer is a class, or its name; got SGD"):
        TorchClassifier(optimizer=optim.SGD([torch.zeros(1, requires_grad=True)], 0.1))


@pytest.mark.parametrize("rows", [DBN_ROWS, CLASSIFIER_ROWS, ESTIMATOR_ROWS])
def test_every_param_is_in_the_guide(rows):
    guide = (Path(__file__).parents[2] / "docs" / "estimators.md").read_text()
    missing = [r.name for r in rows if f"| `{r.name}` |" not in guide or r.meaning not in guide]
    assert missing == []
