"""Links through a shared folder, for clusters whose executors may not open ports.

    FOLDER/RUN/signs/LISTENER-N     that listener is alive: a new N every few seconds
    FOLDER/RUN/up/LINK-N            frames of a link to the listener, in the order of N
    FOLDER/RUN/LINK/N               frames to that link

Every file is written once, appears whole, is sealed with the run's key under its own name (so none
can be forged, changed or moved), and is removed by its reader. An empty one ends its direction.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from contextlib import suppress
from time import monotonic

from photinus.core.errors import AuthenticationError, FrameError, LinkError, LinkLostError
from photinus.transport.credentials import Credentials, WorkerKey
from photinus.transport.filesystems import Filesystem, filesystem_of
from photinus.transport.frames import Decoder, Frame, encode_frame
from photinus.transport.link import Link, Listener, OnClosed, OnFrame, Peer
from photinus.transport.refusals import OnRefused, Refusals
from photinus.transport.seal import Seal

SCHEME = "folder:"

_FILE_BYTES = 32 << 20
_MAX_READ_BYTES = 2 * _FILE_BYTES + (1 << 20)
_SIGN_SECONDS = 5.0
_LOST_SECONDS = 60.0
_FLUSH_SECONDS = 2.0
_MOST_UNREAD = 64
"""Unread files of one link, at most."""
_DEAD_SIGNS: dict[str, str] = {}
"""Address of a folder -> the last sign of a listener that died: it stays there for ever."""


def _ignore_progress() -> None:
    pass


class _FileQueue:
    """One direction of a link: numbered files under a prefix."""

    def __init__(self, filesystem: Filesystem, seal: Seal, prefix: str) -> None:
        self._filesystem, self._seal, self._prefix = filesystem, seal, prefix
        self._next = 0
        self.bytes = 0
        self.on_progress = _ignore_progress
        """Called whenever bytes moved, also within a frame."""

    def put(self, frame: Frame | None) -> None:
        """Writes a frame as one file or several; None ends the direction."""
        pieces = encode_frame(frame) if frame is not None else [b""]
        batch: list[bytes | memoryview] = []
        for piece in pieces:
            batch.append(piece)
            if sum(map(len, batch)) >= _FILE_BYTES:
                self._write(batch)
                batch = []
        if batch:
            self._write(batch)

    def _write(self, pieces: list[bytes | memoryview]) -> None:
        name = f"{self._prefix}{self._next:012d}"
        data = b"".join(pieces)
        self._filesystem.put(name, self._seal.close(name, data))
        self._next += 1
        self.bytes += len(data)
        self.on_progress()

    def take(self) -> bytes | None:
        """Returns the next file's bytes and removes it; None when it is not there (yet).

        Raises:
            AuthenticationError: it was not sealed by this run.
        """
        name = f"{self._prefix}{self._next:012d}"
        sealed = self._filesystem.read(name, _MAX_READ_BYTES)
        if sealed is None:
            return None
        data = self._seal.open(name, sealed)
        self._filesystem.remove(name)
        self._next += 1
        self.bytes += len(data)
        self.on_progress()
        return data

    def unread(self, names: list[str]) -> int:
        """Counts this queue's files among the names of its directory."""
        start = self._prefix.rpartition("/")[2]
        return sum(name.startswith(start) for name in names)


