"""A worker's TCP link: mutual TLS 1.3, or plain bytes on a trusted network."""

from __future__ import annotations

import contextlib
import socket
import threading
from time import monotonic

from photinus.core.errors import LinkError, LinkLostError, UsageError
from photinus.transport.credentials import WorkerKey
from photinus.transport.frames import Frame, encode_frame
from photinus.transport.link import Link
from photinus.transport.wire import FrameReader, Limits, Wire, greet

_PAUSE_SECONDS = (0.05, 1.0)
_MAX_FRAMES = 64


class TcpLink(Link):
    """A link to a `TcpListener`, connected when it is made: inside the task, never at import.

    Args:
        address: the listener's, `host:port` or `[host]:port`.
        key: the worker's key of the run.
        connect_seconds: how long to retry while there is no listener.
        limits: of frames and waits.

    Raises:
        AuthenticationError: the listener holds keys of another run, or is another run.
        LinkLostError: no listener could be reached in time.
        UsageError: it is not an address.
    """

    def __init__(
        self,
        address: str,
        key: WorkerKey,
        *,
        connect_seconds: float = 30.0,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._wire = _connect(address, key, connect_seconds, self._limits)
        self._wire.on_progress = self._update_counts
        self._update_counts()
        self._reader = FrameReader(self._wire, self._limits)
        self._lock = threading.Lock()
        self._is_lost = False
        self.address = address
        self.local_host = self._wire.local_host
        """This machine's address as the listener can see it: where a peer may listen."""

    def exchange(self, frame: Frame | None, seconds: float) -> list[Frame]:
        with self._lock:
            if self._is_lost:
                raise LinkLostError("this link is closed", do="make a new link")
            if frame is not None:
                pieces = encode_frame(frame, checksums=not self._wire.is_secure)
                self._wire.send(pieces, self._limits.stall_seconds, self._limits.rate_limit)
            return self._receive(seconds)

    def _update_counts(self) -> None:
        """Counts bytes also within a frame, so that a watcher of this link sees its progress."""
        self.bytes_sent = self._wire.bytes_sent
        self.bytes_received = self._wire.bytes_received

    def _receive(self, seconds: float) -> list[Frame]:
        deadline = monotonic() + seconds
        frames: list[Frame] = []
        try:
            while len(frames) < _MAX_FRAMES:
                timeout = 0.0 if frames else max(0.0, deadline - monotonic())
                received = self._reader.take(timeout)
                if received is None:
                    break
                frames += received
        except LinkError:
            # what arrived before the end is returned first; the next call raises
            self._is_lost = True
            if not frames:
                raise
        return frames

    def close(self) -> None:
        self._wire.cut()
        with self._lock:
            self._is_lost = True
            self._wire.close()


def parse_address(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port` or `[host]:port`.

    Example:
        >>> parse_address("[::1]:7077")
        ('::1', 7077)

    Raises:
        UsageError: it is neither.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError("an address must be host:port", got=repr(address))
    return host.removeprefix("[").removesuffix("]"), int(port)


def local_host(towards: str) -> str:
    """Returns this machine's address on the way to another one; nothing is sent.

    Raises:
        LinkLostError: there is no route.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError as error:
        raise LinkLostError(
            f"there is no network route from here to {towards}", got=error
        ) from error


def _connect(address: str, key: WorkerKey, connect_seconds: float, limits: Limits) -> Wire:
    """Connects with growing pauses; a wrong key or run ends the attempts at once."""
    target = parse_address(address)
    context = key.client_context()
    deadline = monotonic() + connect_seconds
    pause, longest = _PAUSE_SECONDS
    while True:
        try:
            with contextlib.ExitStack() as stack:
                sock = socket.create_connection(target, timeout=limits.handshake_seconds)
                stack.callback(sock.close)
                wire = Wire(sock, context, is_server=False)
                greet(wire, key.run, monotonic() + limits.handshake_seconds)
                stack.pop_all()
                return wire
        except (OSError, LinkLostError) as error:
            reason = f"{type(error).__name__}: {error}"
        if monotonic() + pause >= deadline:
            raise LinkLostError(
                f"no process of this run answers at {address}",
                got=f"{reason} for {connect_seconds:g} seconds",
                do="check that the driver runs, that this machine may reach that port, and that "
                "both sides use the same security",
            )
        threading.Event().wait(pause)
        pause = min(2 * pause, longest)
