"""A job: all settings of a training run, convertible to TOML and back."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from photinus.checkpoint.files import is_plain
from photinus.core.clock import Steps
from photinus.core.errors import UsageError, reason_of, user_message
from photinus.core.parameters import Layout
from photinus.core.settings import (
    Limit,
    above,
    at_least,
    between,
    from_dict,
    named_settings,
    one_of,
    paths_to,
    to_dict,
    unknown_name,
    validate,
    whole,
)
from photinus.core.threads import limit_threads
from photinus.data.columns import InputSpec
from photinus.devices.names import DEVICES, OPENCL, is_device, kind_of
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import BACKENDS, SOCKETS
from photinus.engine.cpu_share import check_share, share_report_lines
from photinus.engine.seat_sharing import PRIORITY, WEIGHT, Urgency
from photinus.models.base import ModelConfig
from photinus.models.dbn import DBN
from photinus.models.logistic import LogisticConfig
from photinus.models.low_precision import LOW_PRECISION_DTYPES
from photinus.models.module import ModuleConfig
from photinus.models.schedules import zero_rates
from photinus.strategies.base import AT_EVERY_STEP, PARAMETERS
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.outer import Sgd
from photinus.strategies.phase_defaults import AUTO
from photinus.strategies.recipes import averaging, from_plain, to_plain
from photinus.strategies.spec import StrategySpec
from photinus.training.plan import (
    FASTEST,
    LEASE_SECONDS,
    ROWS,
    TrainingPlan,
    WorkerLimits,
    phases_of,
)

ENGINES = ("spark", "local", "simulate")
MODELS: dict[str, type] = {
    "dbn": DBN,
    "module": ModuleConfig,
    "logistic": LogisticConfig,
    "word2vec": Word2VecConfig,
}
"""Kinds of models by name."""

_FOLDER_LEASE_SECONDS = 60.0
"""Files may come late all at once: a file system has pauses that a network has not."""


@named_settings
@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the rows come from."""

    name: str = "mnist"
    """mnist, cifar10, films, images, parquet, or given: the caller hands over the rows."""
    path: str = ""
    """A file or folder; for mnist a folder of one's own instead of a download, for films the
    archive, for cifar10 the folder with its files, which may be one of HDFS; for images a folder
    with one folder for each class, or with tar files of NAME.jpg and NAME.cls."""
    test: str = ""
    """Likewise, of rows that are only measured on."""
    features: tuple[str, ...] = ("features",)
    """Columns: one of vectors, arrays, bytes or images, or several of numbers."""
    label: str | tuple[str, ...] = "label"
    """A column of numbers, or several: [B, L]; "" for none."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Where the module takes several inputs, or integers: parameter of `forward` -> column, or
    several columns of numbers that are stacked. `features` are then not read."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """Input -> "package.module:function" of a list of the column's values, which makes arrays of
    them; or "image", which decodes JPEG and PNG; or a pre-trained tokenizer's folder or package."""
    collate: str = ""
    """"package.module:function" of a list of rows, dicts by input: makes a batch in padding's
    place."""
    validation: str = ""
    """On Spark, a column of truth values: these rows are only measured on; "" for none."""
    weight: str = ""
    """A column of numbers: how much each row counts in the loss; "" for none."""
    scale: float | None = None
    """Features are taken as float32(features) · scale."""
    classes: int | None = None
    """Labels must be 0..classes-1."""
    side: int = 224
    """Of images: the shorter side is brought to it, and the middle square is kept."""
    most_corrupt: float = 0.0
    """Of images: the share that may be damaged; a warning counts them, and they are left out."""
    LIMITS = {  # noqa: RUF012
        "name": one_of("mnist", "cifar10", "films", "images", "parquet", "given"),
        "label": Limit(
            "a column's name, or a list of names",
            lambda v: isinstance(v, str) or all(isinstance(name, str) for name in v),
        ),
        "scale": Limit.optional(at_least(0)),
        "classes": Limit.optional(whole(1)),
        "side": whole(1),
        "most_corrupt": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.name in ("parquet", "images") and not self.path:
            wrong = f"a source of {self.name} needs a path"
            raise UsageError(wrong, got="none", do='path = "..."')
        if self.name == "parquet" and not (self.features or self.inputs):
            wrong, do = "a source needs a column of features", 'features = ["NAME"], or inputs'
            raise UsageError(wrong, got="none", do=do)
        if self.inputs and self.scale is not None:
            do = "multiply in the module's forward"
            raise UsageError("scale is for one array of features, not for inputs", do=do)

    @property
    def named(self) -> InputSpec | None:
        """What `forward` takes by names; None where it takes one array of features.

        Raises:
            UsageError: there are encoders or a collate, and no inputs; or a name is no parameter's.
        """
        if not self.inputs and (self.encoders or self.collate):
            do = 'name them: inputs = {parameter = "column"}'
            raise UsageError("encoders and collate are for inputs, and there are none", do=do)
        if not self.inputs:
            return None
        return InputSpec(columns=self.inputs, encoders=self.encoders, collate=self.collate)

    @property
    def labels(self) -> str | list[str] | None:
        """The column of labels, or several; None for none."""
        return (self.label if isinstance(self.label, str) else list(self.label)) or None


def classes_of(model: Any) -> int | None:  # noqa: ANN401 - one of MODELS
    """Returns how many labels a model tells apart, 0..classes-1; None where that is not known."""
    is_classifier = isinstance(model, LogisticConfig) or (
        isinstance(model, DBN) and model.output == "classes" and model.fine_tuning.is_of_classes
    )
    return int(model.classes) if is_classifier else None


def _is_transport(transport: object) -> bool:
    is_named = transport in (SOCKETS, *BACKENDS)
    return isinstance(transport, str) and (
        is_named or transport.startswith("/") or "://" in transport
    )


def _check_named(model: object) -> None:
    """Refuses a torch module, or its class; the error says how to name it."""
    kind = model if isinstance(model, type) else type(model)
    if not issubclass(kind, nn.Module):
        return
    module, prefix = kind.__module__, ""
    if module.startswith("torch.nn.") and getattr(nn, kind.__name__, None) is kind:
        module = "torch.nn"
    name, arguments = kind.__name__, ", arguments={...}"
    if module == "__main__":
        module, prefix = "mynets", "put its class into a file that every worker can import: "
    if kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict):  # layers are no plain arguments
        module, name, arguments = "mynets", "make", ""
        prefix = "put a function that returns it into a file that every worker can import: "
    wrong = "model of Job must say how a module is made, since every worker makes its own"
    do = f'{prefix}ModuleConfig(module="{module}:{name}"{arguments})'
    raise UsageError(wrong, got=f"the torch module {kind.__name__}", do=do)


