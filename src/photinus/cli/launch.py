"""The program that spark-submit starts on a node: trains or resumes the job there.

When a driver is lost YARN runs this program again from its first line. The run folder, at an
address that is the same for every attempt, shows whether there is a run to continue.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import click

from photinus.cli.main import main
from photinus.cli.train import begin, continue_run, job_of
from photinus.core.errors import RunFailedError, user_message
from photinus.core.factories import code_names

_POLL_SECONDS = 0.05
_COMMAND = "submit --deploy-mode cluster"
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+")


def attempt_of(container: str) -> tuple[str, int]:
    """Returns the application of a container of YARN, and which attempt it belongs to.

    Example:
        >>> attempt_of("container_e17_1410901177871_0001_02_000005")
        ('application_1410901177871_0001', 2)
        >>> attempt_of("")
        ('', 1)
    """
    match = _CONTAINER.fullmatch(container)
    return (f"application_{match[1]}", int(match[2])) if match else ("", 1)


def end_with(parent: int) -> None:
    """Ends this process, without any output, as soon as its parent is gone.

    Where Spark's Java process is killed its Python continues: it would find its workers lost, and
    write that the run has failed, while YARN starts the next attempt.
    """
    never_set = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            never_set.wait(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def launch(address: str, *arguments: str) -> None:
    """Trains, or continues with what an earlier attempt left.

    Args:
        address: of the run folder.
        arguments: a TOML file; or, where the run is there already, the names of code that it may
            call, as the submitting user found them there.

    Raises:
        RunFailedError: the earlier attempt was not lost: it ended by itself.
    """
    from photinus.run.remote_resume import how_it_ended, mirrored

    job = next((argument for argument in arguments if argument.endswith(".toml")), "")
    application, attempt = attempt_of(os.environ.get("CONTAINER_ID", ""))
    mirror = mirrored(address, Path.cwd())
    if not mirror.holds_run() and job:
        begin(job_of(job), mirror, _COMMAND)
        return
    mirror.fetch()
    state, reason = how_it_ended(mirror.local)
    if attempt > 1 and state == "done":
        click.echo(f"attempt {attempt}: the run was done already, {address}")
        return
    if attempt > 1 and state == "failed":
        wrong = f"attempt {attempt - 1} of {application} ended by itself; it is not tried again"
        raise RunFailedError(wrong, got=reason)
    lost = f"attempt {attempt} of {application}: the driver before it was lost"
    note = user_message(lost, then="the run continues")
    # another node signed what is there
    names = code_names(job_of(job).to_dict()) if job else arguments
    continue_run(mirror, note if attempt > 1 else "", _COMMAND, trust_code=frozenset(names))


if __name__ == "__main__":
    end_with(os.getppid())
    main(run=lambda: launch(*sys.argv[1:]))
