"""A folder from elsewhere runs nothing, unless the user says so; a name is looked at first."""

import json
import re
from collections import defaultdict
from importlib import metadata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.checkpoint.export import load_model, save_model
from photinus.cli.main import main
from photinus.core import factories
from photinus.core.errors import UsageError
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.run.evaluate import load_trained, measure
from photinus.run.job import Job, Source, read_job
from photinus.run.remote_resume import job_in
from photinus.run.train import new_folder, resume, train

CODE = """
from pathlib import Path

import torch

import photinus

Path({seen!r}).write_text("imported")


def net(**arguments):
    return torch.nn.Linear(6, 3)


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


def reads(features, draws):
    return features


def descent(anchor, mean, state):
    return anchor - mean, state


class Way:
    def __init__(self):
        Path({seen!r}).write_text("called")

    def worker(self):
        return photinus.averaging().worker()

    def owner(self):
        return photinus.averaging().owner()
"""


@pytest.fixture
def foreign_package(tmp_path, monkeypatch):
    """A file that is there once the package `foreign` was imported, or a command was run."""
    file = tmp_path / "seen"
    code = CODE.format(seen=str(file)).replace("from photinus import recipes", "")
    code = code.replace("photinus.averaging()", "__import__('photinus').averaging()")
    (tmp_path / "packages").mkdir()
    name = f"foreign_{tmp_path.name}".replace("-", "_")
    (tmp_path / "packages" / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    return file, name


def model_folder(place, **settings):
    """A model's folder as anybody can make one: safetensors and JSON."""
    config = {"module": "torch.nn:Linear", "arguments": {"in_features": 6, "out_features": 3}}
    meta = {"kind": "module", "settings": {**config, **settings}, "data": {"name": "given"}}
    tensors = {"weight": np.zeros((3, 6), "f4"), "bias": np.zeros(3, "f4")}
    return save_model(place, tensors, meta)


COMMANDS = {
    "module": lambda file: {
        "module": "subprocess:getoutput",
        "arguments": {"cmd": f"touch {file}"},
    },
    "module by another name": lambda file: {
        "module": "torch.hub:subprocess.getoutput",
        "arguments": {"cmd": f"touch {file}"},
    },
    "module of a library": lambda file: {
        "module": "numpy:savetxt",
        "arguments": {"fname": str(file), "X": [1.0]},
    },
    "module of an extra": lambda file: {
        "module": "accelerate.test_utils.testing:run_command",
        "arguments": {"command": ["touch", str(file)]},
    },
    "optimizer": lambda file: {"optimizer": "os:system", "settings": {"command": f"touch {file}"}},
    "loss": lambda file: {"loss": "subprocess:getoutput"},
    "reads": lambda file: {"reads": "subprocess:getoutput"},
    "class": lambda file: {
        "module": "subprocess:Popen",
        "arguments": {"args": ["touch", str(file)]},
    },
}


def test_functions_of_all_packages_that_photinus_requires_are_refused():
    imports = defaultdict(set)
    for name, sources in metadata.packages_distributions().items():
        for source in sources:
            imports[source.lower().replace("_", "-")].add(name)
    required = {re.match(r"[\w-]+", line)[0].lower() for line in metadata.requires("photinus")}
    installed = {name for package in required for name in imports[package]}
    assert {"torch", "numpy", "threadpoolctl"} <= installed <= factories._LIBRARIES


@pytest.mark.parametrize("trust_code", [False, True])
@pytest.mark.parametrize("way", COMMANDS)
def test_a_model_folder_runs_no_command(tmp_path, small, way, trust_code):
    """Also of a user who trusts it: a name must be a module's, a loss's, an optimizer's."""
    file = tmp_path / "was_run"
    folder = model_folder(tmp_path / "net", **COMMANDS[way](file))

    def load_and_measure():
        trained, _ = load_trained(folder, trust_code=trust_code)
        measure(trained, small.test)
        trained.settings.inner()

    with pytest.raises(UsageError):
        load_and_measure()
    assert not file.exists()


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_model_from_elsewhere_is_named_by_its_address(tmp_path, capsys, command):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    folder = model_folder(tmp_path / "net", **COMMANDS["module"](tmp_path / "was_run"))
    for file in folder.iterdir():
        memory.pipe(f"/of_others/{command}/{file.name}", file.read_bytes())
    more = ["rows.parquet", "-o", str(tmp_path / "scored")] if command == "predict" else []
    with pytest.raises(SystemExit):
        main([command, f"memory://of_others/{command}", *more])
    said = f"the model in memory://of_others/{command} names code, and no run of yours"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_command_that_loads_a_model_runs_none_that_it_names(tmp_path, capsys, command):
    file, rows, scored = tmp_path / "was_run", tmp_path / "rows.parquet", tmp_path / "scored"
    folder = model_folder(tmp_path / "net", **COMMANDS["module"](file))
    pq.write_table(pa.table({"features": [[0.0] * 6]}), rows)
    words = [command, folder, *([rows, "-o", scored] if command == "predict" else [])]
    for more in ([], ["--trust-code"]):
        with pytest.raises(SystemExit) as exited:
            main([*map(str, words), *more])
        assert exited.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "names code, and no run of yours on this machine made it" in first
    assert "a module must be the user's own code; got 'subprocess:getoutput'" in second
    assert not file.exists()


@pytest.mark.parametrize("field", ["module", "loss", "reads"])
def test_code_of_a_folder_from_elsewhere_is_not_even_imported(
    tmp_path, foreign_package, small, field
):
    file, name = foreign_package
    function = "net" if field == "module" else field
    folder = model_folder(tmp_path / "net", **{field: f"{name}:{function}"})
    with pytest.raises(UsageError, match=f"got .*{name}:{function}"):
        load_trained(folder)
    assert not file.exists()
    trained, _ = load_trained(folder, trust_code=True)
    measure(trained, small.test)
    assert file.exists()


STRATEGIES = {
    "strategy": lambda name: {"strategy": f"{name}:Way"},
    "recipe": lambda name: {"strategy": {"recipe": f"{name}:Way"}},
    "of a phase": lambda name: {"strategies": {"logistic": f"{name}:Way"}},
    "descent": lambda name: {
        "strategy": {
            "recipe": "averaging",
            "outer": {"name": "descent", "function": f"{name}:descent"},
        }
    },
    "module": lambda name: {"model": {"kind": "module", "module": f"{name}:net"}},
}


@pytest.mark.parametrize("way", STRATEGIES)
def test_a_run_folder_from_elsewhere_calls_nothing(tmp_path, foreign_package, small, breaking, way):
    file, name = foreign_package
    with pytest.raises(KeyboardInterrupt):
        train(small.job(), small.data(), folder=tmp_path / "run", engine=breaking(2))
    saved = json.loads((tmp_path / "run" / "job.json").read_text())
    saved["job"] |= STRATEGIES[way](name)
    (tmp_path / "run" / "job.json").write_text(json.dumps(saved))
    for load in (resume, job_in):
        with pytest.raises(UsageError, match=r"the run .* names code, and no run of yours"):
            load(tmp_path / "run")
    assert not file.exists()
    job_in(tmp_path / "run", trust_code=True).model.build((), 0)
    assert file.exists()


def test_a_start_lends_its_numbers_and_no_code(tmp_path, foreign_package, small):
    file, name = foreign_package
    model = ModuleConfig(
        module="torch.nn:Linear", arguments={"in_features": 6, "out_features": 3}, epochs=1
    )
    folder = model_folder(tmp_path / "net", module=f"{name}:net")
    job = small.job(model=model, start=str(folder))
    train(job, small.data(), folder=tmp_path / "run")
    assert not file.exists()


@pytest.fixture
def own_run(tmp_path, foreign_package, small, monkeypatch):
    """A run of this user's own whose model is a function of the user's own package."""
    file, name = foreign_package
    outcome = train(
        small.job(model=ModuleConfig(module=f"{name}:net", epochs=1)),
        small.data(),
        test=small.test,
        folder=tmp_path / "run",
    )
    file.unlink()
    return outcome.folder


def test_ones_own_run_needs_no_word(own_run, tmp_path, small):
    assert load_model(own_run / "model").is_own
    own_run.rename(tmp_path / "moved")
    trained, _ = load_trained(tmp_path / "moved" / "model")
    measure(trained, small.test)
    assert job_in(tmp_path / "moved").workers == 3


def test_ones_own_run_from_another_machine_says_what_to_do(own_run, tmp_path, monkeypatch, small):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    for load in (lambda: load_trained(own_run / "model"), lambda: resume(own_run)):
        with pytest.raises(UsageError) as refused:
            load()
        assert "or it is your own, from another machine): --trust-code" in str(refused.value)
    monkeypatch.setenv("PHOTINUS_TRUST_CODE", "1")
    trained, _ = load_trained(own_run / "model")
    measure(trained, small.test)
    with pytest.raises(UsageError, match="is done"):
        resume(own_run)


def test_a_signature_fits_no_other_folder(own_run, tmp_path, foreign_package):
    """Settings that were changed, under the signature of a folder that the user's run made."""
    meta = json.loads((own_run / "model" / "model.json").read_text())
    changed = {**meta["meta"], "settings": {**meta["meta"]["settings"], "loss": "evil:loss"}}
    folder = save_model(tmp_path / "net", load_model(own_run / "model").tensors, changed)
    from photinus.checkpoint import export

    body = {"meta": changed, "signature": meta["signature"]}
    data = (folder / "model.safetensors").read_bytes()
    export._SEAL.write(folder, body, {"model.safetensors": data}, lambda _: None)
    assert not load_model(folder).is_own
    with pytest.raises(UsageError, match="evil:loss"):
        load_trained(folder)


def test_a_model_that_names_no_code_needs_no_word(tmp_path, small, monkeypatch):
    outcome = train(small.job(), small.data(), test=small.test, folder=tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    trained, _ = load_trained(outcome.folder / "model")
    assert not load_model(outcome.folder / "model").is_own
    measure(trained, small.test)


def test_a_job_file_is_the_users_own_word_and_its_names_are_still_looked_at(
    tmp_path, foreign_package
):
    file, name = foreign_package
    text = (
        'workers = 2\n[model]\nkind = "module"\nmodule = "{}"\n[model.arguments]\ncmd = "touch {}"'
    )
    (tmp_path / "job.toml").write_text(text.format(f"{name}:net", file))
    read_job(tmp_path / "job.toml").model.build((), 0)
    assert file.read_text() == "imported"
    file.unlink()
    (tmp_path / "job.toml").write_text(text.format("subprocess:getoutput", file))
    with pytest.raises(UsageError, match="a module must be the user's own code"):
        read_job(tmp_path / "job.toml").model.build((), 0)
    assert not file.exists()


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", "", ".hidden", "-x", "x" * 101, "a b", 7])
def test_a_jobs_name_is_a_plain_name(name):
    with pytest.raises(UsageError, match="a plain name"):
        Job(model=LogisticConfig(features=2, classes=2), data=Source(name="given"), name=name)


def test_no_run_folder_lies_outside_of_runs():
    with pytest.raises(UsageError, match="the name of a job"):
        new_folder("../../etc/x")
    assert new_folder("mnist-dbn_1.2").parent.name == "runs"
