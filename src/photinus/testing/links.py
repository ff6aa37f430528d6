"""`check_link`: checks that a link and its listener keep the contract."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import numpy as np

from photinus.core.errors import LinkLostError
from photinus.transport.frames import DTYPES, KINDS, Frame
from photinus.transport.link import Link, Listener, OnClosed, OnFrame, Peer

MakePair = Callable[[OnFrame, OnClosed], tuple[Listener, Callable[[], Link]]]
"""Opens a listener, and returns it with a function that makes one link to it."""

_PATIENCE_SECONDS = 10.0


class _Recorder:
    """Records what a listener received, and lets a check wait for it."""

    def __init__(self, answer: Callable[[Peer, Frame], None] | None = None) -> None:
        self.received: list[tuple[Peer, Frame]] = []
        self.lost_peers: list[Peer] = []
        self._answer = answer
        self._changed = threading.Condition()

    def hear(self, peer: Peer, frame: Frame) -> None:
        with self._changed:
            self.received.append((peer, frame))
            self._changed.notify_all()
        if self._answer is not None:
            self._answer(peer, frame)

    def gone(self, peer: Peer) -> None:
        with self._changed:
            self.lost_peers.append(peer)
            self._changed.notify_all()

    def wait(self, *, received: int = 0, lost_peers: int = 0) -> None:
        with self._changed:
            holds = self._changed.wait_for(
                lambda: len(self.received) >= received and len(self.lost_peers) >= lost_peers,
                _PATIENCE_SECONDS,
            )
        _claim(holds, f"{received} frames heard and {lost_peers} peers gone")


def _claim(is_true: bool, claim: str) -> None:
    if not is_true:
        raise AssertionError(f"a link must keep its contract: {claim}")


def _claim_same(got: Frame, sent: Frame) -> None:
    for name in Frame.__dataclass_fields__:
        value, expected = getattr(got, name), getattr(sent, name)
        if name == "arrays":
            is_same = list(value) == list(expected) and all(
                value[key].dtype == expected[key].dtype
                and value[key].tobytes() == expected[key].tobytes()
                for key in expected
            )
        else:
            is_same = value == expected
        _claim(is_same, f"{name} of {sent.kind} arrives as it was sent")


def _echo(peer: Peer, frame: Frame) -> None:
    peer.send(frame)


@contextlib.contextmanager
def _opened(make: MakePair, recorder: _Recorder) -> Iterator[tuple[Listener, Callable[[], Link]]]:
    """Opens a pair, and closes all of it, twice."""
    listener, make_link = make(recorder.hear, recorder.gone)
    links: list[Link] = []

    def connect() -> Link:
        links.append(make_link())
        return links[-1]

    try:
        yield listener, connect
    finally:
        for _ in range(2):
            for link in links:
                link.close()
            listener.close()


def _take(link: Link, count: int) -> list[Frame]:
    """Returns `count` frames, however they come in."""
    frames: list[Frame] = []
    deadline = monotonic() + _PATIENCE_SECONDS
    while len(frames) < count and monotonic() < deadline:
        frames += link.exchange(None, deadline - monotonic())
    _claim(len(frames) == count, f"{count} frames come back, got {len(frames)}")
    return frames


def _claim_lost(link: Link, claim: str) -> None:
    deadline = monotonic() + _PATIENCE_SECONDS
    while monotonic() < deadline:
        try:
            link.exchange(None, 1.0)
        except LinkLostError:
            return
    _claim(is_true=False, claim=claim)


def _samples() -> Sequence[Frame]:
    edges = {"none": np.zeros(0, "f4"), "one": np.ones(1, "f8"), "ü": np.arange(9, dtype="u1")}
    every_dtype = {dtype: np.arange(5).astype(dtype) for dtype in DTYPES}
    strided = {"up": np.arange(20)[::2].astype("f4"), "down": np.arange(8.0)[::-2]}
    max_int = (1 << 63) - 1
    return [
        *(Frame(kind) for kind in KINDS),
        Frame("grant", term=1, phase=2, slot=-1, lease=4, sequence=max_int, arrays=edges),
        Frame(
            "note", header={"loss": 0.25, "host": "ü", "deep": [{"a": None}]}, arrays=every_dtype
        ),
        Frame("publish", arrays=strided),
    ]


def _check_frames_arrive_whole_and_in_order(make: MakePair) -> None:
    recorder = _Recorder()
    with _opened(make, recorder) as (_, connect):
        link = connect()
        for frame in _samples():
            link.exchange(frame, 0)
        recorder.wait(received=len(_samples()))
    for (_, got), sent in zip(recorder.received, _samples(), strict=True):
        _claim_same(got, sent)


def _check_answers_come_back_in_order(make: MakePair) -> None:
    with _opened(make, _Recorder(_echo)) as (_, connect):
        link = connect()
        _claim(link.exchange(None, 0) == [], "a look without a frame returns nothing")
        got = [frame for sent in _samples() for frame in link.exchange(sent, 0)]
        got += _take(link, len(_samples()) - len(got))
    for answer, sent in zip(got, _samples(), strict=True):
        _claim_same(answer, sent)


def _check_a_wait_ends_when_something_arrives(make: MakePair) -> None:
    with _opened(make, _Recorder(_echo)) as (_, connect):
        link = connect()
        start = monotonic()
        _claim(link.exchange(None, 0.02) == [], "a wait without a frame ends")
        frames = link.exchange(Frame("hello"), 3 * _PATIENCE_SECONDS)
        _claim([f.kind for f in frames] == ["hello"], "an answer ends the wait")
        _claim(monotonic() - start < _PATIENCE_SECONDS, "a wait ends when something arrives")


def _check_a_big_vector_travels_whole(make: MakePair) -> None:
    big = np.random.default_rng(0).standard_normal(1_310_723, np.float32)  # a little over 5 MiB
    sent = Frame("push", arrays={"all": big, "few": big[:3], "half": big[::2]})
    with _opened(make, _Recorder(_echo)) as (_, connect):
        link = connect()
        [got] = link.exchange(sent, 0) or _take(link, 1)
        _claim_same(got, sent)
        got.arrays["all"][:] = 0
        _claim(bool(big.any()), "what arrives is memory of its own")
        _claim(min(link.bytes_sent, link.bytes_received) > 5 << 20, "bytes are counted")


def _check_a_closed_link_is_told_once(make: MakePair) -> None:
    recorder = _Recorder()
    with _opened(make, recorder) as (_, connect):
        link = connect()
        link.exchange(Frame("hello"), 0)
        link.exchange(Frame("bye"), 0)
        link.close()
        link.close()
        recorder.wait(received=2, lost_peers=1)
        _claim_lost(link, "a closed link says that it is lost")
        recorder.lost_peers[0].send(Frame("ack"))
    _claim(recorder.lost_peers == [recorder.received[0][0]], "a peer is gone once")


def _check_a_closed_peer_delivers_first(make: MakePair) -> None:
    def answer_and_close(peer: Peer, frame: Frame) -> None:
        peer.send(frame)
        peer.send(Frame("stop"))
        peer.close()
        peer.close()

    recorder = _Recorder(answer_and_close)
    with _opened(make, recorder) as (_, connect):
        link = connect()
        got = link.exchange(Frame("fetch", arrays={"a": np.arange(500_000.0)}), 0)
        got += _take(link, 2 - len(got))
        _claim([f.kind for f in got] == ["fetch", "stop"], "what was sent before a close arrives")
        _claim_lost(link, "a link whose peer was closed is lost")
        link.close()
        recorder.wait(lost_peers=1)
    _claim(len(recorder.lost_peers) == 1, "a closed peer is gone once")


def _check_a_closed_listener_ends_its_links(make: MakePair) -> None:
    recorder = _Recorder()
    with _opened(make, recorder) as (listener, connect):
        links = [connect() for _ in range(3)]
        for link in links:
            link.exchange(Frame("hello"), 0)
        recorder.wait(received=3)
        listener.close()
        for link in links:
            _claim_lost(link, "a link is lost when its listener closes")
        recorder.wait(lost_peers=3)
    _claim(
        len(recorder.lost_peers) == len(set(map(id, recorder.lost_peers))) == 3,
        "each peer is gone once",
    )


def _check_links_are_told_apart(make: MakePair) -> None:
    with _opened(make, _Recorder(_echo)) as (_, connect):
        links = [connect() for _ in range(5)]
        got = [link.exchange(Frame("hello", slot=slot), 0) for slot, link in enumerate(links)]
        for slot, link in enumerate(links):
            [answer] = got[slot] or _take(link, 1)
            _claim(answer.slot == slot, "an answer reaches the link that asked")
        links[0].close()
        [again] = links[1].exchange(Frame("beat", slot=1), 0) or _take(links[1], 1)
        _claim(again.kind == "beat", "one link's end leaves the others alone")


CHECKS: tuple[Callable[[MakePair], None], ...] = (
    _check_frames_arrive_whole_and_in_order,
    _check_answers_come_back_in_order,
    _check_a_wait_ends_when_something_arrives,
    _check_a_big_vector_travels_whole,
    _check_a_closed_link_is_told_once,
    _check_a_closed_peer_delivers_first,
    _check_a_closed_listener_ends_its_links,
    _check_links_are_told_apart,
)
"""The claims of the contract, one function each."""


def check_link(make_pair: MakePair) -> None:
    """Checks a transport of your own against the whole contract.

    Args:
        make_pair: `make_pair(hear, gone)` opens a listener and returns it, with a function that
            makes one link to it; both of the run `bytes(16)`.

    Raises:
        AssertionError: a claim does not hold; it is named.
    """
    for check in CHECKS:
        check(make_pair)
