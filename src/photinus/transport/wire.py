"""One connected socket, plain or TLS; one thread may read while another writes.

TLS runs over buffers in memory: a lock then guards the cipher alone and never a wait, and a
stranger's bytes can be counted before a handshake is done.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from photinus.core.errors import AuthenticationError, FrameError, LinkLostError
from photinus.core.settings import above, validate, whole
from photinus.transport.frames import PIECE_BYTES, Decoder, Frame
from photinus.transport.rate_limit import BURST_BYTES, RateLimit

SMALL_BYTES = 64 << 10
"""A frame up to this size is enciphered in one call: each call of the cipher lets other threads
run, and to wait for their end takes longer than a copy."""
_HEAD_BYTES = 16 << 10
"""That are read at once where a head may be among them. What follows of a vector tells how fast the
link is: of more bytes at once too little would be left for that."""
_BATCH_BYTES = 256 << 10
_STRANGER_BYTES = 16 << 10
_UNSENT_BYTES = 128 << 10
"""How many unsent bytes the system buffers at most. Those of a process that stopped still arrive;
they are no sign of life, and end soon."""
_UNSENT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_GREETING = b"PHOT\x01"
_WELCOME, _OTHER_RUN = b"\x00", b"\x01"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a connection may take, in bytes, seconds and numbers."""

    max_frame_bytes: int = 2 * PIECE_BYTES
    """Of one piece of a frame."""
    max_vector_bytes: int = 4 << 30
    """Of all arrays of one frame together."""
    handshake_seconds: float = 5.0
    """For a stranger to finish its handshake."""
    stall_seconds: float = 30.0
    """Without progress while sending, before the other side counts as gone."""
    max_queued_bytes: int = 8 << 30
    """Waiting to be sent to one peer, before it is cut off."""
    max_connections: int = 1024
    max_strangers: int = 128
    """Connections whose handshake is not done."""
    report_seconds: float = 60.0
    """Between two reports of refused strangers, at least."""
    rate_limit: RateLimit | None = None
    """Of all that this side sends, over every connection with these limits."""

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "max_frame_bytes": whole(128 << 10),
        "max_vector_bytes": whole(0),
        "handshake_seconds": above(0),
        "stall_seconds": above(0),
        "max_queued_bytes": whole(1),
        "max_connections": whole(1),
        "max_strangers": whole(1),
        "report_seconds": above(0),
    }

    def __post_init__(self) -> None:
        validate(self)


