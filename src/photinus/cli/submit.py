"""The command `submit`: runs a job on a cluster whose nodes have only Python and Java."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from photinus.cli.train import TRUST
from photinus.core.addresses import cache_folder, is_address
from photinus.core.errors import RunFailedError, UsageError
from photinus.core.factories import code_names

if TYPE_CHECKING:
    from photinus.deploy.spark_submit import Submission
    from photinus.run.job import Job


_STATE = re.compile(r"Application report for (application_\d+_\d+) \(state: (\w+)\)")
_PAGE = re.compile(r"tracking URL: (\S+)")


@click.command()
@click.argument("job", required=False, metavar="[NAME|JOB.TOML]")
@click.option("--master", default="yarn", show_default=True, help="yarn, spark://HOST:PORT, local.")
@click.option(
    "--deploy-mode",
    type=click.Choice(("client", "cluster")),
    default="client",
    show_default=True,
    help="Where the driver runs: here, or on a node.",
)
@click.option("--workers", type=int, metavar="N", help="Number of workers.")
@click.option("--strategy", metavar="NAME|JSON", help="How the workers agree, in every phase.")
@click.option("--seed", type=int, help="Seed of all random numbers.")
@click.option("--threads", type=int, help="Threads of each worker.")
@click.option("--folder", default="", help="Where the run is kept; in cluster mode an address.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Same as in `photinus train`."
)
@click.option(
    "--conf", multiple=True, metavar="spark.KEY=VALUE", help="A setting of Spark; repeatable."
)
@click.option("--py-files", multiple=True, metavar="FILE", help="A file to send; repeatable.")
@click.option(
    "--environment",
    default="ship",
    show_default=True,
    metavar="ship|installed|ARCHIVE",
    help="The nodes' packages: sent from here, there already, or an archive with bin/python.",
)
@click.option("--python", default="", metavar="PATH", help="The nodes' Python [on their PATH].")
@click.option("--resume", default="", metavar="RUN", help="Continue with a run.")
@TRUST
@click.option("--dry-run", is_flag=True, help="Print what would be started; send nothing.")
def submit(job: str | None, settings: tuple[str, ...], **said: Any) -> None:  # noqa: ANN401
    """Train a job on a cluster: YARN, or a standalone Spark.

    photinus, PyTorch and Spark travel with it and stay in the cluster's file system, so that the
    next job does not send them again. Secrets belong into spark-defaults.conf.
    """
    from photinus.deploy.spark_submit import check_master

    check_master(said["master"], said["deploy_mode"])
    asked = _job(job, settings, said)
    with tempfile.TemporaryDirectory(prefix="photinus-") as here:
        run = _Run(asked, said, Path(here))
        if said["dry_run"]:
            click.echo(run.line())
        elif said["deploy_mode"] == "cluster":
            run.on_a_node()
        else:
            run.here()


def _job(job: str | None, settings: tuple[str, ...], said: dict[str, Any]) -> Job | None:
    """Returns the job as it will be trained; None where a run is resumed."""
    from dataclasses import replace

    from photinus.cli.train import job_of

    options = {name: said[name] for name in ("workers", "strategy", "seed", "threads")}
    if said["resume"]:
        if job or settings or said["folder"] or any(v is not None for v in options.values()):
            do = f"photinus submit --resume {shlex.quote(said['resume'])}"
            raise UsageError("a resumed run keeps its settings", do=do)
        return None
    if job is None:
        raise UsageError("no job is named", do="photinus submit mnist-dbn, or a TOML file")
    asked = replace(job_of(job, settings, **options), engine="spark")
    if said["deploy_mode"] == "cluster":
        _check_rows(asked)
    return asked


def _check_rows(job: Job) -> None:
    """Refuses rows that a driver on a node could not read; MNIST travels."""
    source = job.data
    needed = [source.path] if source.path or source.name != "mnist" else []
    for path in (*needed, *([source.test] if source.test else [])):
        if not is_address(path):
            wrong = "the driver runs on a node, which cannot read a path of this machine"
            do = "name the rows by an address: --set data.path=hdfs://..."
            raise UsageError(wrong, got=path or "none", do=do)


class _Run:
    """One submit: what is sent, and what is started."""

    def __init__(self, job: Job | None, said: dict[str, Any], here: Path) -> None:
        from photinus.deploy.spark_submit import checked_settings, home_of_user

        self.job, self.said, self._here = job, said, here
        self._settings = checked_settings(said["conf"])
        self._files = said["py_files"]
        for file in self._files:
            if Path(file).suffix not in (".py", ".zip", ".egg") or not Path(file).is_file():
                raise UsageError("a Python file or zip that travels must exist", got=file)
        self._is_yarn = said["master"] == "yarn"
        self._home = home_of_user() if self._is_yarn else ""
        self._is_cluster = said["deploy_mode"] == "cluster"
        self.folder = said["resume"] or said["folder"] or self._new_folder()
        if self._is_cluster and not is_address(self.folder):
            do = f"--folder {self._home}/runs/NAME, or leave it out"
            wrong = "a driver on a node keeps its run at an address"
            raise UsageError(wrong, got=f"--folder {self.folder}", do=do)

    def _new_folder(self) -> str:
        from photinus.run.train import new_folder

        assert self.job is not None
        folder = new_folder(self.job.name)
        return f"{self._home}/{folder}" if self._is_cluster else str(folder)

    def line(self) -> str:
        """Returns the command as a user could type it."""
        from photinus.deploy.packaging import environment, jars

        names = {"environment": environment, "jars": jars}
        folder = f"{self._home}/.photinus" if self._home else str(cache_folder("archives"))
        shown = {kind: f"{folder}/{make().name}" for kind, make in names.items()}
        run = self._submission(shown["environment"], shown["jars"])
        if self._is_cluster:
            return shlex.join([*_spark_submit(), *run.arguments(), *self._program()])
        return f"PYSPARK_SUBMIT_ARGS={shlex.quote(self._shell(run))} {self._way()}"

    def _way(self) -> str:
        if self.said["resume"]:
            trust = " --trust-code" if self.said["trust_code"] else ""
            return f"photinus train --resume {shlex.quote(self.folder)}{trust}"
        return f"photinus train job.toml --folder {shlex.quote(self.folder)}"

    def _submission(self, environment: str, jars: str) -> Submission:
        from photinus.deploy.spark_submit import Submission

        job, said, kind = self._known(), self.said, self.said["environment"]
        is_local = said["master"].startswith("local")
        sent = "" if kind == "installed" or is_local else environment if kind == "ship" else kind
        own = () if is_local or kind == "installed" else (str(self._here / "photinus.zip"),)
        return Submission(
            master=said["master"],
            deploy_mode=said["deploy_mode"],
            name=f"photinus {job.name}",
            workers=job.workers,
            threads=job.threads,
            code=(*own, *self._files),
            environment=sent,
            jars=jars if self._is_yarn else "",
            python=said["python"],
            settings=self._settings,
        )

    def _known(self) -> Job:
        """The job, which a resumed run has in its folder."""
        if self.job is None:
            from photinus.run.remote_resume import job_in

            self.job = job_in(self.folder, self.said["trust_code"])
        return self.job

    def _program(self) -> list[str]:
        """What a node runs: this user's key is not there, so the code that it trusts is named."""
        names = code_names(self._known().to_dict()) if self.said["resume"] else ["job.toml"]
        return [str(Path(__file__).with_name("launch.py")), self.folder, *names]

    def _shell(self, run: Submission) -> str:
        return shlex.join([*run.arguments(), "pyspark-shell"])

    def _sent(self) -> Submission:
        """Sends what is not there yet, and prints that."""
        from photinus.deploy import packaging

        kind, found = self.said["environment"], {"environment": "", "jars": ""}
        folder = f"{self._home}/.photinus" if self._is_yarn else ""
        wanted = {"environment": packaging.environment} if kind == "ship" else {}
        wanted |= {"jars": packaging.jars} if self._is_yarn else {}
        if not self.said["master"].startswith("local"):
            for name, make in wanted.items():
                parcel = make()
                found[name], is_new = packaging.sent(parcel, cache_folder("archives"), folder)
                click.echo(f"{parcel.name}: {'sent to ' + folder if is_new else 'there already'}")
        packaging.own_code(self._here / "photinus.zip")
        return self._submission(found["environment"], found["jars"])

    def here(self) -> None:
        """Trains with the driver in this process."""
        from photinus.cli.train import begin, go_on
        from photinus.deploy.java import ensure_java
        from photinus.deploy.spark_submit import check_answered

        check_answered(self.said["master"])
        run = self._sent()
        is_local = self.said["master"].startswith("local")
        if not is_local:
            os.environ.pop("PYTHONPATH", None)  # of this machine: Spark would hand it to the nodes
        os.environ["JAVA_HOME"] = ensure_java()
        os.environ["SPARK_HOME"] = _spark_submit()[0].removesuffix("/bin/spark-submit")
        os.environ["PYSPARK_SUBMIT_ARGS"] = self._shell(run)
        os.environ["PYSPARK_PYTHON"] = sys.executable if is_local else run.worker_python
        command = f"submit --master {self.said['master']}"
        if self.said["resume"]:
            go_on(self.folder, command=command, trust_code=self.said["trust_code"])
        else:
            begin(self._known(), self.folder, command)

    def on_a_node(self) -> None:
        """Trains with the driver on a node; waits for its end."""
        from photinus.cli.toml import to_toml
        from photinus.data import mnist
        from photinus.deploy.java import ensure_java

        job = self._known()
        if job.data.name == "mnist" and not job.data.path and not self.said["resume"]:
            from dataclasses import replace

            rows = f"{self._home}/.photinus/mnist"
            mnist.keep_at(rows)
            job = self.job = replace(job, data=replace(job.data, path=rows))
        run = self._sent()
        (self._here / "job.toml").write_text(to_toml(job.to_dict()))
        files = [] if self.said["resume"] else ["--files", str(self._here / "job.toml")]
        command = [*_spark_submit(), *run.arguments(), *files, *self._program()]
        ours = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS")
        left = {name: value for name, value in os.environ.items() if name not in ours}
        left |= {"JAVA_HOME": ensure_java(), "SPARK_HOME": str(Path(command[0]).parents[1])}
        click.echo(f"run folder: {self.folder}")
        self._wait_for_end(command, left)
        trust = " --trust-code" if code_names(job.to_dict()) else ""  # signed with the node's key
        for name in (f"evaluate{trust}", "report", "audit"):
            click.echo(f"  photinus {name} {shlex.quote(self.folder)}")

    def _wait_for_end(self, command: list[str], environment: dict[str, str]) -> None:
        said, shown = list[str](), list[str]()
        with subprocess.Popen(  # noqa: S603 - spark-submit of the installed pyspark
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            with _going_on(self.folder, process):
                for line in states(_kept_lines(process.stderr, said)):
                    click.echo(line)
                    shown.append(line)
        if process.returncode and any(line.endswith(": killed") for line in shown):
            trust = " --trust-code" if self.said["trust_code"] else ""
            again = f"--resume {shlex.quote(self.folder)} --deploy-mode cluster{trust}"
            wrong = "the application was ended by YARN, or by somebody"
            raise RunFailedError(wrong, do=f"continue with: photinus submit {again}")
        if process.returncode:
            wrong = "the application failed"
            do = f"photinus report {shlex.quote(self.folder)}; yarn logs has the containers' words"
            raise RunFailedError(wrong, got=_cause(said) or None, do=do)


@contextlib.contextmanager
def _going_on(folder: str, process: subprocess.Popen[str]) -> Iterator[None]:
    """At a signal ends spark-submit, but not the run on the node, and prints how to look at it."""
    try:
        yield
    except KeyboardInterrupt:
        process.terminate()  # Ctrl-C of a terminal reaches it by itself, SIGTERM does not
        click.echo(f"the run continues without this command: photinus report {shlex.quote(folder)}")
        raise


def states(lines: Iterable[str]) -> Iterator[str]:
    """Yields what changed, a line each, of all that spark-submit prints.

    Example:
        >>> said = "Application report for application_17_0001 (state: {})"
        >>> list(states([said.format(s) for s in ("ACCEPTED", "ACCEPTED", "RUNNING")]))
        ['application_17_0001: accepted', 'application_17_0001: running']
    """
    before, page = "", ""
    for line in lines:
        if (found := _STATE.search(line)) and found[2] != before:
            before = found[2]
            yield f"{found[1]}: {before.lower()}"
        if (found := _PAGE.search(line)) and found[1] not in (page, "N/A"):
            page = found[1]
            yield f"  {page}"


def _kept_lines(lines: Iterable[str], kept: list[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        del kept[:-200]
        yield line


def _cause(lines: list[str]) -> str:
    """Returns the line of spark-submit's last output that says what was wrong."""
    named = [line.strip() for line in lines if re.search(r"Exception|Error|diagnostics: \S", line)]
    return (named or [""])[-1][:300]


def _spark_submit() -> list[str]:
    from photinus.deploy.packaging import spark_home

    return [str(spark_home() / "bin" / "spark-submit")]
