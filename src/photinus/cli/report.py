"""The command `report`."""

from __future__ import annotations

import click

from photinus.core.errors import UsageError


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(), help="The file to write [RUN/report.html, or NAME.html]."
)
def report(run: str, output: str | None) -> None:
    """Write a run's report again from its journal, finished or not."""
    from photinus.core.addresses import is_address, local_folder
    from photinus.report.page import save
    from photinus.run.remote_resume import fetched

    with fetched(run, "events.jsonl") as folder:
        if not (folder / "events.jsonl").is_file():
            raise UsageError(f"{run} holds no run", do="name the folder of a run")
        page = f"{folder.name}.html" if is_address(run) else folder / "report.html"
        click.echo(save(folder / "events.jsonl", local_folder(output or page, "a page is written")))
