"""The commands `evaluate`, `report` and `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from photinus.cli.train import TRUST
from photinus.core.errors import RunFailedError, UsageError

if TYPE_CHECKING:
    from photinus.run.data import TestRows


@click.command()
@click.argument("run", type=click.Path(), metavar="RUN|MODEL")
@click.option("--data", type=click.Path(), metavar="PATH", help="Other rows to measure on.")
@TRUST
def evaluate(run: str, data: str | None, *, trust_code: bool) -> None:
    """Measure a saved model on rows that it was not trained on."""
    from photinus.cli.watch import error_text
    from photinus.core.threads import limit_threads
    from photinus.report.event_text import confusion_table
    from photinus.run.evaluate import load_trained, measure, model_folder

    with model_folder(run) as folder:
        trained, meta = load_trained(folder, trust_code=trust_code)
    rows = rows_to_measure_on(meta.get("data", {}), data)
    with limit_threads(meta.get("threads", 1)):
        metrics, extra = measure(trained, rows)
    click.echo(f"{len(rows.features):,} rows")
    for name, value in metrics.items():
        single_metric = {name: value}
        interval = extra.get("interval") if name == "error" else None
        click.echo(f"{name:>8}  {error_text(single_metric, interval).removeprefix(name).strip()}")
    if "confusion" in extra:
        click.echo(f"\n{confusion_table(extra['confusion'])}")


def rows_to_measure_on(source: dict[str, Any], path: str | None) -> TestRows:
    """Returns the rows at a path, or those that the model's job named.

    Raises:
        UsageError: the job named none, and there is no path.
        DataError: they cannot be read.
    """
    from photinus.core.settings import from_dict
    from photinus.run.data import read_test
    from photinus.run.job import Source

    if path is not None:
        is_published = source.get("name", "mnist") in ("mnist", "cifar10", "films")
        key = "path" if is_published else "test"
        source = {**source, key: path}
    rows = read_test(from_dict(Source, source))
    if rows is None:
        wrong, do = "the model was saved without rows to measure on", "--data PATH"
        if source.get("name") == "given":
            wrong += ": a program handed its rows over"
            do = "hand rows over: --data PATH of Parquet files, or photinus.measure"
        raise UsageError(wrong, do=do)
    return rows


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(), help="The file to write [RUN/report.html, or NAME.html]."
)
def report(run: str, output: str | None) -> None:
    """Write a run's report again from its journal, finished or not."""
    from photinus.core.addresses import is_address
    from photinus.report.page import save
    from photinus.run.remote_resume import fetched

    with fetched(run, "events.jsonl") as folder:
        if not (folder / "events.jsonl").is_file():
            raise UsageError(f"{run} holds no run", do="name the folder of a run")
        page = f"{folder.name}.html" if is_address(run) else folder / "report.html"
        click.echo(save(folder / "events.jsonl", Path(output or page)))


@click.command()
@click.argument("run", type=click.Path())
def audit(run: str) -> None:
    """Check in a run's ledger that every push was applied exactly once.

    A resumed run continues from a checkpoint: what was applied after it is counted as undone.
    """
    from photinus.report.ledger import audit as audit_ledger
    from photinus.run.remote_resume import fetched

    with fetched(run, "ledger.jsonl") as folder:
        if not (folder / "ledger.jsonl").is_file():
            raise UsageError(f"{run} holds no run", do="name the folder of a run")
        result = audit_ledger(folder / "ledger.jsonl")
    click.echo(result)
    click.echo(f"{result.applied} applied, {result.undone} undone: the model holds {result.held}")
    if not result.is_exact:
        raise RunFailedError("the ledger breaks its rules: " + "; ".join(result.offences[:5]))
