"""The accelerators that Spark gave to a task: their addresses, and the share of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from photinus.core.errors import NotReadyError

_GPU = "gpu"
_CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
_XPU_VARIABLE = "ZE_AFFINITY_MASK"


@dataclass(frozen=True, slots=True)
class TaskDevice:
    """What a task may use."""

    resource: str = ""
    """Spark's name of it: gpu, fpga or any other; empty where Spark gave nothing."""
    address: str = ""
    """The first of its addresses: a number, or a name as MIG-...."""
    share: float = 1.0
    """Of the accelerator's memory: below 1 where several tasks have the same address."""

    @property
    def gpu_share(self) -> float:
        """Of a GPU's memory: the share of another resource says nothing of it."""
        return self.share if self.resource in ("", _GPU) else 1.0


_bound = TaskDevice()


def task_device() -> TaskDevice:
    """Returns what this process was given last."""
    return _bound


@dataclass(frozen=True, slots=True)
class TaskResources:
    """What Spark gave to a task.

    Example:
        >>> TaskResources({"fpga": ["3"]}, {"fpga": 0.5}).bind()
        TaskDevice(resource='fpga', address='3', share=0.5)
        >>> TaskResources().bind()
        TaskDevice(resource='', address='', share=1.0)
    """

    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of each resource by its name."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """How much of each it asked for; below 1 it is a share of one address."""

    def bind(self) -> TaskDevice:
        """Keeps this process to it.

        CUDA reads the addresses of GPUs, numbers and names of MIG alike, once, as it starts. So
        does Intel's Level Zero, of numbers.

        Raises:
            NotReadyError: CUDA has started in this process, with other addresses.
        """
        global _bound  # of the process, as is what CUDA sees
        name = _GPU if _GPU in self.addresses else min(self.addresses, default="")
        addresses = list(self.addresses.get(name, ()))
        first = addresses[0] if addresses else ""
        _bound = TaskDevice(name, first, min(1.0, self.amounts.get(name, 1.0)))
        if name == _GPU and addresses:
            _set_visible(",".join(addresses))
        return _bound


def _set_visible(visible: str) -> None:
    previous = os.environ.get(_CUDA_VARIABLE)
    if torch.cuda.is_initialized() and previous != visible:  # type: ignore[no-untyped-call]
        wrong = "this process holds another GPU than Spark gave to its task"
        do = "start the application with spark.python.worker.reuse=false"
        raise NotReadyError(wrong, got=f"{previous or 'all'}, and now {visible}", do=do)
    os.environ[_CUDA_VARIABLE] = visible
    if visible.replace(",", "").isdigit():
        os.environ[_XPU_VARIABLE] = visible
