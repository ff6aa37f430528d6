"""Where workers meet: what strangers who come there do to a training, which is nothing."""

import contextlib
import os
import socket
import threading

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed, Warned, WorkerLost
from photinus.engine import driver_session
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.strategies.recipes import averaging
from photinus.transport.folder import SCHEME, FolderListener
from photinus.transport.tcp_link import parse_address
from photinus.transport.tcp_listener import TcpListener

SAID = [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95" * 99, b"\x16\x03\x01" + b"\xff" * 500]
TOLD = (
    "strangers were turned away; got 1 without a key of this run; "
    "look who else can reach the port, or write into the folder, of this run"
)


class Strangers:
    """Come to a run's listener as soon as its first round is closed; note what is told."""

    def __init__(self, monkeypatch, kind, come):
        self.events, self.listeners, self.come = [], [], come
        self.thread = threading.Thread(target=lambda: come(self.listeners[0]), daemon=True)

        def listening(*args, **fields):
            self.listeners.append(kind(*args, **fields))
            return self.listeners[-1]

        monkeypatch.setattr(driver_session, kind.__name__, listening)

    def emit(self, event):
        self.events.append(event)
        if isinstance(event, RoundClosed) and not self.thread.ident:
            self.thread.start()

    def assert_harmless(self, tiny, **fields):
        plan = tiny.plan(recipes=(averaging(every=Steps(4)),), epochs=60.0)
        result = LocalEngine().run(tiny.assignment(plan, emit=self.emit, **fields))
        self.thread.join(20)
        whole = SimulatedEngine().run(tiny.assignment(plan))
        np.testing.assert_array_equal(result.vectors[0], whole.vectors[0])
        assert not [e for e in self.events if isinstance(e, WorkerLost)]
        assert [e.text for e in self.events if isinstance(e, Warned)] == [TOLD]
        return self.listeners[0].refused["foreign"]


def call(listener):
    for number in range(200):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(parse_address(listener.address), 10) as stranger,
        ):
            stranger.sendall(SAID[number % len(SAID)])
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass


def drop_in(listener):
    for number in range(200):
        place = listener.address.removeprefix(SCHEME)
        with contextlib.suppress(OSError), open(f"{place}/.aside", "wb") as file:
            file.write(os.urandom(500))
        with contextlib.suppress(OSError):
            os.rename(f"{place}/.aside", f"{place}/up/0123456789abcdef-{number:012d}")


@pytest.mark.processes
def test_strangers_change_no_bit_of_a_training_and_are_told_of_once(tiny, monkeypatch):
    strangers = Strangers(monkeypatch, TcpListener, call)
    assert strangers.assert_harmless(tiny) > 10


@pytest.mark.processes
def test_strangers_files_change_no_bit_and_are_told_of_once(tiny, monkeypatch, tmp_path):
    strangers = Strangers(monkeypatch, FolderListener, drop_in)
    assert strangers.assert_harmless(tiny, transport=str(tmp_path)) >= 1
