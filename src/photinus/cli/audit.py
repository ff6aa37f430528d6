"""The command `audit`."""

from __future__ import annotations

import click

from photinus.core.errors import RunFailedError, UsageError


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
