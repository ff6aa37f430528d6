"""The run folder: its files, and the file that claims a coordinator's term."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from photinus.core.addresses import try_writing
from photinus.core.errors import CheckpointError, FencedError, UsageError, reason_of

JOB_FILE = "job.json"
_TERM_FILE = re.compile(r"coordinator-([1-9][0-9]*)\.json")


def _unwritable(path: Path, error: OSError) -> UsageError:
    wrong, reason = f"the run folder {path} cannot be written", error.strerror or str(error)
    return UsageError(wrong, got=reason, do="name another folder")


def _taken(path: Path) -> UsageError:
    wrong, do = f"the run folder {path} holds a run already", "resume it, or name another folder"
    return UsageError(wrong, do=do)


def _write_new(path: Path, text: str) -> None:
    """Writes a file that is not there yet; one that cannot be written whole is removed."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class RunFolder:
    """A folder of one run, for its owner only.

    Args:
        path: made when missing, with its parents.
        resume: True to continue the run that the folder holds; without it the folder must be new
            or empty.

    Raises:
        UsageError: it cannot be written, holds another run, or holds other files.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "first")
        >>> folder.claim_term(), folder.claim_term()
        (1, 2)
    """

    def __init__(self, path: Path | str, *, resume: bool = False) -> None:
        self.path = Path(path).expanduser().absolute()
        self._made: list[Path] = []
        try:
            self._make(resume)
        except OSError as error:
            self._remove_made()
            raise _unwritable(self.path, error) from error

    def _make(self, resume: bool) -> None:
        for folder in (self.path, self.logs, self.checkpoints):
            if folder is self.path:
                self.check_free(self.path, resume=resume)
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True)
                self._made.append(folder)
        probe = self.path / f".probe-{uuid.uuid4().hex}"
        probe.touch(mode=0o600)
        probe.unlink()

    def _remove_made(self) -> None:
        if self.job.exists() and self.job not in self._made:  # of another driver
            return
        for path in reversed(self._made):
            with contextlib.suppress(OSError):  # it holds other files
                path.unlink() if path == self.job else path.rmdir()

    @contextlib.contextmanager
    def removed_unless_begun(self) -> Iterator[None]:
        """Removes what this object has made, if an error comes before a term is claimed.

        On a full disk a run may be refused so late. What was there before stays, and what another
        driver has made that begins in the same folder.
        """
        try:
            yield
        except BaseException:
            if not self.newest_term():
                self._remove_made()
            raise

    @staticmethod
    def check_free(path: Path, *, resume: bool = False) -> None:
        """Refuses a folder that is taken; nothing is made.

        Args:
            path: of the folder.
            resume: whether the run in it continues.

        Raises:
            UsageError: it holds a run that does not continue, or other files.
        """
        names: set[str] = set()
        with contextlib.suppress(OSError):  # one that cannot be read is refused as it is made
            names = {e.name for e in path.iterdir()}
        # one that was killed before it claimed its term has its job
        is_saved = {JOB_FILE, "logs", "checkpoints"} <= names
        holds_run = is_saved or any(_TERM_FILE.fullmatch(name) for name in names)
        if holds_run and not resume:
            raise _taken(path)
        others = names - {"logs", "checkpoints"}
        if others and not holds_run:
            raise UsageError(
                f"the run folder {path} holds other files",
                got=", ".join(sorted(others)[:3]),
                do="name a new or an empty folder",
            )

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuses a folder that is taken or cannot be written, before a new run has begun.

        Raises:
            UsageError: it is one of these.
        """
        path = path.expanduser().absolute()
        RunFolder.check_free(path)
        try:
            try_writing(path)
        except OSError as error:
            raise _unwritable(path, error) from error

    @property
    def job(self) -> Path:
        """What is trained."""
        return self.path / JOB_FILE

    @property
    def events(self) -> Path:
        """The journal."""
        return self.path / "events.jsonl"

    @property
    def ledger(self) -> Path:
        """Who pushed what, and what was applied."""
        return self.path / "ledger.jsonl"

    @property
    def logs(self) -> Path:
        """The folder of the workers' log lines."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """The store's folder."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The folder that a user takes away."""
        return self.path / "model"

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report.html"

    def save_job(self, text: str) -> None:
        """Writes the job: of several drivers that begin here at once, one does.

        Raises:
            UsageError: another one has, or the folder cannot be written.
        """
        try:
            _write_new(self.job, text)
        except FileExistsError as error:
            raise _taken(self.path) from error
        except OSError as error:
            wrong, do = f"{self.job} cannot be written", "make room there, or name another folder"
            raise UsageError(wrong, got=reason_of(error), do=do) from error
        self._made.append(self.job)

    def log(self, slot: int) -> Path:
        """Returns the file of one slot's log lines."""
        return self.logs / f"worker-{slot:03d}.log"

    def newest_term(self) -> int:
        """Returns the newest term that was claimed, 0 for a fresh run."""
        try:
            matches = [_TERM_FILE.fullmatch(entry.name) for entry in self.path.iterdir()]
        except OSError as error:
            raise self._folder_error(error) from error
        return max((int(match[1]) for match in matches if match), default=0)

    def claim_term(self, details: Mapping[str, Any] | None = None) -> int:
        """Takes the next term: of several coordinators that try, each gets its own.

        Args:
            details: plain JSON values that identify the coordinator to a reader.

        Raises:
            CheckpointError: the folder cannot be written.
        """
        while True:
            term = self.newest_term() + 1
            path = self.path / f"coordinator-{term}.json"
            text = json.dumps({"term": term, **(details or {})})
            try:
                _write_new(path, text + "\n")
                return term
            except FileExistsError:
                continue
            except OSError as error:
                raise self._folder_error(error) from error

    def claimed(self, term: int) -> dict[str, Any]:
        """Returns the details that a term was claimed with; none where they cannot be read."""
        try:
            values = json.loads((self.path / f"coordinator-{term}.json").read_text())
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def check_term(self, term: int) -> None:
        """Passes while `term` is the newest: a store calls it before each step of a save.

        Raises:
            FencedError: a newer coordinator has taken over.
        """
        newest = self.newest_term()
        if newest > term:
            raise FencedError(
                "this coordinator's term is over", got=f"term {term}, the newest is {newest}"
            )

    def _folder_error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"the run folder {self.path} cannot be used", got=error.strerror or str(error)
        )
