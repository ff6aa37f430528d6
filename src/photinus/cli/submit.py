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
from functools import partial
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
_NOT_MADE = (
    "this line cannot be run by itself: photinus.zip, job.toml and the archives are made only when"
    " they are sent; the same command without --dry-run does so, and starts the run"
)


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
def submit(job: str | None, settings: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Train a job on a cluster: YARN, or a standalone Spark.

    photinus, PyTorch and Spark travel with it and stay in the cluster's file system, so that the
    next job does not send them again. Secrets belong into spark-defaults.conf.
    """
    from photinus.deploy.spark_submit import check_answered, check_cluster_answered, check_master

    check_master(options["master"], options["deploy_mode"])
    if not options["dry_run"]:
        check_answered(options["master"])
        if options["master"] == "yarn":
            check_cluster_answered()
    _check_node_python(options)
    resolved_job = _resolve_job(job, settings, options)
    if options["dry_run"]:
        click.echo(_SubmittedRun(resolved_job, options, Path()).command_line())
        click.echo(_NOT_MADE, err=True)
        return
    with tempfile.TemporaryDirectory(prefix="photinus-") as scratch_folder:
        submitted_run = _SubmittedRun(resolved_job, options, Path(scratch_folder))
        if options["deploy_mode"] == "cluster":
            submitted_run.run_on_node()
        else:
            submitted_run.run_here()


def _check_node_python(options: dict[str, Any]) -> None:
    """Refuses a Python for nodes where there are none: another one would take its place."""
    if options["python"] and options["master"].startswith("local"):
        wrong = f"with --master {options['master']} the workers have this command's Python"
        do = "leave --python out"
        raise UsageError(wrong, got=f"--python {options['python']}", do=do)


def _resolve_job(job: str | None, settings: tuple[str, ...], options: dict[str, Any]) -> Job | None:
    """Returns the job as it will be trained; None where a run is resumed."""
    from dataclasses import replace

    from photinus.cli.train import job_of, new_run_hint
    from photinus.run.data import check_files

    overrides = {name: options[name] for name in ("workers", "strategy", "seed", "threads")}
    if options["resume"]:
        if job or settings or options["folder"] or any(v is not None for v in overrides.values()):
            command = f"photinus submit --resume {shlex.quote(options['resume'])}"
            do = f"{command}; {new_run_hint(options['resume'])}"
            raise UsageError("a resumed run keeps its settings", do=do)
        return None
    if job is None:
        raise UsageError("no job is named", do="photinus submit mnist-dbn, or a TOML file")
    resolved_job = replace(job_of(job, settings, **overrides), engine="spark")
    if options["deploy_mode"] == "cluster":
        _check_rows(resolved_job)
    if not options["dry_run"]:
        # before packages are made and sent, and a cluster is asked
        check_files(resolved_job, is_driver_here=options["deploy_mode"] != "cluster")
    return resolved_job


def _check_rows(job: Job) -> None:
    """Refuses rows that a driver on a node could not read; MNIST travels."""
    source = job.data
    paths = [source.path] if source.path or source.name != "mnist" else []
    for path in (*paths, *([source.test] if source.test else [])):
        if not is_address(path):
            wrong = "the driver runs on a node, which cannot read a path of this machine"
            do = "name the rows by an address: --set data.path=hdfs://..."
            raise UsageError(wrong, got=path or "none", do=do)


def _check_modules(job: Job, options: dict[str, Any]) -> None:
    """Refuses a job that names code of the present folder, which the nodes would not have.

    Where packages were installed there, or another archive is named, it may be there already.
    """
    is_own_way = any(re.search(r"pyFiles|PYTHONPATH|archives", text) for text in options["conf"])
    sent = {Path(file).stem for file in options["py_files"] if Path(file).suffix == ".py"}
    has_zip = len(sent) < len(options["py_files"])  # which may hold it
    is_local = options["master"].startswith("local")
    if is_local or is_own_way or has_zip or options["environment"] != "ship":
        return
    for name in code_names(job.to_dict()):
        package = re.split("[.:]", name)[0]
        if package in sent:
            continue
        if Path(f"{package}.py").is_file():
            do = f"add --py-files {package}.py"
        elif Path(package, "__init__.py").is_file():
            do = f"make a zip of the folder {package}, and add --py-files {package}.zip"
        else:
            continue
        wrong = "the job names code that lies in this folder only, and the nodes would not have it"
        raise UsageError(wrong, got=name, do=do)


class _SubmittedRun:
    """One submit: what is sent, and what is started."""

    def __init__(self, job: Job | None, options: dict[str, Any], scratch_folder: Path) -> None:
        from photinus.deploy.spark_submit import checked_settings, home_of_user

        self.job, self.options, self._scratch = job, options, scratch_folder
        self._settings = checked_settings(options["conf"])
        self._files = options["py_files"]
        for file in self._files:
            if Path(file).suffix not in (".py", ".zip", ".egg") or not Path(file).is_file():
                raise UsageError("a Python file or zip that travels must exist", got=file)
        if not options["resume"]:
            _check_modules(self._known_job(), options)
        self._is_yarn = options["master"] == "yarn"
        self._home = home_of_user() if self._is_yarn else ""
        self._is_cluster = options["deploy_mode"] == "cluster"
        self.folder = options["resume"] or options["folder"] or self._new_folder()
        if self._is_cluster and not is_address(self.folder):
            do = f"--folder {self._home}/runs/NAME, or leave it out"
            wrong = "a driver on a node keeps its run at an address"
            raise UsageError(wrong, got=f"--folder {self.folder}", do=do)

    def _new_folder(self) -> str:
        from photinus.run.train import new_folder

        assert self.job is not None
        folder = new_folder(self.job.name)
        return f"{self._home}/{folder}" if self._is_cluster else str(folder)

    def command_line(self) -> str:
        """Returns the command as a user could type it."""
        from photinus.deploy.packaging import environment, jars

        names = {"environment": environment, "jars": jars}
        folder = f"{self._home}/.photinus" if self._home else str(cache_folder("archives"))
        archives = {kind: f"{folder}/{make().name}" for kind, make in names.items()}
        submission = self._submission(archives["environment"], archives["jars"])
        if self._is_cluster:
            return shlex.join(self._node_command(submission))
        return f"PYSPARK_SUBMIT_ARGS={shlex.quote(self._submit_args(submission))} {self._command()}"

    def _command(self) -> str:
        if self.options["resume"]:
            trust = " --trust-code" if self.options["trust_code"] else ""
            return f"photinus train --resume {shlex.quote(self.folder)}{trust}"
        return f"photinus train job.toml --folder {shlex.quote(self.folder)}"

    def _submission(self, environment: str, jars: str) -> Submission:
        from photinus.deploy.spark_submit import Submission

        job, options, kind = self._known_job(), self.options, self.options["environment"]
        is_local = options["master"].startswith("local")
        archive = "" if kind == "installed" or is_local else environment if kind == "ship" else kind
        own_code = () if is_local or kind == "installed" else (str(self._scratch / "photinus.zip"),)
        return Submission(
            master=options["master"],
            deploy_mode=options["deploy_mode"],
            name=f"photinus {job.name}",
            workers=job.workers,
            threads=job.threads,
            code=(*own_code, *self._files),
            environment=archive,
            jars=jars if self._is_yarn else "",
            python=options["python"],
            settings=self._settings,
        )

    def _options_again(self) -> list[str]:
        """Returns the options that a command which continues with the run needs, too."""
        values = {"--environment": self.options["environment"], "--python": self.options["python"]}
        pairs = [(name, value) for name, value in values.items() if value not in ("", "ship")]
        pairs += [("--py-files", file) for file in self._files]
        pairs += [("--conf", f"{name}={value}") for name, value in self._settings.items()]
        names_code = self._is_cluster and code_names(self._known_job().to_dict())
        # a node's key signed what a driver there made, and this user has another one
        trust = ["--trust-code"] if names_code or self.options["trust_code"] else []
        return [*(word for pair in pairs for word in pair), *trust]

    def _known_job(self) -> Job:
        """The job, which a resumed run has in its folder."""
        if self.job is None:
            from photinus.run.remote_resume import job_in

            self.job = job_in(self.folder, self.options["trust_code"])
        return self.job

    def _program(self) -> list[str]:
        """What a node runs: this user's key is not there, so the code that it trusts is named."""
        names = code_names(self._known_job().to_dict()) if self.options["resume"] else ["job.toml"]
        return [str(Path(__file__).with_name("launch.py")), self.folder, *names]

    def _node_command(self, submission: Submission) -> list[str]:
        """Returns the command that starts a driver on a node."""
        files = [] if self.options["resume"] else ["--files", str(self._scratch / "job.toml")]
        return [*_spark_submit(), *submission.arguments(), *files, *self._program()]

    def _submit_args(self, submission: Submission) -> str:
        return shlex.join([*submission.arguments(), "pyspark-shell"])

    def _send_files(self) -> Submission:
        """Sends what is not there yet, and prints that."""
        from photinus.deploy import packaging
        from photinus.deploy.spark_submit import JARS_SETTINGS

        kind, paths = self.options["environment"], {"environment": "", "jars": ""}
        folder = f"{self._home}/.photinus" if self._is_yarn else ""
        archives = {"environment": packaging.environment} if kind == "ship" else {}
        sends_jars = self._is_yarn and not JARS_SETTINGS & set(self._settings)
        archives |= {"jars": packaging.jars} if sends_jars else {}
        if not self.options["master"].startswith("local"):
            for name, make in archives.items():
                archive = make()
                beginning = f"{archive.name}: made and sent once, which takes minutes"
                paths[name], is_new = packaging.sent(
                    archive, cache_folder("archives"), folder, partial(click.echo, beginning)
                )
                click.echo(f"{archive.name}: {'sent to ' + folder if is_new else 'there already'}")
        packaging.own_code(self._scratch / "photinus.zip")
        return self._submission(paths["environment"], paths["jars"])

    def run_here(self) -> None:
        """Trains with the driver in this process."""
        from photinus.cli.train import begin, continue_run
        from photinus.deploy.java import ensure_java

        submission = self._send_files()
        is_local = self.options["master"].startswith("local")
        if not is_local:
            os.environ.pop("PYTHONPATH", None)  # of this machine: Spark would hand it to the nodes
        os.environ["JAVA_HOME"] = ensure_java()
        os.environ["SPARK_HOME"] = _spark_submit()[0].removesuffix("/bin/spark-submit")
        os.environ["PYSPARK_SUBMIT_ARGS"] = self._submit_args(submission)
        os.environ["PYSPARK_PYTHON"] = sys.executable if is_local else submission.worker_python
        command = shlex.join(["submit", "--master", self.options["master"], *self._options_again()])
        if self.options["resume"]:
            continue_run(self.folder, command=command, trust_code=self.options["trust_code"])
        else:
            begin(self._known_job(), self.folder, command)

    def run_on_node(self) -> None:
        """Trains with the driver on a node; waits for its end."""
        from photinus.cli.toml import to_toml
        from photinus.data import mnist
        from photinus.deploy.java import ensure_java

        job = self._known_job()
        if job.data.name == "mnist" and not job.data.path and not self.options["resume"]:
            from dataclasses import replace

            rows = f"{self._home}/.photinus/mnist"
            mnist.keep_at(rows)
            job = self.job = replace(job, data=replace(job.data, path=rows))
        submission = self._send_files()
        (self._scratch / "job.toml").write_text(to_toml(job.to_dict()))
        command = self._node_command(submission)
        dropped = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS")
        environment = {name: value for name, value in os.environ.items() if name not in dropped}
        environment |= {"JAVA_HOME": ensure_java(), "SPARK_HOME": str(Path(command[0]).parents[1])}
        click.echo(f"run folder: {self.folder}")
        self._wait_for_end(command, environment)
        trust = " --trust-code" if code_names(job.to_dict()) else ""  # signed with the node's key
        for name in (f"evaluate{trust}", "report", "audit"):
            click.echo(f"  photinus {name} {shlex.quote(self.folder)}")

    def _wait_for_end(self, command: list[str], environment: dict[str, str]) -> None:
        from photinus.run.remote_resume import failures

        failures_before = len(failures(self.folder)) if self.options["resume"] else 0
        output_lines, shown_lines = list[str](), list[str]()
        with subprocess.Popen(  # noqa: S603 - spark-submit of the installed pyspark
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            with _continuing_remotely(self.folder, process):
                for line in states(_record_lines(process.stderr, output_lines)):
                    click.echo(line)
                    shown_lines.append(line)
        if process.returncode and any(line.endswith(": killed") for line in shown_lines):
            options = ["--resume", self.folder, "--deploy-mode", "cluster", *self._options_again()]
            wrong = "the application was ended by YARN, or by somebody"
            do = f"continue with: photinus submit {shlex.join(options)}"
            raise RunFailedError(wrong, do=do)
        if process.returncode:
            reasons = failures(self.folder)[failures_before:]
            raise self._failure(reasons, output_lines, shown_lines)

    def _failure(
        self, reasons: list[str], output_lines: list[str], shown_lines: list[str]
    ) -> RunFailedError:
        """Returns the error of an application; `reasons` are those that its run gave."""
        from photinus.run.remote_resume import holds_run

        applications = [line.split(":")[0] for line in shown_lines if ": " in line]
        has_begun = bool(reasons) or holds_run(self.folder)  # else there is nothing to report
        wrong = "the application failed" + ", before its run began" * (not has_begun)
        do = [f"photinus report {shlex.quote(self.folder)}"] * has_begun
        if applications:  # YARN has taken it
            logs = f"yarn logs -applicationId {applications[-1]}"
            do.append(f"{logs} shows what the containers wrote")
        reason = reasons[0] if reasons else _cause(output_lines)
        return RunFailedError(wrong, got=reason or None, do="; ".join(do))


@contextlib.contextmanager
def _continuing_remotely(folder: str, process: subprocess.Popen[str]) -> Iterator[None]:
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
    last_state, page = "", ""
    for line in lines:
        if (found := _STATE.search(line)) and found[2] != last_state:
            last_state = found[2]
            yield f"{found[1]}: {last_state.lower()}"
        if (found := _PAGE.search(line)) and found[1] not in (page, "N/A"):
            page = found[1]
            yield f"  {page}"


def _record_lines(lines: Iterable[str], recorded: list[str]) -> Iterator[str]:
    for line in lines:
        recorded.append(line)
        del recorded[:-200]
        yield line


def _cause(lines: list[str]) -> str:
    """Returns the line of spark-submit's last output that says what was wrong."""
    error_lines = [line.strip() for line in lines if re.search(r"Exception|Error", line)]
    diagnoses = [line.strip() for line in lines if re.search(r"diagnostics: \S", line)]
    # what Spark raises behind YARN's own words says only that the application failed
    return (diagnoses or error_lines or [""])[-1][:300]


def _spark_submit() -> list[str]:
    from photinus.deploy.packaging import spark_home

    return [str(spark_home() / "bin" / "spark-submit")]
