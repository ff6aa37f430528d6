"""Trains a job: run folder, journal, engine, checkpoints, saved model, test error, report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photinus.checkpoint.files import checked_name
from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.mirror import Mirror
from photinus.checkpoint.signatures import Trust
from photinus.coordinator.callbacks import log_warning
from photinus.coordinator.checkpoints import Checkpoints
from photinus.coordinator.phases import RunResult
from photinus.core.errors import PhotinusError, RunFailedError, UsageError, user_message
from photinus.core.events import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Event,
    Log,
    RunEnded,
    RunStarted,
    Warned,
)
from photinus.core.factories import check_importable
from photinus.core.parameters import Vector
from photinus.core.signals import interruptible, stopped_by
from photinus.core.threads import limit_threads
from photinus.data.base import Array
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import Engine, RunSpec
from photinus.models.dbn import DBN
from photinus.models.module import ModuleConfig
from photinus.models.schedules import check_rates
from photinus.report import page
from photinus.report.event_thinning import ThinnedEvents
from photinus.report.journal import Journal
from photinus.report.terminal import Terminal, is_watched
from photinus.run.batch_norm import with_rows_to_normalize
from photinus.run.data import (
    TestRows,
    check_columns,
    check_fit,
    check_test,
    limited,
    read_test,
    read_train,
    source_of_given,
    to_test_rows,
    to_train_rows,
    with_token_labels,
)
from photinus.run.deadline import WorkerChoice, choose_workers, read_once
from photinus.run.engines import checked_engine
from photinus.run.evaluate import (
    LazyModel,
    TrainedModel,
    first_parameters,
    measure_result,
    save_adapter,
    save_trained,
)
from photinus.run.job import Job, Source, classes_of
from photinus.run.ledger_writer import LedgerWriter
from photinus.run.module_check import MORE_CLASSES, MORE_OUTPUTS, classes_tried
from photinus.run.remote_resume import (
    Sender,
    folder_name,
    how_it_ended,
    placed,
    save_job,
    saved_job,
    send_all,
)
from photinus.run.resume_hint import resume_hint
from photinus.run.sharded import with_sharded_tables
from photinus.run.usual_settings import with_usual_passes, with_usual_rate
from photinus.training.plan import TrainingPlan
from photinus.training.snapshots import RunSnapshot

if TYPE_CHECKING:
    from torch import Tensor, nn


_Given = tuple[Any, TestRows | tuple[Array, Array] | None, Engine | None]
"""Rows to train on, rows to measure on, and the engine, where a caller names them."""
_NOTHING_GIVEN: _Given = (None, None, None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training run leaves."""

    folder: Path
    """Journal, ledger, checkpoints, model/ and report.html."""
    vector: Vector
    """The trained parameters of the last phase [n]."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """On the test rows, if there are any: error, loss."""
    interval: tuple[float, float] | None = None
    """The error's 95 % interval."""
    address: str = ""
    """Where the same is kept elsewhere, if it is."""
    trained: TrainedModel | None = field(default=None, repr=False)
    """The trained model as photinus computes with it."""

    @property
    def report(self) -> Path:
        """The page that shows the run."""
        return self.folder / "report.html"

    def model(self) -> nn.Module:
        """Returns the trained model as a plain torch module in evaluation mode."""
        assert self.trained is not None
        return self.trained.module()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers of `model()` by name."""
        return self.model().state_dict()


def train(
    job: Job,
    data: Any = None,  # noqa: ANN401 - whatever holds rows
    *,
    test: TestRows | tuple[Array, Array] | None = None,
    folder: Path | str | Mirror = "",
    callbacks: Sequence[Callable[[Event], None]] = (),
    verbose: bool | None = None,
    engine: Engine | None = None,
) -> Outcome:
    """Trains a job from its beginning.

    Args:
        job: what to train, and how.
        data: the rows: a Spark DataFrame; NumPy arrays or tensors, as `(features, labels)` or
            `features` alone; the path of Parquet files; a FrameData or an ArrayData. `job.data`
            defines which columns are read, and how features are scaled; other rows that it names
            are not read. Left out: what `job.data` names.
        test: rows to measure on, `(features, labels)` or a TestRows; left out, what `job.data`
            names where the rows are its own.
        folder: where the run is kept: a path, or an address such as hdfs://host:port/runs/first;
            left out, a new folder under `runs/`.
        callbacks: called with every event of `photinus.events`, one at a time, while it
            happens. One with `open(folder)` and `close()` also learns where the run is kept, and
            when it is over. What one raises ends the run.
        verbose: shows the training while it runs; left out, on a screen and in a notebook, and
            elsewhere warnings are logged. False shows nothing.
        engine: where to train, if not as in the job.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM stopped it; the message says how to continue.
        PhotinusError: its subclass shows what was wrong; the checkpoints stay.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> from photinus import LogisticConfig
        >>> rows = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
        >>> model = LogisticConfig(features=4, classes=2, epochs=9, batch_size=4)
        >>> job = Job(model=model, workers=2, engine="simulate")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     outcome = train(job, rows, test=rows, folder=f"{folder}/run")
        >>> outcome.metrics["error"], outcome.model()
        (0.0, Linear(in_features=4, out_features=2, bias=True))
    """
    if not isinstance(job, Job):
        do = "make one: Job(model=...), or read_job(path)"
        raise UsageError("what is trained must be a Job", got=type(job).__name__, do=do)
    if isinstance(data, (str, Path)):  # a resume then reads the same rows
        job = replace(job, data=replace(job.data, name="parquet", path=str(data)))
        data = None
    elif data is not None:  # a resume and `evaluate` read no others in their place
        job = replace(job, data=source_of_given(job.data))
    return train_lazy(
        LazyModel(job.resolved()),
        data,
        test,
        folder=folder,
        callbacks=callbacks,
        verbose=verbose,
        engine=engine,
    )


def train_lazy(
    draft: LazyModel,
    data: Any = None,  # noqa: ANN401 - as of `train`
    test: TestRows | tuple[Array, Array] | None = None,
    *,
    folder: Path | str | Mirror = "",
    callbacks: Sequence[Callable[[Event], None]] = (),
    verbose: bool | None = None,
    engine: Engine | None = None,
    is_kept: bool = True,
) -> Outcome:
    """Trains a job whose model may exist already; all else is as of `train`.

    Args:
        draft: the job, and its model.
        data: the rows.
        test: rows to measure on.
        folder: where the run is kept.
        callbacks: called with every event.
        verbose: as of `train`.
        engine: where to train.
        is_kept: the folder outlives the run, so that there is something to continue with.
    """
    is_unset = not getattr(draft.job.model, "has_own_rate", True)
    draft, batch_note = with_rows_to_normalize(with_sharded_tables(draft))
    draft, rate_note = with_usual_rate(with_usual_passes(draft), is_unset=is_unset)
    job = draft.job
    path, mirror = placed(folder or new_folder(job.name))
    if mirror is not None and mirror.holds_run():
        wrong, do = f"{mirror.address} holds a run already", "resume it, or name another folder"
        raise UsageError(wrong, do=do)
    RunFolder.check_new(path)
    make_hint = partial(_resume_hint, path, mirror, job) if is_kept else _no_resume_hint
    with (
        interruptible(signal.SIGTERM),
        _with_view(callbacks, verbose, make_hint) as all_callbacks,
        contextlib.ExitStack() as stack,
    ):
        prepared = _prepared(draft, (data, test, engine))  # nothing is made where this refuses
        choice = None
        if job.deadline_seconds is not None:
            prepared = replace(prepared, data=stack.enter_context(read_once(prepared.data)))
            choice = choose_workers(
                job, prepared.plan, prepared.data, prepared.engine, f"{path}-trial"
            )
            job = draft.job = replace(job, workers=choice.workers)
            prepared = replace(prepared, plan=replace(job.plan(), start=prepared.plan.start))
        run = secrets.token_bytes(16)
        run_folder = RunFolder(path)
        with run_folder.removed_unless_begun():
            save_job(run_folder, job, run)
            new_run = _Run(job, run_folder, run, all_callbacks, mirror)
        with new_run as active_run:
            active_run.draft, active_run.choice = draft, choice
            active_run.notes = (batch_note, rate_note)
            return active_run.train(prepared, snapshot=None)


def resume(
    folder: Path | str | Mirror,
    data: Any = None,  # noqa: ANN401 - as of `train`
    *,
    test: TestRows | tuple[Array, Array] | None = None,
    callbacks: Sequence[Callable[[Event], None]] = (),
    verbose: bool | None = None,
    engine: Engine | None = None,
    trust_code: Trust = False,
) -> Outcome:
    """Continues with a run from its newest whole checkpoint, or from its beginning without one.

    Args:
        folder: where the run is kept.
        data: the rows, where they are not the job's source.
        test: rows to measure on, likewise.
        callbacks: as of `train`.
        verbose: as of `train`.
        engine: where to train, if not as in the job.
        trust_code: run the code that the folder names, though no run of this user made it.

    Raises:
        UsageError: the folder holds no run, or comes from elsewhere and names code.
        PhotinusError: as `train` does.
    """
    given = data, test, engine
    return resume_run(folder, given, callbacks=callbacks, verbose=verbose, trust_code=trust_code)


def resume_run(
    folder: Path | str | Mirror,
    given: _Given = _NOTHING_GIVEN,
    *,
    callbacks: Sequence[Callable[[Event], None]] = (),
    verbose: bool | None = None,
    trust_code: Trust = False,
    note: str = "",
) -> Outcome:
    """Does what `resume` does, and enters the reason in the journal.

    Args:
        folder: where the run is kept.
        given: rows to train on, rows to measure on, and the engine.
        callbacks: as of `train`.
        verbose: as of `train`.
        trust_code: as of `resume`.
        note: a sentence for the journal.
    """
    path, mirror = placed(folder)
    if mirror is not None:
        mirror.fetch()
    job, run = saved_job(path, folder_name(path, mirror), trust_code)
    if how_it_ended(path)[0] == "done":
        raise UsageError(
            f"{folder_name(path, mirror)} is done: there is nothing to resume",
            do="start a new run; start = 'FOLDER/model' continues from its parameters",
        )
    run_folder = RunFolder(path, resume=True)
    make_hint = partial(_resume_hint, path, mirror, job)
    with (
        interruptible(signal.SIGTERM),
        _with_view(callbacks, verbose, make_hint) as all_callbacks,
        _Run(job, run_folder, run, all_callbacks, mirror) as active_run,
    ):
        active_run.notes = (note,)
        return active_run.train(None, snapshot=active_run.checkpoints.newest(), given=given)


def _resume_hint(path: Path, mirror: Mirror | None, job: Job) -> str:
    if not path.exists():  # stopped in a trial: nothing was made
        return ""
    return resume_hint(path, mirror, is_given=job.data.name == "given")


def _no_resume_hint() -> str:
    return "; nothing of the run is kept: with runDir there is something to continue with"


@contextlib.contextmanager
def _with_view(
    callbacks: Sequence[Callable[[Event], None]],
    verbose: bool | None,
    make_hint: Callable[[], str],
) -> Iterator[Sequence[Callable[[Event], None]]]:
    """Adds the view to the callbacks, and to a stop by the user how to continue."""
    if not isinstance(callbacks, (tuple, list)) or not all(map(callable, callbacks)):
        do = "e.g. callbacks=[print]"
        raise UsageError("callbacks must be a list of functions", got=repr(callbacks), do=do)
    view = Terminal() if (is_watched() if verbose is None else verbose) else None
    view_callback = log_warning if verbose is None else None
    view_callback = view_callback if view is None else view.write
    try:
        yield callbacks if view_callback is None else (*callbacks, view_callback)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"{stopped_by(error)}{make_hint()}") from None
    finally:
        if view is not None:
            view.close()


def new_folder(name: str) -> Path:
    """Returns the default folder of a new run of a job."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{checked_name(name, 'job')}-{stamp}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is trained, over which rows, and where: looked at before a run folder is made."""

    engine: Engine
    data: Any
    test: TestRows | None
    plan: TrainingPlan


