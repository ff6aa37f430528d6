"""Errands over the encrypted link, in threads of this process."""

import logging
import socket
import threading

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import DataError, LinkLostError, RunFailedError
from photinus.data.rows import Rows
from photinus.engine import worker_bootstrap
from photinus.engine.base import part_of
from photinus.engine.driver_session import DriverSession
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.worker_bootstrap import reported_error
from photinus.strategies.recipes import publish
from photinus.transport.tcp_link import parse_address
from photinus.transport.tcp_listener import TcpListener


def opened(tiny, slot):
    plan = tiny.plan()
    return part_of(Rows.of(*tiny.data.part(plan, slot)), plan)


def run_all(session, open_part, errors=None):
    """Runs an errand in each slot; what one raises is kept."""

    def one(slot):
        try:
            session.bootstrap().run(slot, f"{slot}-0", lambda: open_part(slot))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(slot,)) for slot in range(2)]
    for thread in threads:
        thread.start()
    assert session.wait(60)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("security", ["tls", "none"])
def test_errands_meet_in_a_hall_and_give_the_simulators_bits(tiny, security):
    with DriverSession(tiny.assignment(security=security)) as session:
        run_all(session, lambda slot: opened(tiny, slot))
    vectors = SimulatedEngine().run(tiny.assignment()).vectors
    assert all(np.array_equal(a, b) for a, b in zip(session.result().vectors, vectors, strict=True))
    assert (session.lease(0), session.lease(1)) == (1, 1)


def test_what_a_worker_logs_reaches_the_driver(tiny):
    def open_part(slot):
        logging.getLogger("photinus").warning("part %d is slow", slot)
        return opened(tiny, slot)

    events = []
    with DriverSession(tiny.assignment(emit=events.append)) as session:
        run_all(session, open_part)
    texts = {e.text for e in events if type(e).__name__ == "Log"}
    assert texts == {"photinus: part 0 is slow", "photinus: part 1 is slow"}


def test_a_stranger_at_a_worker_is_told_in_its_log(tiny, monkeypatch):
    def visited(*args):
        listener = TcpListener(*args)
        with socket.create_connection(parse_address(listener.address), 10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(65536):
                pass
        return listener

    monkeypatch.setattr(worker_bootstrap, "TcpListener", visited)
    plan, events = tiny.plan(recipes=(publish(every=Steps(4)),)), []
    with DriverSession(tiny.assignment(plan, emit=events.append)) as session:
        run_all(session, lambda slot: opened(tiny, slot))
    logs = [(e.slot, e.text) for e in events if type(e).__name__ == "Log"]
    assert {slot for slot, _ in logs} == {0, 1}
    assert all("turned away; got 1 without a key of this run; look who" in text for _, text in logs)


def test_an_error_of_ours_stays_what_it_is(tiny):
    def open_part(slot):
        if slot == 1:
            raise DataError("row 3 is wrong")
        return opened(tiny, slot)

    with DriverSession(tiny.assignment()) as session:
        run_all(session, open_part)
    with pytest.raises(DataError, match=r"^row 3 is wrong$"):
        session.result()


def test_any_other_error_comes_with_slot_and_traceback(tiny):
    def open_part(slot):
        return opened(tiny, slot) if slot == 0 else 1 / 0

    with DriverSession(tiny.assignment()) as session:
        run_all(session, open_part)
    with pytest.raises(RunFailedError, match=r"(?s)^worker 1 failed: Traceback .*ZeroDivision"):
        session.result()


@pytest.mark.parametrize("letter", ["x", "ж", "𝄞"])
def test_an_error_of_any_length_and_alphabet_is_told(tiny, letter):
    def open_part(slot):
        if slot == 1:
            raise DataError(letter * 30_000)
        return opened(tiny, slot)

    with DriverSession(tiny.assignment()) as session:
        run_all(session, open_part)
    with pytest.raises(DataError, match=letter * 100):
        session.result()


def test_workers_that_lose_the_driver_end_in_the_time_they_are_given(tiny):
    errors = []
    session = DriverSession(tiny.assignment(reconnect_seconds=0.3))
    bootstrap = session.bootstrap()
    session.__exit__(None, None, None)

    def run():
        try:
            bootstrap.run(0, "0-0", lambda: opened(tiny, 0))
        except LinkLostError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert len(errors) == 1


def test_workers_end_when_the_driver_says_nothing_though_its_connections_stand(tiny, monkeypatch):
    """As one that stands still, or whose cable was pulled out: nothing is closed."""
    monkeypatch.setattr("photinus.engine.worker_bootstrap.BEAT_SECONDS", 0.05)
    errors, joined = [], threading.Semaphore(0)

    def note(event):
        if type(event).__name__ == "WorkerJoined":
            joined.release()

    with DriverSession(
        tiny.assignment(tiny.plan(epochs=3000.0), reconnect_seconds=0.5, emit=note)
    ) as session:
        bootstrap = session.bootstrap()

        def run(slot):
            try:
                bootstrap.run(slot, f"{slot}-0", lambda: opened(tiny, slot))
            except LinkLostError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=run, args=(slot,)) for slot in range(2)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert joined.acquire(timeout=30)
        with session._lock:
            for thread in threads:
                thread.join(30)
    assert len(errors) == 2
    assert all("the coordinator says nothing any more" in text for text in errors)


def test_a_hall_without_a_result_says_so(tiny):
    with DriverSession(tiny.assignment()) as session:
        assert not session.is_over
    with pytest.raises(RunFailedError, match="ended before its phases were over"):
        session.result()
    with DriverSession(tiny.assignment()) as session:
        session.stop("enough")
    with pytest.raises(RunFailedError, match=r"^enough$"):
        session.result()


def test_only_errors_of_ours_are_made_from_a_name():
    assert type(reported_error("a", "DataError")) is DataError
    for name in ("", "SystemExit", "message", "Exception"):
        assert type(reported_error("a", name)) is RunFailedError


def test_a_worker_gives_its_driver_up_soon_enough_to_be_gone_in_time(tiny, monkeypatch):
    """Its process takes time to end, too: 30 s are for both."""
    patience = []

    class Link:
        def __init__(self, address, key, *, connect_seconds, limits):
            patience.append(connect_seconds)

    monkeypatch.setattr(worker_bootstrap, "TcpLink", Link)
    with DriverSession(tiny.assignment()) as session:
        session.call()._open_link()
    assert patience == [27.0]
