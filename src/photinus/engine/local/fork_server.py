"""A process that has imported what workers need, and forks them.

A worker that starts afresh imports torch: 2 seconds of processor time. A forked one has it.

The driver asks by a pipe of its own. What it sends along with `FORK` are the descriptors of the
payload's pipe, of the rows, of the driver's end, and of what is printed. The answers are "born PID"
and "ended PID CODE".
"""

from __future__ import annotations

import atexit
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from photinus.core.errors import RunFailedError

FORK = b"fork"
_HANDLE_COUNT = 5
_IDLE_SECONDS = 300.0
"""So long after its last worker has ended, the process ends."""
_LIMITS = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")


class ForkedWorker:
    """A worker process, with the methods of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ended(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            remaining = 1.0 if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            self.returncode = self._server.ended(self.pid, min(1.0, remaining))
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Ends it by force."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The driver's side.

    Args:
        environment: of the process, and of all that it forks.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._pipe, child_end = Pipe()
        self._owner_pid, self._is_lost = os.getpid(), False
        self._exit_codes: dict[int, int] = {}
        self._alive: set[int] = set()
        self._lock = RLock()
        self.process = subprocess.Popen(  # noqa: S603 - of this module
            [sys.executable, "-m", __name__, str(child_end.fileno())],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(child_end.fileno(),),
            process_group=0,  # Ctrl-C reaches the driver alone, which ends the workers
        )
        child_end.close()

    def fork(self, payload: bytes, rows_fd: int, parent_fd: int) -> ForkedWorker:
        """Returns a new worker.

        Args:
            payload: its `ChildSpec`, pickled.
            rows_fd: the descriptor of the file of all rows.
            parent_fd: of the pipe that ends with this process.

        Raises:
            RunFailedError: the process that forks has ended.
        """
        read_end, write_end = os.pipe()
        # a worker that is dead at once shows why by its code
        with suppress(BrokenPipeError), open(write_end, "wb") as pipe:
            handles = [read_end, rows_fd, parent_fd, _duplicate(1), _duplicate(2)]
            try:
                with self._lock:
                    pid = self._request_fork(handles)
            finally:
                for handle in (handles[0], *handles[3:]):
                    os.close(handle)
            pipe.write(payload)
        return ForkedWorker(self, pid)

    def _request_fork(self, handles: list[int]) -> int:
        try:
            self._pipe.send_bytes(FORK)
            for handle in handles:
                send_handle(self._pipe, handle, self.process.pid)
            while (reply := self._receive(None)) is None or reply[0] != "born":
                pass
        except (OSError, EOFError) as error:
            self._is_lost, code = True, self.process.wait()
            wrong = "the process that starts workers ended"
            raise RunFailedError(wrong, got=f"code {code}", do="look at what it printed") from error
        except BaseException:  # Ctrl-C, say: what was asked for is half sent
            self._is_lost = True
            self.process.kill()
            raise
        self._alive.add(pid := int(reply[1]))
        return pid

    def ended(self, pid: int, seconds: float) -> int | None:
        """Returns how a worker ended, within so many seconds; None while it runs."""
        with self._lock:
            try:
                while pid not in self._exit_codes and self._receive(seconds) is not None:
                    pass
            except (OSError, EOFError):  # nobody is left to tell
                self._is_lost = True
                for orphan in self._alive:
                    with suppress(ProcessLookupError):
                        os.kill(orphan, signal.SIGKILL)
                    self._exit_codes[orphan] = -signal.SIGKILL
                self._alive.clear()
            return self._exit_codes.pop(pid, None)

    def _receive(self, seconds: float | None) -> list[str] | None:
        """Returns the next answer, in words; None where there is none so soon."""
        if not self._pipe.poll(seconds):
            return None
        reply = self._pipe.recv_bytes().decode().split()
        if reply[0] == "ended":
            self._alive.discard(int(reply[1]))
            self._exit_codes[int(reply[1])] = int(reply[2])
        return reply

    @property
    def is_idle(self) -> bool:
        """Whether all its workers have ended."""
        return not self._alive

    @property
    def is_lost(self) -> bool:
        """Whether it forks no more."""
        return self._is_lost or self.process.poll() is not None

    def close(self) -> None:
        """Ends the process; workers end with their run."""
        if os.getpid() != self._owner_pid:  # a process that was forked from the driver
            return
        self._pipe.close()
        self.process.kill()
        self.process.wait()


def _duplicate(fd: int) -> int:
    """Returns a copy of one of this process's, or of the one that prints nowhere."""
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


