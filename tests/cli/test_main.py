"""The command line as a user meets it."""

import importlib
import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from photinus.cli.main import EXIT_CODES, commands, main
from photinus.cli.train import ENGINE
from photinus.core import errors
from photinus.run.job import ENGINES
from photinus.run.presets import PRESETS

OPTIONS = {
    "devices": ["--tasks"],
    "audit": ["run"],
    "compare": [
        "job",
        "--workers",
        "--engine",
        "--seed",
        "--strategy",
        "--step-seconds",
        "--latency",
        "--mbit",
        "--folder",
        "--set",
    ],
    "demo": ["--workers", "--engine", "--folder", "--set"],
    "doctor": ["--workers", "--no-spark"],
    "evaluate": ["run", "--data", "--trust-code"],
    "kernels": [],
    "predict": ["run", "data", "-o --output", "--engine", "--workers", "--trust-code"],
    "report": ["run", "-o --output"],
    "submit": [
        "job",
        "--master",
        "--deploy-mode",
        "--workers",
        "--strategy",
        "--seed",
        "--threads",
        "--folder",
        "--set",
        "--conf",
        "--py-files",
        "--environment",
        "--python",
        "--resume",
        "--trust-code",
        "--dry-run",
    ],
    "train": [
        "job",
        "path",
        "--workers",
        "--engine",
        "--strategy",
        "--seed",
        "--threads",
        "--device",
        "--road",
        "--transport",
        "--folder",
        "--set",
        "--resume",
        "--trust-code",
        "--print-config",
    ],
    "words": ["model", "asked", "--count", "--analogies", "--cutoff", "--map", "--pairs"],
}
"""A change here is a change for users: it belongs in the change log."""


def test_the_options_are_these_and_no_others():
    options = {
        name: [" ".join(p.opts) for p in command.params]
        for name, command in commands.commands.items()
    }
    assert options == OPTIONS


def test_the_choices_are_those_of_a_job():
    assert tuple(ENGINE.choices) == ENGINES
    text = commands.commands["train"].help
    assert all(name in text for name in PRESETS)


def click_seconds():
    """Returns what the import of click alone takes of a processor now: on a slow one much."""
    program = "import time; b = time.process_time(); import click; print(time.process_time() - b)"
    command = [sys.executable, "-c", program]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", ["", *OPTIONS])
def test_help_is_quick_and_loads_neither_torch_nor_spark(name):
    program = (
        "import sys, time; began = time.process_time()\n"
        "from photinus.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(time.process_time() - began, *{'torch', 'pyspark', 'numpy'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, *([name] if name else []), "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, *loaded = output.splitlines()[-1].split()
    assert loaded == []
    assert float(seconds) < 0.3 or float(seconds) < 3 * click_seconds()


def test_a_job_is_trained_measured_reported_and_audited(call, job, tmp_path):
    code, out, err = call("train", job, "--folder", "run")
    assert (code, err) == (0, "")
    assert "photinus evaluate run" in out
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()

    code, out, _ = call("evaluate", "run")
    assert code == 0
    assert "100 rows" in out
    assert "95 %" in out
    assert call("evaluate", "run/model")[1] == out
    assert "400 rows" in call("evaluate", "run", "--data", "train.parquet")[1]

    assert call("report", "run", "-o", "page.html")[:2] == (0, "page.html\n")
    audited = call("audit", "run")[1]
    assert "each exactly once" in audited
    assert re.search(r"^(\d+) applied, 0 undone: the model holds \1$", audited, re.MULTILINE)
    code, _, err = call("train", "--resume", "run")
    assert code == EXIT_CODES["usage"]
    assert "run is done: there is nothing to resume" in err


def test_a_broken_ledger_fails_the_audit(call, tmp_path):
    (tmp_path / "run").mkdir()
    entry = {"op": "apply", "run": "r", "term": 1, "slot": 0, "sequence": 0}
    (tmp_path / "run" / "ledger.jsonl").write_text((json.dumps(entry) + "\n") * 2)
    code, _, err = call("audit", "run")
    assert code == EXIT_CODES["failed"]
    assert "applied 2 times" in err


def test_what_is_printed_is_the_job_that_would_be_trained(call, job, tmp_path):
    arguments = ("--workers", 5, "--strategy", "diloco", "--set", "model.lr=0.5")
    _, out, _ = call("train", job, *arguments, "--print-config")
    (tmp_path / "again.toml").write_text(out)
    assert "workers = 5" in out
    assert 'recipe = "diloco"' in out
    assert "lr = 0.5" in out
    assert call("train", "again.toml", "--print-config")[1] == out


def test_a_strategy_is_said_whole_as_json_too(call):
    strategy = '{"recipe": "averaging", "every": {"steps": 7}, "quorum": 2}'
    _, out, _ = call("train", "mnist-dbn", "--strategy", strategy, "--print-config")
    assert "steps = 7" in out
    assert "quorum = 2" in out
    assert "[strategies." not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("mnist-dbn-published",),
        ("mnist-dbn", "--strategy", "averaging"),
        ("mnist-dbn", "--set", "strategies={pretraining='averaging'}"),
    ],
)
def test_a_strategy_that_a_phase_uses_can_be_set(call, arguments):
    code, out, _ = call("train", *arguments, "--set", "strategy.quorum=2", "--print-config")
    assert (code, "quorum = 2" in out) == (0, True)


