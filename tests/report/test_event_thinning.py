from photinus.core.events import PhaseEnded, RoundClosed, RunEnded
from photinus.report.event_thinning import ThinnedEvents
from photinus.report.summary import Summary


def round_closed(version, **fields):
    defaults = {"phase": 0, "slots": (version % 2,), "examples": 8 * version, "progress": 0.5}
    return RoundClosed(version=version, seconds=0.1, **defaults | fields)


def test_few_rounds_pass_as_they_are():
    written, at = [], iter(range(100))
    thinned = ThinnedEvents(written.append, every_seconds=1.0, now=lambda: next(at))
    rounds = [round_closed(1), round_closed(2), round_closed(3)]
    for event in rounds:
        thinned.write(event)
    assert written == rounds


def test_quick_rounds_are_joined_without_losing_a_byte():
    written = []
    thinned = ThinnedEvents(written.append, now=lambda: 0.0)
    for version in range(1, 101):
        thinned.write(
            round_closed(version, bytes_up=10, bytes_down=3, metrics={"loss": float(version)})
        )
    thinned.write(PhaseEnded(phase=0, name="a", examples=800, seconds=1.0))
    assert [type(e).__name__ for e in written] == ["RoundClosed", "RoundClosed", "PhaseEnded"]
    last = written[1]
    assert (last.version, last.examples, last.rounds) == (100, 800, 99)
    assert (last.bytes_up, last.bytes_down) == (990, 297)
    assert last.slots == (0, 1)
    assert last.metrics == {"loss": sum(range(2, 101)) / 99}


def test_a_summary_of_joined_rounds_is_the_summary_of_all():
    plain, thin = Summary(), Summary()
    thinned = ThinnedEvents(lambda event: thin.add(0.0, event), now=lambda: 0.0)
    events = [round_closed(v, bytes_up=7) for v in range(1, 20)] + [
        RunEnded(state="done", seconds=1.0)
    ]
    for event in events:
        plain.add(0.0, event)
        thinned.write(event)
    for name in ("rounds", "bytes_up", "examples", "mean_round_seconds"):
        assert abs(getattr(plain.phases[0], name) - getattr(thin.phases[0], name)) < 1e-9


def test_a_metric_that_only_some_rounds_tell_is_not_thinned_out():
    written = []
    thinned = ThinnedEvents(written.append, now=lambda: 0.0)
    for metrics in ({}, {"loss": 1.0}, {"loss": 3.0, "error": 0.5}, {}):
        thinned.write(round_closed(1, metrics=metrics))
    thinned.flush()
    thinned.flush()
    assert written[1].metrics == {"error": 0.5, "loss": 2.0}
    assert len(written) == 2
