"""A strategy of the user's own: the lines of the docs train, and half a one is refused."""

import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.core.factories import resolve_user_code
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Job
from photinus.run.train import resume, train
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.testing import check_strategy

PAGE = Path(__file__).parents[2] / "docs" / "strategies" / "README.md"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a module under a name of its own, and returns what names a thing in it."""
    module = f"mine_{tmp_path.name}"

    def write(text, name):
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return f"{module}:{name}"

    yield write
    sys.modules.pop(module, None)


@pytest.fixture
def documented(own):
    *_, lines = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return CustomStrategy(own(lines, "PostLocal"))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((400, 6)).astype(np.float32)
    return ArrayData(features, (features @ rng.standard_normal((6, 3))).argmax(axis=1))


def job(strategy):
    model = LogisticConfig(features=6, classes=3, epochs=3.0)
    return Job(model=model, workers=2, engine="simulate", strategy=strategy)


def test_the_lines_of_the_docs_keep_the_contract_and_train(documented, data, tmp_path):
    check_strategy(documented)
    first = train(job(documented), data, folder=tmp_path / "first")
    again = train(job(documented), data, folder=tmp_path / "again")
    other = train(job(averaging()), data, folder=tmp_path / "other")
    assert np.array_equal(first.vector, again.vector)
    assert not np.array_equal(first.vector, other.vector)
    with pytest.raises(UsageError, match="is done: there is nothing to resume"):
        resume(tmp_path / "first", data)


def test_a_job_with_one_goes_through_plain_values_and_back(documented):
    original = job(documented)
    assert original.to_dict()["strategy"] == {"recipe": str(documented)}
    assert Job.from_dict(original.to_dict()) == original
    assert Job.from_dict({**original.to_dict(), "strategy": str(documented)}) == original


def test_what_cannot_be_imported_is_told_of_when_it_is_named():
    with pytest.raises(UsageError, match="the strategy 'nosuch:Thing' cannot be imported"):
        CustomStrategy("nosuch:Thing")


def test_half_a_strategy_is_told_of_when_it_is_named(own):
    name = own("class Half:\n    def worker(self): ...\n", "Half")
    with pytest.raises(UsageError, match="got Half without owner"):
        CustomStrategy(name)


@pytest.mark.parametrize(
    ("worker", "owner", "said"),
    [
        ("object", "Rounds", r"worker\(\) of .* returns something without site; got object"),
        ("Averaging", "int", r"owner\(\) of .* without init; got int; add init"),
        ("Averaging", "Policy", r"owner\(\) of .* cannot be called; got .* abstract .* agreed"),
        (
            "Averaging",
            "Bare",
            r"owner\(\) of .* without holds_parameters; got Bare; derive .*Policy",
        ),
    ],
)
def test_a_half_without_one_of_its_functions_is_refused_when_it_is_named(own, worker, owner, said):
    lines = f"""from photinus import *
class Bare:
    init = receive = close = agreed = None
class Odd:
    worker, owner = {worker}, {owner}
"""
    with pytest.raises(UsageError, match=said):
        CustomStrategy(own(lines, "Odd"))


@pytest.mark.parametrize(
    ("worker", "owner", "said"),
    [
        (
            "alone = ('anchor',)",
            "...",
            r"alone of worker\(\) .* read any more; .* name it own_fields",
        ),
        ("...", "waits = False", r"waits of owner\(\) .* read any more; .* name it has_rounds"),
        ("def calls(self): ...", "...", ""),
    ],
)
def test_a_former_name_is_refused_for_it_would_not_be_read(own, worker, owner, said):
    lines = f"""from photinus.strategies.rounds import *
class Worker(Averaging):
    {worker}
class Owner(Rounds):
    {owner}
class Mine:
    worker, owner = Worker, Owner
