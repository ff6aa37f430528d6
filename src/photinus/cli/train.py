"""The commands that train: `demo` and `train`."""

from __future__ import annotations

import contextlib
import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from photinus.core.errors import UsageError

if TYPE_CHECKING:
    from photinus.checkpoint.mirror import Mirror
    from photinus.checkpoint.signatures import Trust
    from photinus.core.events import Event
    from photinus.run.job import Job
    from photinus.run.train import Outcome
    from photinus.strategies.custom import CustomStrategy
    from photinus.strategies.spec import StrategySpec


ENGINE = click.Choice(("spark", "local", "simulate"))

_WORKERS = click.option("--workers", type=int, metavar="N", help="Number of workers.")
_ENGINE = click.option("--engine", type=ENGINE, help="Where the workers run.")
_FOLDER = click.option(
    "--folder", type=click.Path(), default="", help="Where the run is kept [runs/NAME-TIME]."
)
TRUST = click.option(
    "--trust-code", is_flag=True, help="Run the code that a folder from elsewhere names."
)
_SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting of the job, as model.pretraining.epochs=5; repeatable.",
)


def _refuse_road(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError("--road is called --transport", do=f"write --transport {value}")


@click.command()
@_WORKERS
@_ENGINE
@_FOLDER
@_SET
def demo(workers: int | None, engine: str | None, folder: str, settings: tuple[str, ...]) -> None:
    """Train a deep belief network on MNIST: some minutes on two cores."""
    click.echo("trains 784-500-500-2000-10 on MNIST: some minutes on two cores")
    begin(job_of("mnist-dbn-demo", settings, workers=workers, engine=engine), folder)


@click.command()
@click.argument("job", required=False, metavar="[NAME|JOB.TOML]")
@click.argument("path", required=False, metavar="[FOLDER]")
@_WORKERS
@_ENGINE
@click.option("--strategy", metavar="NAME|JSON", help="How the workers agree, in every phase.")
@click.option("--seed", type=int, help="Seed of all random numbers.")
@click.option("--threads", type=int, help="Threads of each worker.")
@click.option(
    "--device", metavar="NAME", help="cpu, cuda, cuda:1, xpu, mps, opencl, opencl:0:1 or auto."
)
@click.option(
    "--road", hidden=True, expose_value=False, allow_from_autoenv=False, callback=_refuse_road
)
@click.option(
    "--transport",
    envvar=["PHOTINUS_TRAIN_TRANSPORT", "PHOTINUS_TRAIN_ROAD"],  # as earlier versions call it
    metavar="FOLDER|torch|nccl",
    help="How messages travel: as files in a shared folder, or by torch.distributed.",
)
@_FOLDER
@_SET
@click.option("--resume", type=click.Path(), metavar="RUN", help="Continue with a run.")
@TRUST
@click.option("--print-config", is_flag=True, help="Print the job as TOML and train nothing.")
def train(
    job: str | None,
    path: str | None,
    strategy: str | None,
    folder: str,
    settings: tuple[str, ...],
    resume: str | None,
    **options: Any,  # noqa: ANN401 - workers, engine, seed, threads, transport, trust_code, ...
) -> None:
    """Train a job by its name, or from a TOML file.

    Known by name: mnist-dbn, mnist-dbn-demo, mnist-dbn-published, cifar10, cifar10-published,
    cifar10-quick, text-sentiment. `photinus train word2vec FOLDER` learns word vectors from text
    files.
    """
    is_printed, trust_code = options.pop("print_config"), options.pop("trust_code")
    if resume is not None:
        options_given = (value is not None for value in options.values())
        other_arguments = (job, path, strategy, folder, is_printed, *settings, *options_given)
        _resume(resume, other_arguments, trust_code=trust_code)
        return
    if job is None:
        raise UsageError("no job is named", do="photinus train mnist-dbn, or a TOML file")
    if job == "word2vec" and is_printed:
        raise UsageError("word2vec has no job to print", do="leave --print-config out")
    if job == "word2vec" and path is not None:
        from photinus.cli.words import train_words

        train_words(path, folder, _word2vec_params(settings, {**options, "strategy": strategy}))
        return
    if path is not None or job == "word2vec":
        do = "photinus train word2vec FOLDER"
        raise UsageError("only word2vec takes a folder, and needs one", got=path or "none", do=do)
    resolved_job = job_of(job, settings, strategy=strategy, **options)
    if is_printed:
        from photinus.cli.toml import to_toml

        click.echo(to_toml(resolved_job.to_dict()), nl=False)
        return
    begin(resolved_job, folder)


def job_of(
    name: str,
    settings: tuple[str, ...] = (),
    *,
    strategy: str | None = None,
    **options: Any,  # noqa: ANN401 - settings of Job
) -> Job:
    """Returns the job of a name or a file, with the settings of the command line.

    Args:
        name: of a job that photinus knows, or a TOML file.
        settings: single ones, `key.sub=value` each; a value is read as TOML, else it is text.
        strategy: a recipe's name or JSON; it then holds in every phase.
        options: settings of `Job`; None where none was given.

    Raises:
        UsageError: a name or a setting is unknown, or a limit does not hold.
    """
    from photinus.run.job import Job, read_job
    from photinus.run.presets import preset
    from photinus.strategies.recipes import to_plain

    given_options = {key: value for key, value in options.items() if value is not None}
    is_file = name.endswith(".toml") or Path(name).is_file()
    job = read_job(name) if is_file else preset(name, given_options.pop("workers", None))
    # in one step: the security may be that which another transport asks for
    job_dict = job.to_dict() | given_options
    if strategy is not None:
        job_dict |= {"strategy": to_plain(strategy_of(strategy)), "strategies": {}}
    for text in settings:
        _apply_setting(job_dict, text)
    resolved_job = Job.from_dict(job_dict)
    _check_settings_used(resolved_job, settings)
    return resolved_job


def strategy_of(text: str) -> StrategySpec | CustomStrategy:
    """Returns the strategy that a recipe's name, its JSON or `module:name` stands for.

    Raises:
        UsageError: it is unknown, or no JSON, or a limit does not hold.
    """
    from photinus.strategies.recipes import from_plain

    if not text.lstrip().startswith("{"):
        return from_plain(text)
    try:
        return from_plain(json.loads(text))
    except ValueError as error:
        raise UsageError("the strategy is no JSON", got=str(error)) from error


def _apply_setting(settings: dict[str, Any], text: str) -> None:
    """Changes one setting among plain values."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError("a setting must be KEY=VALUE", got=repr(text))
    *path, last = key.strip().split(".")
    table = settings
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{name} in {key} holds no settings", got=repr(table))
    table[last] = _parse_value(value.strip())


def _word2vec_params(settings: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Params of `Word2Vec` that the command line names."""
    names = {"workers": "numWorkers", "seed": "seed", "strategy": "strategy"}
    given_options = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(set(given_options) - set(names)):
        raise UsageError(f"word vectors have no --{unknown[0]}", do="--workers, --seed, --strategy")
    params = {names[name]: value for name, value in given_options.items()}
    for text in settings:
        _apply_setting(params, text)
    return params


def _check_settings_used(job: Job, settings: tuple[str, ...]) -> None:
    """Refuses settings of a strategy that every phase leaves aside for one of its own."""
    from dataclasses import replace

    from photinus.models.dbn import DBN

    strategy_settings = [
        text for text in settings if text.strip().startswith(("strategy.", "strategy="))
    ]
    if not strategy_settings or not job.strategies:
        return
    is_dbn = isinstance(job.model, DBN)
    # a plain precision: nothing is measured for the phases' names
    configs = replace(job.model, precision="mkl").configs() if is_dbn else (job.model,)
    trained = configs[-1:] if job.start else configs
    if all(job.strategy_of(config.name) is not job.strategy for config in trained):
        raise UsageError(
            "every phase of this job has a strategy of its own",
            got=repr(strategy_settings[0]),
            do=f"--set strategies.{trained[-1].name}.KEY=VALUE, or train with --strategy NAME",
        )


def _parse_value(text: str) -> Any:  # noqa: ANN401 - any plain value
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def new_run_hint(folder: str) -> str:
    """Returns how to train on from a run's parameters with other settings."""
    start = shlex.quote(f"start={folder.rstrip('/')}/model")
    return f"once it has ended, a new run with --set {start} takes other settings"


def _resume(folder: str, other_arguments: tuple[Any, ...], *, trust_code: bool) -> None:
    if any(other_arguments):
        do = f"photinus train --resume {shlex.quote(folder)}; {new_run_hint(folder)}"
        raise UsageError("a resumed run keeps its settings", do=do)
    continue_run(folder, trust_code=trust_code)


def continue_run(
    folder: str | Mirror, note: str = "", command: str = "train", *, trust_code: Trust = False
) -> None:
    """Continues with a run, shows it, and prints its result.

    Args:
        folder: of the run.
        note: a sentence for the journal, why there is something to continue with.
        command: of photinus, which can do so again.
        trust_code: run the code that the folder names, though no run of this user made it.
    """
    from photinus.cli.watch import watched
    from photinus.run.remote_resume import placed
    from photinus.run.train import resume_run

    path, mirror = placed(folder)
    with watched(path, mirror, command) as callbacks:
        outcome = resume_run(
            mirror or path, callbacks=callbacks, verbose=False, trust_code=trust_code, note=note
        )
    _print_result(outcome)


def begin(job: Job, folder: str | Mirror, command: str = "train") -> None:
    """Trains a job, shows it, and prints its result.

    Args:
        job: the job.
        folder: where the run is kept; "" for a new one.
        command: of photinus, which can continue with it.
    """
    from photinus.cli.watch import watched
    from photinus.core.events import RunStarted
    from photinus.run.data import check_files
    from photinus.run.remote_resume import placed
    from photinus.run.resume_hint import shortest
    from photinus.run.train import new_folder, train

    check_files(job)  # before a run folder is named
    path, mirror = placed(folder or new_folder(job.name))
    kept_in = mirror.address if mirror else shortest(path)
    first_step = "starts Spark and reads the rows" if job.engine == "spark" else "reads the rows"
    click.echo(f"{job.name}, {job.workers} workers: {first_step}")

    def name_folder(event: Event) -> None:
        if isinstance(event, RunStarted):  # a job that is refused leaves no folder
            with contextlib.suppress(OSError):  # `| head` must not end the training
                print(f"the run is kept in {kept_in}")  # above a live view, where there is one

    with watched(path, mirror, command) as callbacks:
        callbacks = (name_folder, *callbacks)
        outcome = train(job, folder=mirror or path, callbacks=callbacks, verbose=False)
    _print_result(outcome)


def _print_result(outcome: Outcome) -> None:
    """Prints the result, and what to do with it."""
    from photinus.cli.watch import error_text
    from photinus.run.resume_hint import shortest

    folder = outcome.address or str(shortest(outcome.folder))
    lines: Mapping[str, str] = {
        "test error": error_text(outcome.metrics, outcome.interval),
        "report": f"{folder}/report.html",
        "model": f"{folder}/model",
        "measure it": f"photinus evaluate {shlex.quote(folder)}",
    }
    click.echo()
    for name, text in lines.items():
        if text:
            click.echo(f"{name:>11}  {text}")
