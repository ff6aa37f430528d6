import numpy as np
import pytest
import torch

from photinus.core.errors import DataError, UsageError
from photinus.models.losses import LOSSES, count_errors, loss_named, target_for

pytestmark = pytest.mark.numerics


def example(name):
    torch.manual_seed(0)
    outputs = torch.randn(8, 3, requires_grad=True)
    labels = torch.rand(8, 3)
    if name in ("cross_entropy", "multi_margin"):
        labels = torch.arange(8, dtype=torch.int32) % 3
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


def test_a_reconstruction_is_summed_over_units_and_averaged_over_examples():
    outputs, labels = example("mse")
    squares = (torch.sigmoid(outputs) - labels).square()
    ours = loss_named("reconstruction_mse")(outputs, labels, None)
    assert float(ours.detach()) == pytest.approx(float(squares.detach().sum(1).mean()))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_weight_of_two_is_an_example_twice(name):
    outputs, labels = example(name)
    labels = target_for(name, outputs, labels)
    weights = np.array([2, 1, 0, 1, 1, 1, 1, 1], np.float32)
    chosen = [0, 0, 1, 3, 4, 5, 6, 7]
    loss = loss_named(name)
    weighed, twice = loss(outputs, labels, weights), loss(outputs[chosen], labels[chosen], None)
    torch.testing.assert_close(weighed, twice)
    torch.testing.assert_close(loss(outputs, labels, np.ones(8)), loss(outputs, labels, None))


def test_ones_own_loss_is_imported_and_cannot_weigh():
    outputs, labels = example("l1")
    own = loss_named("torch.nn.functional:l1_loss")
    assert torch.equal(own(outputs, labels, None), (outputs - labels).abs().mean())
    with pytest.raises(UsageError, match="cannot weigh examples"):
        own(outputs, labels, np.ones(8))


def test_errors_are_counted_where_there_are_classes():
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    labels = torch.tensor([0, 0, 0])
    assert count_errors("cross_entropy", outputs, labels) == {"errors": 1.0}
    assert count_errors("binary_cross_entropy", outputs[:, :1], labels) == {"errors": 2.0}
    assert count_errors("mse", outputs, labels) == {}


def test_soft_labels_are_taken_as_they_are():
    outputs, _ = example("mse")
    soft = torch.softmax(torch.from_numpy(np.random.default_rng(0).random((8, 3))), 1).float()
    targets = target_for("cross_entropy", outputs, soft)
    assert torch.isfinite(loss_named("cross_entropy")(outputs, targets, None))
    assert count_errors("cross_entropy", outputs, soft) == {}


def test_half_a_class_is_refused():
    with pytest.raises(DataError, match=r"cross_entropy needs whole numbers as labels; got 0\.5"):
        target_for("cross_entropy", torch.zeros(2, 3), torch.tensor([1.0, 0.5]))
    assert target_for("cross_entropy", torch.zeros(1, 3), torch.tensor([2.0])).tolist() == [2]
