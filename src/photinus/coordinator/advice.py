"""Advice: whether a codec pays, and whether workers agree too often for their links."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from photinus.core.errors import user_message
from photinus.protocol.messages import message_of
from photinus.strategies.codecs import decode, encode, numbers_in, size_bytes
from photinus.transport.frames import Frame

LEAST_BYTES = 64 << 10
"""The bytes of a vector below which it says nothing about a link's speed."""
_AFTER_PUSHES = 3
_WORK_PER_SENDING = 4
"""Sending may take a fifth of the time."""
_SAMPLE_SIZE = 1 << 20
"""How many numbers are encoded to measure the codec's speed."""


class CodecAdvice:
    """Checks each phase's codec, once its pushes have shown how fast the links are.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._push_counts: Counter[tuple[int, str]] = Counter()
        self._slow_push_counts: Counter[tuple[int, int]] = Counter()
        """Pushes of a phase and slot, one after the other, that took longer than the work."""
        self._advised_phase = -1
        """The last phase in which the user was advised to agree less often."""

    def codec_warning(self, push: Frame, bytes_per_second: float) -> str:
        """Returns a warning when the codec of a push costs more than it saves, or "".

        Args:
            push: with its vector.
            bytes_per_second: as they came in from that worker; 0 while that is not known.
        """
        encoded, codec = push.arrays.get("vector"), push.header.get("codec", "fp32")
        if codec == "fp32" or encoded is None or bytes_per_second <= 0:
            return ""
        key = push.phase, codec
        self._push_counts[key] += encoded.nbytes >= LEAST_BYTES
        if self._push_counts[key] != _AFTER_PUSHES:
            return ""
        self._push_counts[key] += 1  # never asked again
        vector = message_of(push).vector
        assert vector is not None
        count, sent_fraction = numbers_in(codec, vector), encoded.nbytes / vector.nbytes
        cost_seconds = coding_seconds(codec, count, self._clock)
        saved_seconds = sent_fraction * (4 * count - size_bytes(codec, count)) / bytes_per_second
        if cost_seconds <= saved_seconds:
            return ""
        return user_message(
            f"codec {codec} cannot pay on this link",
            got=f"encoding and decoding takes {1e3 * cost_seconds:.3g} ms, it saves"
            f" {1e3 * saved_seconds:.3g} ms at {bytes_per_second / 1e6:.3g} MB/s",
            do='say codec="fp32"',
        )

    def sending_advice(self, push: Frame, bytes_per_second: float) -> str:
        """Returns advice, once a phase, where sending takes longer than the work before it, or "".

        Args:
            push: with its vector, and the seconds that its steps took.
            bytes_per_second: as they came in from that worker; 0 while that is not known.
        """
        vector, compute_seconds = push.arrays.get("vector"), push.header.get("compute_seconds", 0.0)
        if vector is None or vector.nbytes < LEAST_BYTES or push.phase == self._advised_phase:
            return ""
        if bytes_per_second <= 0 or compute_seconds <= 0:  # not known yet
            return ""
        sending_seconds, key = vector.nbytes / bytes_per_second, (push.phase, push.slot)
        self._slow_push_counts[key] = (
            self._slow_push_counts[key] + 1 if sending_seconds > compute_seconds else 0
        )
        if self._slow_push_counts[key] < _AFTER_PUSHES:
            return ""
        self._advised_phase, steps = push.phase, max(1, push.header.get("steps", 0))
        enough_steps = math.ceil(steps * sending_seconds / compute_seconds * _WORK_PER_SENDING)
        return user_message(
            f"worker {push.slot} sends for"
            f" {sending_seconds / (sending_seconds + compute_seconds):.0%} of its time",
            got=f"{vector.nbytes / 1e6:.3g} MB at {bytes_per_second / 1e6:.3g} MB/s after every"
            f" {steps} steps",
            do=f"agree less often, as averaging(every=Steps({enough_steps}), gradients_until=0), or"
            " use a smaller codec",
        )


def coding_seconds(name: str, count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the seconds to encode and to decode `count` numbers, measured on a sample here."""
    sample = np.random.default_rng(0).standard_normal(min(count, _SAMPLE_SIZE), np.float32)
    best_seconds = float("inf")
    for _ in range(3):
        began = clock()
        decode(name, encode(name, sample))
        best_seconds = min(best_seconds, clock() - began)
    return best_seconds * count / sample.size
