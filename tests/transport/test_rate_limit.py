"""What one worker sends in a second is capped, over all its lines together."""

import threading

import numpy as np

from photinus.transport.credentials import Credentials
from photinus.transport.frames import Frame
from photinus.transport.rate_limit import RateLimit
from photinus.transport.tcp_link import TcpLink
from photinus.transport.tcp_listener import TcpListener
from photinus.transport.wire import Limits

RATE, BURST = 1000.0 * 1024, 64 * 1024


class Clock:
    """Virtual time, which only waiting lets pass."""

    def __init__(self):
        self.seconds, self.lock = 0.0, threading.Lock()

    def now(self):
        return self.seconds

    def wait(self, seconds):
        with self.lock:
            self.seconds += seconds


def test_bytes_take_as_long_as_the_rate_allows_whatever_the_pieces():
    for piece in (1024, 50 * 1024, 500 * 1024):
        clock = Clock()
        rate_limit = RateLimit(RATE, clock.now, clock.wait)
        for _ in range(10_000 * 1024 // piece):
            rate_limit.spend(piece)
        assert abs(clock.seconds - (10_000 * 1024 - BURST) / RATE) < 1e-6


def test_a_pause_earns_one_burst_and_no_more():
    clock = Clock()
    rate_limit = RateLimit(RATE, clock.now, clock.wait)
    rate_limit.spend(BURST)
    assert clock.seconds == 0.0
    clock.seconds = 3600.0
    rate_limit.spend(BURST + 1000 * 1024)
    assert abs(clock.seconds - 3601.0) < 1e-6


def sent_over_links(credentials, links, vector):
    """Sends a vector over each of some links under one rate limit; returns seconds, bytes."""
    clock, whole = Clock(), threading.Semaphore(0)
    run, key = credentials.run, credentials.worker()
    limits = Limits(rate_limit=RateLimit(RATE, clock.now, clock.wait))
    listener = TcpListener("127.0.0.1", credentials, lambda *_: whole.release(), lambda _: None)
    senders = [TcpLink(listener.address, key, limits=limits) for _ in range(links)]
    try:
        for link in senders:
            link.exchange(Frame("push", run=run, arrays={"a": vector}), 0.0)
        assert all(whole.acquire(timeout=20) for _ in senders)
        return clock.seconds, links * vector.nbytes
    finally:
        for link in senders:
            link.close()
        listener.close()


def test_all_links_of_a_worker_share_one_cap_with_and_without_tls():
    run, vector = bytes(16), np.zeros(500_000, "f4")
    for credentials in (Credentials.make(run), Credentials.none(run)):
        seconds, size = sent_over_links(credentials, 2, vector)
        assert abs(seconds - (size - BURST) / RATE) < 0.02 * seconds
