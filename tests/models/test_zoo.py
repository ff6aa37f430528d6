"""Sizes as the papers print them, layers against their formulas."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from photinus.data.base import Batch
from photinus.models.module import ModuleConfig
from photinus.models.module_model import ModuleModel
from photinus.models.zoo import (
    alexnet,
    auxiliary_loss,
    cifar10_full,
    googlenet,
    lenet,
    resnet18,
)
from photinus.run.job import Job
from photinus.testing import check_model
from photinus.zoo import cifar10_quick, cifar10_tutorial


def count(module):
    return sum(p.numel() for p in module.parameters())


def weights(module):
    return sum(p.numel() for name, p in module.named_parameters() if name.endswith("weight"))


def meta(make, **how):
    with torch.device("meta"):
        return make(**how).eval()


def shapes(net, side, names):
    """What some layers return for one image, without any arithmetic."""
    sizes = {}

    def note(name, _, __, out):
        sizes[name] = tuple(out.shape[1:])

    for name in names:
        net.get_submodule(name).register_forward_hook(partial(note, name))
    net(torch.zeros(1, *side, device="meta"))
    return sizes


def multiply_adds(net):
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, 3, 224, 224, device="meta"))
    return counter.get_total_flops() / 2


def test_lenets_layers_have_the_papers_numbers_of_parameters():
    net = lenet()
    printed = {"c1": 156, "s2": 12, "c3": 1516, "s4": 32, "c5": 48120, "f6": 10164}
    assert {name: count(net.get_submodule(name)) for name in printed} == printed
    assert sum(printed.values()) == 60_000


def test_lenets_third_layer_sees_the_maps_of_the_papers_table():
    layer = lenet().c3.double()
    x = torch.randn(2, 6, 14, 14, dtype=torch.float64)
    y, kernels = layer(x), iter(layer.weight)
    table = ["012", "123", "234", "345", "045", "015", "0123", "1234", "2345", "0345", "0145"]
    for place, inputs in enumerate([*table, "0125", "0134", "1245", "0235", "012345"]):
        expected = sum(
            functional.conv2d(x[:, int(below)][:, None], next(kernels)[None, None])
            for below in inputs
        )
        torch.testing.assert_close(y[:, place], expected[:, 0] + layer.bias[place])


def test_lenet_frames_images_of_28():
    net, x = lenet(), torch.rand(2, 28, 28)
    framed = functional.pad(x, (2, 2, 2, 2))
    assert torch.equal(net(x.reshape(2, 784)), net(framed.reshape(2, 1, 32, 32)))


def test_the_full_net_of_cifar10_normalises_as_caffe_does():
    layer, x = cifar10_full().norm1, torch.randn(1, 2, 4, 4, dtype=torch.float64)
    padded = functional.pad(x, (1, 1, 1, 1)).numpy()
    for c, i, j in np.ndindex(2, 4, 4):
        mean = (padded[0, c, i : i + 3, j : j + 3] ** 2).sum() / 9
        expected = float(x[0, c, i, j]) / (1 + 5e-5 * mean) ** 0.75
        assert float(layer(x)[0, c, i, j]) == pytest.approx(expected, rel=1e-12)


def test_alexnet_has_the_papers_60_million_parameters_and_its_layers():
    net = meta(alexnet)
    assert count(net) == 60_965_224
    names = ("conv1", "conv2", "conv3", "conv4", "conv5", "pool5", "fc6", "fc7", "fc8")
    assert shapes(net, (3, 224, 224), names) == {
        "conv1": (96, 55, 55),
        "conv2": (256, 27, 27),
        "conv3": (384, 13, 13),
        "conv4": (384, 13, 13),
        "conv5": (256, 13, 13),
        "pool5": (256, 6, 6),
        "fc6": (4096,),
        "fc7": (4096,),
        "fc8": (1000,),
    }


def test_googlenet_has_the_papers_parameters():
    """The paper counts weights in K = 1024; some rows differ from its own numbers of filters."""
    net = meta(googlenet)
    blocks = {name: weights(block) / 1024 for name, block in net.inception.items()}
    printed = {"3a": 159, "3b": 380, "4a": 364, "4b": 437, "4c": 463, "4d": 580, "4e": 840}
    printed |= {"5a": 1072, "5b": 1388}
    for name, thousands in printed.items():
        off = 0.075 if name in ("4c", "4d", "5a", "5b") else 0.011
        assert blocks[name] == pytest.approx(thousands, rel=off), name
    assert weights(net.stem[4:6]) / 1024 == 112
    assert weights(net.linear) == 1000 * 1024
    of_all = sum(blocks.values()) + 112 + 1000
    assert of_all == pytest.approx(sum(printed.values()) + 112 + 1000, rel=0.005)
    assert (count(net), count(meta(googlenet, auxiliary=True))) == (6_998_552, 13_378_280)
    assert multiply_adds(net) == pytest.approx(1.5e9, rel=0.15)  # the budget of its section 1


def test_googlenets_blocks_return_the_papers_sizes():
    net = meta(googlenet)
    sizes = shapes(net, (150528,), [f"inception.{name}" for name in net.inception])
    assert list(sizes.values()) == [
        *((256, 28, 28), (480, 28, 28)),
        *((512, 14, 14), (512, 14, 14), (512, 14, 14), (528, 14, 14), (832, 14, 14)),
        *((832, 7, 7), (1024, 7, 7)),
    ]


def test_the_auxiliary_heads_count_three_tenths_in_training_alone():
    outputs, labels = torch.randn(4, 3, 5), torch.tensor([0, 4, 2, 2])
    each = [functional.cross_entropy(outputs[:, head], labels) for head in range(3)]
    expected = each[0] + 0.3 * (each[1] + each[2])
    torch.testing.assert_close(auxiliary_loss(outputs, labels), expected)
    w = torch.tensor([1.0, 0.0, 2.0, 1.0])
    lone = functional.cross_entropy(outputs[:, 0], labels, reduction="none")
    torch.testing.assert_close(auxiliary_loss(outputs[:, 0], labels, w), (lone * w).mean())
    net = meta(googlenet, auxiliary=True, classes=7)
    image = torch.zeros(2, 3, 224, 224, device="meta")
    assert (net(image).shape, net.train()(image).shape) == ((2, 7), (2, 3, 7))


@pytest.mark.parametrize(
    ("net", "numbers"),
    [(cifar10_full, 89_578), (cifar10_quick, 145_578), (cifar10_tutorial, 1_068_298)],
    ids=["full", "quick", "tutorial"],
)
def test_the_cifar_networks_have_their_sources_sizes(net, numbers):
    assert count(net()) == numbers


def test_resnet18_has_the_papers_sizes_and_work():
    net = meta(resnet18)
    assert count(net) == 11_689_512
    names = ["conv1", *(f"layer{number}" for number in range(1, 5))]
    sizes = [(64, 112, 112), (64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7)]
    assert list(shapes(net, (3, 224, 224), names).values()) == sizes
    assert multiply_adds(net) == pytest.approx(1.8e9, rel=0.02)  # its table 1


def test_resnet18_is_its_formulas():
    net = resnet18(classes=3).double().eval()
    tensors = net.state_dict().items()
    t = {name: torch.rand(v.shape, dtype=torch.float64).to(v.dtype) for name, v in tensors}
    net.load_state_dict(t)

    def norm(x, name):
        tensors = (
            t[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        mean, variance, scale, shift = (part[:, None, None] for part in tensors)
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

    def conv(x, name, stride, pad):
        return functional.conv2d(x, t[f"{name}.weight"], stride=stride, padding=pad)

    image = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    x = norm(conv(image, "conv1", 2, 3), "bn1").clamp(min=0)
    x = functional.max_pool2d(x, 3, 2, 1)
    for layer, block in np.ndindex(4, 2):
        at, stride = f"layer{layer + 1}.{block}", 2 if layer and not block else 1
        y = norm(conv(x, f"{at}.conv1", stride, 1), f"{at}.bn1").clamp(min=0)
        y = norm(conv(y, f"{at}.conv2", 1, 1), f"{at}.bn2")
        if stride == 2:
            x = norm(conv(x, f"{at}.downsample.0", 2, 0), f"{at}.downsample.1")
        x = (x + y).clamp(min=0)
    expected = x.mean((2, 3)) @ t["fc.weight"].T + t["fc.bias"]
    torch.testing.assert_close(net(image), expected)


@pytest.mark.parametrize(
    ("make", "shape"), [(lenet, (784,)), (cifar10_full, (3072,))], ids=["lenet", "cifar10_full"]
)
def test_the_nets_keep_the_models_contract(make, shape):
    def model():
        torch.manual_seed(0)
        return ModuleModel(make().double(), "cross_entropy")

    rng = np.random.default_rng(0)
    check_model(model, Batch(rng.standard_normal((3, *shape)), rng.integers(0, 10, 3)))


def test_a_job_names_a_net_of_the_zoo_and_its_loss():
    config = ModuleConfig(
        module="photinus.models.zoo:googlenet",
        arguments={"classes": 5, "auxiliary": True},
        loss="photinus.models.zoo:auxiliary_loss",
        metrics=("accuracy",),
    )
    job = Job.from_dict(Job(model=config).to_dict())
    model = job.model.build((), seed=1)
    rng = np.random.default_rng(0)
    batch = Batch(rng.standard_normal((2, 150528)).astype(np.float32), np.array([1, 4]))
    slope, metrics = model.learn(batch, 0)
    assert np.isfinite(slope).all()
    # three heads that know nothing: ln 5 (1 + .3 + .3), for small logits
    assert metrics["loss"] == pytest.approx(1.6 * np.log(5), rel=0.5)
    assert slope[-5:].any()
    assert model.measure(batch)["examples"] == 2
