"""The command line. Whatever takes long to import is imported inside the command that needs it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from photinus import __version__
from photinus.cli.audit import audit
from photinus.cli.compare import compare
from photinus.cli.devices import devices
from photinus.cli.doctor import doctor
from photinus.cli.evaluate import evaluate
from photinus.cli.kernels import kernels
from photinus.cli.predict import predict
from photinus.cli.report import report
from photinus.cli.submit import submit
from photinus.cli.train import demo, train
from photinus.cli.watch import StoppedError, is_debugging
from photinus.cli.words import words
from photinus.core.errors import NotReadyError, PhotinusError, UsageError, reason_of
from photinus.core.signals import interruptible

EXIT_CODES: Final = {"done": 0, "failed": 1, "usage": 2, "not ready": 3, "interrupted": 130}
"""What the shell gets; nothing else is used."""

_OUTCOME_OF_ERROR: Final[dict[type, str]] = {
    UsageError: "usage",
    NotReadyError: "not ready",
    StoppedError: "interrupted",
}


@click.group(context_settings={"auto_envvar_prefix": "PHOTINUS", "max_content_width": 100})
@click.version_option(__version__, prog_name="photinus")
def commands() -> None:
    """photinus, for Apache Spark: neural networks trained where the data lives.

    Every option can also be set in the environment: --workers of train as PHOTINUS_TRAIN_WORKERS.
    With PHOTINUS_DEBUG=1 errors come with their traceback.
    """


_COMMANDS = (
    demo,
    train,
    submit,
    compare,
    evaluate,
    predict,
    report,
    audit,
    words,
    doctor,
    devices,
    kernels,
)
for _command in _COMMANDS:
    commands.add_command(_command)


def main(arguments: Sequence[str] | None = None, *, run: Callable[[], None] | None = None) -> None:
    """Runs one command and ends the process with its exit code.

    Args:
        arguments: left out, those of the process.
        run: called instead of a command.
    """
    action = run or (lambda: commands.main(arguments, prog_name="photinus", standalone_mode=False))
    sys.path.append(os.getcwd())  # a module, loss or strategy that a job names may lie here
    sys.exit(EXIT_CODES[_run(action)])


def _run(action: Callable[[], object]) -> str:
    """Returns how it ended: a key of `EXIT_CODES`."""
    try:
        with interruptible(signal.SIGTERM):
            action()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return "usage"
    except click.ClickException as error:
        context = getattr(error, "ctx", None)  # of the command whose words were wrong
        command = "photinus" if context is None else context.command_path
        text = error.format_message().removesuffix(".")
        return _report_error(f"{text}; {command} --help", error, "usage")
    except (click.Abort, KeyboardInterrupt) as error:
        return _report_error("stopped", error, "interrupted")
    except PhotinusError as error:
        outcomes = (o for kind, o in _OUTCOME_OF_ERROR.items() if isinstance(error, kind))
        return _report_error(str(error), error, next(outcomes, "failed"))
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _report_error(
            f"{name}{reason_of(error)}; PHOTINUS_DEBUG=1 shows where", error, "failed"
        )
    except Exception as error:
        text = (
            f"{type(error).__name__}: {error}; this is a fault of photinus or of the job's own code"
        )
        return _report_error(f"{text}; PHOTINUS_DEBUG=1 shows where", error, "failed")
    return "done"


def _report_error(text: str, error: BaseException, outcome: str) -> str:
    if is_debugging():
        import traceback

        traceback.print_exception(error)
    text = re.sub(r"\[Errno -?\d+\] ", "", text)  # of an error within an error
    click.echo(f"photinus: {text}", err=True)
    return outcome
