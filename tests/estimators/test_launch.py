"""A training function of the user's own, on processes and on a real Spark."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from photinus import (
    Epochs,
    Steps,
    agree,
    all_reduce,
    averaging,
    iterative_reduce,
    launch,
    post_local,
    publish,
    streaming,
)
from photinus.core.errors import NotReadyError, PhotinusError, RunFailedError, UsageError
from photinus.core.threads import limit_threads
from photinus.strategies.outer import Sgd

ROWS = [
    {"x": [float(n % 7), float(n % 5), 1.0], "y": float(n % 7) - 2.0 * (n % 5)} for n in range(96)
]
EVERY_FIVE = averaging(every=Steps(5), outer=Sgd(), codec="fp32", merge="uniform")


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.BatchNorm1d(8), nn.Linear(8, 1))


def loader(rows):
    def collate(batch):
        x = torch.tensor([row["x"] for row in batch])
        return x, torch.tensor([[row["y"]] for row in batch])

    generator = torch.Generator().manual_seed(3)
    return torch.utils.data.DataLoader(
        rows, batch_size=8, shuffle=True, generator=generator, collate_fn=collate
    )


def loop(rows, agreed_by=agree, epochs=3):
    """A plain PyTorch loop; with `agreed_by=None` as it was before."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    agreed = agreed_by(model) if agreed_by else None
    for _ in range(epochs):
        for x, y in loader(rows):
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if agreed:
                agreed.step(loss=float(loss))
    return model


def same_bits(tensors, model):
    expected = {n: t for n, t in model.state_dict().items() if n in tensors}
    assert tensors.keys() == expected.keys()
    return all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


def plain_loop():
    with limit_threads(1):
        return loop(ROWS, agreed_by=None)


@pytest.mark.processes
def test_one_worker_is_the_plain_loop_bit_for_bit():
    tensors = launch(loop, workers=1, data=ROWS, engine="local", strategy=EVERY_FIVE)
    assert same_bits(tensors, plain_loop())


def by_another_strategy(rows):
    torch.manual_seed(os.getpid())  # worker 0's parameters are those of all
    model = nn.Linear(3, 1)
    agreed = agree(model, EVERY_FIVE)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for x, _ in loader(rows):
        model(x).sum().backward()
        optimizer.step()
        agreed.step()
    assert same_bits(before, model)


@pytest.mark.processes
def test_all_start_from_the_parameters_of_worker_0_and_agree_names_a_strategy():
    events = []
    tensors = launch(
        by_another_strategy, workers=2, data=ROWS, engine="local", callbacks=[events.append]
    )
    [started] = [e for e in events if type(e).__name__ == "PhaseStarted"]
    assert started.strategy == str(EVERY_FIVE)
    assert sorted(tensors) == ["bias", "weight"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "strategy",
    [streaming(every=Steps(8), fragments=2), publish(every=Steps(4))],
    ids=lambda strategy: strategy.recipe,
)
def test_a_loop_learns_under_every_kind_of_strategy(strategy):
    model = make_model()
    model.load_state_dict(launch(loop, workers=2, data=ROWS, engine="local", strategy=strategy))
    assert error_of(model) < 0.5 * error_of(make_model())


def error_of(model):
    x = torch.tensor([row["x"] for row in ROWS])
    y = torch.tensor([[row["y"]] for row in ROWS])
    with torch.no_grad():
        return float(((model.eval()(x) - y) ** 2).mean())


def fails(rows):
    agreed = agree(make_model())
    agreed.step()
    raise OSError("the disk of this worker is full")


def agrees_with_nobody(rows):
    make_model()


def agrees_twice(rows):
    agree(make_model())
    agree(make_model())


def tells_of_no_step(rows):
    def agreed_by(model):
        agree(model)
        return SimpleNamespace(step=lambda loss: None)

    loop(rows, agreed_by)


def agrees_on_no_module(rows):
    agree({"weight": rows})


def has_another_model(rows):
    agree(nn.Linear(len(rows), 1))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("function", "workers", "kind", "says"),
    [
        (fails, 2, RunFailedError, "the disk of this worker is full"),
        (agrees_with_nobody, 1, UsageError, "call photinus.agree(model) in it"),
        (agrees_twice, 1, UsageError, "put the models into one torch.nn.ModuleList"),
        (tells_of_no_step, 1, UsageError, "never called agreed.step(); call it after each"),
        (agrees_on_no_module, 1, UsageError, "agree takes a torch.nn.Module; got dict"),
        (has_another_model, 2, UsageError, "worker 1 and worker 0 differ in the model"),
    ],
)
def test_what_fails_on_a_worker_ends_the_launch_in_its_words(function, workers, kind, says):
    with pytest.raises(kind) as failed:
        launch(function, workers=workers, data=ROWS[:5], engine="local")
    assert says in str(failed.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"strategy": all_reduce()}, "agrees on parameters after its steps, not on gradients"),
        ({"strategy": post_local()}, "gradients_until=0 leaves a start by gradients out"),
        ({"strategy": iterative_reduce()}, "e.g. every=photinus.Steps(50)"),
        ({"strategy": averaging(every=Epochs(1))}, "is counted in steps and seconds"),
        ({"strategy": "averaging"}, "strategy must be made by a recipe"),
        ({"workers": 0}, "workers of launch must be a whole number"),
        ({"cpu_share": 0.0}, "cpu_share of launch must be a number above 0"),
        ({"cpu_share": 1.5}, "cpu_share is more than a worker's threads use"),
        ({"memory": 1000}, "memory of launch must be a whole number of bytes, at least 67108864"),
        ({"engine": "yarn"}, "engine of launch must be one of"),
        ({"data": None}, "the function must take no argument"),
        ({"data": 7}, "the local engine reads a sequence of rows"),
        ({"engine": "spark"}, "data must be a DataFrame"),
        ({"function": 7}, "launch runs a function"),
        ({"function": lambda rows: None}, "define it in a module"),
        ({"data": ROWS[:1], "workers": 2}, "a worker has no rows; got 1 rows for 2 workers; hand"),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments, says):
    defaults = {"function": loop, "workers": 2, "data": ROWS, "engine": "local"}
    with pytest.raises(PhotinusError) as refused:
        launch(**defaults | arguments)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.processes
