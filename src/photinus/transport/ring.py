"""Sums among fixed members through torch.distributed (gloo): in clear, nobody is asked for a key.

For a network that is trusted as a whole. Who is in, and whether it counts, is said elsewhere: a sum
that fails raises, and the members that are left make another group.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from photinus.core.errors import LinkLostError
from photinus.core.parameters import INTEGERS, Vector

__all__ = ["Ring", "Ringers"]

_SECONDS = 10.0
"""So long a member waits for the others' next part of a sum; all have come before it begins."""


class Ringers(NamedTuple):
    """The members of a sum, as all of them know them."""

    name: str
    """Tells their group from all others."""
    place: int
    """One's own, from 0."""
    size: int
    address: str
    """Where the first of them listens."""


class Ring:
    """One member's side; a group is made at the first sum of the same members, and kept.

    Args:
        host: the interface that the others see.
        seconds: how long to wait for the others.

    Example:
        >>> ring = Ring("127.0.0.1")
        >>> members = Ringers("alone", 0, 1, ring.address)
        >>> ring.sum(members, {"vector": np.ones(2, np.float32)})["vector"].tolist()
        [1.0, 1.0]
        >>> ring.close()
    """

    def __init__(self, host: str, seconds: float = _SECONDS) -> None:
        from torch._C._distributed_c10d import TCPStore

        self._host, self._patience = host, timedelta(seconds=seconds)
        self._store: Any = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._name, self._tries = "", 0
        self._group: Any = None

    @property
    def address(self) -> str:
        """Where the others meet, should this be the first of them."""
        return f"{self._host}:{self._store.port}"

    def sum(self, members: Ringers, held: Mapping[str, Vector]) -> dict[str, Vector]:
        """Returns the sums [n] of what all members hold by the same names; of integers the maximum.

        Raises:
            LinkLostError: not all came, or one was lost meanwhile.
        """
        import torch
        from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

        sums = {name: np.array(vector) for name, vector in held.items()}
        options: Any = AllreduceOptions()
        try:
            group = self._grouped(members)
            for name, vector in sums.items():
                options.reduceOp = ReduceOp.MAX if name == INTEGERS else ReduceOp.SUM
                group.allreduce([torch.from_numpy(vector)], options).wait()
        except RuntimeError as error:  # gloo and its store know no other
            self._group, self._tries = None, self._tries + 1
            raise LinkLostError(f"the group {members.name} broke", got=str(error)[:200]) from error
        return sums

    def close(self) -> None:
        """Leaves the group; nobody meets here any more."""
        self._group = self._store = None

    def _grouped(self, members: Ringers) -> Any:  # noqa: ANN401 - torch does not type it
        if members.name != self._name:
            self._name, self._group, self._tries = members.name, None, 0
        if self._group is None:
            self._group = self._made(members)
        return self._group

    def _made(self, members: Ringers) -> Any:  # noqa: ANN401 - torch does not type it
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

        host, _, port = members.address.rpartition(":")
        store = TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=self._patience
        )
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = self._patience
        own = PrefixStore(f"{members.name}/{self._tries}", store)
        return ProcessGroupGloo(own, members.place, members.size, options)
