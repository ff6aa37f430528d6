"""Files through which a Spark Connect client and its tasks exchange status.

    connect-TERM/given/         what the phases start from, sealed by the client
    connect-TERM/host-N.json    where the coordinator of term N listens
    connect-TERM/words-N.jsonl  its events and the ledger's entries, for the client
    connect-TERM/pulse          the client is alive: another number every second
    connect-TERM/stop           the client wants the end
    connect-TERM/outcome/       what was agreed, or why the run failed

TERM is the client's. The folder holds no keys: those travel in the tasks' closure, and an address
that another user wrote leads to a listener that cannot prove that it belongs to the run.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from photinus.checkpoint.files import Tensors
from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.store import MAPPED_PREFIX, Store
from photinus.coordinator.phases import RunResult
from photinus.coordinator.sharded_table import Table
from photinus.core.errors import LinkError, NotReadyError
from photinus.core.parameters import Vector
from photinus.engine.spark.connect.initial_vectors import (
    read_initial_vectors,
    write_initial_vectors,
)
from photinus.transport.credentials import WorkerKey
from photinus.transport.filesystems import LocalFilesystem
from photinus.transport.seal import Seal

_HOST = re.compile(r"host-([1-9][0-9]*)\.json")
_WORDS = re.compile(r"words-([1-9][0-9]*)\.jsonl")
_STATE = "state"
_TABLE = f"{MAPPED_PREFIX}table"
_MOST_BYTES = 1 << 16
_PULSE_SECONDS = 1.0


class RunDirectory:
    """The directory of one client's term.

    Args:
        folder: the run's.
        term: the client's.
    """

    def __init__(self, folder: str, term: int) -> None:
        self.folder_path, self.term = folder, term
        self.path = Path(folder) / f"connect-{term}"
        self._filesystem = LocalFilesystem(self.path)
        self._beat_count, self._last_beat = 0, -_PULSE_SECONDS
        self._last_pulse: tuple[bytes | None, float] = (None, time.monotonic())

    # -- what the client does --------------------------------------------------------------------

    def make(self, start: Mapping[str, tuple[Vector, ...]], key: WorkerKey) -> None:
        """Makes the directory, with what phases start from; those of older clients are removed.

        Args:
            start: vectors [n] by the phase's name.
            key: of the run; seals them.

        Raises:
            NotReadyError: the folder cannot be written.
        """
        for older in Path(self.folder_path).glob("connect-*"):
            LocalFilesystem(older).remove("")
        try:
            self._filesystem.make()
            self._filesystem.put("pulse", b"0")
            write_initial_vectors(self._filesystem, Seal(key), start)
        except LinkError as error:
            raise NotReadyError(str(error), do="name another run folder") from error

    def beat(self) -> None:
        """Writes the client's sign of life, about once a second."""
        if time.monotonic() - self._last_beat >= _PULSE_SECONDS:
            self._last_beat, self._beat_count = time.monotonic(), self._beat_count + 1
            with suppress(LinkError):  # a full disk may have room again in a second
                self._filesystem.put("pulse", str(self._beat_count).encode())

    def stop(self, reason: str, *, saves: bool = False) -> None:
        """Asks the coordinator for the end.

        Args:
            reason: in words.
            saves: whether the round under way is saved before, as after Ctrl-C.
        """
        text = json.dumps({"reason": reason, "saves": saves})
        if self.path.is_dir():
            with suppress(LinkError):
                self._filesystem.put("stop", text.encode())

    def event_files(self) -> list[tuple[int, Path]]:
        """Returns the files in which coordinators write their events, by their terms."""
        return sorted((int(match[1]), self.path / match[0]) for match in self._matching(_WORDS))

    def outcome(self) -> tuple[RunResult | None, str, str]:
        """Returns what was agreed, or why the run failed and the class of that error.

        Raises:
            CheckpointError: it is damaged.
        """
        stored = Store(self.path / "outcome").load(_STATE)
        agreed = stored.files.get("agreed")
        if agreed is None:
            return None, str(stored.meta["failure"]), str(stored.meta["kind"])
        vectors = tuple(agreed[f"vector-{n}"] for n in range(int(stored.meta["phases"])))
        table_tensors = stored.files.get(_TABLE)
        table = None if table_tensors is None else Table.of(table_tensors["vector"])
        return RunResult(vectors, agreed["floats"], agreed["integers"], table), "", ""

    def remove(self) -> None:
        """Removes all of it."""
        self._filesystem.remove("")

    # -- what a task does ------------------------------------------------------------------------

    def check(self) -> None:
        """Looks whether this task sees the client's directory, and may write there.

        Raises:
            NotReadyError: it does not, or may not.
        """
        do = "name a run folder that the client and all executors share, and may all write to"
        where = f"the run folder {self.folder_path}"
        if self._pulse() is None:
            got = f"nothing of this run on {platform.node()}"
            raise NotReadyError(f"{where} is not seen by a task", got=got, do=do)
        try:
            self._filesystem.put(f"seen/{uuid.uuid4().hex}", b"")
        except LinkError as error:
            wrong = f"{where} cannot be written by a task on {platform.node()}"
            raise NotReadyError(wrong, got=error, do=do) from error

    def initial_vectors(self, key: WorkerKey) -> dict[str, tuple[Vector, ...]]:
        """Returns what phases start from, by their names; see `read_initial_vectors`."""
        return read_initial_vectors(self._filesystem, Seal(key))

    def announce(self, term: int, address: str) -> bool:
        """Writes where the coordinator of a term listens; False where another one has that term."""
        path, text = self.path / f"host-{term}.json", json.dumps({"address": address})
        temporary = self.path / f".host-{uuid.uuid4().hex}"
        temporary.write_text(text)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def host(self) -> tuple[int, str] | None:
        """Returns the newest coordinator's term and address."""
        terms = sorted(int(match[1]) for match in self._matching(_HOST))
        if not terms:
            return None
        content = self._filesystem.read(f"host-{terms[-1]}.json", _MOST_BYTES)
        return None if content is None else (terms[-1], str(json.loads(content)["address"]))

    def stop_request(self) -> dict[str, Any] | None:
        """Returns the client's request to end; a missing directory counts as one."""
        content = self._filesystem.read("stop", _MOST_BYTES)
        if content is not None:
            request: dict[str, Any] = json.loads(content)
            return request
        default = {"reason": "the client has ended the run", "saves": False}
        return None if self.path.is_dir() else default

    def silent_seconds(self) -> float:
        """Returns how long the client's pulse has stood still, as far as this task has looked."""
        pulse, now = self._pulse(), time.monotonic()
        if pulse != self._last_pulse[0]:
            self._last_pulse = (pulse, now)
        return now - self._last_pulse[1]

    def write_outcome(self, result: RunResult | None, failure: str = "", kind: str = "") -> None:
        """Writes the outcome."""
        meta = {"failure": failure, "kind": kind, "phases": 0}
        files: dict[str, Tensors] = {}
        if result is not None:
            meta["phases"] = len(result.history)
            vectors = {f"vector-{n}": vector for n, vector in enumerate(result.history)}
            agreed = {**vectors, "floats": result.floats, "integers": result.integers}
            files["agreed"] = agreed
            if result.table is not None:
                files[_TABLE] = {"vector": result.table.vector}
        if self.path.is_dir():
            Store(self.path / "outcome").save(_STATE, meta, files)

    @property
    def has_outcome(self) -> bool:
        """True when the run is over."""
        return (self.path / "outcome" / _STATE).is_dir()

    @functools.cached_property
    def run_folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.folder_path, resume=True)

    @property
    def is_ours(self) -> bool:
        """False once another client has resumed the run."""
        newest = self.run_folder.newest_term()
        return int(self.run_folder.claimed(newest).get("client", newest)) <= self.term

    def _pulse(self) -> bytes | None:
        return self._filesystem.read("pulse", _MOST_BYTES)

    def _matching(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        return (m for name in self._filesystem.names("") or [] if (m := pattern.fullmatch(name)))
