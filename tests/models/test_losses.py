import numpy as np
import pytest
import torch

from photinus.core.errors import DataError, UsageError
from photinus.models.losses import (
    LOSSES,
    in_batch,
    labelled_tokens,
    loss_named,
    target_for,
    wrong_label,
)

pytestmark = pytest.mark.numerics


def example(name):
    torch.manual_seed(0)
    outputs = torch.randn(8, 3, requires_grad=True)
    labels = torch.rand(8, 3)
    if name in ("cross_entropy", "multi_margin"):
        labels = torch.arange(8, dtype=torch.int32) % 3
    if name == "in_batch":
        outputs, labels = torch.randn(8, 2, 3, requires_grad=True), torch.arange(8)
    if name == "token_cross_entropy":
        outputs = torch.randn(8, 5, 3, requires_grad=True)
        labels = torch.arange(40, dtype=torch.int32).reshape(8, 5) % 3
    return outputs, labels


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_is_a_finite_mean_with_a_slope(name):
    outputs, labels = example(name)
    loss = loss_named(name)(outputs, target_for(name, outputs, labels), None)
    loss.backward()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert outputs.grad.abs().sum() > 0


def test_label_smoothing_is_torchs():
    outputs, labels = example("cross_entropy")
    ours = loss_named("cross_entropy", 0.1)(outputs, labels.long(), None)
    theirs = torch.nn.functional.cross_entropy(outputs, labels.long(), label_smoothing=0.1)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_tokens_is_torchs_over_those_that_have_a_label(smoothing):
    outputs, labels = example("token_cross_entropy")
    labels[:, 3:] = -100
    labels[2] = -100
    loss = loss_named("token_cross_entropy", smoothing)
    ours = loss(outputs, target_for("token_cross_entropy", outputs, labels), None)
    theirs = torch.nn.functional.cross_entropy(
        outputs.transpose(1, 2), labels.long(), label_smoothing=smoothing
    )
    torch.testing.assert_close(ours, theirs)
    our_slope, their_slope = (torch.autograd.grad(x, outputs)[0] for x in (ours, theirs))
    torch.testing.assert_close(our_slope, their_slope)


def test_a_batch_of_tokens_without_any_label_has_no_loss_and_no_slope():
    outputs, labels = example("token_cross_entropy")
    loss = loss_named("token_cross_entropy")(outputs, torch.full_like(labels, -100).long(), None)
    loss.backward()
    assert float(loss.detach()) == 0
    assert not outputs.grad.any()


def test_each_token_with_a_label_is_an_example():
    outputs, labels = example("token_cross_entropy")
    labels[0, 1:] = -100
    tokens, classes = labelled_tokens("token_cross_entropy", outputs, labels)
    assert tokens.shape == (36, 3)
    assert torch.equal(tokens[0], outputs[0, 0])
    assert classes.tolist() == labels[labels >= 0].tolist()
    assert labelled_tokens("cross_entropy", outputs, labels) == (outputs, labels)


@pytest.mark.parametrize(("outputs", "labels"), [((8, 3), (8,)), ((8, 3, 5), (8, 5))])
def test_labels_that_are_not_one_for_each_token_are_refused(outputs, labels):
    with pytest.raises(UsageError, match=r"a label for each token of outputs \[B, T, classes\]"):
        target_for("token_cross_entropy", torch.zeros(outputs), torch.zeros(labels))


def test_a_wrong_label_of_a_token_is_named_with_its_row():
    labels = torch.tensor([[0, 1], [-100, 7]])
    assert wrong_label("token_cross_entropy", 3, labels) == (1, 7.0)
    assert wrong_label("token_cross_entropy", 8, labels) is None
    with pytest.raises(DataError, match=r"needs whole numbers as labels; got 0\.5"):
        target_for("token_cross_entropy", torch.zeros(1, 2, 3), torch.tensor([[0.5, 1.0]]))


def test_a_reconstruction_is_summed_over_units_and_averaged_over_examples():
    outputs, labels = example("mse")
    squares = (torch.sigmoid(outputs) - labels).square()
    ours = loss_named("reconstruction_mse")(outputs, labels, None)
    assert float(ours.detach()) == pytest.approx(float(squares.detach().sum(1).mean()))


