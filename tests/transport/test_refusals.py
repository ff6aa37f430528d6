"""Who is turned away is counted, and told of at most once in a while."""

from photinus.transport import refusals
from photinus.transport.refusals import Refusals, refused


def test_the_first_is_told_at_once_and_the_next_ones_once_a_minute(monkeypatch):
    reports, now = [], [1000.0]
    monkeypatch.setattr(refusals, "monotonic", lambda: now[0])
    turned_away = Refusals(reports.append)
    for seconds, reason in ((0, "foreign"), (30, "silent"), (29.9, "foreign"), (0.2, "run")):
        now[0] += seconds
        turned_away.add(reason)
    assert reports == [{"foreign": 1}, {"foreign": 2, "silent": 1, "run": 1}]


def test_nobody_need_be_told():
    turned_away = Refusals()
    reasons = ("foreign", "run", "silent", "frame", "full")
    for reason in reasons:
        turned_away.add(reason)
    assert turned_away.counts == dict.fromkeys(reasons, 1)
    words = "1 without a key of this run, 1 of another run, 1 silent, 1 damaged, 1 too many at once"
    assert f"turned away; got {words}; look" in refused(turned_away.counts)
