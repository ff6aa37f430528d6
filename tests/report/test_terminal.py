from __future__ import annotations

import io
import re
import sys
import threading

import pytest
from rich.console import Console

from photinus.core import events as e
from photinus.report.terminal import Terminal


class Scene:
    """A terminal with a clock that the test turns."""

    def __init__(self, *, is_screen: bool, every_seconds: float = 10.0) -> None:
        self.at = 0.0
        self.out = io.StringIO()
        self.console = Console(
            file=self.out, force_terminal=is_screen, width=110, height=50, color_system=None,
            legacy_windows=False, _environ={},
        )  # fmt: skip
        self.terminal = Terminal(self.console, every_seconds, now=lambda: self.at)

    def play(self, timeline) -> str:
        for self.at, event in timeline:
            self.terminal.write(event)
        self.terminal.close()
        return self.out.getvalue()


def test_a_file_gets_plain_lines_and_no_escape_codes(timeline):
    lines = Scene(is_screen=False).play(timeline).splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "  0:01  mnist-dbn: 4 workers, engine spark"
    assert "  0:57  worker 2 is lost: no beat for 5 s" in lines
    assert "  1:07  worker 2 on node-0: 15,000 rows, lease 2" in lines
    assert lines[-2].startswith("  2:08  test: error 0.0114  (95 %: 0.95% to 1.37%), 10,000 ex")
    assert lines[-1] == "  2:08  done after 2 min 08 s"


def test_checkpoints_that_fail_alike_take_one_line_until_one_is_saved_or_the_reason_changes():
    full = [e.CheckpointFailed(name=n, reason=f"checkpoint {n}: no space left") for n in "123456"]
    other = e.CheckpointFailed(name="7", reason="Permission denied")
    saved = e.CheckpointSaved(name="8", phase=0, version=8, seconds=0.1, bytes=10)
    timeline = [full[0], full[1], saved, full[2], full[3], other, other, full[4], full[5]]
    text = Scene(is_screen=False).play(enumerate(timeline))
    assert re.findall(r"checkpoint (\d) failed:", text) == ["1", "3", "7", "5"]


@pytest.mark.parametrize("engine", ["simulate", "local"])
def test_the_seconds_of_a_simulated_phase_are_called_virtual(engine):
    started = e.RunStarted(run="r", term=1, workers=1, engine=engine, job={})
    ended = e.PhaseEnded(phase=0, name="p", examples=600, seconds=2.0, metrics={})
    text = Scene(is_screen=False).play([(0.0, started), (0.1, ended)])
    assert ("p: done in 2.0 s of virtual time" in text) == (engine == "simulate")
    assert ("300 examples/s" in text) == (engine == "local")


def test_progress_takes_a_line_about_every_so_many_seconds(timeline):
    lines = Scene(is_screen=False).play(timeline).splitlines()
    progress_lines = [line for line in lines if "left" in line and "epoch" in line]
    assert len(progress_lines) == 12
    assert re.fullmatch(
        "  0:13  rbm 784-500   25%  ·  epoch 3.8 of 15  ·  reconstruction 0.02[0-9]+  ·  "
        "22,500 examples/s  ·  round 6[0-9][0-9] ms  ·  189 MB  ·  30.0 s left",
        progress_lines[0],
    )
    frequent_lines = Scene(is_screen=False, every_seconds=1.0).play(timeline).splitlines()
    assert len(frequent_lines) > len(lines) + 60


def test_a_screen_shows_phase_loss_and_each_worker(timeline):
    until_lost = [pair for pair in timeline if pair[0] <= 60]
    text = Scene(is_screen=True).play(until_lost)
    last = text[text.rindex("rbm 500-500") :]
    for word in ("epoch", "reconstruction", "examples/s", "rounds of", "up,", "left", "node-1"):
        assert word in last
    assert "lost: no beat for 5 s" in last
    assert "━" in last


def test_a_screen_is_drawn_at_most_four_times_a_second(timeline):
    scene = Scene(is_screen=True)
    text = scene.play(timeline)
    assert text.count("rounds of") <= scene.at * 4 + 40


def test_the_last_state_stays_and_closing_twice_is_harmless():
    scene = Scene(is_screen=True)
    scene.terminal.write(e.RunStarted(run="r", term=2, engine="local", workers=3))
    scene.terminal.close()
    scene.terminal.close()
    assert "r  0 of 3 workers are here" in scene.out.getvalue()
    assert "engine local, term 2" in scene.out.getvalue()


@pytest.mark.parametrize("is_screen", [True, False])
def test_names_from_workers_neither_steer_the_screen_nor_are_read_as_markup(is_screen):
    scene = Scene(is_screen=is_screen)
    host = "[bold]a[/nope]\x1b]0;title\x07"
    text = scene.play([
        (0.0, e.PhaseStarted(phase=0, name=host, budget=1, parameters=1, strategy="s")),
        (1.0, e.WorkerJoined(slot=0, lease=1, host=host)),
        (2.0, e.WorkerLost(slot=0, lease=1, reason=host)),
        (3.0, e.Warned(text="two\nlines")),
    ])  # fmt: skip
    assert "[bold]a[/nope]" in text
    assert "\x1b]0" not in text
    assert "\x07" not in text
    assert "two lines" in text


def test_many_workers_leave_room_for_the_lost_ones():
    scene = Scene(is_screen=True)
    joined = [(0.0, e.WorkerJoined(slot=n, lease=1, host=f"h{n}")) for n in range(40)]
    started = (0.0, e.PhaseStarted(phase=0, name="p", budget=1, parameters=1, strategy="s"))
    lost = (1.0, e.WorkerLost(slot=39, lease=1, reason="gone"))
    text = scene.play([started, *joined, lost])
    last = text[text.rindex("rounds of") :]
    assert "lost: gone" in last
    assert "and 24 more" in last


def test_it_may_be_written_to_from_many_threads(timeline):
    scene = Scene(is_screen=True)
    reports = [event for _, event in timeline if isinstance(event, e.WorkerReport)]

    def work() -> None:
        for event in reports[:50]:
            scene.terminal.write(event)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scene.terminal.close()


@pytest.mark.parametrize("is_screen", [True, False])
def test_a_closed_pipe_silences_it_but_does_not_end_the_training(timeline, is_screen):
    class Pipe(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            Pipe.writes += 1
            if Pipe.writes > 20:
                raise BrokenPipeError
            return len(text)

    console = Console(file=Pipe(), force_terminal=is_screen, _environ={})
    console.on_broken_pipe = lambda: sys.exit(1)
    terminal = Terminal(console)
    for _, event in timeline:
        terminal.write(event)
    terminal.close()