@pytest.mark.parametrize("name", sorted({*LOSSES} - {"in_batch"}))
def test_a_weight_of_two_is_an_example_twice(name):
    outputs, labels = example(name)
    labels = target_for(name, outputs, labels)
    weights = np.array([2, 1, 0, 1, 1, 1, 1, 1], np.float32)
    chosen = [0, 0, 1, 3, 4, 5, 6, 7]
    loss = loss_named(name)
    weighed, twice = loss(outputs, labels, weights), loss(outputs[chosen], labels[chosen], None)
    torch.testing.assert_close(weighed, twice)
    torch.testing.assert_close(loss(outputs, labels, np.ones(8)), loss(outputs, labels, None))


def plain_in_batch(outputs, ids, shares):
    """The definition, row by row, over one group."""
    losses = []
    for i, (user, _) in enumerate(outputs):
        rivals = [j for j in range(len(ids)) if j == i or ids[j] != ids[i]]
        scores = torch.stack([user @ outputs[j, 1] - shares[j] for j in rivals])
        losses.append(torch.logsumexp(scores, 0) - scores[rivals.index(i)])
    return torch.stack(losses)


def test_in_batch_is_its_definition_group_by_group():
    torch.manual_seed(0)
    outputs, ids = torch.randn(77, 2, 5, dtype=torch.float64), torch.randint(9, (77,))
    shares = torch.rand(77, dtype=torch.float64).log()
    groups = [slice(39), slice(39, 77)]
    expected = torch.cat([plain_in_batch(outputs[g], ids[g], shares[g]) for g in groups])
    losses = in_batch(outputs, torch.stack([ids, shares], 1), reduction="none")
    torch.testing.assert_close(losses, expected)
    weighed = loss_named("in_batch")(outputs, torch.stack([ids, shares], 1), np.arange(77))
    torch.testing.assert_close(weighed, (expected * torch.arange(77)).mean())
    without = torch.cat([plain_in_batch(outputs[g], ids[g], torch.zeros(77)) for g in groups])
    torch.testing.assert_close(in_batch(outputs, ids), without.mean())


def test_in_batch_of_a_share_of_the_rows_is_that_of_all_where_groups_are_whole():
    torch.manual_seed(0)
    outputs, ids = torch.randn(128, 2, 4), torch.arange(128)
    parts = [in_batch(outputs[part], ids[part]) for part in (slice(64), slice(64, 128))]
    torch.testing.assert_close(torch.stack(parts).mean(), in_batch(outputs, ids))


def test_in_batch_says_what_a_module_must_return():
    with pytest.raises(
        UsageError, match=r"reads two vectors a row, \[B, 2, D\]; got .* \[8, 3\]; "
    ):
        in_batch(torch.zeros(8, 3), torch.arange(8))


def test_ones_own_loss_is_imported_and_cannot_weigh():
    outputs, labels = example("l1")
    own = loss_named("torch.nn.functional:l1_loss")
    assert torch.equal(own(outputs, labels, None), (outputs - labels).abs().mean())
    with pytest.raises(UsageError, match="cannot weigh examples"):
        own(outputs, labels, np.ones(8))


def test_soft_labels_are_taken_as_they_are():
    outputs, _ = example("mse")
    soft = torch.softmax(torch.from_numpy(np.random.default_rng(0).random((8, 3))), 1).float()
    targets = target_for("cross_entropy", outputs, soft)
    assert torch.isfinite(loss_named("cross_entropy")(outputs, targets, None))


@pytest.mark.parametrize("name", ["mse", "huber", "poisson", "binary_cross_entropy"])
def test_a_module_that_returns_more_numbers_than_a_label_has_is_told_both(name):
    with pytest.raises(UsageError, match="the module returns 3 numbers a row, and a label has 1"):
        target_for(name, torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(UsageError, match="returns 1 number a row, and its target has 4; got loss"):
        target_for(name, torch.zeros(2, 1), torch.zeros(2, 2, 2), label_name="its target")
    assert target_for(name, torch.zeros(2, 1), torch.zeros(2)).shape == (2, 1)


def test_half_a_class_is_refused():
    with pytest.raises(DataError, match=r"cross_entropy needs whole numbers as labels; got 0\.5"):
        target_for("cross_entropy", torch.zeros(2, 3), torch.tensor([1.0, 0.5]))
    assert target_for("cross_entropy", torch.zeros(1, 3), torch.tensor([2.0])).tolist() == [2]


def test_a_class_of_losses_is_called_for_its_function():
    chance = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(5, 3, generator=chance), torch.tensor([0, 2, 1, 1, 0])
    value = loss_named("torch.nn:CrossEntropyLoss")(outputs, labels, None)
    assert torch.equal(value, loss_named("cross_entropy")(outputs, labels, None))