def _is_jobs_folder(value: object) -> bool:
    return isinstance(value, str) and (not value or value.startswith("/") or "://" in value)


def _is_amount(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and (0 < value <= 1 or value == value // 1 > 0)  # type: ignore[operator]


def _is_strategy(value: object) -> bool:
    return isinstance(value, (StrategySpec, CustomStrategy))


@named_settings
@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Model, data and strategy: all that decides what is trained, and how.

    Example:
        >>> job = Job(model=DBN(), workers=4)
        >>> Job.from_dict(job.to_dict()) == job
        True
    """

    model: Any = field(default_factory=DBN)
    """A DBN, a ModuleConfig, a LogisticConfig or a Word2VecConfig."""
    data: Source = field(default_factory=Source)
    """Where the rows come from, unless they are handed to `train`."""
    strategy: StrategySpec | CustomStrategy = field(default_factory=averaging)
    """How the workers agree, in every phase that has none of its own."""
    strategies: Mapping[str, StrategySpec | CustomStrategy] = field(default_factory=dict)
    """Phase name -> how its workers agree; "pretraining" stands for all layers of a DBN."""
    name: str = "job"
    """Begins the name of the run's folder."""
    workers: int = 4
    """How many train at the same time."""
    engine: str = "spark"
    """spark: tasks of Spark; local: processes of this machine; simulate: virtual time."""
    seed: int = 0
    """Decides first weights, order of rows and all chance."""
    threads: int = 1
    """Of each worker."""
    device: str | tuple[str, ...] = "cpu"
    """What the workers compute on: cpu, cuda, cuda:1, xpu, mps, opencl, opencl:PLATFORM:N, or auto,
    the fastest one that each has; or a list with a name for each worker."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What each worker gets of Spark's resources, as {"gpu": 1}; 0.25 is a quarter of one."""
    bandwidth: float | None = None
    """Bytes that each worker may send in a second, over all its connections; None for no cap."""
    cpu_share: float | None = None
    """Processors that each worker may use on average, 0.5 being half of one; None for no cap."""
    memory: int | None = None
    """Bytes that each worker's process may take, without files that it maps; None for no cap."""
    priority: int = 0
    """Among runs that want the same seats: the higher gets them first, and a run of a lower one
    gives seats up at the end of a round."""
    weight: float | None = None
    """Its part of the seats among runs of its priority that have one, too; None: it keeps all."""
    jobs_folder: str = ""
    """A folder through which runs of several applications exchange what they want; runs of one
    application need none."""
    deadline_seconds: float | None = None
    """How long after its start training must end. All phases are tried for some seconds; then the
    fewest workers that are fast enough train, `workers` at most. None: all of them train."""
    validation: float = 0.0
    """The share of the rows set aside, to measure on about once an epoch (`ModelConfig.trials`)."""
    patience: int = 0
    """So many measurements without a better one end a phase, at its best point; 0 for never."""
    checkpoint_seconds: float = 60.0
    """How often a checkpoint is saved."""
    lease_seconds: float | None = None
    """After so long without a sign of life a worker is lost; None: 5, or 60 by a folder."""
    security: str = "tls"
    """tls, or none: frames in clear, for a network that is trusted as a whole."""
    transport: str = SOCKETS
    """"sockets"; or a folder that all workers see, as /shared/folder or hdfs://host:port/folder:
    messages then pass as files in it, and no port is opened; or "torch", "nccl":
    all_reduce(owners=K) sums up through torch.distributed, by gloo or on GPUs by NCCL, in clear."""
    is_shared: bool = False
    """Workers share one copy of the rows, each taking others: local and simulated ones only."""
    shuffle: str | bool = AUTO
    """auto: where a DataFrame's partitions hold other labels each, or are far from equally large,
    Spark redistributes the rows once before training; False: they stay where they are."""
    share: str = ROWS
    """rows: every worker trains on its own rows, and all rows are used equally often; fastest: a
    faster worker does more, until the examples of the phase are used up."""
    start: str = ""
    """The folder of a run or of a saved model, or a safetensors file: only the last phase is
    trained, from there."""
    LIMITS = {  # noqa: RUF012
        "model": Limit(
            "a DBN, a ModuleConfig, a LogisticConfig or a Word2VecConfig",
            lambda m: type(m) in MODELS.values(),
        ),
        "data": Limit("a Source", lambda v: isinstance(v, Source)),
        "strategy": Limit(
            "averaging() or another recipe, or CustomStrategy('module:name')", _is_strategy
        ),
        "strategies": Limit(
            "a strategy for each phase",
            lambda v: isinstance(v, Mapping) and all(map(_is_strategy, v.values())),
        ),
        "name": Limit(
            "a plain name: 1 to 100 letters, digits, '.', '_' or '-', first a letter or a digit",
            is_plain,
        ),
        "workers": whole(1),
        "engine": one_of(*ENGINES),
        "seed": whole(0),
        **WorkerLimits.LIMITS,
        "device": DEVICES,
        "resources": Limit(
            'a share from above 0 to 1, or a whole number, for each name: {"gpu": 1}',
            lambda v: isinstance(v, Mapping) and all(map(_is_amount, v.values())),
        ),
        "priority": PRIORITY,
        "weight": WEIGHT,
        "jobs_folder": Limit("a folder by its whole path or address, or ''", _is_jobs_folder),
        "deadline_seconds": Limit.optional(above(0)),
        "validation": between(0, 0.9),
        "patience": whole(0),
        "checkpoint_seconds": at_least(0),
        "lease_seconds": Limit.optional(at_least(2)),  # a worker gives a sign of life every second
        "security": one_of("tls", "none"),
        "shuffle": Limit("'auto' or False", lambda v: v is False or v == AUTO),
        "share": one_of(ROWS, FASTEST),
        "transport": Limit(
            "sockets, torch, nccl, or a folder by its whole path or address", _is_transport
        ),
    }

    def __post_init__(self) -> None:
        _check_named(self.model)
        if isinstance(self.strategy, str):
            known = from_plain(self.strategy)  # an unknown one is named
            is_own = isinstance(known, CustomStrategy)
            made = f"CustomStrategy({self.strategy!r})" if is_own else f"{self.strategy}()"
            do = f"strategy=photinus.{made}"
            got = repr(self.strategy)
            raise UsageError(
                "strategy of Job must be what a recipe returns, not its name", got=got, do=do
            )
        validate(self)
        self._check_device()
        phase_names = {config.name for config in self._unmeasured_configs()}
        phase_names |= {"pretraining"} if isinstance(self.model, DBN) else set()
        if self.validation and self.data.validation:
            wrong = "rows are set aside by a share or by a column"
            got = f"validation={self.validation:g} and the column {self.data.validation!r}"
            raise UsageError(wrong, got=got, do="leave one of them out")
        if self.data.validation and self.engine != "spark":
            wrong = "a column that sets rows aside is read on Spark"
            raise UsageError(wrong, got=f"engine {self.engine!r}", do="set validation to a share")
        if self.patience and not (self.validation or self.data.validation):
            do = "set validation, e.g. to 0.1"
            raise UsageError(
                "patience needs rows set aside", got=f"patience={self.patience}", do=do
            )
        for name in self.strategies:
            if name not in phase_names:
                raise unknown_name("phase", name, phase_names)
        if self.bandwidth is not None and self.transport != SOCKETS:
            got = f"bandwidth={self.bandwidth:g} and transport {self.transport!r}"
            raise UsageError("bandwidth caps what goes over sockets", got=got, do="leave it out")
        check_share(self.cpu_share, self.threads)
        self._check_strategies()

    def _check_device(self) -> None:
        for phase_device in self._own_devices:
            if phase_device and not is_device(phase_device):
                raise UsageError(
                    "device of the model must be a device's name", got=repr(phase_device)
                )
        if not isinstance(self.device, str):
            object.__setattr__(self, "device", tuple(self.device))
        self._check_kinds()
        if not isinstance(self.device, str) and len(self.device) != self.workers:
            wrong = "device of Job must name one for all workers, or one for each"
            got = f"{len(self.device)} names for {self.workers} workers"
            raise UsageError(wrong, got=got, do='device="auto" lets each choose')
        if self.resources and self.engine != "spark":
            do = "leave resources out, and name the devices"
            raise UsageError("Spark gives resources", got=f"engine {self.engine!r}", do=do)

    def _check_kinds(self) -> None:
        kinds = self.device_kinds
        has_torch_steps = isinstance(self.model, (DBN, ModuleConfig, Word2VecConfig))
        if not has_torch_steps and not kinds <= {"cpu", AUTO}:
            wrong = f"a {type(self.model).__name__} is trained on the processor only"
            raise UsageError(wrong, got=f"device {self.device!r}", do='device="cpu"')
        if isinstance(self.model, Word2VecConfig) and OPENCL in kinds:
            do = 'device="cpu", or one of torch\'s, such as "cuda"'
            wrong = "word vectors are not trained on OpenCL devices"
            raise UsageError(wrong, got=f"device {self.device!r}", do=do)
        precision = getattr(self.model, "precision", "")
        if OPENCL in kinds and precision in LOW_PRECISION_DTYPES:
            do = 'precision="float32"'
            raise UsageError("OpenCL devices compute in float32", got=precision, do=do)

    @property
    def device_kinds(self) -> set[str]:
        """The kinds of the devices that it names, as "cuda" of "cuda:1"."""
        names = (self.device,) if isinstance(self.device, str) else self.device
        phase_names = (
            (phase_device,) if phase_device else names for phase_device in self._own_devices
        )
        return {kind_of(name) for names in phase_names for name in names}

    @property
    def _own_devices(self) -> tuple[str, ...]:
        """What the model's phases name; "" where they take the job's."""
        model = self.model
        if isinstance(model, DBN):
            return model.pretraining.device, model.fine_tuning.device
        return (getattr(model, "device", ""),)

    @property
    def _all_strategies(self) -> tuple[StrategySpec | CustomStrategy, ...]:
        return (self.strategy, *self.strategies.values())

    @property
    def _is_folder(self) -> bool:
        return self.transport not in (SOCKETS, *BACKENDS)

    def _check_strategies(self) -> None:
        for strategy in self._all_strategies:
            if isinstance(strategy, StrategySpec):
                strategy.check_workers(self.workers)
                self._check_table(strategy)
        if not self._takes_gradients:
            self._check_in_place()
        if self.transport in BACKENDS:
            self._check_torch()
        elif self._is_folder:
            self._check_folder()

    def _check_table(self, strategy: StrategySpec) -> None:
        """Refuses rows that the models do not name, or not for measurements."""
        if not strategy.is_sharded:
            return
        sizes = {config.row_size for config in self._unmeasured_configs()}
        if sizes != {strategy.rows}:
            wrong = "a sharded table needs a model that says which rows a batch reads"
            got = (
                f"rows={strategy.rows}, and rows of {sorted(sizes)} in {type(self.model).__name__}"
            )
            raise UsageError(wrong, got=got, do="use rows=0, or the model's own number")
        if not isinstance(self.model, ModuleConfig):
            strategy.check_no_dense_layers()
        has_validation = self.validation or self.data.validation
        if has_validation and not isinstance(self.model, ModuleConfig):
            wrong = "no worker holds the whole table, to measure on rows set aside"
            raise UsageError(wrong, got="validation", do="measure the trained model")

    @property
    def _takes_gradients(self) -> bool:
        return all(config.takes_gradients for config in self._unmeasured_configs())

    def _check_in_place(self) -> None:
        for strategy in self._all_strategies:
            is_start = getattr(strategy, "gradients_until", 0) not in (0, AUTO)
            if strategy.worker().site != PARAMETERS or is_start:
                kind = type(self.model).__name__
                wrong = f"a {kind} updates its tables in place: workers cannot agree on gradients"
                do = "name averaging, publish, or downpour of deltas"
                raise UsageError(wrong, got=str(strategy), do=do)

    def _check_torch(self) -> None:
        if self.security != "none":
            wrong = "torch.distributed neither encrypts nor authenticates"
            do = 'set security="none" if the whole network is trusted'
            raise UsageError(wrong, got=f"security {self.security!r}", do=do)
        for strategy in self._all_strategies:
            is_summed = isinstance(strategy, StrategySpec) and (
                (strategy.payload, strategy.codec) == ("gradient", "fp32")
                and strategy.owners == self.workers
                and not strategy.is_sharded
            )
            if not is_summed:
                fits = f"all_reduce(owners={self.workers}) in fp32, without sharded tables"
                wrong = f"transport {self.transport} is for {fits}"
                raise UsageError(wrong, got=str(strategy), do='use transport="sockets"')

    def _check_folder(self) -> None:
        for strategy in self._all_strategies:
            is_start = getattr(strategy, "gradients_until", 0) not in (0, AUTO)
            if strategy.worker().site in AT_EVERY_STEP or is_start:
                raise UsageError(
                    f"{strategy.recipe} agrees at every step, too often for a folder",
                    got=f"transport {self.transport!r}",
                    do="name another strategy, such as averaging",
                )

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for TOML and JSON; what is None is left out."""
        kind = next(name for name, cls in MODELS.items() if type(self.model) is cls)
        pairs = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        plain = {name: value for name, value in pairs if value is not None}
        return plain | {
            "model": {"kind": kind, **to_dict(self.model)},
            "data": to_dict(self.data),
            "strategy": to_plain(self.strategy),
            "strategies": {name: to_plain(a) for name, a in self.strategies.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """Builds a job from plain values.

        Raises:
            UsageError: a key or a name is unknown, or a limit does not hold.
        """
        if not isinstance(values, Mapping):
            raise UsageError("a job must be a table of settings", got=repr(values))
        # jobs and run folders of earlier versions call the transport road
        plain = {"transport" if key == "road" else key: value for key, value in values.items()}
        known = {f.name for f in dataclasses.fields(cls)}
        for key in plain:
            if key not in known:
                raise _unknown(key, known, plain.get("model"))
        if "model" in plain:
            plain["model"] = _model(plain["model"])
        if "data" in plain:
            plain["data"] = from_dict(Source, plain["data"])
        if "strategy" in plain:
            plain["strategy"] = from_plain(plain["strategy"])
        named = plain.get("strategies", {})
        if not isinstance(named, Mapping):
            raise UsageError("strategies of a job must be a table of phases", got=repr(named))
        plain["strategies"] = {name: from_plain(a) for name, a in named.items()}
        return cls(**plain)

    def _unmeasured_configs(self) -> tuple[ModelConfig, ...]:
        """The configs as they are asked for; nothing is measured to choose a precision."""
        if not isinstance(self.model, DBN):
            return (self.model,)
        precision = self.model.precision
        plain = "mkl" if precision in ("auto", "float32", "bfloat16") else precision
        return dataclasses.replace(self.model, precision=plain).configs()

    def resolved(self) -> Job:
        """Returns the job with what is measured on this machine decided: once, by the driver.

        Raises:
            UsageError: something cannot be measured.
        """
        if not isinstance(self.model, (DBN, ModuleConfig)):
            return self
        if OPENCL in self.device_kinds and self.model.precision == "auto":
            model = dataclasses.replace(self.model, precision="float32")
            return dataclasses.replace(self, model=model).resolved()
        if self.data.named is not None and not getattr(self.model, "example", True):
            _check_nothing_measured(self.model)
        with limit_threads(self.threads):  # measured as a worker computes
            return dataclasses.replace(self, model=self.model.resolved())

    def strategy_of(self, phase: str) -> StrategySpec | CustomStrategy:
        """Returns how the workers agree in a phase."""
        if phase in self.strategies:
            return self.strategies[phase]
        is_layer = isinstance(self.model, DBN) and phase.startswith("rbm")
        return self.strategies.get("pretraining", self.strategy) if is_layer else self.strategy

    def plan(self) -> TrainingPlan:
        """Returns what the workers run."""
        configs = self.resolved()._unmeasured_configs()
        phases = [
            phase
            for config in (configs[-1:] if self.start else configs)
            for phase in phases_of(config, self._strategy_over_transport(config.name), self.workers)
        ]
        return TrainingPlan(
            phases=tuple(phases),
            workers=self.workers,
            seed=self.seed,
            is_shared=self.is_shared,
            devices=(self.device,) if isinstance(self.device, str) else self.device,
            resources=self.resources,
            limits=WorkerLimits(
                threads=self.threads,
                bandwidth=self.bandwidth,
                cpu_share=self.cpu_share,
                memory=self.memory,
            ),
            lease_seconds=self.lease_seconds
            or (_FOLDER_LEASE_SECONDS if self._is_folder else LEASE_SECONDS),
            validation=self.validation,
            has_held=bool(self.data.validation),
            patience=self.patience,
            share=self.share,
            shuffle=bool(self.shuffle),
        )

    def _strategy_over_transport(self, phase: str) -> StrategySpec | CustomStrategy:
        """Returns how the workers agree in a phase, over the transport that they have."""
        strategy = self.strategy_of(phase)
        if self.workers == 1 and not self._takes_gradients:
            every = strategy.every if isinstance(strategy, StrategySpec) else Steps(50)
            return averaging(every=every, outer=Sgd(), codec="fp32", gradients_until=0.0)
        is_without = self._is_folder or not self._takes_gradients
        return (
            strategy.without_start
            if isinstance(strategy, StrategySpec) and is_without
            else strategy
        )

    @property
    def urgency(self) -> Urgency:
        """How it stands among other runs that want the same seats."""
        return Urgency(priority=self.priority, weight=self.weight, folder=self.jobs_folder)

    def warnings(self) -> list[str]:
        """Returns warnings for the user before training."""
        texts = self._folder_warnings() + zero_rates(self.model)
        if self.engine == "simulate" and not self.urgency.is_plain:
            wrong = "a simulated run stands among the runs of its SimulatedCluster alone"
            do = "name them there: SimulatedCluster(urgent=...)"
            texts.append(
                user_message(wrong, then="priority, weight and jobs_folder are ignored", do=do)
            )
        if self.memory is not None and self.engine == "simulate":
            wrong = "the simulator's workers are one process: their memory is not measured"
            texts.append(user_message(wrong, do='set engine="local", or leave memory out'))
        if self.cpu_share is not None and self.engine != "simulate":
            is_here = self.engine == "local"
            texts += share_report_lines(self.cpu_share, self.workers, is_here=is_here)
        has_free_rows = any(not strategy.is_deterministic for strategy in self._all_strategies)
        if self.share == FASTEST and self.workers > 1 and not has_free_rows:
            wrong = "share='fastest' has no effect where the steps of each round are set in advance"
            then = "all rows are used equally often"
            texts.append(
                user_message(
                    wrong, then=then, do="use downpour, or every=Seconds(2), or leave it out"
                )
            )
        return texts

    def table_warnings(self, layout: Layout) -> list[str]:
        """Returns why rows travel that did not change, where a model has sparse tables."""
        specs = [spec for spec in self._all_strategies if isinstance(spec, StrategySpec)]
        texts = [text for spec in specs if (text := spec.table_warning(layout))]
        if layout.sparse and self.transport in BACKENDS:
            wrong = (
                f"transport {self.transport} sums whole vectors: all rows of sparse tables travel"
            )
            texts.append(user_message(wrong, do='use transport="sockets"'))
        return texts

    def _folder_warnings(self) -> list[str]:
        recipes = [
            strategy.recipe
            for strategy in self._all_strategies
            if getattr(strategy, "gradients_until", 0) == AUTO
        ]
        if not self._is_folder or not recipes or self.workers == 1:
            return []
        wrong = "a folder is too slow for a start by gradients"
        then = f"{recipes[0]} has none, and in a short run the error is higher than one process's"
        return [user_message(wrong, then=then, do="use sockets, or train longer")]


def _check_nothing_measured(model: Any) -> None:  # noqa: ANN401 - one of MODELS
    """Refuses "auto" of a module of inputs without an example: random ones are unlike its rows."""
    wrong = "of a module that reads inputs, {} is not measured"
    if model.precision == "auto":
        do = 'set precision to "float32" or "bfloat16"'
        raise UsageError(wrong.format("precision"), got='"auto"', do=do)
    if model.memory == "auto":
        do = 'set it to "contiguous" or "channels_last"'
        raise UsageError(wrong.format("the memory format"), got='"auto"', do=do)


def _unknown(key: str, known: set[str], model: object) -> UsageError:
    """Returns the error of an unknown setting; one of the model or the data is named in full."""
    kind = model.get("kind", "dbn") if isinstance(model, Mapping) else "dbn"
    places = paths_to(key, MODELS.get(str(kind), DBN), "model.") + paths_to(key, Source, "data.")
    if not places:
        return unknown_name("setting of a job", key, known)
    do = f"did you mean {' or '.join(places)}?"
    return UsageError("unknown setting of a job", got=repr(key), do=do)


def _model(values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - one of MODELS
    if not isinstance(values, Mapping):
        return values
    plain = dict(values)
    kind = str(plain.pop("kind", "dbn"))
    if kind not in MODELS:
        raise unknown_name("kind of model", kind, MODELS)
    return from_dict(MODELS[kind], plain)


def read_job(path: Path | str) -> Job:
    """Reads a job from a TOML file.

    Args:
        path: of the file.

    Raises:
        UsageError: the file cannot be read, is no TOML, or holds a wrong setting.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the job {path} cannot be read", got=reason_of(error)) from error
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the job {path} is no TOML", got=str(error)) from error
    if not settings:
        raise UsageError(f"the job {path} holds no setting", do="write its [model] at least")
    return Job.from_dict(settings)