def _prepared(draft: LazyModel, arguments: _Given, *, is_new: bool = True) -> _Prepared:
    """Refuses a job whose module, loss, path, columns or rows are wrong, before it trains."""
    job, (data, test, engine) = draft.job, arguments
    engine, plan = checked_engine(job, engine), job.plan()
    if engine.name == "local":
        check_importable(job.to_dict(), 'a job with engine="local"')
    configs = list({id(p.config): p.config for p in plan.phases}.values())
    for config in configs[1:]:  # what is misnamed there is met only after the first
        config.inner(config.build((), plan.seed).parameters.layout)
    if is_new:
        for config in configs:
            check_rates(config)
        plan = replace(plan, start=first_parameters(draft))
    return _Prepared(engine, *_checked(draft, data, test), plan)


def _checked(
    draft: LazyModel,
    data: Any,  # noqa: ANN401
    test: TestRows | tuple[Array, Array] | None,
) -> tuple[Any, TestRows | None]:
    """Returns the rows, which are the job's source's where none were handed over."""
    job, classes = draft.job, classes_of(draft.job.model)
    source = job.data.name if data is None and job.data == Source() else ""
    if data is None:
        data = read_train(job)
        test = read_test(with_token_labels(job.data, job.model)) if test is None else test
    data = limited(to_train_rows(data, job), classes, MORE_CLASSES)
    check_fit(job.model, data, source=source)
    check_columns(data)
    if isinstance(job.model, ModuleConfig):
        data = replace(data, checks=data.checks.under(job.model.loss))
    if (predicted_classes := classes_tried(draft, data)) is not None:
        classes, data = predicted_classes, limited(data, predicted_classes, MORE_OUTPUTS)
    test_rows: TestRows | None = to_test_rows(test, job)
    if test_rows is not None:
        check_test(test_rows, classes)
        check_fit(job.model, test_rows, like=data)
    return data, test_rows