_servers: dict[tuple[Any, ...], ForkServer] = {}
_servers_lock = Lock()


def forked(
    environment: dict[str, str], payload: bytes, rows_fd: int, parent_fd: int
) -> ForkedWorker:
    """Returns a new worker, with all that a process gets which is started here and now.

    The process that forks it is kept for later ones, until one with other settings is needed.

    Args:
        environment: of the worker.
        payload: as of `ForkServer.fork`.
        rows_fd: likewise.
        parent_fd: likewise.
    """
    key = (tuple(sorted(environment.items())), *_inherited_state())
    with _servers_lock:
        for known_key, server in tuple(_servers.items()):
            if server.is_lost or (known_key != key and server.is_idle):
                server.close()
                del _servers[known_key]
        if key not in _servers:
            _servers[key] = ForkServer(environment)
        return _servers[key].fork(payload, rows_fd, parent_fd)


@atexit.register
def _close_all() -> None:
    for server in _servers.values():
        server.close()


def _inherited_state() -> tuple[Any, ...]:
    """Returns all that a process gets from the one that starts it, but for its environment."""
    limits = tuple(resource.getrlimit(getattr(resource, name)) for name in _LIMITS)
    processors = tuple(sorted(os.sched_getaffinity(0)))
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    status_lines = Path("/proc/self/status").read_bytes().splitlines()  # a name in it may be cut
    masks = tuple(line for line in status_lines if line.startswith((b"Umask:", b"SigIgn:")))
    return os.getpid(), os.getcwd(), sys.executable, limits, processors, nice, masks


class _ForkingProcess:
    """The process that forks.

    Args:
        pipe: the driver's.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._children = pipe, set[int]()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_IGN)  # it ends with the driver
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> list[int] | None:
        """Forks workers; returns the descriptors that came with the payload in each of them.

        In the process itself it returns None, once the driver has ended or has been silent long.
        """
        handles: list[int] | None = []
        while not handles:
            timeout = None if self._children else _IDLE_SECONDS
            readable: list[int] = select.select(
                [self._pipe.fileno(), self._wake_read], [], [], timeout
            )[0]
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._report_ended()
            if not readable:
                return None
            if self._pipe.fileno() in readable:
                try:
                    handles = self._fork()
                except (EOFError, OSError):
                    return None
        return handles

    def _fork(self) -> list[int]:
        """Returns the descriptors in the worker, and none in the process itself."""
        self._pipe.recv_bytes()
        handles = [recv_handle(self._pipe) for _ in range(_HANDLE_COUNT)]
        pid = os.fork()
        if not pid:
            self._become_worker()
            return handles
        for handle in handles:
            os.close(handle)
        with suppress(OSError):  # it has ended already
            os.setpgid(pid, pid)
        self._children.add(pid)
        self._pipe.send_bytes(f"born {pid}".encode())
        return []

    def _become_worker(self) -> None:
        """Takes from a worker what is its parent's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._pipe.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)

    def _report_ended(self) -> None:
        for pid in tuple(self._children):
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                self._children.discard(pid)
                with suppress(OSError):
                    code = os.waitstatus_to_exitcode(status)
                    self._pipe.send_bytes(f"ended {pid} {code}".encode())


def main() -> int:
    """Runs the process, or a worker that it has forked; returns the exit code."""
    gc.disable()  # what an import makes stays: each collection on the way would find nothing
    import numpy as np

    from photinus.engine.local import worker_main

    gc.collect()
    gc.freeze()  # a collection would write to the pages that all workers share
    gc.enable()
    handles = _ForkingProcess(Connection(int(sys.argv[1]))).serve()
    if handles is None:
        return 0
    payload_fd, rows_fd, parent_fd, *output_fds = handles
    for target_fd, fd in enumerate((payload_fd, *output_fds)):
        os.dup2(fd, target_fd)
        os.close(fd)
    np.random.seed()  # Python's own chance is another one in each process; this is not
    _end(worker_main.main(rows_fd, parent_fd))
    return 0


def _end(code: int) -> None:
    """Ends the process as Python does, but for taking all modules apart: .4 seconds."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever reads it has ended
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
