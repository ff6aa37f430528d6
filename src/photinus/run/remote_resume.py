"""Keeps runs at an address such as hdfs://host:port/runs/first, and resumes them from there."""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from photinus.checkpoint.folder import JOB_FILE, RunFolder
from photinus.checkpoint.mirror import Mirror
from photinus.checkpoint.signatures import Trust, check_code, is_signed, signature_of
from photinus.core.addresses import is_address
from photinus.core.errors import (
    CheckpointError,
    FencedError,
    NotReadyError,
    PhotinusError,
    RunFailedError,
    UsageError,
    reason_of,
    user_message,
    without_numbers,
)
from photinus.core.events import RunEnded, RunStarted
from photinus.report.journal import read
from photinus.run.job import Job
from photinus.transport.filesystems import check_reachable

_KIND = "job"
_AGAIN_SECONDS = (1.0, 5.0, 20.0)
"""Between two tries to send a result to the address."""


def mirrored(address: str, above: Path | None = None) -> Mirror:
    """Returns the mirror at an address of a folder of its name.

    Args:
        address: of a run folder.
        above: what the folder of this machine lies in; None: a temporary one, which is removed as
            this process ends if the whole run is at the address by then.

    Raises:
        NotReadyError: the address cannot be opened, or nothing answers there.
    """
    check_reachable(address)
    name = address.rstrip("/").rpartition("/")[2]
    if above is not None:
        return Mirror(address, above / name)
    mirror = Mirror(address, Path(tempfile.mkdtemp(prefix="photinus-")) / name)
    mirror.stays = True
    atexit.register(_remove_copy, mirror)
    return mirror


def _remove_copy(mirror: Mirror) -> None:
    if mirror.is_whole:
        shutil.rmtree(mirror.local.parent, ignore_errors=True)


def placed(folder: Path | str | Mirror) -> tuple[Path, Mirror | None]:
    """Returns the folder of this machine, and its mirror where an address was named."""
    if not isinstance(folder, (str, Path, Mirror)):
        raise UsageError("a folder must be a path or an address", got=repr(folder))
    if not isinstance(folder, Mirror):
        if not is_address(folder):
            return Path(folder), None
        folder = mirrored(str(folder))
    return folder.local, folder


def folder_name(path: Path, mirror: Mirror | None) -> str:
    """Returns what a user calls the folder."""
    return str(path) if mirror is None else mirror.address


def how_it_ended(folder: Path) -> tuple[str, str]:
    """Returns the state in which a run's last term ended, and why; nothing where it was cut off."""
    journal = folder / "events.jsonl"
    records = read(journal) if journal.exists() else []
    run_events = [s.event for s in records if isinstance(s.event, (RunStarted, RunEnded))]
    last_event = run_events[-1] if run_events else None
    return (last_event.state, last_event.reason) if isinstance(last_event, RunEnded) else ("", "")


def failures(address: str) -> list[str]:
    """Returns why terms of a run at an address failed, oldest first; none where it is unknown."""
    with contextlib.suppress(PhotinusError), fetched(address, "events.jsonl") as folder:
        journal = folder / "events.jsonl"
        events = [record.event for record in read(journal)] if journal.exists() else []
        return [e.reason for e in events if isinstance(e, RunEnded) and e.state == "failed"]
    return []


def holds_run(address: str) -> bool:
    """Returns whether a run has begun at an address; True where it is unknown."""
    with contextlib.suppress(PhotinusError):
        return mirrored(address, Path()).holds_run()
    return True


@contextlib.contextmanager
def fetched(folder: Path | str, *names: str) -> Iterator[Path]:
    """Hands out a run's folder, or for an address a copy of so much of it, for a while.

    Args:
        folder: a path or an address.
        names: what is downloaded, where it exists.
    """
    if not is_address(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="photinus-") as temporary:
        mirror = mirrored(str(folder), Path(temporary))
        mirror.local.mkdir()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                mirror.fetch(name)
        yield mirror.local


