import functools

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import DataError, UsageError
from photinus.data.base import Batch
from photinus.models import image_tensors
from photinus.models.images import centred, crops, imagenet, uniform
from photinus.models.module import ModuleConfig
from photinus.training.placement import fresh

pytestmark = pytest.mark.numerics


def pictures(count=40, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)


def draws(count=40, seed=1):
    return np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)


def whitened(image):
    """TensorFlow's per_image_standardization, of one image [3, 24, 24]."""
    deviation = max(image.std(), 1 / np.sqrt(image.size))
    return (image - image.mean()) / deviation


def by_the_tutorial(image, draw, brightness):
    """Its steps one after the other, in float64, on one image."""
    y, x = (int(uniform(draw[None], k)[0] * 9) for k in (0, 1))
    cut = image.reshape(3, 32, 32)[:, y : y + 24, x : x + 24].astype(np.float64)
    if uniform(draw[None], 2)[0] < 0.5:
        cut = cut[:, :, ::-1]
    cut = cut + brightness
    means = cut.mean((1, 2), keepdims=True)
    factor = 0.2 + 1.6 * uniform(draw[None], 3)[0]
    return whitened((cut - means) * factor + means)


@pytest.mark.parametrize("brightness", [0.0, -63.0, 41.5])
def test_crops_are_the_tutorials_steps_whatever_the_brightness(brightness):
    images, chance = pictures(), draws()
    expected = [by_the_tutorial(i, d, brightness) for i, d in zip(images, chance, strict=True)]
    np.testing.assert_allclose(crops(images, chance), expected, atol=2e-5)


def test_without_draws_it_is_the_middle_whitened():
    images = pictures()
    middle = images.reshape(-1, 3, 32, 32)[:, :, 4:28, 4:28].astype(np.float64)
    np.testing.assert_allclose(crops(images, None), [whitened(i) for i in middle], atol=2e-5)


def test_a_picture_of_one_colour_becomes_zeros():
    assert not crops(np.full((2, 3072), 200, np.uint8), draws(2)).any()


def test_each_examples_distortion_is_its_own_in_any_batch():
    images, chance = pictures(), draws()
    whole = crops(images, chance)
    some = [7, 3, 31]
    np.testing.assert_array_equal(crops(images[some], chance[some]), whole[some])
    assert not np.array_equal(crops(images, chance + np.uint64(1)), whole)


def test_crops_reach_every_corner_and_mirror_half():
    place = np.broadcast_to(np.arange(32.0)[None, :, None] * 8, (3, 32, 32)).astype(np.uint8)
    place[1] = place[0].T
    chance = draws(2000)
    y, x = (np.bincount((uniform(chance, k) * 9).astype(int), minlength=9) for k in (0, 1))
    assert min(y.min(), x.min()) > 150
    many = crops(np.tile(place.reshape(1, -1), (2000, 1)), chance)
    rising = many[:, 1, 0, 23] > many[:, 1, 0, 0]
    assert 0.45 < rising.mean() < 0.55


def test_uniform_numbers_are_spread_and_differ_by_their_number():
    chance = np.arange(20_000, dtype=np.uint64)
    first, second = uniform(chance, 0), uniform(chance, 1)
    for numbers in (first, second):
        assert 0 <= numbers.min() < numbers.max() < 1
        np.testing.assert_allclose(np.histogram(numbers, 10, (0, 1))[0], 2000, atol=200)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_centred_takes_the_channels_means_away():
    images = pictures()
    outputs = centred(images, draws())
    assert outputs.shape == (40, 3, 32, 32)
    expected = images.reshape(-1, 3, 1024) - np.array([125.307, 122.950, 113.865])[:, None]
    np.testing.assert_allclose(outputs.reshape(-1, 3, 1024), expected, atol=1e-4)


def test_no_pictures_are_no_crops_and_others_are_refused():
    assert crops(pictures(0), draws(0)).shape == (0, 3, 24, 24)
    with pytest.raises(DataError, match="3 x 32 x 32 numbers; got \\[784\\]"):
        crops(np.zeros((2, 784), np.uint8), None)


def test_imagenets_crops_are_whole_pieces_of_the_image():
    side, channels = 226, np.arange(3)[:, None, None]
    y, x = np.mgrid[:side, :side]
    image = ((3 * y + 5 * x + 50 * channels) % 256).astype(np.uint8)
    batch = np.repeat(image.reshape(1, -1), 12, axis=0)
    mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    plain = (image / 255 - mean) / deviation
    np.testing.assert_allclose(imagenet(batch[:1], None)[0], plain[:, 1:225, 1:225], rtol=1e-4)
    pieces = [plain[:, i : i + 224, j : j + 224] for i in range(3) for j in range(3)]
    pieces += [piece[:, :, ::-1] for piece in pieces]
    draws = np.random.default_rng(0).integers(0, 2**63, 12).astype(np.uint64)
    places = set()
    for cut in imagenet(batch, draws):
        (which,) = (n for n, piece in enumerate(pieces) if np.allclose(cut, piece, rtol=1e-4))
        places.add(which)
    assert len(places) > 4
    with pytest.raises(DataError, match="side 224 or more"):
        imagenet(batch[:, : 3 * 100 * 100], None)


