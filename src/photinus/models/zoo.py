"""Convolutional networks at their published sizes: factories of modules.

Shapes: B images; what a layer returns is [B, channels, height, width]. Every net takes images
[B, channels, side, side], or rows [B, channels · side²] as columns of bytes and arrays give them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from photinus.models.lrn import LRN

_C3_INPUT_MAPS: Final = (  # by each map of C3, the maps of S2: table I of LeCun et al. (1998)
    *((0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (0, 4, 5), (0, 1, 5)),
    *((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (0, 3, 4, 5), (0, 1, 4, 5), (0, 1, 2, 5)),
    *((0, 1, 3, 4), (1, 2, 4, 5), (0, 2, 3, 5), (0, 1, 2, 3, 4, 5)),
)
_INCEPTION: Final[dict[str, tuple[int, ...]]] = {
    # 1×1, 3×3 reduce, 3×3, 5×5 reduce, 5×5, pool's projection: table 1 of Szegedy et al. (2015)
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class _Images(nn.Module):
    """Gives rows the shape of images."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self._shape = channels, side, side

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self._shape)


class _ScaledTanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1.7159 * torch.tanh(x * (2 / 3))


class _Subsampling(nn.Module):
    """The sum of 2×2 numbers, times a coefficient and plus a bias for each map."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(maps).uniform_(-2.4 / 4, 2.4 / 4))
        self.bias = nn.Parameter(torch.zeros(maps))

    def forward(self, x: Tensor) -> Tensor:
        sums = 4 * functional.avg_pool2d(x, 2)
        return sums * self.weight[:, None, None] + self.bias[:, None, None]


class _SparseConv(nn.Module):
    """A convolution whose maps each see some of the maps below."""

    def __init__(self, input_maps: tuple[tuple[int, ...], ...], size: int) -> None:
        super().__init__()
        self._pairs = [
            (target, source) for target, sources in enumerate(input_maps) for source in sources
        ]
        self._in_channels = 1 + max(source for _, source in self._pairs)
        self.weight = nn.Parameter(torch.empty(len(self._pairs), size, size))
        self.bias = nn.Parameter(torch.zeros(len(input_maps)))
        for (target, _), kernel in zip(self._pairs, self.weight.detach(), strict=True):
            kernel.uniform_(
                -2.4 / (len(input_maps[target]) * size**2),
                2.4 / (len(input_maps[target]) * size**2),
            )

    def forward(self, x: Tensor) -> Tensor:
        shape = len(self.bias), self._in_channels, *self.weight.shape[1:]
        target, source = torch.tensor(self._pairs, device=x.device).unbind(1)
        dense = self.weight.new_zeros(shape).index_put((target, source), self.weight)
        return functional.conv2d(x, dense, self.bias)


def lenet(classes: int = 10) -> nn.Sequential:
    """Returns LeNet-5, which reads 32×32 grey images; 28×28 ones are framed by zeros.

        C1 5×5×6, S2, C3 5×5×16 (each map sees some of S2), S4, C5 5×5×120, F6 84, classes

    Subsampling layers have two numbers a map, and f(x) = 1.7159 tanh(2x/3) follows each layer.
    Weights are uniform in ±2.4/fan-in. All of the paper's 60,000 trained parameters are here. Its
    last layer compares F6 with fixed pictures of the classes; here it is dense, for any loss.

    Args:
        classes: outputs, before the softmax.

    Example:
        >>> net = lenet()
        >>> net(torch.zeros(2, 784)).shape, sum(p.numel() for p in net[:-1].parameters())
        (torch.Size([2, 10]), 60000)

    Reference:
        LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition
        (1998), section II.B.
    """
    c1, c5, f6 = nn.Conv2d(1, 6, 5), nn.Conv2d(16, 120, 5), nn.Linear(120, 84)
    output = nn.Linear(84, classes)
    for layer in (c1, c5, f6, output):
        limit = 2.4 / layer.weight[0].numel()
        nn.init.uniform_(layer.weight, -limit, limit)
        _fill(layer.bias, 0.0)
    layers = OrderedDict[str, nn.Module](
        images=_Frame(),
        c1=c1,
        f1=_ScaledTanh(),
        s2=_Subsampling(6),
        f2=_ScaledTanh(),
        c3=_SparseConv(_C3_INPUT_MAPS, 5),
        f3=_ScaledTanh(),
        s4=_Subsampling(16),
        f4=_ScaledTanh(),
        c5=c5,
        flat=nn.Flatten(),  # [B, 120]
        f5=_ScaledTanh(),
        f6=f6,
        f7=_ScaledTanh(),
        output=output,
    )
    return nn.Sequential(layers)


class _Frame(nn.Module):
    """Gives rows the shape of 32×32 grey images; what has 28×28 gets a frame of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        side = math.isqrt(x[:1].numel())
        x = x.reshape(-1, 1, side, side)
        return functional.pad(x, (2, 2, 2, 2)) if side == 28 else x


