"""The TCP listener: one thread accepts, and two per peer read and write."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

from photinus.core.errors import (
    AuthenticationError,
    FrameError,
    LinkError,
    LinkLostError,
    NotReadyError,
)
from photinus.transport.credentials import Credentials, WorkerKey
from photinus.transport.frames import Frame, encode_frame
from photinus.transport.link import Listener, OnClosed, OnFrame, Peer
from photinus.transport.refusals import OnRefused, Refusals
from photinus.transport.wire import SMALL_BYTES, FrameReader, Limits, Wire, admit

_FLUSH_SECONDS = 2.0
_SETTLE_SECONDS = 0.05
_LINGER_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class _Stranger:
    """A connection whose handshake is not done."""

    sock: socket.socket
    host: str
    number: int
    """How many connections were accepted before it."""
    wire: Wire | None = None
    is_dropped: bool = False
    """Another one got its place; its thread is about to end."""

    def drop(self) -> None:
        """Ends it, from any thread."""
        self.is_dropped = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class TcpPeer(Peer):
    """The listener's side of one connection.

    `send` never waits: what the socket does not take at once is queued, and a thread of its own
    writes it.
    """

    def __init__(self, wire: Wire, name: str, limits: Limits) -> None:
        super().__init__()
        self.name = name
        self._wire = wire
        self._limits = limits
        self._queue: queue.SimpleQueue[tuple[Frame, list[bytes | memoryview], int] | None] = (
            queue.SimpleQueue()
        )
        """Frames, what is left of them to send, and how many bytes they count."""
        self._lock = threading.Lock()
        self._queued_bytes = 0
        self._settle_seconds = _FLUSH_SECONDS
        self.is_closing = False
        self.ended = threading.Event()
        """Set once nothing more is read."""
        self.writer = threading.Thread(target=self._write, name=f"write {name}", daemon=True)
        self.writer.start()

    def send(self, frame: Frame) -> None:
        """See `Peer.send`; a peer for which too much piles up is cut off."""
        pieces = encode_frame(frame, checksums=not self._wire.is_secure)
        size = sum(map(len, pieces))
        with self._lock:
            if self.is_closing or self.ended.is_set():
                return
            if not self._queued_bytes and self._send_at_once(pieces, size):
                return
            self._queued_bytes += size
            is_stuck = self._queued_bytes > self._limits.max_queued_bytes
            self._queue.put(None if is_stuck else (frame, pieces, size))
            self.waiting.add(frame)
        if is_stuck:
            self._wire.cut()

    def _send_at_once(self, pieces: list[bytes | memoryview], size: int) -> bool:
        """Sends a small frame from this thread, as to wake another one takes longer.

        Returns:
            Whether nothing of it is left to send.
        """
        if (
            size > min(SMALL_BYTES, self._limits.max_queued_bytes)
            or self._limits.rate_limit is not None
        ):
            return False
        try:
            is_sent = self._wire.send(pieces, None)
        except LinkLostError:
            self._wire.cut()  # the reader sees the end, and reports it
            return True
        pieces.clear()  # the wire has the rest
        return is_sent

    def update_counts(self) -> None:
        """Notes how many bytes have moved, also within a frame."""
        self.bytes_sent, self.bytes_received = self._wire.bytes_sent, self._wire.bytes_received

    def close(self, settle_seconds: float = _FLUSH_SECONDS) -> None:
        """Ends the connection after what was sent before; nothing more is received.

        Args:
            settle_seconds: for the other side to read the end, before the connection is cut.
        """
        with self._lock:
            self.is_closing = True
            self._settle_seconds = settle_seconds
            self._queue.put(None)

    def _write(self) -> None:
        # a send that fails is reported by the reader, which sees the same connection end
        with contextlib.suppress(LinkError):
            while (item := self._queue.get()) is not None:
                self._write_one(*item)
                item = None  # its arrays are not kept in memory until the next one comes
            self._wire.finish()
            self.ended.wait(self._settle_seconds)
        self._wire.cut()

    def _write_one(self, frame: Frame, pieces: list[bytes | memoryview], size: int) -> None:
        self._wire.send(pieces, self._limits.stall_seconds, self._limits.rate_limit)
        with self._lock:
            self._queued_bytes -= size
            self.waiting.discard(frame)


class TcpListener(Listener):
    """Receives the frames of one run's workers; drops strangers, and counts them in `refused`.

    Args:
        host: the interface to bind, by name or address; the port is random.
        credentials: the run's keys, or the key of a worker that others connect to.
        hear: called for each frame, in the peer's own thread.
        gone: called once for each peer that ended.
        limits: of frames, waits and connections.
        on_refused: is called with strangers, at most once a minute.

    Raises:
        NotReadyError: the host cannot be bound.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials | WorkerKey,
        hear: OnFrame,
        gone: OnClosed,
        limits: Limits | None = None,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._credentials, self._on_frame, self._on_disconnect = credentials, hear, gone
        self._limits = limits or Limits()
        self._refusals = Refusals(on_refused, self._limits.report_seconds)
        self.refused = self._refusals.counts
        self._context = credentials.server_context()
        self._lock = threading.Lock()
        self._peers: dict[threading.Thread, TcpPeer | None] = {}
        self._wires: dict[threading.Thread, Wire] = {}
        self._strangers: dict[threading.Thread, _Stranger] = {}
        self._admissions: Counter[str] = Counter()
        """How often each host was admitted."""
        self._accepted_count = 0
        self._is_closed = False
        self._socket = _bind(host)
        socket_address = self._socket.getsockname()
        self.address = (
            f"[{socket_address[0]}]:{socket_address[1]}"
            if ":" in socket_address[0]
            else f"{socket_address[0]}:{socket_address[1]}"
        )
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._accept_thread = threading.Thread(
            target=self._accept, name=f"accept {self.address}", daemon=True
        )
        self._accept_thread.start()

    @property
    def connections(self) -> int:
        """How many connections are open, strangers included."""
        return len(self._peers)

    def peers(self) -> list[Peer]:
        with self._lock:
            return [peer for peer in self._peers.values() if peer is not None]

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while not self._is_closed:
            poll.poll()
            try:
                sock, remote_address = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError:
                # out of descriptors: let those that are open end first
                self._refusals.add("full")
                self._pause(0.1)
                continue
            self._open(sock, str(remote_address[0]), f"{remote_address[0]}:{remote_address[1]}")
        self._socket.close()

    def _pause(self, seconds: float) -> None:
        """Waits, or until it is closed; `select.select` knows no descriptor above 1023."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.poll(seconds * 1000)

    def _open(self, sock: socket.socket, host: str, name: str) -> None:
        thread = threading.Thread(
            target=self._serve, args=(sock, name), name=f"read {name}", daemon=True
        )
        with self._lock:
            self._accepted_count += 1
            is_full = len(self._peers) >= self._limits.max_connections
            dropped = None if is_full else self._drop_one_if_full(host)
            if not is_full:
                self._peers[thread] = None
                self._strangers[thread] = _Stranger(sock, host, self._accepted_count)
        if is_full or dropped is not None:
            self._refusals.add("full")
        if is_full:
            sock.close()
        else:
            thread.start()

    def _drop_one_if_full(self, host: str) -> _Stranger | None:
        """Drops a stranger where all places are taken: the newcomer may be a worker that rejoins.

        The first choice is a stranger that has sent nothing (a worker sends at once), from a host
        that was never admitted, the host with the most places; of these the oldest.
        """
        active = [s for s in self._strangers.values() if not s.is_dropped]
        if len(active) < self._limits.max_strangers:
            return None
        places = Counter(s.host for s in active)
        places[host] += 1

        def drop_order(stranger: _Stranger) -> tuple[bool, bool, int, int]:
            has_sent = stranger.wire is not None and stranger.wire.bytes_received > 0
            return (
                has_sent,
                self._admissions[stranger.host] > 0,
                -places[stranger.host],
                stranger.number,
            )

        dropped = min(active, key=drop_order)
        dropped.drop()
        return dropped

    def _serve(self, sock: socket.socket, name: str) -> None:
        thread = threading.current_thread()
        try:
            wire = Wire(sock, self._context, is_server=True)
        except OSError:
            # it closed before it was served
            sock.close()
            wire = None
        try:
            if wire is not None and self._admit(thread, wire):
                self._serve_peer(thread, wire, name)
        finally:
            with self._lock:
                self._peers.pop(thread)
                self._wires.pop(thread, None)
                self._strangers.pop(thread, None)
            if wire is not None:
                wire.close()

    def _admit(self, thread: threading.Thread, wire: Wire) -> bool:
        with self._lock:
            self._wires[thread] = self._strangers[thread].wire = wire
            if self._is_closed:
                return False
        try:
            deadline = monotonic() + self._limits.handshake_seconds
            reason = "" if admit(wire, self._credentials.run, deadline) else "run"
        except (AuthenticationError, FrameError):
            reason = "foreign"
        except LinkError:
            reason = "silent"
        with self._lock:
            stranger = self._strangers[thread] if reason else self._strangers.pop(thread)
            if not reason:
                self._admissions[stranger.host] += 1
        if reason and not stranger.is_dropped:  # else it was counted when its place was taken
            self._refusals.add(reason)
            wire.linger(_LINGER_SECONDS)
        return not reason

    def _serve_peer(self, thread: threading.Thread, wire: Wire, name: str) -> None:
        peer = TcpPeer(wire, name, self._limits)
        with self._lock:
            self._peers[thread] = peer
            is_closed = self._is_closed
        if is_closed:
            peer.close()
        try:
            self._read_frames(peer, wire)
        finally:
            peer.ended.set()
            peer.close()
            peer.writer.join()
            self._on_disconnect(peer)

    def _read_frames(self, peer: TcpPeer, wire: Wire) -> None:
        reader, wire.on_progress = FrameReader(wire, self._limits), peer.update_counts
        try:
            while True:
                # no name for what was taken: a push would be held until the next one comes
                self._deliver(peer, reader.take(None) or [], reader)
        except FrameError:
            self._refusals.add("frame")
            wire.cut()
        except LinkError:
            wire.cut()

    def _deliver(self, peer: TcpPeer, frames: list[Frame], reader: FrameReader) -> None:
        peer.arriving, peer.bytes_per_second = reader.arriving, reader.bytes_per_second
        for frame in frames:
            if peer.is_closing:
                continue
            if frame.run == self._credentials.run:
                self._on_frame(peer, frame)
            else:
                self._refusals.add("run")

    def close(self) -> None:
        """Ends all links, after what was sent before, and stops listening."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            peers = dict(self._peers)
            strangers = [wire for thread, wire in self._wires.items() if peers[thread] is None]
        self._wake_writer.send(b"x")
        for wire in strangers:
            wire.cut()
        for peer in peers.values():
            if peer is not None:
                peer.close(_SETTLE_SECONDS)
        deadline = monotonic() + _FLUSH_SECONDS
        self._join((self._accept_thread, *peers), deadline)
        with self._lock:
            stuck = list(self._wires.values())
        for wire in stuck:
            wire.cut()
        self._join(peers, deadline + _LINGER_SECONDS)
        if not self._accept_thread.is_alive():
            self._wake_reader.close()
            self._wake_writer.close()

    def _join(self, threads: Iterable[threading.Thread], deadline: float) -> None:
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - monotonic()))


def _bind(host: str) -> socket.socket:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.bind(target)
            sock.listen(256)
            sock.settimeout(0)
            stack.pop_all()
    except OSError as error:
        got, do = f"{host!r}: {error}", "name an address of this machine that workers can reach"
        raise NotReadyError("this host cannot be listened on", got=got, do=do) from error
    return sock
