from types import SimpleNamespace

from photinus.coordinator.worker_reports import WorkerReports
from photinus.transport.frames import Frame


def push(phase=0, slot=0, steps=2, examples=20):
    header = {"steps_since": steps, "examples_since": examples}
    header |= {"compute_seconds": 0.25, "wait_seconds": 0.5}
    return Frame("push", phase=phase, slot=slot, header=header)


def peer(received=0, sent=0):
    return SimpleNamespace(bytes_received=received, bytes_sent=sent)


def test_counts_are_since_the_phase_began():
    reports, link = WorkerReports(), peer(100, 50)
    reports.add_push(push(), link, 1.0)
    link.bytes_received, link.bytes_sent = 160, 90
    reports.add_push(push(), link, 2.0)
    [report] = reports.due(3.0)
    assert (report.steps, report.examples) == (4, 40)
    assert (report.compute_seconds, report.wait_seconds) == (0.5, 1.0)
    assert (report.bytes_sent, report.bytes_received) == (160, 90)
    assert report.examples_per_second == 20.0
    link.bytes_received = 170
    reports.add_push(push(phase=1), link, 4.0)
    [report] = reports.due(6.0)
    assert (report.phase, report.steps, report.bytes_sent) == (1, 2, 10)


def test_a_report_is_due_once_a_second_and_only_with_news():
    reports = WorkerReports()
    reports.add_push(push(), peer(), 0.0)
    assert reports.due(0.9) == []
    assert len(reports.due(1.0)) == 1
    assert reports.due(9.0) == []
    reports.add_push(push(examples=90), peer(), 10.0)
    [report] = reports.due(10.0)
    assert report.examples_per_second == 10.0, "over all the time since the last report"


def test_a_new_connection_adds_to_the_old_ones_bytes():
    reports = WorkerReports()
    reports.add_push(push(), peer(100, 10), 0.0)
    reports.add_push(push(), peer(7, 3), 1.0)
    [report] = reports.due(2.0)
    assert (report.bytes_sent, report.bytes_received) == (107, 13)


def test_slots_are_told_apart():
    reports = WorkerReports()
    reports.add_push(push(slot=4), peer(), 0.0)
    reports.add_push(push(slot=2, steps=1), peer(), 0.0)
    assert [(r.slot, r.steps) for r in reports.due(1.0)] == [(2, 1), (4, 2)]
