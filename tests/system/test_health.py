"""What a run tells of its workers: how far apart they are, how stale, and whose rows are unlike."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData, part_of
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import all_reduce, averaging, downpour, gossip, publish
from photinus.training import loop


def metric(played, name):
    return [r.metrics[name] for r in played.tape.of("RoundClosed") if name in r.metrics]


def test_workers_that_agree_seldom_are_further_apart(field):
    often, seldom = (
        metric(field.play(averaging(every=Steps(n)), epochs=4).run(), "consistency")
        for n in (2, 20)
    )
    assert all(0 < apart < 1 for apart in often + seldom)
    assert seldom[-1] > 2 * often[-1]


def test_consistency_is_the_spread_of_the_parameters_over_their_length(field):
    """By hand, from what the workers push in the first round."""
    played = field.play(averaging(every=Steps(10), codec="fp32"), epochs=1).run()
    first = [f for op, f, _ in played.tape.lines if op == "push"][:4]
    start = field.config().build((), 0).parameters.trained
    vectors = start - np.stack([f.arrays["vector"] for f in first])
    apart = np.sqrt(((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).mean())
    outer = averaging().outer
    agreed, _ = outer.update(start, start - vectors.mean(axis=0), outer.init(start))
    length = np.linalg.norm(agreed)
    assert metric(played, "consistency")[0] == pytest.approx(apart / length)


MEETINGS = {
    "publish": publish(every=Steps(3), exact_every=4),
    "gossip": gossip(every=Steps(3), exact_every=4),
    "averaging": averaging(every=Steps(10), owners=4),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_who_meets_without_an_owner_tells_the_distance_from_where_all_meet(
    field, name, monkeypatch
):
    """By hand, from what each worker held before it took the mean in."""
    distances, accept = [], loop.accept

    def accepting(strategy, model, vector, messages, state):
        before = vector.copy()
        state = accept(strategy, model, vector, messages, state)
        if any(m.kind == "agreed" for m in messages):
            distances.append(np.linalg.norm(before - vector) / np.linalg.norm(vector))
        return state

    monkeypatch.setattr(loop, "accept", accepting)
    strategy = replace(MEETINGS[name], outer=Sgd(), codec="fp32")
    apart = metric(field.play(strategy, epochs=3, share="fastest").run(), "consistency")
    assert len(apart) * 4 == len(distances)
    by_hand = np.sqrt(np.square(distances).reshape(-1, 4).mean(axis=1))
    np.testing.assert_allclose(apart, by_hand, rtol=1e-6)
    assert min(apart) > 0


def test_publications_bring_workers_together_between_two_exact_agreements(field):
    ways = publish(every=Steps(5), exact_every=8), averaging(every=Steps(40), owners=4, outer=Sgd())
    publishes, silent = (metric(field.play(w, epochs=6).run(), "consistency") for w in ways)
    assert publishes[1] < 0.5 * silent[1]


def test_gradients_tell_no_distance_and_one_worker_has_none(field):
    assert metric(field.play(all_reduce()).run(), "consistency") == []
    assert metric(field.play(averaging(every=Steps(5)), 1).run(), "consistency") == []


def test_staleness_is_the_pushes_of_others_in_between(field):
    """Four equal workers push at the same time, and fetch what came in before their turn."""
    played = field.play(downpour(every=Steps(5)), epochs=12).run()
    stale = metric(played, "staleness")
    assert stale[:24] == [0, 1, 2, 3] * 6
    assert metric(played, "consistency") == []


def test_what_fetches_bring_down_is_counted(field):
    played = field.play(downpour(every=Steps(5)), epochs=6).run()
    down = sum(r.bytes_down for r in played.tape.of("RoundClosed"))
    fetches = sum(op == "fetch" for op, _, _ in played.tape.lines)
    size = played.vector.nbytes
    assert (fetches - 4) * size <= down <= fetches * size


def dealt(field, *, is_sorted, workers=4):
    order = np.argsort(field.labels, kind="stable") if is_sorted else np.arange(len(field.labels))
    plan = field.plan(averaging(), workers)
    picks = np.array_split(order, workers)
    return [part_of(Rows.of(field.features[p], field.labels[p]), plan) for p in picks]


SKEWED = [averaging(every=Steps(10)), averaging(every=Steps(10), owners=4), downpour(), publish()]


@pytest.mark.parametrize("strategy", SKEWED, ids=lambda a: f"{a.recipe} {a.owners}")
def test_rows_sorted_by_label_are_told_before_training_with_advice(field, strategy):
    played = field.play(strategy, parts=dealt(field, is_sorted=True)).run()
    (warning,) = [w for w in played.tape.warnings() if "distribution of labels" in w]
    assert "the rows of workers 0, 1, 2, 3 have a different distribution of labels" in warning
    assert "shuffle the rows before training" in warning
    assert not field.play(strategy, parts=dealt(field, is_sorted=False)).run().tape.warnings()


def test_who_agrees_after_every_step_is_not_warned(field):
    assert not field.play(all_reduce(), parts=dealt(field, is_sorted=True)).run().tape.warnings()


def test_the_drivers_arrays_are_dealt_alike(field):
    data = ArrayData(field.features[np.argsort(field.labels)], np.sort(field.labels))
    plan = field.plan(averaging(every=Steps(10)), 4)
    parts = [part_of(Rows.of(*data.part(plan, s)), plan) for s in range(4)]
    assert not field.play(averaging(every=Steps(10)), parts=parts).run().tape.warnings()


def trained_dbn(field, features, *, scale=None, visible="bernoulli", epochs=0.5):
    """The warnings of a small network that two workers train."""
    model = DBN(
        inputs=6,
        hidden=(4, 3),
        classes=3,
        precision="mkl",
        pretraining=Pretraining(epochs=epochs, visible=visible),
        fine_tuning=FineTuning(epochs=0.5),
    )
    plan = field.plan(averaging(every=Steps(2)), 2, configs=model.configs())
    picks = np.array_split(np.arange(len(features)), 2)
    rows = [Rows.of(features[p], field.labels[p], scale=scale) for p in picks]
    parts = [part_of(r, plan) for r in rows]
    played = field.play(averaging(every=Steps(2)), 2, parts=parts, configs=model.configs())
    return played.run().tape.warnings()


def test_inputs_that_are_no_probabilities_are_told_of_once_with_what_to_set(field):
    pixels = np.random.default_rng(0).integers(0, 300, field.features.shape)
    pixels[0], pixels[-1] = 0, 300
    (warning,) = trained_dbn(field, pixels.astype(np.float32))
    assert warning == (
        "rbm1 takes its inputs for probabilities, from 0 to 1; got numbers from 0 to 300; "
        'set data.scale, to 1/255 for bytes; or visible="gaussian", standardised'
    )


def test_scaled_inputs_and_those_of_other_units_are_not_told_of(field):
    pixels = np.random.default_rng(0).integers(0, 256, field.features.shape).astype(np.uint8)
    assert not trained_dbn(field, pixels, scale=1 / 255)
    assert not trained_dbn(field, field.features.astype(np.float32), visible="gaussian")
    assert not trained_dbn(field, pixels, scale=1.0, epochs=0)