def test_a_share_of_the_processors_is_told_and_changes_no_bit():
    events = []
    capped = {"cpu_share": 0.5, "callbacks": [events.append]}
    tensors = launch(loop, workers=1, data=ROWS, engine="local", strategy=EVERY_FIVE, **capped)
    assert same_bits(tensors, plain_loop())
    warnings = [e.text for e in events if type(e).__name__ == "Warned"]
    assert warnings == ["cpu_share=0.5: measured by each worker, which waits between its batches"]


@pytest.mark.processes
def test_a_loop_without_the_memory_for_python_is_refused():
    with pytest.raises(NotReadyError, match="before it has any row; got 64 MiB"):
        launch(loop, workers=1, data=ROWS, engine="local", memory=64 << 20)


def test_agree_outside_of_launch_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match=r"outside of a function that photinus\.launch runs"):
        agree(make_model())


@pytest.fixture
def frame(spark):
    """The rows on a real Spark; workers get this file's functions by value."""
    from pyspark import cloudpickle

    module = __import__("sys").modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield lambda parts: spark.createDataFrame(ROWS, "x array<double>, y double").coalesce(parts)
    cloudpickle.unregister_pickle_by_value(module)


def loop_killed_once(folder):
    """The loop, in which worker 1 dies once, after some agreements."""

    def train(rows):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        agreed = agree(model)
        batches = [batch for _ in range(8) for batch in loader(rows)]
        for step in range(agreed.begin, len(batches)):
            x, y = batches[step]
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            agreed.step()
            if step == 17 and not os.path.exists(folder) and own_slot() == 1:
                os.mkdir(folder)
                os.kill(os.getpid(), signal.SIGKILL)

    return train


def own_slot():
    from pyspark import TaskContext

    return TaskContext.get().partitionId()


@pytest.mark.spark
def test_one_worker_on_spark_is_the_plain_loop_bit_for_bit(frame):
    tensors = launch(loop, workers=1, data=frame(1), strategy=EVERY_FIVE)
    assert same_bits(tensors, plain_loop())


def in_memory():
    """The loop, whose rows each worker has of its own."""
    return loop(ROWS)


@pytest.mark.spark
def test_without_rows_the_function_runs_on_every_worker(frame, spark):
    assert spark.sparkContext.defaultParallelism != 3
    tensors = launch(in_memory, workers=3, spark=spark, strategy=EVERY_FIVE)
    expected = plain_loop().state_dict()  # all do the same, so their mean is what one does
    assert all(
        torch.allclose(tensor, expected[name], rtol=1e-4) for name, tensor in tensors.items()
    )


@pytest.mark.spark
def test_a_worker_that_is_killed_continues_from_what_was_agreed(frame, tmp_path):
    events = []
    tensors = launch(
        loop_killed_once(str(tmp_path / "died")),
        workers=2,
        data=frame(2),
        strategy=EVERY_FIVE,
        callbacks=[events.append],
    )
    joined = [e for e in events if type(e).__name__ == "WorkerJoined"]
    assert [e.lease for e in joined if e.slot == 1] == [1, 2]
    [ended] = [e for e in events if type(e).__name__ == "PhaseEnded"]
    assert ended.passes == {"0": 48.0, "1": 48.0}
    model = make_model()
    model.load_state_dict(tensors)


@pytest.mark.spark
def test_columns_with_dots_and_spaces_have_their_names_on_a_worker(frame):
    def train(rows):
        assert set(rows[0]) == {"x", "size in m.", "größe"}
        loop([{"x": row["x"], "y": row["size in m."]} for row in rows], epochs=1)

    named = frame(1).selectExpr("x", "y `size in m.`", "y `größe`")
    assert launch(train, workers=1, data=named, strategy=EVERY_FIVE)


@pytest.mark.spark
def test_columns_of_one_name_are_refused_before_the_launch(frame):
    with pytest.raises(UsageError, match="several columns have one name; got 'y'; rename them"):
        launch(loop, workers=1, data=frame(1).selectExpr("x", "y", "2 * y y"))