def test_the_environment_stands_behind_the_arguments(call, monkeypatch):
    monkeypatch.setenv("PHOTINUS_TRAIN_WORKERS", "7")
    assert "workers = 7" in call("train", "mnist-dbn", "--print-config")[1]
    assert "workers = 3" in call("train", "mnist-dbn", "--workers", 3, "--print-config")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "no job is named"),
        (["train", "mnist-dnb"], "did you mean 'mnist-dbn'?"),
        (["train", "missing.toml"], "missing.toml cannot be read"),
        (["train", "mnist-dbn", "--strategy", "avering"], "did you mean 'averaging'?"),
        (["train", "mnist-dbn", "--strategy", "{avering}"], "the strategy is no JSON"),
        (["train", "mnist-dbn", "--workers", "0"], "workers of Job must be a whole number"),
        (["train", "nosuch.toml"], "the job nosuch.toml cannot be read; got No such file or dir"),
        (["train", "/", "--print-config"], "unknown job; got '/'"),
        (["train", "cifar10", "--set", "epochs=3"], "got 'epochs'; did you mean model.epochs?"),
        (
            ["train", "mnist-dbn", "--set", "epochs=3"],
            "did you mean model.pretraining.epochs or model.fine_tuning.epochs?",
        ),
        (["train", "cifar10", "--set", "model.module=mynets.MLP"], "did you mean 'mynets:MLP'?"),
        (["train", "mnist-dbn", "--set", "model.hiden=[5]"], "did you mean 'hidden'?"),
        (["train", "mnist-dbn", "--set", "model"], "KEY=VALUE"),
        (
            ["train", "mnist-dbn", "--set", "strategy.quorum=9"],
            "every phase of this job has a strategy of its own; got 'strategy.quorum=9'; "
            "--set strategies.fine-tune.KEY=VALUE",
        ),
        (
            ["train", "mnist-dbn", "--set", "workers.of=3"],
            "workers in workers.of holds no",
        ),
        (["train", "--resume", "nowhere"], "nowhere holds no run to resume"),
        (
            ["train", "--resume", "my run", "--seed", "3"],
            "a resumed run keeps its settings; photinus train --resume 'my run'; once it has "
            "ended, a new run with --set 'start=my run/model' takes other settings",
        ),
        (["train", "--resume", "run", "--seed", "0"], "a resumed run keeps its settings"),
        (["train", "word2vec", "texts", "--print-config"], "word2vec has no job to print"),
        (["evaluate", "nowhere"], "no model at that path"),
        (["report", "nowhere"], "nowhere holds no run"),
        (["audit", "nowhere"], "nowhere holds no run"),
        (["trane"], "No such command 'trane'"),
        (["train", "--wokers", "3"], "--workers"),
    ],
)
def test_a_wrong_word_gets_one_sentence_and_exit_code_2(call, arguments, words):
    code, out, err = call(*arguments)
    assert (code, out) == (EXIT_CODES["usage"], "")
    assert words in err
    assert err.startswith("photinus: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["train.parquet", "test.parquet"])
@pytest.mark.parametrize(
    ("data", "words"), [(b"", "cannot be read as Parquet"), (None, "there is no t")]
)
def test_a_missing_or_broken_file_is_told_before_a_run_is(call, job, tmp_path, name, data, words):
    (tmp_path / name).unlink()
    if data is not None:
        (tmp_path / name).write_bytes(data)
    code, out, err = call("train", job, "--folder", "run")
    assert (code, out) == (EXIT_CODES["usage"], "")
    assert err.startswith("photinus: t")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", ["[PATH_NOT_FOUND] x", "[FAILED_READ_FILE] x"])
def test_files_that_spark_alone_can_look_for_end_as_in_a_local_run(call, job, monkeypatch, wrong):
    class Reader:
        def parquet(self, path):
            raise OSError(wrong)

    session = type("Session", (), {"read": Reader()})
    monkeypatch.setattr("photinus.engine.spark.session.spark_session", lambda *_: session)
    code, _, err = call("train", job, "--engine", "spark", "--folder", "run")
    assert code == EXIT_CODES["usage"]
    assert err.startswith("photinus: ")
    assert len(err.splitlines()) == 1


def test_a_folder_is_named_as_soon_as_there_is_a_run_and_not_before(call, job):
    code, out, _ = call("train", job, "--set", "model.features=3", "--folder", "refused")
    assert (code, "refused" in out) == (EXIT_CODES["failed"], False)
    code, out, _ = call("train", job, "--folder", "run")
    assert (code, out.count("the run is kept in run\n")) == (0, 1)


def test_the_package_runs_as_the_command():
    command = [sys.executable, "-m", "photinus", "trane"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (EXIT_CODES["usage"], "")
    assert (
        process.stderr
        == "photinus: No such command 'trane'. Did you mean 'train'?; photinus --help\n"
    )


def test_an_option_that_is_none_points_to_the_help_of_its_command(call):
    code, _, err = call("train", "--workrs", "2")
    assert (code, err.count("\n")) == (EXIT_CODES["usage"], 1)
    assert err.startswith("photinus: No such option '--workrs'")
    assert err.endswith("; photinus train --help\n")


def test_a_transport_is_taken_with_the_security_and_the_strategy_that_it_needs(call):
    strategy = '{"recipe": "all_reduce", "owners": 2}'
    needed = ("--set", "security=none", "--strategy", strategy)
    arguments = ("train", "cifar10", "--workers", "2", "--transport", "torch", "--print-config")
    assert 'transport = "torch"' in call(*arguments, *needed)[1]
    assert 'security="none" if the whole network is trusted' in call(*arguments)[2]


def test_the_transport_by_its_earlier_name_is_told_the_present_one(call, job):
    code, _, err = call("train", job, "--road", "/shared/a")
    assert code == EXIT_CODES["usage"]
    assert "--road is called --transport; write --transport /shared/a" in err


@pytest.mark.parametrize("transport", ["/proc/x", "ftp://127.0.0.1:1/x"])
def test_a_transport_is_refused_in_the_simulator(call, job, transport):
    chosen = ("--strategy", "averaging", "--transport", transport)
    code, _, err = call("train", job, *chosen)
    assert code == EXIT_CODES["usage"]
    expected = "the simulator's links are its SimulatedCluster's"
    assert f"{expected}; got transport '{transport}'; use transport=" in err


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (errors.NotReadyError("no Java"), "not ready"),
        (errors.DataError("a row is wrong"), "failed"),
        (errors.RunFailedError("it ended"), "failed"),
        (errors.UsageError("no such thing"), "usage"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("what"), "failed"),
        (PermissionError(13, "Permission denied", "/model"), "failed"),
        (errors.DataError("no row", got=FileNotFoundError(2, "No such file", "x")), "failed"),
    ],
)
def test_every_error_has_its_exit_code_and_no_traceback(call, job, monkeypatch, error, end):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("photinus.run.train.train", fail)
    code, _, err = call("train", job)
    assert code == EXIT_CODES[end]
    assert "Traceback" not in err
    assert "Errno" not in err
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("PHOTINUS_DEBUG", "1")
    assert "Traceback" in call("train", job)[2]