"""
    name = own(lines, "Mine")
    if not said:
        check_strategy(CustomStrategy(name))
        return
    with pytest.raises(UsageError, match=said):
        CustomStrategy(name)
    with pytest.raises(AssertionError, match="has former names, with today's"):
        check_strategy(resolve_user_code(name, "strategy")())


def test_halves_that_step_differently_are_refused(own):
    text = """
        from photinus import Averaging, Nesterov, Rounds, Sgd

        class Unlike:
            worker, owner = Averaging, lambda self: Rounds(outer=Nesterov())

        class Like:
            worker, owner = Averaging, lambda self: Rounds(outer=Sgd())
    """
    name = own(textwrap.dedent(text), "Unlike")
    said = r"have different outer optimizers; got Sgd\(lr=1.0\) and Nesterov\(.*; set outer of both"
    with pytest.raises(UsageError, match=said):
        CustomStrategy(name)
    assert CustomStrategy(name.replace("Unlike", "Like")).owner().outer == Sgd()


def test_one_that_cannot_be_called_is_told_with_its_reason(own):
    name = own("def made(every): ...\n", "made")
    message = "cannot be made; got made.. missing .* 'every'; it is called without arguments"
    with pytest.raises(UsageError, match=message):
        CustomStrategy(name)


def test_one_that_agrees_at_every_step_does_not_go_through_a_folder(own):
    lines = "from photinus.strategies.rounds import AllReduce, Rounds\n"
    halves = "worker, owner = AllReduce, lambda self: Rounds(holds_parameters=False)"
    name = own(lines + f"class Steps:\n    {halves}\n", "Steps")
    with pytest.raises(UsageError, match="agrees at every step, too often for a folder"):
        Job(strategy=CustomStrategy(name), transport="/shared")


ODD = """
from photinus import Averaging, Message, Rounds, Steps, Strategy, Turn

class Worker(Averaging):
    def __init__(self):
        super().__init__(every=Steps(3))

    {function}

class Odd:
    is_deterministic, worker, owner = True, Worker, Rounds
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("due = lambda self, clock, state: None", r"due\(\) of Worker .* Turns; got None"),
        ("due = lambda self, clock, state: True", r"due\(\) of Worker .* Turns; got True"),
        ("due = lambda self, clock, state: ('swap',)", r"due\(\) .* Turns; got \('swap',\)"),
        ("due = lambda self, clock, state: (Turn('send'),)", r"due\(\) .*'send'.* one of push, "),
        ("offer = lambda self, *args: None", r"offer\(\) of Worker .* got NoneType at .*'swap'"),
        ("offer = lambda self, turn, v, clock, state: (None, state)", r"got \(NoneType, state\)"),
        ("offer = lambda self, turn, v, clock, state: (v, state)", r"got \(ndarray, state\) at"),
    ],
)
def test_what_a_half_returns_in_another_form_ends_the_run_by_its_name(
    own, data, tmp_path, function, said
):
    strategy = CustomStrategy(own(ODD.format(function=function), "Odd"))
    with pytest.raises(UsageError, match=said):
        train(job(strategy), data, folder=tmp_path / "run")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("site = 'middle'", "site of .* must be one of gradient, parameters, .*; got 'middle'"),
        (
            "site = 'gradient'",
            r"push gradients, but .* holds parameters; .* Rounds\(holds_parameters=False\)",
        ),
    ],
)
def test_a_site_that_the_owner_does_not_serve_is_refused_when_it_is_named(own, function, said):
    with pytest.raises(UsageError, match=said):
        CustomStrategy(own(ODD.format(function=function), "Odd"))


def test_one_that_is_handed_over_is_asked_for_by_its_name():
    with pytest.raises(UsageError, match="is named, not handed over; got StrategySpec; write"):
        CustomStrategy(averaging())


def test_a_job_that_is_given_the_name_alone_says_what_takes_it(documented):
    said = rf"got '{documented}'; strategy=photinus.CustomStrategy\('{documented}'\)"
    with pytest.raises(UsageError, match=said):
        job(str(documented))
