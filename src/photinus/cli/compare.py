"""The command `compare`: the same job under several strategies."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from photinus.cli.result_folder import result_folder
from photinus.cli.train import ENGINE, job_of, strategy_of
from photinus.cli.watch import StoppedError
from photinus.core.addresses import local_folder
from photinus.core.errors import RunFailedError, UsageError
from photinus.core.settings import Limit, above, at_least

if TYPE_CHECKING:
    from photinus.engine.simulation.cluster import SimulatedCluster
    from photinus.report.comparison import Compared


@click.command()
@click.argument("job", metavar="NAME|JOB.TOML")
@click.option("--workers", type=int, metavar="N", help="Number of workers.")
@click.option("--engine", type=ENGINE, help="Where the workers run.")
@click.option("--seed", type=int, help="Seed of all random numbers.")
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME|JSON",
    help="A strategy to compare; repeatable [every recipe, from its first step].",
)
@click.option(
    "--step-seconds",
    metavar="S[,S...]",
    help="Seconds of a step: one number, or one for each worker; simulator only [0.01].",
)
@click.option(
    "--latency", type=float, metavar="SECONDS", help="Latency of a message; simulator only [0.001]."
)
@click.option(
    "--mbit", type=float, help="Speed of each worker's link, in Mbit/s; simulator only [8000]."
)
@click.option("--folder", type=click.Path(), default="", help="Output folder [runs/...].")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Same as in `photinus train`."
)
def compare(
    job: str,
    strategies: tuple[str, ...],
    folder: str,
    settings: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - workers, engine, seed; step_seconds, latency, mbit
) -> None:
    """Train one job under several strategies: one table, one chart.

    Without --strategy, recipes have no start by gradients (gradients_until=0) but post_local, of
    which it is a part: in the first 7,500 steps they would all do the same.

    In the simulator the seconds are virtual, those of the workers and links that you describe:
    --step-seconds 0.01,0.01,0.01,0.04 --mbit 100. If you give these options, the simulator is used.
    """
    from photinus.report.comparison import NOTES, comparison_remarks, comparison_table
    from photinus.run.compare import compare as run_comparison
    from photinus.run.compare import names_of
    from photinus.run.train import new_folder
    from photinus.strategies.recipes import RECIPES

    cluster = _simulated_cluster(
        options.pop("step_seconds"), options.pop("latency"), options.pop("mbit")
    )
    if cluster is not None and options["engine"] is None:
        options["engine"] = "simulate"
    for text in settings:
        if text.strip().partition("=")[0].partition(".")[0] in ("strategy", "strategies"):
            do = '--strategy NAME or --strategy \'{"recipe": "NAME", "KEY": VALUE}\''
            raise UsageError("each strategy that is compared is named whole", got=text, do=do)
    base_job = job_of(job, settings, **options)
    compared_strategies = [strategy_of(text) for text in strategies]
    default_strategies = (
        [] if compared_strategies else [recipe.build() for recipe in RECIPES.values()]
    )
    compared_strategies = compared_strategies or [
        strategy.without_start for strategy in default_strategies
    ]
    if base_job.strategies or base_job.strategy not in (*compared_strategies, *default_strategies):
        click.echo(
            "the job's own strategy is left aside; --strategy names what is compared", err=True
        )

    names = iter(names_of(compared_strategies))

    def show_row(row: Compared) -> None:
        click.echo(f"{next(names)}: {row.failure or f'{row.seconds:.1f} seconds'}", err=True)

    path = local_folder(folder or new_folder(f"compare-{base_job.name}"), "a comparison is kept")
    with result_folder(path) as output_folder, _stoppable(output_folder):
        rows = run_comparison(
            base_job, compared_strategies, folder=output_folder, cluster=cluster, on_row=show_row
        )
    lines = comparison_table(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = zip(lines[0], line, widths, strict=True)
        padded_cells = (
            text.removeprefix("#").rjust(width) if name.startswith("#") else text.ljust(width)
            for name, text, width in cells
        )
        click.echo("  ".join(padded_cells).rstrip())
    click.echo("\n".join(("", *comparison_remarks(rows), *NOTES)))
    click.echo(f"\n{output_folder / 'comparison.html'}")
    if all(row.failure for row in rows):
        raise RunFailedError("no strategy could train this job", do="the table says why")


@contextlib.contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Adds how to continue to the error when the user stops the comparison."""
    try:
        yield
    except KeyboardInterrupt as error:
        command = _resume_command(click.get_current_context(), folder)
        raise StoppedError(f"stopped; continue with: {command}") from error


def _resume_command(context: click.Context, folder: Path) -> str:
    """Returns the command that continues with a comparison: the same one, with its folder."""
    arguments = ["photinus", "compare", context.params["job"]]
    for param in context.command.params:
        value = str(folder) if param.name == "folder" else context.params.get(param.name or "")
        for item in value if isinstance(value, tuple) else (value,):
            arguments += (
                [param.opts[-1], str(item)] if item is not None and param.name != "job" else []
            )
    return shlex.join(arguments)


def _check_option(option: str, value: Any, limit: Limit, got: str = "") -> None:  # noqa: ANN401
    if not limit.holds(value):
        raise UsageError(f"{option} must be {limit.text}", got=got or value)


def _simulated_cluster(
    step_seconds: str | None, latency: float | None, mbit: float | None
) -> SimulatedCluster | None:
    from photinus.engine.simulation.cluster import SimulatedCluster

    if step_seconds is None and latency is None and mbit is None:
        return None
    settings: dict[str, Any] = {}
    if step_seconds is not None:
        try:
            seconds = tuple(float(text) for text in step_seconds.split(","))
        except ValueError as error:
            raise UsageError("--step-seconds must be numbers", got=repr(step_seconds)) from error
        _check_option("--step-seconds", seconds, Limit.each(at_least(0)), got=step_seconds)
        settings["step_seconds"] = seconds if len(seconds) > 1 else seconds[0]
    if latency is not None:
        _check_option("--latency", latency, at_least(0))
        settings["latency_seconds"] = latency
    if mbit is not None:
        _check_option("--mbit", mbit, above(0))
        settings["bytes_per_second"] = mbit * 1e6 / 8
    return SimulatedCluster(**settings)
