"""One line of text for each event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from photinus.core import events as e
from photinus.report.formatting import count_text, number_text, seconds_text


def line_of(event: e.Event) -> str:
    """Returns an event in one line; nothing for those that only move numbers.

    Example:
        >>> line_of(e.WorkerLost(slot=3, lease=1, reason="no beat for 5 s"))
        'worker 3 is lost: no beat for 5 s'
    """
    formatter = _FORMATTERS.get(type(event))
    return formatter(event) if formatter else ""


def virtual_line_of(event: e.Event) -> str:
    """Returns an event of a simulated run in one line: a phase took virtual time.

    The phase's speed is left out: the other times shown are those of this machine's clock.

    Example:
        >>> ended = e.PhaseEnded(phase=0, name="rbm", examples=600, seconds=2.0, metrics={})
        >>> virtual_line_of(ended)
        'rbm: done in 2.0 s of virtual time'
    """
    if not isinstance(event, e.PhaseEnded):
        return line_of(event)
    outcome = f"{event.name}: done in {seconds_text(event.seconds)} of virtual time"
    return "  ".join(part for part in (outcome, metrics_text(event.metrics)) if part)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Returns metrics as `loss 0.123  error 0.0108`."""
    return "  ".join(f"{name} {number_text(value)}" for name, value in metrics.items())


def confusion_table(confusion: Sequence[Sequence[int]]) -> str:
    """Returns a confusion matrix as text: rows are true classes, columns predicted ones.

    Example:
        >>> print(confusion_table([[3, 0], [1, 2]]))
        true  0 1
           0  3 ·
           1  1 2
    """
    width = max(len(str(n)) for row in (*confusion, range(len(confusion))) for n in row) + 1
    head = "true " + "".join(f"{c:>{width}}" for c in range(len(confusion)))
    body = [
        f"{c:>4} " + "".join(f"{n or '·':>{width}}" for n in row) for c, row in enumerate(confusion)
    ]
    return "\n".join([head, *body])


def labels_table(labels: Sequence[Sequence[int]]) -> str:
    """Returns as text how often each label was predicted rightly or wrongly, or left out.

    Example:
        >>> print(labels_table([[3, 0, 1, 6]]))
        label  true positives  false positives  false negatives  true negatives
            0               3                0                1               6
    """
    heads = ("true positives", "false positives", "false negatives", "true negatives")
    body = [
        f"{label:>5}" + "".join(f"  {n:>{len(head)}}" for head, n in zip(heads, row, strict=True))
        for label, row in enumerate(labels)
    ]
    return "\n".join(["  ".join(("label", *heads)), *body])


def interval_text(event: e.Evaluated) -> str:
    """Returns the 95 % interval of a measured error, nothing when it has none."""
    match event.extra.get("interval"):
        case [float() | int() as low, float() | int() as high]:
            return f"95 %: {low:.2%} to {high:.2%}"
    return ""


def workers_text(count: int) -> str:
    """Returns how many workers there are."""
    return "1 worker" if count == 1 else f"{count} workers"


def _run_started(event: e.RunStarted) -> str:
    resumed = f", resumed from {event.resumed_from}" if event.resumed_from else ""
    term = f", term {event.term}" if event.term > 1 else ""
    return f"{event.run}: {workers_text(event.workers)}, engine {event.engine}{term}{resumed}"


def _phase_started(event: e.PhaseStarted) -> str:
    batch = f", {event.batch_size} a step" if event.batch_size else ""
    return (
        f"{event.name}: {count_text(event.budget)} examples{batch}, "
        f"{count_text(event.parameters)} parameters, {event.strategy}"
    )


def _phase_ended(event: e.PhaseEnded) -> str:
    speed = event.examples / event.seconds if event.seconds else 0.0
    return (
        f"{event.name}: done in {seconds_text(event.seconds)}, "
        f"{count_text(speed)} examples/s  {metrics_text(event.metrics)}"
    )


def _evaluated(event: e.Evaluated) -> str:
    interval = f"  ({interval_text(event)})" if interval_text(event) else ""
    best = ", the best so far" if event.extra.get("best") else ""
    counted = f"{count_text(event.examples)} examples"
    return f"{event.name}: {metrics_text(event.metrics)}{interval}, {counted}{best}"


def _worker_joined(event: e.WorkerJoined) -> str:
    lease = f", lease {event.lease}" if event.lease > 1 else ""
    where = f" on {event.host}" if event.host else ""
    device = f", {event.device}" if event.device not in ("", "cpu") else ""
    return f"worker {event.slot}{where}: {count_text(event.examples)} rows{lease}{device}"


def _worker_lost(event: e.WorkerLost) -> str:
    return f"worker {event.slot} is lost: {event.reason}"


def _checkpoint_failed(event: e.CheckpointFailed) -> str:
    return f"checkpoint {event.name} failed: {event.reason}; training continues"


def _warned(event: e.Warned) -> str:
    return event.text


def _run_ended(event: e.RunEnded) -> str:
    reason = f": {event.reason}" if event.reason else ""
    return f"{event.state} after {seconds_text(event.seconds)}{reason}"


_FORMATTERS: dict[type[e.Event], Callable[..., str]] = {
    e.RunStarted: _run_started,
    e.PhaseStarted: _phase_started,
    e.PhaseEnded: _phase_ended,
    e.Evaluated: _evaluated,
    e.WorkerJoined: _worker_joined,
    e.WorkerLost: _worker_lost,
    e.CheckpointFailed: _checkpoint_failed,
    e.Warned: _warned,
    e.RunEnded: _run_ended,
}
