"""The command `predict`: a run's model scores a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from photinus.cli.train import TRUST
from photinus.cli.watch import redirect_stderr
from photinus.core.addresses import is_address, on_disk
from photinus.core.errors import UsageError

if TYPE_CHECKING:
    from photinus.estimators.from_run import SavedRun


@click.command()
@click.argument("run", type=click.Path(), metavar="RUN|MODEL")
@click.argument("data", type=click.Path(), metavar="DATA")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    required=True,
    help="Where to write: a Parquet file, of Spark a folder of them.",
)
@click.option(
    "--engine",
    type=click.Choice(("local", "spark")),
    default="local",
    help="This process, or tasks of Spark [local].",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Tasks at the same time, of a Spark that is started here [one for each processor].",
)
@TRUST
def predict(
    run: str, data: str, output: str, engine: str, workers: int | None, *, trust_code: bool
) -> None:
    """Score Parquet files with a run's model.

    DATA has the columns that the run read; a label is not needed. OUTPUT has all columns of DATA,
    and prediction; of a classifier also probability. Where the run read a folder of images, DATA
    is one, too, and OUTPUT has their names as file.
    """
    from photinus.estimators.from_run import open_run
    from photinus.estimators.score_files import check_before_spark, check_output, score_files

    is_local = engine == "local"
    if is_local and workers is not None:
        do = "add --engine spark, or leave it out"
        raise UsageError("--workers is for tasks of Spark", got=workers, do=do)
    if is_local and is_address(output):
        wrong, do = "without Spark predictions are written on this machine", "--engine spark"
        raise UsageError(wrong, got=output, do=do)
    if is_local:
        check_output(on_disk(output))
    saved_run = open_run(run, trust_code)
    if is_local:
        rows = score_files(saved_run, data, on_disk(output))
        click.echo(f"{rows:,} rows")
    else:
        check_before_spark(saved_run.source, data, output)
        click.echo("starts Spark and scores the rows")
        output = _predict_on_spark(saved_run, run, data, output, workers)
    click.echo(f"predictions  {output}")


def _predict_on_spark(
    saved_run: SavedRun, run: str, data: str, output: str, workers: int | None
) -> str:
    from photinus.engine.cpu_share import processors
    from photinus.engine.spark.session import spark_session
    from photinus.estimators.score_files import score_on_spark

    with redirect_stderr(Path(os.devnull)):
        spark = spark_session(workers or processors(), name="photinus predict")
        return score_on_spark(saved_run, run, data, output, spark)
