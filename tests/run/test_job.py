from dataclasses import replace

import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.engine.seat_sharing import Urgency
from photinus.models.dbn import DBN, FineTuning
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source, read_job
from photinus.run.presets import PRESETS, preset
from photinus.strategies.outer import Nesterov, Sgd
from photinus.strategies.recipes import averaging, downpour, iterative_reduce
from photinus.training.plan import WorkerLimits

LOGISTIC = LogisticConfig(features=2, classes=2, epochs=40)


def module(**fields):
    arguments = {"in_features": 2, "out_features": 2}
    return ModuleConfig(module="torch.nn:Linear", arguments=arguments, epochs=40.0, **fields)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_plain_values_and_back(name):
    job = preset(name)
    assert Job.from_dict(job.to_dict()) == job
    assert job.workers == PRESETS[name][1]


def test_a_preset_takes_changes():
    job = replace(preset("mnist-dbn", 3), seed=5)
    assert (job.workers, job.seed) == (3, 5)
    with pytest.raises(UsageError, match="mnist-dbn"):
        preset("mnist-dnb")


def test_a_job_whose_learning_rate_is_0_warns_of_it_before_it_trains():
    assert Job(model=module(lr=0.1)).warnings() == []
    assert Job(model=module(lr=0.0)).warnings() == [
        "lr of ModuleConfig is 0 from start to end; its parameters stay as they are; "
        "set a rate above 0; learningRate in an estimator"
    ]


def test_a_job_is_read_from_toml(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        """
workers = 3
[model]
kind = "logistic"
features = 4
classes = 2
[data]
name = "given"
[strategy]
recipe = "averaging"
codec = "fp32"
every = {steps = 7}
"""
    )
    job = read_job(path)
    assert job.model == LogisticConfig(features=4, classes=2)
    assert job.strategy == averaging(every=Steps(7), codec="fp32")


def test_a_strategy_of_the_pre_training_is_for_deep_belief_networks():
    with pytest.raises(UsageError, match="pretraining"):
        Job(model=LOGISTIC, strategies={"pretraining": averaging()})


def test_a_cap_on_bandwidth_reaches_the_workers_and_needs_sockets():
    job = Job(model=LOGISTIC, bandwidth=2e6, threads=3)
    plan = job.plan()
    assert (plan.limits.bandwidth, plan.limits.threads) == (2e6, 3)
    with pytest.raises(UsageError, match="bandwidth caps what goes over sockets"):
        Job(model=LOGISTIC, bandwidth=2e6, transport="/shared/folder")
    with pytest.raises(UsageError, match="bandwidth of Job must be a number of at least 10000"):
        Job(model=LOGISTIC, bandwidth=100.0)


def test_shares_of_processors_and_memory_reach_the_workers():
    job = Job(model=LOGISTIC, cpu_share=1.5, memory=1 << 30, threads=2)
    assert job.plan().limits == WorkerLimits(threads=2, cpu_share=1.5, memory=1 << 30)
    plain = Job(model=LOGISTIC)
    assert plain.plan().limits == WorkerLimits()


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ({"cpu_share": 0}, "cpu_share of Job must be a number above 0, or left out; got 0"),
        ({"cpu_share": -0.5}, "cpu_share of Job must be a number above 0"),
        ({"cpu_share": 1.5}, "cpu_share is more than a worker's threads use; got 1.5 of 1"),
        ({"memory": 1000}, "memory of Job must be a whole number of bytes, at least 67108864"),
        ({"memory": 2e9}, "memory of Job must be a whole number"),
        ({"memory": "2GiB"}, "such as 2147483648 for 2 GiB, or left out; got '2GiB'"),
    ],
)
def test_a_share_that_no_worker_can_have_is_refused(share, said):
    with pytest.raises(UsageError, match=said):
        Job(model=LOGISTIC, **share)


def test_a_checkpoint_fits_the_same_job_with_other_shares():
    from photinus.run.train import _fingerprint

    job = Job(model=LOGISTIC)
    assert _fingerprint(replace(job, cpu_share=0.5, memory=1 << 30)) == _fingerprint(job)


def test_how_urgent_a_job_is_changes_nothing_that_a_checkpoint_fits():
    from photinus.run.train import _fingerprint

    job = Job(model=LOGISTIC)
    urgent = replace(job, priority=3, weight=2.0, jobs_folder="/shared/jobs")
    assert urgent.urgency == Urgency(priority=3, weight=2.0, folder="/shared/jobs")
    assert Job.from_dict(urgent.to_dict()) == urgent
    assert _fingerprint(urgent) == _fingerprint(job)
    assert urgent.warnings() == []
    [warning] = replace(urgent, engine="simulate").warnings()
    assert "priority, weight and jobs_folder are ignored; name them there" in warning


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"priority": 1.5}, "priority of Job must be a whole number; got 1.5"),
        ({"priority": True}, "priority of Job must be a whole number"),
        ({"weight": 0}, "weight of Job must be a number above 0, or left out; got 0"),
        ({"jobs_folder": "jobs"}, "jobs_folder of Job must be a folder by its whole path"),
    ],
)
def test_a_wrong_urgency_is_refused(asked, said):
    with pytest.raises(UsageError, match=said):
        Job(model=LOGISTIC, **asked)