class FolderLink(Link):
    """A worker's link through a folder.

    Args:
        address: the listener's, which starts with `SCHEME`.
        key: the worker's key of the run.
        connect_seconds: how long to look for a listener's sign.

    Raises:
        AuthenticationError: the folder is sealed with another run's key.
        LinkLostError: no listener signs in time.
    """

    def __init__(self, address: str, key: WorkerKey, *, connect_seconds: float = 30.0) -> None:
        self._filesystem, self._seal = filesystem_of(address.removeprefix(SCHEME)), Seal(key)
        self._signed_at, self._last_sign = monotonic(), ""
        self.address, self._name = address, os.urandom(8).hex()
        self._await_sign(connect_seconds)
        self._out = _FileQueue(self._filesystem, self._seal, f"up/{self._name}-")
        self._in = _FileQueue(self._filesystem, self._seal, f"{self._name}/")
        self._out.on_progress = self._in.on_progress = self._update_counts
        self._decoder = Decoder()
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._is_lost = False

    def _await_sign(self, connect_seconds: float) -> None:
        deadline = monotonic() + connect_seconds
        while not self._has_live_sign():
            if monotonic() >= deadline:
                raise LinkLostError(
                    f"no process of this run signs in {self._filesystem.address}",
                    got=f"no new file in it for {connect_seconds:g} seconds",
                    do="check that the driver runs and that every worker sees the same folder",
                )
            threading.Event().wait(self._filesystem.pause_seconds[1])
        name = f"signs/{self._last_sign}"
        sealed = self._filesystem.read(name, _MAX_READ_BYTES)
        if sealed is not None:
            self._seal.open(name, sealed)

    def _has_live_sign(self) -> bool:
        """Looks for the listener's newest sign, and notes when it changed."""
        signs = self._filesystem.names("signs")
        if signs and signs[-1] != self._last_sign:
            self._last_sign, self._signed_at = signs[-1], monotonic()
        return bool(signs) and self._last_sign != _DEAD_SIGNS.get(self._filesystem.address)

    def exchange(self, frame: Frame | None, seconds: float) -> list[Frame]:
        with self._lock:
            if self._is_lost:
                raise LinkLostError("this link is closed", do="make a new link")
            if frame is not None:
                self._await_capacity()
                self._out.put(frame)
            return self._receive(seconds)

    def _update_counts(self) -> None:
        self.bytes_sent, self.bytes_received = self._out.bytes, self._in.bytes

    def _await_capacity(self) -> None:
        """Lets the listener read first: the number of files stays bounded."""
        deadline = monotonic() + _LOST_SECONDS
        while self._out.unread(self._filesystem.names("up") or []) >= _MOST_UNREAD:
            if monotonic() > deadline:
                self._is_lost = True
                raise LinkLostError("nobody reads what is put into the folder")
            threading.Event().wait(self._filesystem.pause_seconds[1])

    def _receive(self, seconds: float) -> list[Frame]:
        deadline, last_check = monotonic() + seconds, 0.0
        pause, longest = self._filesystem.pause_seconds
        frames: list[Frame] = []
        while not self._is_lost and not self._closing.is_set():
            data = self._in.take()
            if data:
                frames += self._decoder.feed(data)
                continue
            self._is_lost = data is not None
            now = monotonic()
            if frames or self._is_lost:
                break
            if now - last_check >= 1.0:
                last_check = now
                self._check_sign(now)
            if now >= deadline:
                break
            self._closing.wait(min(pause, deadline - now))
            pause = min(2 * pause, longest)
        if (self._is_lost or self._closing.is_set()) and not frames:
            raise LinkLostError("the other side ended", do="make a new link")
        return frames

    def _check_sign(self, now: float) -> None:
        if not self._has_live_sign() or now - self._signed_at > _LOST_SECONDS:
            self._is_lost, _DEAD_SIGNS[self._filesystem.address] = True, self._last_sign

    def close(self) -> None:
        self._closing.set()
        with self._lock, suppress(LinkError):  # a folder that is gone has no reader
            if not self._is_lost and self._filesystem.names("signs"):
                self._out.put(None)
            self._is_lost = True


class FolderPeer(Peer):
    """The listener's side of one link through the folder; `send` queues, one thread writes."""

    is_signed = True

    def __init__(self, name: str, seal: Seal, filesystem: Filesystem, queue_: _Queue) -> None:
        super().__init__()
        self.name = f"folder-{name}"
        self.incoming = _FileQueue(filesystem, seal, f"up/{name}-")
        self.outgoing = _FileQueue(filesystem, seal, f"{name}/")
        self.incoming.on_progress = self.outgoing.on_progress = self._update_counts
        self.decoder = Decoder()
        self.is_closed = False
        """True once nothing more is read."""
        self._queue = queue_

    def send(self, frame: Frame) -> None:
        if not self.is_closed:
            encode_frame(frame, checksums=False)  # one out of its limits is an error here
            self.waiting.add(frame)
            self._queue.put((self, frame))

    def _update_counts(self) -> None:
        """Counts bytes also within a frame, which may be many files."""
        self.bytes_sent, self.bytes_received = self.outgoing.bytes, self.incoming.bytes

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._queue.put((self, None))


_Queue = queue.SimpleQueue[tuple[FolderPeer, Frame | None] | None]


