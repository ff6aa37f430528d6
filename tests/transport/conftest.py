import threading
from collections import Counter

import pytest


class Ear:
    """Hears for a listener; `until` waits for what it says."""

    def __init__(self):
        self.frames, self.lost, self.reports = [], [], []
        self.changed = threading.Condition()

    def hear(self, peer, frame):
        with self.changed:
            self.frames.append((peer, frame))
            self.changed.notify_all()
        if frame.kind == "fetch":
            peer.send(frame)

    def gone(self, peer):
        with self.changed:
            self.lost.append(peer)
            self.changed.notify_all()

    def refuse(self, refused):
        with self.changed:
            self.reports.append(Counter(refused))
            self.changed.notify_all()

    def until(self, holds):
        with self.changed:
            assert self.changed.wait_for(holds, 10)


@pytest.fixture
def ear():
    return Ear()
