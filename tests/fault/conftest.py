"""A real HDFS and YARN of separate processes, and what runs in its containers; a small disk."""

import os
import select
import shutil
import subprocess
import time

import pytest

DISK_BYTES = 16 << 20


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "photinus", place]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(f"no disk can be mounted: {completed.stderr.strip()[-80:]}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def quick_java(monkeypatch):
    """For a Spark that lives for seconds: Java's second compiler takes more than it gains."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture
def assert_ended():
    """Waits for the ends of processes that are not our children."""

    def wait(pids, most_seconds):
        deadline = time.monotonic() + most_seconds
        for pid in pids:
            try:
                end = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                left = max(0.0, deadline - time.monotonic())
                assert select.select([end], [], [], left)[0], f"{pid} lives after {most_seconds} s"
            finally:
                os.close(end)

    return wait
