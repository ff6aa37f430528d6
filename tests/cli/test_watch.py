"""What stands around a run on the screen."""

import os
import stat
import subprocess
import sys

import pytest

from photinus.cli.watch import StoppedError, error_text, redirect_stderr, watched
from photinus.run.resume_hint import resume_hint, shortest


def test_an_error_comes_with_its_interval():
    assert error_text({"error": 0.0108}, (0.009, 0.013)) == "1.08%  (95 %: 0.90% to 1.30%)"
    assert error_text({"error": 0.5}, None) == "50.00%"
    assert error_text({"loss": 1.25}, None) == "loss 1.25"


def test_a_path_is_shown_as_it_would_be_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(shortest(tmp_path / "runs" / "one")) == os.path.join("runs", "one")
    assert shortest(tmp_path.parent / "other") == tmp_path.parent / "other"


def test_only_a_run_can_be_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resume_hint(tmp_path / "my run") == ""
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "job.json").touch()
    assert resume_hint(tmp_path / "my run").endswith("photinus train --resume 'my run'")


def test_a_stop_becomes_a_sentence(tmp_path):
    with pytest.raises(StoppedError, match="stopped"), watched(tmp_path / "run"):
        raise KeyboardInterrupt


def test_what_children_write_goes_to_the_file_and_comes_back_to_the_screen(tmp_path, capfd):
    say = [sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1])"]
    with redirect_stderr(tmp_path / "log"):
        subprocess.run([*say, "noise"], check=True)
    subprocess.run([*say, "word"], check=True)
    assert (tmp_path / "log").read_text() == "noise"
    assert capfd.readouterr().err == "word"


def test_a_file_that_cannot_be_written_keeps_nothing_from_the_screen(tmp_path, capfd):
    with redirect_stderr(tmp_path / "no" / "log"):
        os.write(2, b"word")
    assert capfd.readouterr().err == "word"


def test_with_debugging_nothing_is_kept_from_the_screen(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PHOTINUS_DEBUG", "1")
    with redirect_stderr(tmp_path / "log"):
        os.write(2, b"word")
    assert capfd.readouterr().err == "word"


def test_a_run_folder_that_is_made_here_is_for_its_owner_only(tmp_path):
    with watched(tmp_path / "runs" / "one"):
        pass
    for folder in (tmp_path / "runs" / "one", tmp_path / "runs" / "one" / "logs"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
