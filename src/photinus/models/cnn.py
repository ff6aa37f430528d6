"""Two small convolutional networks for CIFAR-10, as they were published: factories of modules.

Shapes: B images; what a layer returns is [B, channels, height, width].
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn

from photinus.models.lrn import LRN


def tutorial(
    classes: int = 10,
    side: int = 24,
    norm: Callable[[int], nn.Module] = LRN,
    dtype: str = "float32",
) -> nn.Sequential:
    """Returns the CIFAR-10 tutorial network of TensorFlow.

        conv 5×5×64, max-pool 3/2, ReLU, LRN, conv 5×5×64, ReLU, LRN, max-pool 3/2,
        384, ReLU, 192, ReLU, classes

    Weights are drawn from normal distributions cut at two deviations: 0.05 for convolutions, 0.04
    for the dense layers, 1/192 for the last; biases are 0, and 0.1 in conv2, local3 and local4.
    Its layers have the tutorial's names. Weight decay (0.004, on local3 and local4) is no part of
    the module: see `ModuleConfig.l2`.

    Args:
        classes: outputs, before the softmax.
        side: of the square images, divisible by 4; the tutorial cuts 24 out of 32.
        norm: what normalises so many channels.
        dtype: of the parameters; "float64" for exact comparisons.

    Example:
        >>> net = tutorial()
        >>> net(torch.zeros(2, 3, 24, 24)).shape, sum(p.numel() for p in net.parameters())
        (torch.Size([2, 10]), 1068298)

    Reference:
        Krizhevsky, cuda-convnet (2011), as TensorFlow's tutorial "Advanced convolutional neural
        networks" changed it (2016).
    """
    net = nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 64, 5, padding=2),
            # SAME pads an even side behind only: that is what ceil_mode reads
            pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
            relu1=nn.ReLU(inplace=True),  # after the pool: the same bits, a quarter of the work
            norm1=norm(64),
            conv2=nn.Conv2d(64, 64, 5, padding=2),
            relu2=nn.ReLU(inplace=True),
            norm2=norm(64),
            pool2=nn.MaxPool2d(3, 2, ceil_mode=True),
            flat=nn.Flatten(),  # [B, 64 (side/4)²]
            local3=nn.Linear(64 * (side // 4) ** 2, 384),
            relu3=nn.ReLU(inplace=True),
            local4=nn.Linear(384, 192),
            relu4=nn.ReLU(inplace=True),
            softmax_linear=nn.Linear(192, classes),
        )
    )
    for name, deviation, bias in (
        ("conv1", 5e-2, 0.0),
        ("conv2", 5e-2, 0.1),
        ("local3", 0.04, 0.1),
        ("local4", 0.04, 0.1),
        ("softmax_linear", 1 / 192, 0.0),
    ):
        weight, constant = net.get_submodule(name).parameters()
        nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.constant_(constant, bias)
    return net.to(getattr(torch, dtype))


def quick(classes: int = 10, side: int = 32) -> nn.Sequential:
    """Returns Caffe's quick network for CIFAR-10, the one that SparkNet trained.

        conv 5×5×32, max-pool 3/2, ReLU, conv 5×5×32, ReLU, mean-pool 3/2,
        conv 5×5×64, ReLU, mean-pool 3/2, 64, classes

    Weights are normal with deviations 1e-4, 0.01, 0.01, 0.1, 0.1; biases are 0.

    Args:
        classes: outputs, before the softmax.
        side: of the square images, divisible by 8.

    Example:
        >>> net = quick()
        >>> net(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in net.parameters())
        (torch.Size([2, 10]), 145578)

    Reference:
        Jia et al., Caffe (2014), examples/cifar10; Moritz, Nishihara, Stoica and Jordan, SparkNet:
        Training Deep Networks in Spark (2016).
    """
    net = nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 32, 5, padding=2),
            pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(32, 32, 5, padding=2),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.AvgPool2d(3, 2, ceil_mode=True),
            conv3=nn.Conv2d(32, 64, 5, padding=2),
            relu3=nn.ReLU(inplace=True),
            pool3=nn.AvgPool2d(3, 2, ceil_mode=True),
            flat=nn.Flatten(),  # [B, 64 (side/8)²]
            ip1=nn.Linear(64 * (side // 8) ** 2, 64),
            ip2=nn.Linear(64, classes),
        )
    )
    deviations = {"conv1": 1e-4, "conv2": 0.01, "conv3": 0.01, "ip1": 0.1, "ip2": 0.1}
    for name, deviation in deviations.items():
        weight, bias = net.get_submodule(name).parameters()
        nn.init.normal_(weight, std=deviation)
        nn.init.zeros_(bias)
    return net
