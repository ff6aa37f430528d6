"""Published networks, and readers of their images: modules to name in a job or an estimator.

Example:
    >>> import photinus
    >>> photinus.ModuleConfig(module="photinus.zoo:lenet").module
    'photinus.zoo:lenet'
"""

from photinus.models.cnn import quick as cifar10_quick
from photinus.models.cnn import tutorial as cifar10_tutorial
from photinus.models.images import centred, crops, imagenet
from photinus.models.text import text_classifier
from photinus.models.zoo import (
    alexnet,
    auxiliary_loss,
    cifar10_full,
    googlenet,
    lenet,
    resnet18,
)

__all__ = [
    "alexnet",
    "auxiliary_loss",
    "centred",
    "cifar10_full",
    "cifar10_quick",
    "cifar10_tutorial",
    "crops",
    "googlenet",
    "imagenet",
    "lenet",
    "resnet18",
    "text_classifier",
]