def send(mirror: Mirror) -> None:
    """Sends what is new; where nothing answers, a client of HDFS would try for minutes.

    Raises:
        NotReadyError: nothing answers.
        CheckpointError: the address cannot be written to.
        FencedError: another coordinator has taken over.
    """
    check_reachable(mirror.address)
    try:
        mirror.push()
    except CheckpointError:
        check_reachable(mirror.address)
        with contextlib.suppress(CheckpointError):  # a half would take of the quota that is short
            mirror.remove_halves()
        raise


class Sender:
    """Sends to an address what each checkpoint adds, and warns of a failure once.

    It warns again where the reason is another one, or something was sent in between: a full quota
    would be told with every checkpoint.

    Args:
        mirror: of the run.
        warn: is called with a sentence.
    """

    def __init__(self, mirror: Mirror, warn: Callable[[str], None]) -> None:
        self._mirror, self._warn, self._failure = mirror, warn, ""

    def send(self) -> None:
        """Sends what is new."""
        before, self._failure = self._failure, ""
        try:
            send(self._mirror)
        except PhotinusError as error:
            self._failure = without_numbers(str(error))
            if self._failure != before:
                self._warn(user_message(str(error), then="training continues"))


def send_all(mirror: Mirror, *, is_failed: bool) -> None:
    """Sends what is left at the end: the run fails if its result does not reach the address.

    Raises:
        RunFailedError: it could not be sent.
        FencedError: another coordinator has taken over.
    """
    mirror.is_behind, pause = mirror.stays, threading.Event()
    pauses = _AGAIN_SECONDS[:1] if is_failed else _AGAIN_SECONDS  # a stop lasts 10 s at most
    for seconds in (*pauses, None):
        try:
            send(mirror)
            mirror.is_whole, mirror.is_behind = True, False
            return
        except (CheckpointError, NotReadyError) as error:
            if seconds is None and not is_failed:
                do = f"all of it is in {mirror.local}" if mirror.is_behind else ""
                raise RunFailedError("the result could not be kept", got=error, do=do) from error
            pause.wait(seconds or 0.0)
        except FencedError:
            mirror.is_behind = False
            if not is_failed:
                raise
            return


def job_in(folder: Path | str, trust_code: Trust = False) -> Job:
    """Returns the job of a run.

    Args:
        folder: of the run.
        trust_code: as of `saved_job`.

    Raises:
        UsageError: the folder holds none, or names code that the user does not trust.
    """
    with fetched(folder, "job.json") as path:
        return saved_job(path, str(folder), trust_code)[0]


def save_job(folder: RunFolder, job: Job, run: bytes) -> None:
    """Writes a job into its run folder, signed by this user.

    Raises:
        UsageError: It cannot be written, or another driver has begun a run there.
    """
    body = {"run": run.hex(), "job": job.to_dict()}
    signed = {**body, "signature": signature_of(_KIND, body)}
    folder.save_job(json.dumps(signed, indent=1) + "\n")


def saved_job(path: Path, name: str, trust_code: Trust = False) -> tuple[Job, bytes]:
    """Returns the job in a run folder of this machine, and the run's 16 bytes.

    Args:
        path: of the run folder.
        name: what a user calls it.
        trust_code: run the code that the job names, though no run of this user made the folder.

    Raises:
        UsageError: the folder holds none, or names code that the user does not trust.
    """
    try:
        saved = json.loads((path / JOB_FILE).read_text())
        plain, run = saved["job"], bytes.fromhex(saved["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong = f"{name} holds no run to resume"
        raise UsageError(wrong, got=reason_of(error), do="name the folder of a run") from error
    body = {"run": saved["run"], "job": plain}
    if not is_signed(_KIND, body, saved.get("signature")):  # a name is called as a job is made
        check_code(plain, f"the run {name}", trust_code)
    return Job.from_dict(plain), run
