"""The command `evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from photinus.cli.train import TRUST
from photinus.core.errors import UsageError

if TYPE_CHECKING:
    from photinus.run.data import TestRows


@click.command()
@click.argument("run", type=click.Path(), metavar="RUN|MODEL")
@click.option("--data", type=click.Path(), metavar="PATH", help="Other rows to measure on.")
@TRUST
def evaluate(run: str, data: str | None, *, trust_code: bool) -> None:
    """Measure a saved model on rows that it was not trained on."""
    from photinus.checkpoint.export import load_model
    from photinus.cli.watch import error_text
    from photinus.core.threads import limit_threads
    from photinus.report.event_text import confusion_table
    from photinus.run.evaluate import load_trained, measure, model_folder

    with model_folder(run) as folder:
        # by the name that the user knows: of an address, `folder` is a copy
        load_model(folder, is_mapped=True).check_code(f"the model in {run}", trust_code)
        trained, meta = load_trained(folder, trust_code=trust_code)
    rows = rows_to_measure_on(meta.get("data", {}), data, trained.settings)
    with limit_threads(meta.get("threads", 1)):
        metrics, extra = measure(trained, rows)
    click.echo(f"{len(rows.features):,} rows")
    for name, value in metrics.items():
        single_metric = {name: value}
        interval = extra.get("interval") if name == "error" else None
        click.echo(f"{name:>8}  {error_text(single_metric, interval).removeprefix(name).strip()}")
    if "confusion" in extra:
        click.echo(f"\n{confusion_table(extra['confusion'])}")


def rows_to_measure_on(source: dict[str, Any], path: str | None, model: Any = None) -> TestRows:  # noqa: ANN401 - one of MODELS
    """Returns the rows at a path, or those that the model's job named.

    Args:
        source: of that job, plain.
        path: of Parquet files; None for those that the job named.
        model: whose loss says whether each token has a label.

    Raises:
        UsageError: the job named none, and there is no path.
        DataError: they cannot be read.
    """
    from photinus.core.settings import from_dict
    from photinus.run.data import read_test, with_token_labels
    from photinus.run.job import Source

    if path is not None:
        is_published = source.get("name", "mnist") in ("mnist", "cifar10", "films")
        key = "path" if is_published else "test"
        source = {**source, key: path}
    rows = read_test(with_token_labels(from_dict(Source, source), model))
    if rows is None:
        wrong, do = "the model was saved without rows to measure on", "--data PATH"
        if source.get("name") == "given":
            wrong += ": a program handed its rows over"
            do = "hand rows over: --data PATH of Parquet files, or photinus.measure"
        raise UsageError(wrong, do=do)
    return rows