def test_sigterm_outside_of_a_run_ends_the_command_as_ctrl_c_does(capsys):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(run=lambda: signal.raise_signal(signal.SIGTERM))
    assert ended.value.code == EXIT_CODES["interrupted"]
    assert capsys.readouterr().err == "photinus: stopped\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_folder_with_other_files_is_left_as_it_was(call, job, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    code, _, err = call("train", job, "--folder", "mine")
    assert code == EXIT_CODES["usage"]
    assert "holds other files" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("setting", ["data.path='no.parquet'", "data.features=['x,y']"])
def test_what_is_refused_before_training_leaves_no_folder(call, job, tmp_path, setting):
    code, _, err = call("train", job, "--folder", "run", "--set", setting)
    assert code in (EXIT_CODES["failed"], EXIT_CODES["usage"])
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on(call, job, monkeypatch, sign):
    def stop(*_, **__):
        signal.raise_signal(sign)

    monkeypatch.setattr("photinus.engine.simulation.engine.SimulatedEngine.run", stop)
    code, _, err = call("train", job, "--folder", "run")
    assert code == EXIT_CODES["interrupted"]
    assert err == "photinus: stopped; continue with: photinus train --resume run\n"
    monkeypatch.undo()


def test_a_failed_run_says_how_to_go_on(call, job, monkeypatch):
    def fail(*_, **__):
        raise errors.RunFailedError("nobody came")

    monkeypatch.setattr("photinus.engine.simulation.engine.SimulatedEngine.run", fail)
    _, out, err = call("train", job, "--folder", "run")
    assert err == "photinus: nobody came; continue with: photinus train --resume run\n"
    assert "failed after" in out
    assert "nobody came" not in out, "a reason is told once"