class Wire:
    """A duplex line of bytes over a connected socket.

    Args:
        sock: connected; the wire owns it from now on.
        context: of TLS, or None for bytes in clear.
        is_server: whether this side accepted the connection.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext | None, *, is_server: bool
    ) -> None:
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _UNSENT_OPTION is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)
        self.on_progress = _ignore_progress
        """Called whenever bytes moved, before a watcher looks at the counts."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self.is_secure = context is not None
        self._sock = sock
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._buffer = memoryview(b"")
        self._unsent = deque[memoryview]()
        """As it travels: what the socket has not taken yet."""
        self._is_drained = False
        """The cipher has given all that arrived."""
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)

    @property
    def local_host(self) -> str:
        """Returns this machine's address on this connection."""
        return str(self._sock.getsockname()[0])

    def handshake(self, deadline: float) -> None:
        """Does the TLS handshake, reading at most 16 KiB.

        Raises:
            AuthenticationError: the other side has no key of this run, or uses no TLS.
            LinkLostError: it ended, or sent nothing in time.
        """
        if self._tls is None:
            return
        self._buffer = memoryview(bytearray(_STRANGER_BYTES))
        while not self._try_handshake(self._tls, deadline):
            remaining = _STRANGER_BYTES - self.bytes_received
            if remaining <= 0:
                raise AuthenticationError("a handshake takes at most 16 KiB")
            n = self._receive_plain(self._buffer[:remaining], deadline)
            if n is None:
                raise LinkLostError("the other side sent nothing more in the handshake")
            if n == 0:
                raise LinkLostError("the other side ended the handshake")
            self._incoming.write(self._buffer[:n])
        self._buffer = memoryview(bytearray(_BATCH_BYTES))

    def _try_handshake(self, tls: ssl.SSLObject, deadline: float) -> bool:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _authentication_error(error) from error
        finally:
            # also after a failure: the alert in it gives the other side the reason
            self._send_unsent(deadline - monotonic())
        return True

    def receive(self, view: memoryview, seconds: float | None) -> int | None:
        """Reads what there is into `view`, waiting for the first byte.

        Args:
            view: where to; not empty.
            seconds: the longest wait; None waits for ever.

        Returns:
            How many bytes; 0 when the other side ended; None when nothing arrived in time.

        Raises:
            AuthenticationError: the other side refused this side's key.
            LinkLostError: the connection broke.
        """
        deadline = math.inf if seconds is None else monotonic() + seconds
        if self._tls is None:
            return self._receive_plain(view, deadline)
        while True:
            if not self._is_drained and (n := self._decipher(self._tls, view)) is not None:
                return n
            n = self._receive_plain(self._buffer, deadline)
            if not n:
                return n
            with self._lock:
                self._incoming.write(self._buffer[:n])
            self._is_drained = False

    def _decipher(self, tls: ssl.SSLObject, view: memoryview) -> int | None:
        received = 0
        with self._lock:
            try:
                # all records that are here at once: a turn of the reader costs more than a record
                # (with a buffer given, read returns a count)
                while len(view) and (n := int(tls.read(len(view), view))):
                    received += n
                    view = view[n:]
            except ssl.SSLWantReadError:
                self._is_drained = True
                return received or None
            except ssl.SSLZeroReturnError:
                return received
            except ssl.SSLError as error:
                raise _authentication_error(error) from error
        return received

    def _receive_plain(self, view: memoryview, deadline: float) -> int | None:
        while True:
            try:
                n = self._sock.recv_into(view)
            except BlockingIOError:
                if deadline <= monotonic() or not self._wait_ready(select.POLLIN, deadline):
                    return None
            except OSError as error:
                raise _link_lost_error(error) from error
            else:
                self.bytes_received += n
                self.on_progress()
                return n

    def send(
        self,
        pieces: Sequence[bytes | memoryview],
        stall_seconds: float | None,
        rate_limit: RateLimit | None = None,
    ) -> bool:
        """Sends all pieces, in order; one thread at a time.

        Args:
            pieces: what to send after all that was sent before.
            stall_seconds: the longest wait; None for no wait: what the socket does not take at
                once stays here, for the next call.
            rate_limit: how fast.

        Returns:
            Whether the socket took all.

        Raises:
            LinkLostError: the connection broke, or took nothing for `stall_seconds`.
        """
        if self._tls is None:
            self._unsent += [memoryview(piece) for piece in pieces if len(piece)]
            return self._send_unsent(stall_seconds, rate_limit)
        for view in _batches(pieces):
            self._encipher(self._tls, view)
            if self._outgoing.pending >= _BATCH_BYTES:
                self._send_unsent(stall_seconds, rate_limit)
        return self._send_unsent(stall_seconds, rate_limit)

    def _encipher(self, tls: ssl.SSLObject, view: memoryview) -> None:
        try:
            with self._lock:
                tls.write(view)  # all of it: a buffer in memory is never full
        except ssl.SSLError as error:
            raise _link_lost_error(error) from error

    def _send_unsent(
        self, stall_seconds: float | None, rate_limit: RateLimit | None = None
    ) -> bool:
        if self._outgoing.pending:
            with self._lock:
                self._unsent.append(memoryview(self._outgoing.read()))
        while self._unsent:
            first = self._unsent[0]
            chunk = list(islice(self._unsent, 16)) if rate_limit is None else [first[:BURST_BYTES]]
            try:
                n = self._sock.sendmsg(chunk)
            except BlockingIOError:
                if stall_seconds is None:
                    return False
                if not self._wait_ready(select.POLLOUT, monotonic() + stall_seconds):
                    got = f"nothing taken for {stall_seconds:g} seconds"
                    raise LinkLostError("the other side is stuck", got=got) from None
                continue
            except OSError as error:
                raise _link_lost_error(error) from error
            self._drop_sent(n)
            if rate_limit is not None:
                rate_limit.spend(n)
        return True

    def _drop_sent(self, n: int) -> None:
        self.bytes_sent += n
        self.on_progress()
        while self._unsent and n >= len(self._unsent[0]):
            n -= len(self._unsent.popleft())
        if n:
            self._unsent[0] = self._unsent[0][n:]

    def _wait_ready(self, events: int, deadline: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._sock, events)
        except (ValueError, OSError) as error:
            raise _link_lost_error(error) from error
        if deadline == math.inf:
            return bool(poll.poll())
        return bool(poll.poll(max(0, math.ceil((deadline - monotonic()) * 1000))))

    def finish(self) -> None:
        """Signals that nothing more will be sent; reading continues."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def linger(self, seconds: float) -> None:
        """Ends after the last frame: discards what still arrives, so that there is no reset."""
        self.finish()
        deadline = monotonic() + seconds
        scratch = memoryview(bytearray(1 << 10))
        with contextlib.suppress(LinkLostError):
            for _ in range(_STRANGER_BYTES >> 10):
                if not self._receive_plain(scratch, deadline):
                    return

    def cut(self) -> None:
        """Ends both directions and wakes the threads that wait; to be called from any thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; no other thread may use it any more."""
        self.cut()
        self._sock.close()


def _ignore_progress() -> None:
    pass


def _batches(pieces: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    """Yields what is enciphered in one call each."""
    if sum(map(len, pieces)) <= SMALL_BYTES:
        pieces = [b"".join(pieces)]
    for piece in pieces:
        view = memoryview(piece)
        yield from (view[at : at + _BATCH_BYTES] for at in range(0, len(view), _BATCH_BYTES))


def _link_lost_error(error: Exception) -> LinkLostError:
    return LinkLostError("the connection broke", got=type(error).__name__, do="make a new link")


def _authentication_error(error: ssl.SSLError) -> AuthenticationError:
    reason = getattr(error, "verify_message", None) or error.reason or "no TLS"
    return AuthenticationError(
        "the two sides hold keys of different runs",
        got=str(reason).lower().replace("_", " "),
        do="give each worker a key of this very run",
    )


def _receive_exactly(wire: Wire, count: int, deadline: float) -> bytes:
    data = memoryview(bytearray(count))
    received = 0
    while received < count:
        n = wire.receive(data[received:], max(0.0, deadline - monotonic()))
        if not n:
            raise LinkLostError("the other side ended, or sent nothing, in the greeting")
        received += n
    return bytes(data)


def greet(wire: Wire, run: bytes, deadline: float) -> None:
    """Identifies a worker to the listening side.

    Raises:
        AuthenticationError: the other side holds keys of another run, or is another run.
        LinkLostError: it ended, or sent nothing in time.
    """
    wire.handshake(deadline)
    wire.send([_GREETING + run], max(0.0, deadline - monotonic()))
    answer = _receive_exactly(wire, len(_GREETING) + 1, deadline)
    if not answer.startswith(_GREETING):
        do = "check the address, both versions, and that both sides use the same security"
        raise AuthenticationError("the other side is no photinus of ours", got=answer, do=do)
    if answer[-1:] != _WELCOME:
        do = "this worker belongs to a run that is over"
        raise AuthenticationError("the other side is another run", got=run.hex(), do=do)


def admit(wire: Wire, run: bytes, deadline: float) -> bool:
    """Admits a stranger that holds a key of this run; returns whether it named this run too.

    Raises:
        AuthenticationError: the stranger holds no key of this run.
        FrameError: the stranger uses another protocol.
        LinkLostError: it ended, or sent nothing in time.
    """
    wire.handshake(deadline)
    greeting = _receive_exactly(wire, len(_GREETING) + len(run), deadline)
    if not greeting.startswith(_GREETING):
        raise FrameError("a connection begins with another protocol", got=greeting)
    is_welcome = greeting[len(_GREETING) :] == run
    wire.send([_GREETING + (_WELCOME if is_welcome else _OTHER_RUN)], deadline - monotonic())
    return is_welcome


class FrameReader:
    """Reads frames from a wire: the payload goes straight into its arrays."""

    def __init__(self, wire: Wire, limits: Limits) -> None:
        self._wire = wire
        self._scratch = memoryview(bytearray(_HEAD_BYTES))
        self._payload_bytes, self._payload_seconds = 0, 0.0
        self._decoder = Decoder(
            limits.max_frame_bytes, limits.max_vector_bytes, checksums=not wire.is_secure
        )

    def take(self, seconds: float | None) -> list[Frame] | None:
        """Reads once; returns the frames that are now whole, or None when nothing arrived in time.

        Raises:
            LinkLostError: the other side ended.
            FrameError: what arrived is no frame.
        """
        if self._decoder.is_broken:
            # frames that were whole before were returned first: now the reason is raised
            self._decoder.feed(b"")
        target = self._decoder.payload_target()
        started = monotonic()
        n = self._wire.receive(self._scratch if target is None else target, seconds)
        if n is None:
            return None
        if n == 0:
            raise LinkLostError("the other side is gone", do="make a new link")
        if target is None:
            return self._decoder.feed(self._scratch[:n])
        self._payload_bytes += n
        self._payload_seconds += monotonic() - started
        return self._decoder.payload_received(n)

    @property
    def arriving(self) -> Frame | None:
        """The head of the frame whose arrays are arriving."""
        return self._decoder.arriving

    @property
    def bytes_per_second(self) -> float:
        """How fast vectors arrived, from their first bytes to their last; 0 before any."""
        return self._payload_bytes / self._payload_seconds if self._payload_seconds else 0.0
