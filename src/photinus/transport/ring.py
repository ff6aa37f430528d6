"""Sums among fixed members through torch.distributed, without encryption.

For a network that is trusted as a whole. The coordinator decides who is in a sum, and whether it
counts: a sum that fails raises, and the members that are left make another group. Arrays in the
host's memory are summed by gloo, or, with a GPU for each member, there by NCCL.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from photinus.core.errors import LinkLostError, UsageError
from photinus.core.parameters import INTEGERS, Vector

_TIMEOUT_SECONDS = 10.0
"""How long a member waits for the others' next part of a sum, which all are ready to begin."""


class RingMembers(NamedTuple):
    """The members of a sum, as all of them know them."""

    name: str
    """The name of their group, different from all others."""
    rank: int
    """The member's own place, from 0."""
    size: int
    address: str
    """Where the first of them listens."""


class Ring:
    """One member's side; a group is made at the first sum of the same members, and kept.

    Args:
        host: the interface that the others see.
        seconds: how long to wait for the others.
        device: where sums are made: "cpu", or a GPU's name.

    Example:
        >>> ring = Ring("127.0.0.1")
        >>> members = RingMembers("alone", 0, 1, ring.address)
        >>> ring.sum(members, {"vector": np.ones(2, np.float32)})["vector"].tolist()
        [1.0, 1.0]
        >>> ring.close()
    """

    def __init__(self, host: str, seconds: float = _TIMEOUT_SECONDS, device: str = "cpu") -> None:
        from torch._C._distributed_c10d import TCPStore

        self._host, self._timeout, self._device = host, timedelta(seconds=seconds), device
        self._store: Any = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._name, self._tries = "", 0
        self._group: Any = None

    @property
    def address(self) -> str:
        """Where the others connect, should this be the first of them."""
        return f"{self._host}:{self._store.port}"

    def sum(self, members: RingMembers, vectors: Mapping[str, Vector]) -> dict[str, Vector]:
        """Returns the sums [n] of what all members hold by the same names; of integers the maximum.

        Raises:
            LinkLostError: not all members joined, or one was lost meanwhile.
        """
        import torch
        from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

        sums = {name: np.array(vector) for name, vector in vectors.items()}
        options: Any = AllreduceOptions()
        try:
            group = self._group_of(members)
            for name, vector in sums.items():
                options.reduceOp = ReduceOp.MAX if name == INTEGERS else ReduceOp.SUM
                host_tensor = torch.from_numpy(vector)
                device_tensor = host_tensor.to(self._device)  # the same memory, where that is here
                group.allreduce([device_tensor], options).wait()
                if device_tensor is not host_tensor:
                    host_tensor.copy_(device_tensor)
        except RuntimeError as error:  # neither they nor their store know another
            self._group, self._tries = None, self._tries + 1
            raise LinkLostError(f"the group {members.name} broke", got=str(error)[:200]) from error
        return sums

    def close(self) -> None:
        """Leaves the group; it makes no more sums."""
        self._group = self._store = None

    def _group_of(self, members: RingMembers) -> Any:  # noqa: ANN401 - torch does not type it
        if members.name != self._name:
            self._name, self._group, self._tries = members.name, None, 0
        if self._group is None:
            self._group = self._join(members)
        return self._group

    def _join(self, members: RingMembers) -> Any:  # noqa: ANN401 - torch does not type it
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        host, _, port = members.address.rpartition(":")
        store = TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=self._timeout
        )
        group_store = PrefixStore(f"{members.name}/{self._tries}", store)
        join = self._join_by_gloo if self._device == "cpu" else self._join_by_nccl
        return join(group_store, members.rank, members.size)

    def _join_by_gloo(self, store: Any, rank: int, size: int) -> Any:  # noqa: ANN401 - torch does not type it
        from torch._C._distributed_c10d import ProcessGroupGloo

        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = self._timeout
        return ProcessGroupGloo(store, rank, size, options)

    def _join_by_nccl(self, store: Any, rank: int, size: int) -> Any:  # noqa: ANN401 - torch does not type it
        import torch
        from torch._C._distributed_c10d import ProcessGroupNCCL

        # else a member that is lost ends the others' processes, too, and no wait raises
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        torch.cuda.set_device(self._device)
        options = ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return ProcessGroupNCCL(store, rank, size, options)


def gpu(slot: int) -> str:
    """Returns the name of the GPU that a worker in this slot sums on.

    Raises:
        UsageError: this process sees none, or its PyTorch brings no NCCL.

    Example:
        >>> gpu(1)  # doctest: +SKIP
        'cuda:1'
    """
    import torch
    from torch.distributed import is_nccl_available

    count = torch.cuda.device_count()
    if not (count and is_nccl_available()):
        nccl = "with" if is_nccl_available() else "without"
        raise UsageError(
            "NCCL sums in the memory of GPUs, one for each worker",
            got=f"{count} GPUs on {platform.node()}, PyTorch {torch.__version__} {nccl} NCCL",
            do='use transport="torch", or workers with GPUs and a PyTorch that is built for them',
        )
    return f"cuda:{slot % count}"