def test_a_run_at_an_address_is_measured_reported_and_audited_from_there(call, job, tmp_path):
    pytest.importorskip("fsspec")
    address = f"memory://runs/{tmp_path.name}"
    code, out, err = call("train", job, "--folder", address)
    assert (code, err) == (0, "")
    assert f"photinus evaluate {address}" in out
    assert "100 rows" in call("evaluate", address)[1]
    assert "each exactly once" in call("audit", address)[1]
    assert call("report", address)[1] == f"{tmp_path.name}.html\n"
    assert (tmp_path / f"{tmp_path.name}.html").is_file()
    assert "is done: there is nothing to resume" in call("train", "--resume", address)[2]
    for command in ("audit", "report"):
        assert "holds no run" in call(command, "memory://nowhere/run")[2]


def test_an_address_where_nobody_listens_is_told_at_once(call, job):
    """A client of HDFS alone would try again for minutes, without a word."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # taken, and never listened on
        place = f"hdfs://127.0.0.1:{bound.getsockname()[1]}"
        run, rows = f"{place}/runs/first", f"data.path={place}/rows"
        command_lines = (
            ("train", job, "--folder", run),
            ("train", "--resume", run),
            ("train", job, "--set", rows),
            *((command, run) for command in ("audit", "evaluate", "report")),
        )
        for command in command_lines:
            began = time.monotonic()
            code, _, err = call(*command)
            assert code == 3
            assert err.startswith(f"photinus: nothing answers at {place}/"), err
            assert err.count("\n") == 1
            assert time.monotonic() - began < 5


def test_a_module_that_a_job_names_may_lie_where_the_command_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "lies_here.py").write_text("")
    with pytest.raises(SystemExit):
        main(run=lambda: importlib.import_module("lies_here"))
    assert sys.modules.pop("lies_here").__file__ == str(tmp_path / "lies_here.py")


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("job.toml/run", "Not a directory"), ("/proc/run", "No such file or directory")],
)
def test_a_run_folder_that_cannot_be_written_is_refused_before_spark_starts(
    call, job, monkeypatch, folder, reason
):
    monkeypatch.setattr("photinus.engine.spark.session.spark_session", None)
    code, _, err = call("train", job, "--engine", "spark", "--folder", folder)
    assert (code, err.count("\n")) == (EXIT_CODES["usage"], 1)
    assert f"{folder} cannot be written; got {reason}; name another folder" in err


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("none.parquet", "there is no none.parquet on this machine, which reads test; name a path"),
        ("job.toml", "job.toml cannot be read as Parquet"),
        ("nowhere://rows", "nowhere://rows cannot be opened"),
    ],
)
def test_rows_of_test_that_this_machine_cannot_read_are_refused_before_spark_starts(
    call, job, monkeypatch, test, words
):
    monkeypatch.setattr("photinus.engine.spark.session.spark_session", None)
    code, _, err = call("train", job, "--engine", "spark", "--set", f"data.test={test}")
    assert code in (EXIT_CODES["usage"], EXIT_CODES["not ready"])
    assert err.startswith(f"photinus: {words}")
    assert err.count("\n") == 1
