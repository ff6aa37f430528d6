"""What each row of the table owes, on real models in virtual time."""

import numpy as np
import pytest

from photinus.core.clock import Epochs, Steps
from photinus.strategies import recipes
from photinus.strategies.outer import Nesterov, Sgd
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
    diloco,
    downpour,
    elastic,
    full_gradient,
    post_local,
    streaming,
)

pytestmark = pytest.mark.numerics

PRECISION = [("float32", 2.0**-23 * 100), ("float64", 1e-12)]
"""An eps for each of some hundred exchanges; float64 shows that it is nothing but that."""
EXACT = {"outer": Sgd(), "codec": "fp32"}

AS_PLAIN = {
    "all_reduce": all_reduce(),
    "averaging": averaging(every=Steps(7), **EXACT),
    "diloco": diloco(every=Steps(11), **EXACT),
    "downpour": downpour(every=Steps(7), fetch=Steps(3), codec="fp32"),
    "full_gradient": full_gradient(),
    "gossip": recipes.gossip(every=Steps(3), codec="fp32"),
    "streaming": streaming(every=Steps(7), fragments=3, delay=0, **EXACT),
    "iterative_reduce": recipes.iterative_reduce(every=Epochs(1)),
    "publish": recipes.publish(every=Steps(3), codec="fp32"),
    "post_local": post_local(every=Steps(7)),
}
"""Every recipe but `elastic`, set so that one worker trains as if there were no others."""


def test_the_table_of_identities_is_whole():
    plain = {recipes.ONE_WORKER, recipes.FULL_BATCH}
    assert set(AS_PLAIN) == {n for n, r in RECIPES.items() if plain & set(r.identities)}
    claims = {i for r in RECIPES.values() for i in r.identities}
    assert claims == {
        recipes.ONE_WORKER,
        recipes.EVERY_STEP,
        recipes.NO_MOMENTUM,
        recipes.ONE_FRAGMENT,
        recipes.FULL_BATCH,
        recipes.ELASTIC_HALF,
        recipes.ALL_PER_STEP,
    }


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
@pytest.mark.parametrize("name", AS_PLAIN)
def test_one_worker_is_plain_training(field, name, dtype, close):
    is_full = recipes.FULL_BATCH in RECIPES[name].identities
    batch_size = len(field.labels) if is_full else 8
    expected = field.plain(batch_size=batch_size, dtype=dtype)
    vector = field.play(AS_PLAIN[name], 1, dtype=dtype).run().vector
    assert vector.dtype == expected.dtype
    np.testing.assert_allclose(vector, expected, rtol=0, atol=close)


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_averaging_every_step_is_all_reduce(field, dtype, close):
    one = field.play(averaging(every=Steps(1), merge="uniform", **EXACT), dtype=dtype).run()
    other = field.play(all_reduce(), dtype=dtype).run()
    np.testing.assert_allclose(one.vector, other.vector, rtol=0, atol=close)


@pytest.mark.parametrize(
    ("until", "other"),
    [(1, all_reduce()), (0, averaging(every=Steps(9), gradients_until=0, **EXACT))],
)
@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_post_local_is_all_reduce_until_the_end_or_averaging_from_the_start(
    field, dtype, close, until, other
):
    strategy = post_local(every=Steps(9), gradients_until=until)
    one, two = (field.play(a, dtype=dtype, is_split=True).run() for a in (strategy, other))
    np.testing.assert_allclose(one.vector, two.vector, rtol=0, atol=close)


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_diloco_without_momentum_is_averaging(field, dtype, close):
    flat = diloco(every=Steps(6), outer=Nesterov(1.0, 0.0), codec="fp32", merge="nova")
    one = field.play(flat, dtype=dtype).run()
    other = field.play(averaging(every=Steps(6), **EXACT), dtype=dtype).run()
    np.testing.assert_allclose(one.vector, other.vector, rtol=0, atol=close)


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_streaming_one_fragment_without_delay_is_averaging(field, dtype, close):
    whole = streaming(every=Steps(6), fragments=1, delay=0, merge="nova", **EXACT)
    one = field.play(whole, dtype=dtype).run()
    other = field.play(averaging(every=Steps(6), **EXACT), dtype=dtype).run()
    np.testing.assert_allclose(one.vector, other.vector, rtol=0, atol=close)


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_elastic_of_half_is_averaging_of_half_for_one_worker(field, dtype, close):
    one = field.play(elastic(every=Steps(6), alpha=0.5, codec_down="fp32"), 1, dtype=dtype).run()
    half = averaging(every=Steps(6), outer=Sgd(0.5), codec="fp32")
    other = field.play(half, 1, dtype=dtype).run()
    np.testing.assert_allclose(one.vector, other.vector, rtol=0, atol=close)