class _WithinLRN(nn.Module):
    """Caffe's normalization within each channel: x / (1 + α mean(x²))^β over 3×3 numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 5e-5 * functional.avg_pool2d(x * x, 3, 1, 1)) ** -0.75


def cifar10_full(classes: int = 10) -> nn.Sequential:
    """Returns Caffe's full network for CIFAR-10.

        conv 5×5×32, max-pool 3/2, ReLU, LRN, conv 5×5×32, ReLU, mean-pool 3/2, LRN,
        conv 5×5×64, ReLU, mean-pool 3/2, classes

    LRN is within each channel, over 3×3 numbers. Weights are normal with deviations 1e-4, 0.01,
    0.01, 0.01; biases are 0. The published solver has rate 0.001, momentum 0.9, weight decay 0.004
    and 250 times as much on the last layer.

    Args:
        classes: outputs, before the softmax.

    Example:
        >>> net = cifar10_full()
        >>> net(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in net.parameters())
        (torch.Size([2, 10]), 89578)

    Reference:
        Jia et al., Caffe (2014), examples/cifar10/cifar10_full.
    """
    layers = OrderedDict[str, nn.Module](
        images=_Images(3, 32),
        conv1=nn.Conv2d(3, 32, 5, padding=2),
        pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
        relu1=nn.ReLU(inplace=True),
        norm1=_WithinLRN(),
        conv2=nn.Conv2d(32, 32, 5, padding=2),
        relu2=nn.ReLU(inplace=True),
        pool2=nn.AvgPool2d(3, 2, ceil_mode=True),
        norm2=_WithinLRN(),
        conv3=nn.Conv2d(32, 64, 5, padding=2),
        relu3=nn.ReLU(inplace=True),
        pool3=nn.AvgPool2d(3, 2, ceil_mode=True),
        flat=nn.Flatten(),  # [B, 1024]
        ip1=nn.Linear(1024, classes),
    )
    net = nn.Sequential(layers)
    for name, deviation in {"conv1": 1e-4, "conv2": 0.01, "conv3": 0.01, "ip1": 0.01}.items():
        weight, bias = net.get_submodule(name).parameters()
        nn.init.normal_(weight, std=deviation)
        _fill(bias, 0.0)
    return net


def alexnet(classes: int = 1000) -> nn.Sequential:
    """Returns AlexNet as it was trained on two cards: 60,965,224 parameters for 1000 classes.

        conv 11×11×96 /4, LRN, max-pool 3/2, conv 5×5×256 (2 groups), LRN, max-pool 3/2,
        conv 3×3×384, conv 3×3×384 (2 groups), conv 3×3×256 (2 groups), max-pool 3/2,
        4096, 4096, classes

    ReLU follows each layer but the last; half of each 4096 drops out. LRN divides by
    (2 + 1e-4 Σ x²)^0.75 over 5 channels. Weights are normal with deviation 0.01; biases are 1 in
    conv2, conv4, conv5 and both hidden dense layers, else 0. Images of 224 get the two numbers of
    padding that make conv1 return the paper's 55×55.

    Args:
        classes: outputs, before the softmax.

    Example:
        >>> with torch.device("meta"):
        ...     net = alexnet()
        >>> sum(p.numel() for p in net.parameters())
        60965224

    Reference:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural
        networks (2012).
    """
    layers = OrderedDict[str, nn.Module](
        images=_Images(3, 224),
        conv1=nn.Conv2d(3, 96, 11, stride=4, padding=2),
        relu1=nn.ReLU(inplace=True),
        norm1=LRN(96, radius=2, alpha=1e-4, k=2.0),
        pool1=nn.MaxPool2d(3, 2),
        conv2=nn.Conv2d(96, 256, 5, padding=2, groups=2),
        relu2=nn.ReLU(inplace=True),
        norm2=LRN(256, radius=2, alpha=1e-4, k=2.0),
        pool2=nn.MaxPool2d(3, 2),
        conv3=nn.Conv2d(256, 384, 3, padding=1),
        relu3=nn.ReLU(inplace=True),
        conv4=nn.Conv2d(384, 384, 3, padding=1, groups=2),
        relu4=nn.ReLU(inplace=True),
        conv5=nn.Conv2d(384, 256, 3, padding=1, groups=2),
        relu5=nn.ReLU(inplace=True),
        pool5=nn.MaxPool2d(3, 2),
        flat=nn.Flatten(),  # [B, 9216]
        fc6=nn.Linear(9216, 4096),
        relu6=nn.ReLU(inplace=True),
        drop6=nn.Dropout(0.5),
        fc7=nn.Linear(4096, 4096),
        relu7=nn.ReLU(inplace=True),
        drop7=nn.Dropout(0.5),
        fc8=nn.Linear(4096, classes),
    )
    net = nn.Sequential(layers)
    for name in ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"):
        weight, bias = net.get_submodule(name).parameters()
        nn.init.normal_(weight, std=0.01)
        _fill(bias, 1.0 if name in ("conv2", "conv4", "conv5", "fc6", "fc7") else 0.0)
    return net


class _Inception(nn.Module):
    """Four ways through, side by side: 1×1, 3×3, 5×5 and a max-pool; their maps are joined."""

    def __init__(self, in_channels: int, maps: tuple[int, ...]) -> None:
        super().__init__()
        one, three_reduce, three, five_reduce, five, projection = maps
        self.one = _conv(in_channels, one, 1)
        self.three = nn.Sequential(
            _conv(in_channels, three_reduce, 1), _conv(three_reduce, three, 3)
        )
        self.five = nn.Sequential(_conv(in_channels, five_reduce, 1), _conv(five_reduce, five, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(in_channels, projection, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def _conv(in_channels: int, maps: int, size: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, maps, size, stride, size // 2)
    return nn.Sequential(conv, nn.ReLU(inplace=True))


def _head(in_channels: int, classes: int) -> nn.Sequential:
    """Returns an auxiliary classifier over [B, in_channels, 14, 14]."""
    return nn.Sequential(
        nn.AvgPool2d(5, 3),
        _conv(in_channels, 128, 1),
        nn.Flatten(),  # [B, 2048]
        nn.Linear(2048, 1024),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(1024, classes),
    )


class GoogLeNet(nn.Module):
    """The network that `googlenet` makes; `head4a` and `head4d` are its auxiliary classifiers."""

    def __init__(self, classes: int, *, auxiliary: bool) -> None:
        """Makes the layers; see `googlenet`."""
        super().__init__()
        self.stem = nn.Sequential(
            _Images(3, 224),
            _conv(3, 64, 7, 2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            LRN(64, radius=2, alpha=2e-5),
            _conv(64, 64, 1),
            _conv(64, 192, 3),
            LRN(192, radius=2, alpha=2e-5),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        in_channels = 192
        blocks = OrderedDict[str, nn.Module]()
        for name, maps in _INCEPTION.items():
            blocks[name] = _Inception(in_channels, maps)
            in_channels = maps[0] + maps[2] + maps[4] + maps[5]
        self.inception = nn.ModuleDict(blocks)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.head4a = _head(512, classes) if auxiliary else None
        self.head4d = _head(528, classes) if auxiliary else None
        self.drop = nn.Dropout(0.4)
        self.linear = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits [B, classes]; with heads, in training, those of all three [B, 3, classes].

        Args:
            x: [B, 3, 224, 224], or [B, 150528].
        """
        x, auxiliary_logits = self.stem(x), []
        for name, block in self.inception.items():
            x = block(x)
            head = getattr(self, f"head{name}", None)
            if head is not None and self.training:
                auxiliary_logits.append(head(x))
            if name in ("3b", "4e"):
                x = self.pool(x)
        logits: Tensor = self.linear(self.drop(x.mean((2, 3))))
        return torch.stack([logits, *auxiliary_logits], 1) if auxiliary_logits else logits