class _Run:
    """One term of a run: its files are open, its events go to all callbacks."""

    def __init__(
        self,
        job: Job,
        run_folder: RunFolder,
        run: bytes,
        callbacks: Sequence[Callable[[Event], None]],
        mirror: Mirror | None,
    ) -> None:
        self.job, self.run_folder, self.run = job, run_folder, run
        self.callbacks, self.mirror = callbacks, mirror
        self._sender = None if mirror is None else Sender(mirror, self._warn)
        self.term = run_folder.claim_term({"run": run.hex(), "job": job.name})
        if mirror is not None:
            mirror.claim(self.term)
        self._journal = Journal(run_folder.events)
        self._ledger = LedgerWriter(run_folder.ledger, run)
        self._event_writer = ThinnedEvents(self._journal.write)
        self._fingerprint = _fingerprint(job)
        self.checkpoints = Checkpoints(
            run_folder.checkpoints,
            self._fingerprint,
            self.emit,
            step=self._check_term,
            saved=self._on_checkpoint,
        )
        self._began_at, self._lost_log_lines = time.monotonic(), 0
        self.notes: tuple[str, ...] = ()
        self.draft = LazyModel(job)
        self.choice: WorkerChoice | None = None
        """Of its workers, where it has a deadline."""

    def __enter__(self) -> _Run:
        try:
            for callback in self.callbacks:
                if hasattr(callback, "open"):
                    callback.open(self.run_folder.path)
        except BaseException as error:  # the run has begun: it ends as one that failed
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.checkpoints.close()
        finally:  # a second signal cuts the last checkpoint short, and is journaled all the same
            self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if error is not None:
            is_stop = isinstance(error, KeyboardInterrupt)
            reason = str(error) or ("Ctrl-C" if is_stop else type(error).__name__)
            self._emit_ended("stopped" if is_stop else "failed", {}, reason)
        self._ledger.close()
        self._journal.close()
        with contextlib.suppress(*((PhotinusError, OSError) if error is not None else ())):
            self.run_folder.report.touch(mode=0o600)
            page.save(self.run_folder.events, self.run_folder.report)
        for callback in self.callbacks:
            if hasattr(callback, "close"):
                callback.close()
        if self.mirror is not None:
            send_all(self.mirror, is_failed=error is not None)

    def _warn(self, text: str) -> None:
        self.emit(Warned(text=text))

    def _check_term(self, _: str) -> None:
        self.run_folder.check_term(self.term)

    def _on_checkpoint(self, outcome: CheckpointSaved | CheckpointFailed) -> None:
        """Called beside the training with each checkpoint; sends it to the mirror, too."""
        self.emit(outcome)
        if self._sender is not None:
            self._sender.send()

    def emit(self, event: Event) -> None:
        """Writes an event to the journal and calls all callbacks."""
        self._event_writer.write(event)
        if isinstance(event, Log):
            try:
                with self.run_folder.log(event.slot).open("a", encoding="utf-8") as file:
                    file.write(f"{event.level} {event.text}\n")
            except OSError:
                self._lost_log_lines += 1
        for callback in self.callbacks:
            callback(event)

    def train(
        self,
        prepared: _Prepared | None,
        snapshot: RunSnapshot | None,
        given: _Given = _NOTHING_GIVEN,
    ) -> Outcome:
        """Runs the engine, then saves and measures what was agreed.

        Args:
            prepared: what is trained; None of a run that continues, which notes its refusal.
            snapshot: where it continues.
            given: what `_prepared` takes.
        """
        engine = prepared.engine if prepared else checked_engine(self.job, given[2])
        self._emit_started(engine.name)
        for note in filter(None, self.notes):
            self.emit(Warned(text=note))
        if self.mirror is not None:
            self.mirror.push()  # from here on another machine can continue with the run
        prepared = prepared or _prepared(self.draft, (*given[:2], engine), is_new=snapshot is None)
        data, test, plan = prepared.data, prepared.test, prepared.plan
        warnings = self.job.warnings() + ([self.choice.reason] if self.choice else [])
        warnings += self.draft.advice or ()
        if isinstance(self.job.model, (ModuleConfig, Word2VecConfig)):
            warnings += self.job.table_warnings(self.draft.model().parameters.layout)
        for text in warnings:
            self.emit(Warned(text=text))
        result = engine.run(self._run_spec(plan, data, snapshot))
        self._check_applied(plan, snapshot)
        if self.choice is not None and (late_seconds := engine.clock() - self.choice.ends_at) > 0:
            wrong = (
                f"training ended {late_seconds:.1f} s after its deadline: slower than it was tried"
            )
            self.emit(Warned(text=user_message(wrong, do="leave more time, or raise its priority")))
        save_trained(self.draft, result, self.run_folder.model, data)
        save_adapter(self.draft, result, self.run_folder.path / "adapter")
        metrics, interval = self._measure(result, test)
        self._emit_ended("done", metrics)
        address = "" if self.mirror is None else self.mirror.address
        return Outcome(
            self.run_folder.path,
            result.vectors[-1],
            metrics,
            interval,
            address,
            self.draft.trained(result),
        )

    def _check_applied(self, plan: TrainingPlan, snapshot: RunSnapshot | None) -> None:
        """Refuses a result in which a phase has learnt nothing, since nothing was applied."""
        for number, phase in enumerate(plan.phases):
            begun = (-1, False) if snapshot is None else (snapshot.phase, snapshot.applied > 0)
            is_begun = begun >= (number, True)
            if (refused := self._ledger.refused(number)) and not is_begun:
                raise RunFailedError(
                    f"nothing was learnt in {phase.name}: no push was applied",
                    got=f"{refused} pushes refused or dropped",
                    do="look at the warnings above; lower the learning rate, or look at the rows",
                )

    def _run_spec(self, plan: TrainingPlan, data: Any, snapshot: RunSnapshot | None) -> RunSpec:  # noqa: ANN401
        return RunSpec(
            plan=plan,
            data=data,
            run=self.run,
            term=self.term,
            snapshot=snapshot,
            emit=self.emit,
            enter=self._ledger.enter,
            save=self.checkpoints.save,
            best=self.checkpoints.save_best,
            scratch=self.checkpoints.scratch,
            has_view=any(
                getattr(getattr(s, "__self__", None), "is_live", False) for s in self.callbacks
            ),
            checkpoint_seconds=self.job.checkpoint_seconds,
            security=self.job.security,
            transport=self.job.transport,
            urgency=self.job.urgency,
            folder=str(self.run_folder.path),
            fingerprint=self._fingerprint,
        )

    def _measure(
        self, result: RunResult, test: TestRows | None
    ) -> tuple[dict[str, float], tuple[float, float] | None]:
        if test is None:
            return {}, None
        with limit_threads(self.job.threads):
            metrics, extra = measure_result(self.draft, result, test)
        phase = len(result.vectors) - 1 if isinstance(self.job.model, DBN) else 0
        examples = len(test.features)
        self.emit(
            Evaluated(phase=phase, name="test", examples=examples, metrics=metrics, extra=extra)
        )
        interval = extra.get("interval")
        return metrics, None if interval is None else (interval[0], interval[1])

    def _emit_started(self, engine: str) -> None:
        self.emit(
            RunStarted(
                run=self.run_folder.path.name,
                term=self.term,
                engine=engine,
                workers=self.job.workers,
                job=self.job.to_dict(),
                versions=_versions(),
                resumed_from=self.checkpoints.found,
            )
        )

    def _emit_ended(self, state: str, metrics: Mapping[str, float], reason: str = "") -> None:
        if self._ledger.lost or self._journal.lost or self._lost_log_lines:
            missing = "lines of the journal, the ledger or the logs are missing"
            self.emit(Warned(text=f"the disk was full: {missing}"))
        seconds = time.monotonic() - self._began_at
        self.emit(
            RunEnded(
                state=state,
                seconds=seconds,
                metrics=metrics,
                reason=reason,
                counts=self._ledger.counts,
            )
        )