def test_a_run_tells_at_its_start_how_shares_are_kept():
    [warning] = Job(model=LOGISTIC, cpu_share=0.5).warnings()
    assert warning == "cpu_share=0.5: measured by each worker, which waits between its batches"
    warnings = Job(model=LOGISTIC, cpu_share=1.0, workers=100_000, engine="local").warnings()
    assert "the workers' shares are more than the processors here" in warnings[1]
    assert Job(model=LOGISTIC, cpu_share=0.5, engine="simulate").warnings() == []
    [warning] = Job(model=LOGISTIC, memory=1 << 30, engine="simulate").warnings()
    assert warning.startswith(
        "the simulator's workers are one process: their memory is not measured"
    )


def test_a_share_for_the_fastest_worker_where_it_has_no_effect_is_warned_of():
    fastest = Job(model=LOGISTIC, share="fastest")
    [told] = fastest.warnings()
    assert (
        "the steps of each round are set in advance; all rows are used equally often; use down"
        in told
    )
    for other in ({"strategy": downpour()}, {"workers": 1}, {"share": "rows"}):
        assert replace(fastest, **other).warnings() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workres = 3", "workers"),
        ("workers = 0", "whole number of at least 1"),
        ("[model]\nkind = 'dnb'", "dbn"),
        ("[data]\nname = 'cifar'", "mnist"),
        ("[data]\nname = 'parquet'", "needs a path"),
        ("[strategy]\nrecipe = 'average'", "averaging"),
        ("engine = 'yarn'", "spark"),
        ("[strategies.rmb1]\nrecipe = 'averaging'", "rbm1"),
        ("workers = ", "is no TOML"),
        ("# workers = 2", r"holds no setting; write its \[model\] at least"),
        ("lease_seconds = 1.0", "lease_seconds of Job must be a number of at least 2"),
        ("strategy = 5", "a strategy must be a name or a table; got 5"),
        ("strategies = 5", "strategies of a job must be a table of phases; got 5"),
        ("data = 5", "Source must be a table of settings; got 5"),
        ("[model]\npretraining = 5", "pretraining of DBN must be a table; got 5"),
        ("[model]\nhidden = 50", "hidden of DBN must be a list; got 50"),
        ("[data]\nfeatures = ['a', 1]", "features of Source must be a list of strings; got"),
        (
            "[data]\nname = 'parquet'\npath = 'a'\nfeatures = []",
            "a source needs a column of features; got none",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_right(tmp_path, text, said):
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_job(path)


def test_a_job_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no\.toml cannot be read"):
        read_job(tmp_path / "no.toml")


def test_phases_agree_as_they_are_told():
    plain, layers = averaging(every=Steps(3)), iterative_reduce()
    tuned = averaging(every=Steps(9))
    model = DBN(inputs=4, hidden=(3, 2), classes=2)
    job = Job(model=model, strategy=plain, strategies={"pretraining": layers, "fine-tune": tuned})
    phases = [config.name for config in job._unmeasured_configs()]
    assert [job.strategy_of(name) for name in phases] == [layers, layers, tuned]
    assert replace(job, strategies={}).strategy_of("rbm1") == plain


def test_from_a_saved_model_only_the_last_phase_is_trained():
    model = DBN(inputs=4, hidden=(3, 2), classes=2, fine_tuning=FineTuning(epochs=1.0))
    job = Job(model=model, start="model")
    plan = job.plan()
    assert {phase.config.name for phase in plan.phases} == {"fine-tune"}


@pytest.mark.parametrize(
    ("model", "is_clamped"),
    [
        (LOGISTIC, True),
        (module(optimizer="sgd"), True),
        (module(optimizer="adamw"), False),
        (module(optimizer="Adam"), False),
    ],
)
def test_the_gain_guard_sees_the_inner_optimizer(model, is_clamped):
    strong = averaging(every=Steps(10), outer=Nesterov(lr=0.7, momentum=0.9))
    job = Job(model=model, strategy=strong, workers=4, data=Source(name="given"))
    plan = job.plan()
    _, warnings = plan.phases[-1].settled(50_000, 4, (0.0, 1.0))
    assert bool(warnings) == is_clamped


def test_a_quorum_above_the_workers_is_refused_before_anything_starts():
    with pytest.raises(
        UsageError, match="a quorum of 5 is more than there are workers; got 4 workers"
    ):
        Job(model=LOGISTIC, strategy=averaging(quorum=5), workers=4)


def test_a_gain_above_a_share_is_lowered_where_nobody_waits():
    job = Job(model=LOGISTIC, strategy=downpour(outer=Sgd(3.0)), workers=4)
    rest = job.plan().phases[-1]
    settled, (warning,) = rest.settled(1000, 4, (0.0, 1.0))
    assert settled.outer == Sgd(1.0)
    assert "above 1/K for each push" in warning


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"strategy": 5}, r"strategy of Job must be averaging\(\) or another"),
        ({"strategy": "averaging"}, r"not its name; got 'averaging'; strategy=photinus.averaging"),
        ({"strategy": "averagin"}, "unknown strategy; got 'averagin'; did you mean 'averaging'"),
        ({"modell": 1}, "unknown setting of Job; got 'modell'; did you mean 'model'"),
        ({"strategies": {"rbm1": "averaging"}}, "strategies of Job must be a strategy for each"),
        ({"data": "mnist"}, "data of Job must be a Source; got 'mnist'"),
    ],
)
def test_a_field_of_another_kind_is_named(fields, said):
    with pytest.raises(UsageError, match=said):
        Job(**fields)