class FolderListener(Listener):
    """Receives the frames of one run's workers through a folder that they all see.

    Args:
        folder: an absolute path, or an address that fsspec opens, such as `hdfs://host:port/runs`.
        keys: the run's, or a worker's where it listens to others; files are sealed with them.
        hear: called for each frame, in the listener's one reading thread.
        gone: called once for each link that ended.
        on_refused: is called with files that are not the run's, at most once a minute.

    Raises:
        NotReadyError: the folder cannot be reached.
        LinkLostError: it cannot be written to.
    """

    def __init__(
        self,
        folder: str,
        keys: Credentials | WorkerKey,
        hear: OnFrame,
        gone: OnClosed,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._refusals = Refusals(on_refused)
        self.refused = self._refusals.counts
        self._filesystem = filesystem_of(f"{folder.rstrip('/')}/{keys.run.hex()}")
        self._seal = Seal(keys if isinstance(keys, WorkerKey) else keys.worker())
        self._on_frame, self._on_disconnect = hear, gone
        self.address = SCHEME + self._filesystem.address
        self._peers, self._refused_names = dict[str, FolderPeer](), set[str]()
        self._ended_links: set[str] = set()
        """Links that have ended: files of theirs that are put back are not read again."""
        self._queue: _Queue = queue.SimpleQueue()
        self._closing, self._sign_count = threading.Event(), 0
        self._listener_id = os.urandom(
            8
        ).hex()  # its first sign must not be the last of one that died
        self._filesystem.make()  # without what a driver that died left of this run
        self._write_sign()
        self._threads = [
            threading.Thread(target=target, name="photinus-folder", daemon=True)
            for target in (self._read_loop, self._write_loop, self._sign_loop)
        ]
        for thread in self._threads:
            thread.start()

    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    def _write_sign(self) -> None:
        name = f"signs/{self._listener_id}-{self._sign_count:012d}"
        self._filesystem.put(name, self._seal.close(name, b""))
        if self._sign_count:
            self._filesystem.remove(f"signs/{self._listener_id}-{self._sign_count - 1:012d}")
        self._sign_count += 1

    def _sign_loop(self) -> None:
        while not self._closing.wait(_SIGN_SECONDS):
            try:
                self._write_sign()
            except LinkError:
                continue  # the next one may succeed; after a minute the workers give up

    def _read_loop(self) -> None:
        pause, longest = self._filesystem.pause_seconds
        wait, is_last = pause, False
        while not is_last:
            is_last = self._closing.wait(wait)  # and one more look, for links that ended before
            try:
                has_read = self._poll(math.inf if is_last else _FILE_BYTES)
            except LinkError:
                has_read = False
            wait = pause if has_read else min(2 * wait, longest)

    def _poll(self, most_bytes: float) -> bool:
        """Reads what has arrived; returns whether anything has.

        Args:
            most_bytes: to read of one link, before the others, whose signs of life wait.
        """
        names = self._filesystem.names("up") or []
        links = dict.fromkeys(name.partition("-")[0] for name in names)
        has_read = False
        for link in links:
            peer = self._peers.get(link)
            if link in self._ended_links:
                continue
            if peer is None:
                peer = FolderPeer(link, self._seal, self._filesystem, self._queue)
            has_read |= self._read(link, peer, most_bytes)
        for link, peer in list(self._peers.items()):
            if peer.is_closed:
                self._drop(link)
        return has_read

    def _read(self, link: str, peer: FolderPeer, most_bytes: float) -> bool:
        has_read, limit = False, peer.incoming.bytes + most_bytes
        while not peer.is_closed and peer.incoming.bytes < limit:
            try:
                data = peer.incoming.take()
                frames = peer.decoder.feed(data) if data else []
            except AuthenticationError as error:
                self._refuse(str(error))
                return has_read
            except FrameError:
                self._refusals.add("frame")
                self._drop(link)
                return has_read
            if data is None:
                return has_read
            has_read = True
            self._peers.setdefault(link, peer)
            peer.arriving = peer.decoder.arriving
            for frame in frames:
                self._on_frame(peer, frame)
            if not data:
                self._drop(link)
                return has_read
        return has_read

    def _refuse(self, text: str) -> None:
        if text not in self._refused_names and len(self._refused_names) < 1000:
            self._refused_names.add(text)
            self._refusals.add("foreign")

    def _drop(self, link: str) -> None:
        peer = self._peers.pop(link, None)
        if peer is not None:
            self._ended_links.add(link)
            peer.close()
            self._on_disconnect(peer)

    def _write_loop(self) -> None:
        while (item := self._queue.get()) is not None:
            self._write_one(*item)
            item = None  # its arrays are not kept in memory until the next one comes

    def _write_one(self, peer: FolderPeer, frame: Frame | None) -> None:
        try:
            peer.outgoing.put(frame)
        except LinkError:
            peer.is_closed = True
        if frame is not None:
            peer.waiting.discard(frame)

    def close(self) -> None:
        """Ends all links, after what was sent before, and removes the run's folder."""
        if self._closing.is_set():
            return
        self._closing.set()
        reading, writing, signing = self._threads
        reading.join()
        peers = dict(self._peers)
        for link in peers:
            self._drop(link)
        self._queue.put(None)
        writing.join(_FLUSH_SECONDS)
        signing.join()
        deadline = monotonic() + _FLUSH_SECONDS
        while any(self._filesystem.names(link) for link in peers) and monotonic() < deadline:
            threading.Event().wait(self._filesystem.pause_seconds[1])
        self._filesystem.remove("")
