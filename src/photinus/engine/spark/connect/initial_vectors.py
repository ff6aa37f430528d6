"""What a run starts from, on its way from a Spark Connect client to the coordinator.

    given/index     the phases, with type and length of each of their vectors
    given/P-V-N     page N of vector V of phase P

Each file is sealed with the run's key under its own name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import numpy as np

from photinus.checkpoint.mapped import ScratchFolder
from photinus.core.errors import CheckpointError, NotReadyError
from photinus.core.parameters import Vector
from photinus.transport.filesystems import Filesystem
from photinus.transport.seal import Seal

_INDEX = "given/index"
_PAGE_BYTES = 32 << 20
_MOST_BYTES = _PAGE_BYTES + 1024


def write_initial_vectors(
    filesystem: Filesystem, seal: Seal, start: Mapping[str, tuple[Vector, ...]]
) -> None:
    """Writes what phases start from.

    Args:
        filesystem: the client's directory in the run folder.
        seal: of the run.
        start: vectors [n] by the phase's name.

    Raises:
        LinkLostError: the directory cannot be written.
    """
    vector_types = {
        name: [(v.dtype.name, v.size) for v in vectors] for name, vectors in start.items()
    }
    filesystem.put(_INDEX, seal.close(_INDEX, json.dumps(vector_types).encode()))
    for p, vectors in enumerate(start.values()):
        for v, vector in enumerate(vectors):
            data = np.ascontiguousarray(vector).view(np.uint8).data
            for name, page in _pages(f"given/{p}-{v}", data.nbytes):
                filesystem.put(name, seal.close(name, data[page]))


def read_initial_vectors(filesystem: Filesystem, seal: Seal) -> dict[str, tuple[Vector, ...]]:
    """Returns what phases start from, in files without a name: memory holds what is touched.

    Args:
        filesystem: the client's directory in the run folder.
        seal: of the run.

    Raises:
        CheckpointError: a file of it is missing.
        AuthenticationError: a file was not sealed by this run.
        NotReadyError: this machine's folder for temporary files has no room for it.
    """
    vector_types: dict[str, list[tuple[str, int]]] = json.loads(_unsealed(filesystem, seal, _INDEX))
    return {
        name: tuple(
            _vector(filesystem, seal, f"given/{p}-{v}", *vector_type)
            for v, vector_type in enumerate(types)
        )
        for p, (name, types) in enumerate(vector_types.items())
    }


def _vector(filesystem: Filesystem, seal: Seal, prefix: str, dtype: str, size: int) -> Vector:
    try:
        vector = ScratchFolder().array((size,), dtype)
    except OSError as error:
        wrong = "no room for what the run starts from in this executor's temporary folder"
        raise NotReadyError(wrong, got=error, do="free space there, or set TMPDIR") from error
    data = vector.view(np.uint8)
    for name, page in _pages(prefix, data.nbytes):
        data[page] = np.frombuffer(_unsealed(filesystem, seal, name), np.uint8)
    vector.flags.writeable = False
    return vector


def _pages(prefix: str, size: int) -> Iterator[tuple[str, slice]]:
    for n in range(math.ceil(size / _PAGE_BYTES)):
        yield f"{prefix}-{n}", slice(n * _PAGE_BYTES, min(size, (n + 1) * _PAGE_BYTES))


def _unsealed(filesystem: Filesystem, seal: Seal, name: str) -> bytes:
    sealed = filesystem.read(name, _MOST_BYTES)
    if sealed is None:
        raise CheckpointError(
            "a file of what the run starts from is missing", got=name, do="start the run again"
        )
    return seal.open(name, sealed)