@pytest.mark.parametrize(("dtype", "close"), PRECISION)
def test_one_worker_that_pushes_each_gradient_is_trained_by_the_owner(field, dtype, close):
    """Downpour as published, with n_push = n_fetch = 1: the owner takes the plain steps."""
    strategy = downpour(every=Steps(1), payload="gradient", outer=Sgd(0.2), codec="fp32")
    vector = field.play(strategy, 1, dtype=dtype).run().vector
    np.testing.assert_allclose(vector, field.plain(dtype=dtype), rtol=0, atol=close)


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_several_owners_give_the_bits_of_one(field, codec):
    one, many = (
        field.play(all_reduce(codec=codec, owners=n), dtype="float32").run() for n in (1, 4)
    )
    np.testing.assert_array_equal(many.vector, one.vector)
    assert many.counts == one.counts


@pytest.mark.parametrize("owners", [1, 4])
def test_a_quorum_of_all_workers_gives_the_bits_of_none(field, owners):
    vectors = [
        field.play(all_reduce(owners=owners, quorum=quorum)).run().vector for quorum in (1.0, 4)
    ]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    "make", [averaging, diloco, post_local, recipes.iterative_reduce], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_several_owners_of_deltas_give_the_bits_of_one(field, make, codec):
    """Uneven rows, an outer momentum and every merge: the same step is taken on every worker."""
    every = Epochs(1) if make is recipes.iterative_reduce else Steps(6)
    parts = field.parts(4, [60, 150, 120, 150], dtype="float32")
    one, many = (
        field.play(
            make(every=every, outer=Nesterov(0.7, 0.5), merge="nova", codec=codec, owners=n),
            dtype="float32",
            parts=parts,
            epochs=4,
        ).run()
        for n in (1, 4)
    )
    np.testing.assert_array_equal(many.vector, one.vector)
    assert many.counts == one.counts
    assert many.tape.warnings() == one.tape.warnings()


def test_full_gradient_of_many_workers_is_full_batch_descent(field):
    expected = field.plain(batch_size=len(field.labels))
    shares = [30, 150, 100, 200]
    vector = field.play(full_gradient(), parts=field.parts(4, shares)).run().vector
    np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-12)


def test_iterative_reduce_is_the_plain_average_after_every_epoch(field):
    """By hand: each worker trains an epoch alone from the average, and so on."""
    from photinus.data.arrays import FeedOrder

    config = field.config()
    parts = field.parts(4)
    models = [config.build((), 0) for _ in parts]
    feeds = [
        iter(p.open(FeedOrder(batch_size=8, epochs=2, phase="logistic", slot=s, workers=4)))
        for s, p in enumerate(parts)
    ]
    inner = config.inner(models[0].parameters.layout)
    for _ in range(2):
        for model, part, feed in zip(models, parts, feeds, strict=True):
            for _ in range(-(-part.rows // 8)):
                gradient, _ = model.learn(next(feed), 0)
                inner.step(model.parameters.trained, gradient, 0.0)
        mean = np.mean([m.parameters.trained for m in models], axis=0)
        for model in models:
            model.load(mean)
    vector = field.play(recipes.iterative_reduce()).run().vector
    np.testing.assert_allclose(vector, mean, rtol=0, atol=1e-12)