def googlenet(classes: int = 1000, *, auxiliary: bool = False) -> GoogLeNet:
    """Returns GoogLeNet: 22 layers, 6,998,552 parameters for 1000 classes, 13,378,280 with heads.

    Weights are Xavier's; biases are 0.2, and 0 in the last layers, as in Caffe. So are the numbers
    of the LRN, which the paper leaves open.

    Args:
        classes: outputs, before the softmax.
        auxiliary: adds the two classifiers in the middle, which count in training only; the loss
            must then be "photinus.models.zoo:auxiliary_loss".

    Example:
        >>> with torch.device("meta"):
        ...     net = googlenet()
        >>> sum(p.numel() for p in net.parameters())
        6998552

    Reference:
        Szegedy et al., Going deeper with convolutions (2015), table 1 and section 5.
    """
    net = GoogLeNet(classes, auxiliary=auxiliary)
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            is_last = isinstance(layer, nn.Linear) and layer.out_features == classes
            _fill(layer.bias, 0.0 if is_last else 0.2)
    return net


def auxiliary_loss(outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the cross-entropy of the last classifier and 0.3 times that of each auxiliary one.

    Args:
        outputs: [B, 3, classes], the last classifier first; or [B, classes], of it alone.
        labels: [B].
        weights: how much each row counts [B].

    Returns:
        The mean over the batch [].

    Reference:
        Szegedy et al. (2015), section 5.
    """
    heads = outputs.unsqueeze(1) if outputs.ndim == 2 else outputs  # [B, heads, classes]
    head_weights = heads.new_tensor([1.0] + [0.3] * (heads.shape[1] - 1))
    head_labels = labels.long()[:, None].expand(heads.shape[:2])
    head_losses = functional.cross_entropy(
        heads.transpose(1, 2), head_labels, reduction="none"
    )  # [B, heads]
    losses = head_losses @ head_weights  # [B]
    return (losses if weights is None else losses * weights).mean()


class _Residual(nn.Module):
    """Two 3×3 convolutions, and a way around them."""

    def __init__(self, in_channels: int, maps: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, maps, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(maps, maps, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.downsample = None
        if stride > 1 or in_channels != maps:
            projection = nn.Conv2d(in_channels, maps, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(maps))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y: Tensor = self.relu(x + shortcut)
        return y


def resnet18(classes: int = 1000) -> nn.Sequential:
    """Returns ResNet-18: 11,689,512 parameters for 1000 classes, with projections (option B).

    Parameters have torchvision's names, so that its weights can be loaded. Weights of
    convolutions are normal with variance 2/fan-out.

    Args:
        classes: outputs, before the softmax.

    Example:
        >>> with torch.device("meta"):
        ...     net = resnet18()
        >>> sum(p.numel() for p in net.parameters())
        11689512

    Reference:
        He, Zhang, Ren and Sun, Deep residual learning for image recognition (2015), table 1.
    """
    layers = OrderedDict[str, nn.Module](
        images=_Images(3, 224),
        conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, 1),
    )
    in_channels = 64
    for number, maps in enumerate((64, 128, 256, 512)):
        first = _Residual(in_channels, maps, 2 if number else 1)
        layers[f"layer{number + 1}"] = nn.Sequential(first, _Residual(maps, maps, 1))
        in_channels = maps
    layers |= OrderedDict[str, nn.Module](
        avgpool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(512, classes)
    )
    net = nn.Sequential(layers)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net


def _fill(bias: Tensor | None, value: float) -> None:
    assert bias is not None
    nn.init.constant_(bias, value)