MODULE = ModuleConfig(module="torch.nn:Linear")
LOW = ModuleConfig(module="torch.nn:Linear", precision="bfloat16", device="opencl")
LOGISTIC = LogisticConfig(features=2, classes=2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": "gpu"}, "device of Job must be auto, cpu, cuda, .*; got 'gpu'"),
        ({"model": MODULE, "device": ("cuda", "cpu")}, "one for each; got 2 names for 4 workers"),
        (
            {"model": LOGISTIC, "device": "cuda"},
            "a LogisticConfig is trained on the processor only; got device 'cuda'",
        ),
        ({"device": ("cuda", "gpu", "cpu", "cpu")}, "device of Job must be"),
        ({"model": ModuleConfig(module="m:f", device="gpu")}, "device of the model must be"),
        ({"model": DBN(fine_tuning=FineTuning(device="gpu"))}, "device of the model must be"),
        (
            {"model": LOGISTIC, "device": "opencl"},
            "a LogisticConfig is trained on the processor only",
        ),
        ({"model": LOW, "device": "opencl:0:0"}, "OpenCL devices compute in float32; got bfloat16"),
        ({"resources": {"gpu": 1.5}}, "resources of Job must be a share"),
        ({"resources": {"gpu": 0}}, "resources of Job must be a share"),
        ({"resources": {"gpu": 1}, "engine": "local"}, "Spark gives resources; got engine 'local'"),
    ],
)
def test_a_wrong_device_or_resource_is_refused(fields, said):
    with pytest.raises(UsageError, match=said):
        Job(**fields)


def test_devices_and_resources_survive_toml_and_reach_the_workers():
    job = Job(model=MODULE, workers=2, device=["cuda:1", "cpu"], resources={"gpu": 0.25})
    assert Job.from_dict(job.to_dict()) == job
    plan = job.plan()
    assert [plan.device(0, slot) for slot in range(2)] == ["cuda:1", "cpu"]
    assert plan.resources == {"gpu": 0.25}
    assert Job(workers=2, device="auto").plan().device(0, 1) == "auto"


@pytest.mark.parametrize("device", ["opencl", ("cpu", "opencl:0:1", "cpu", "cpu")])
def test_on_an_opencl_device_auto_precision_is_float32(device):
    model = ModuleConfig(module="torch.nn:Linear", precision="auto")
    assert Job(model=model, device=device).resolved().model.precision == "float32"
    dbn = DBN(inputs=4, hidden=(3,), classes=2)
    tuned = DBN(inputs=4, hidden=(3,), classes=2, fine_tuning=FineTuning(device="opencl"))
    for job in (Job(model=dbn, device=device), Job(model=tuned)):
        assert job.resolved().model.precision in ("mkl", "onednn")


def test_a_belief_network_names_a_device_for_its_layers_and_one_for_the_whole():
    model = DBN(inputs=4, hidden=(3, 2), classes=2, fine_tuning=FineTuning(device="cuda"))
    job = Job(model=model, workers=2, device=["opencl", "cpu"])
    assert Job.from_dict(job.to_dict()) == job
    plan = job.plan()
    devices = {
        phase.config.name: [plan.device(number, slot) for slot in range(2)]
        for number, phase in enumerate(plan.phases)
    }
    layers, whole = ["opencl", "cpu"], ["cuda", "cuda"]
    assert devices == {"rbm1": layers, "rbm2": layers, "fine-tune": whole}
