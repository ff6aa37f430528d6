"""What a round costs over sockets, over a folder on disk, in memory, and on HDFS.

    python benchmarks/round_trips.py [hdfs://host:port/folder]

One worker's frame of a million float32 goes to the listener and comes back. The transports take
turns; a line is the median of the tries. Files are sealed, sockets encrypted.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from machine import begin

from photinus.transport.credentials import Credentials
from photinus.transport.folder import FolderLink, FolderListener
from photinus.transport.frames import Frame
from photinus.transport.link import Link, Listener
from photinus.transport.tcp_link import TcpLink
from photinus.transport.tcp_listener import TcpListener

KEYS = Credentials.make(bytes(16))
TRIES = 15


def echo(peer, frame):
    peer.send(frame)


def gone(peer):
    pass


def opened(folder: str) -> tuple[Listener, Link]:
    """Opens a folder's two ends; sockets for ""."""
    if not folder:
        listener = TcpListener("127.0.0.1", KEYS, echo, gone)
        return listener, TcpLink(listener.address, KEYS.worker())
    listener = FolderListener(folder, KEYS, echo, gone)
    return listener, FolderLink(listener.address, KEYS.worker())


def seconds(link: Link, frame: Frame) -> float:
    """Returns how long a frame takes there and back."""
    began = time.perf_counter()
    frames = link.exchange(frame, 60.0)
    while not frames:
        frames = link.exchange(None, 60.0)
    return time.perf_counter() - began


def main() -> None:
    """Prints a line for each transport."""
    small, large = Frame("fetch"), Frame("push", arrays={"a": np.ones(1_000_000, np.float32)})
    with (
        tempfile.TemporaryDirectory() as disk,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        transports = {"sockets": "", "folder in memory": memory, "folder on disk": disk}
        if len(sys.argv) > 1:
            transports["folder on HDFS"] = sys.argv[1]
        ends = {name: opened(folder) for name, folder in transports.items()}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in transports}
        for _ in range(TRIES):
            for name, (_, link) in ends.items():
                taken[name].append((seconds(link, small), seconds(link, large)))
        print("transport | empty message, ms | 4 MB, ms")
        print("--- | --- | ---")
        for name, both in taken.items():
            empty, full = (1e3 * statistics.median(side) for side in zip(*both, strict=True))
            print(f"{name} | {empty:.1f} | {full:.1f}")
        close: Callable[[], None]
        for listener, link in ends.values():
            for close in (link.close, listener.close):
                close()


if __name__ == "__main__":
    begin()
    main()