# -- on a device ----------------------------------------------------------------------------------


def as_tensors(images, chance):
    return torch.from_numpy(images), None if chance is None else torch.from_numpy(
        chance.view(np.int64)
    )


def test_a_device_draws_the_same_random_numbers():
    chance = np.random.default_rng(3).integers(0, 2**64, 1000, dtype=np.uint64)
    for number in range(4):
        there = image_tensors.uniform(as_tensors(chance, chance)[1], number).numpy()
        np.testing.assert_array_equal(there, uniform(chance, number))


@pytest.mark.parametrize("chance", [draws(), None], ids=["by chance", "still"])
@pytest.mark.parametrize(
    ("function", "tolerance"), [(crops, 1e-5), (centred, 0.0)], ids=["crops", "centred"]
)
def test_a_device_prepares_small_images_as_the_host_does(function, tolerance, chance):
    images = pictures()
    on_device = function.tensors(*as_tensors(images, chance)).numpy()
    np.testing.assert_allclose(on_device, function(images, chance), rtol=0, atol=tolerance)
    assert on_device.dtype == np.float32


@pytest.mark.parametrize("chance", [draws(6), None], ids=["by chance", "still"])
@pytest.mark.parametrize("side", [224, 231, 256])
def test_a_device_prepares_images_of_any_size_with_the_hosts_bits(side, chance):
    images = np.random.default_rng(0).integers(0, 256, (6, 3 * side**2)).astype(np.uint8)
    on_device = imagenet.tensors(*as_tensors(images, chance)).numpy()
    np.testing.assert_array_equal(on_device, imagenet(images, chance))


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))


def doubled(features, chance):
    raise AssertionError("a device calls the other one")


def doubled_there(features, chance):
    shift = 0 if chance is None else image_tensors.uniform(chance, 0)[:, None]
    return 2 * features.float() + shift


doubled.tensors = doubled_there


def test_images_go_to_a_device_as_they_are_stored():
    config = ModuleConfig(module=f"{__name__}:net", reads="photinus.models.images:centred")
    batch = Batch(pictures(8), np.arange(8) % 3, None, draws(8))
    on_host, on_device = (fresh(config, (), 0, device)[0] for device in ("cpu", "stand-in"))
    before = on_device._storage.bytes_to_device
    sent = on_device.send(batch)
    # images, labels and draws
    assert on_device._storage.bytes_to_device - before == 8 * 3072 + 8 * 8 + 8 * 8
    ends = []
    for model, examples in ((on_host, batch), (on_device, sent)):
        for some in (batch, examples):  # the first one shows how many classes there are
            gradient, _ = model.learn(some, 8)
            model.to_host(gradient)
        ends.append((gradient, model.measure(batch)))
    assert np.array_equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_a_function_of_the_users_own_is_called_by_its_form_for_devices():
    config = ModuleConfig(module=f"{__name__}:net", reads=f"{__name__}:doubled")
    model, _ = fresh(config, (), 0, "stand-in")
    batch = Batch(pictures(8), np.arange(8) % 3, None, draws(8))
    for some in (batch, model.send(batch)):
        _, metrics = model.learn(some, 8)
    assert metrics["loss"] > 0
    with pytest.raises(UsageError, match=r"doubled.tensors takes one array of features; got x, y"):
        model.learn(Batch({"x": pictures(8), "y": pictures(8)}, np.arange(8) % 3), 8)


@functools.wraps(centred)
def wrapped(features, chance):
    return 2 * centred(features, chance)


def test_a_function_around_another_one_has_a_form_of_its_own_or_none():
    losses = []
    for device in ("cpu", "stand-in"):
        model, _ = fresh(
            ModuleConfig(module=f"{__name__}:net", reads=f"{__name__}:wrapped"), (), 0, device
        )
        losses.append(model.learn(Batch(pictures(8), np.arange(8) % 3, None, draws(8)), 8)[1])
    assert losses[0] == losses[1]


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1536, 3)

    def forward(self, left, right):
        return self.out(left + right)


def halved(features, chance):
    return {"left": features[:, :1536] / 255, "right": features[:, 1536:] / 255}


def halved_there(features, chance):
    return {"left": features[:, :1536] / 255, "right": features[:, 1536:] / 255}


halved.tensors = halved_there


def test_such_a_form_may_return_several_inputs():
    losses = []
    for device in ("cpu", "stand-in"):
        config = ModuleConfig(module=f"{__name__}:Halves", reads=f"{__name__}:halved")
        model, _ = fresh(config, (), 0, device)
        batch = Batch(pictures(8), np.arange(8) % 3, None, draws(8))
        for some in (batch, batch if model.send is None else model.send(batch)):
            _, metrics = model.learn(some, 8)
        losses.append(metrics["loss"])
    assert abs(losses[0] - losses[1]) < 1e-5


def test_without_such_a_form_the_host_reads_and_nothing_is_sent_ahead():
    config = ModuleConfig(module=f"{__name__}:net", reads=f"{__name__}:doubled_there")
    assert fresh(config, (), 0, "stand-in")[0].send is None