_LATER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "data": {
        **{"inputs": {}, "encoders": {}, "collate": "", "validation": "", "weight": ""},
        **{"side": 224, "most_corrupt": 0.0},
    },
    "model": {
        **{"metrics": [], "max_steps": 0, "accumulate": 1, "clip": 0.0},
        **{"frozen": [], "sharded": 0, "contexts_per_step": 0},
    },
}
"""Settings that older jobs did not have, and what they had done: an older run is the same job."""


def _fingerprint(job: Job) -> str:
    """What must be the same for a checkpoint to fit: all but where and how long it runs."""
    plain = Job.from_dict(job.to_dict()).to_dict()
    for part in ("pretraining", "fine_tuning", ""):
        settings = plain["model"].get(part, {}) if part else plain["model"]
        if "epochs" in settings:
            settings["epochs"] = float(settings["epochs"])  # 4 epochs are 4.0
    for name in (
        *("engine", "checkpoint_seconds", "security", "transport", "name", "device", "resources"),
        *("cpu_share", "memory", "priority", "weight", "jobs_folder"),
        *("deadline_seconds", "lease_seconds"),
    ):
        plain.pop(name, None)
    for part, defaults in _LATER_SETTINGS.items():
        plain[part] = {
            k: v for k, v in plain[part].items() if k not in defaults or v != defaults[k]
        }
    for name in ("device", "activation_memory", "activation_bytes", "cuda_graph"):  # same results
        plain["model"].pop(name, None)
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("photinus", "torch", "numpy", "pyspark"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
