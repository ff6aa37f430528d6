"""A codec that costs more than it saves is told of, once."""

import dataclasses

import numpy as np
import pytest

from photinus.coordinator.advice import CodecAdvice, coding_seconds
from photinus.protocol.messages import Seat, message_to
from photinus.strategies.base import Message
from photinus.strategies.codecs import CODECS, encode
from photinus.strategies.sparse import to_sparse

COUNT = 1 << 18


def push(codec="int8", count=COUNT, phase=0):
    vector = np.random.default_rng(0).standard_normal(count, np.float32)
    encoded = encode(codec, vector)
    return message_to(
        Seat(bytes(16), 1, phase).frame("push"), Message("push", encoded, codec=codec)
    )


def ticking_clock(seconds):
    """A clock on which every look is so many seconds after the last one."""
    times = iter(range(10_000))
    return lambda: seconds * next(times)


def codec_warnings(advice, message, rate, times=6):
    return [text for _ in range(times) if (text := advice.codec_warning(message, rate))]


def test_where_coding_takes_longer_than_what_it_saves_it_is_told_once_a_phase():
    """262144 numbers of int8 save 785408 bytes: 1 ms at 785 MB/s, and coding takes 2."""
    advice = CodecAdvice(ticking_clock(2e-3))
    (text,) = codec_warnings(advice, push(), 785.4e6)
    assert text == (
        "codec int8 cannot pay on this link; got encoding and decoding takes 2 ms, "
        'it saves 1 ms at 785 MB/s; say codec="fp32"'
    )
    assert len(codec_warnings(advice, push(phase=1), 785.4e6)) == 1


def test_of_a_sparse_push_only_what_travels_is_saved():
    """Of 262144 numbers half are 0: 1.3 ms are saved at 300 MB/s, and all are coded."""
    vector = np.random.default_rng(0).standard_normal(COUNT, np.float32)
    vector[COUNT // 2 :] = 0
    message = to_sparse(Message("push", encode("int8", vector), codec="int8"))
    sparse = message_to(Seat(bytes(16)).frame("push"), message)
    assert codec_warnings(CodecAdvice(ticking_clock(2e-3)), push(), 300e6) == []
    [text] = codec_warnings(CodecAdvice(ticking_clock(2e-3)), sparse, 300e6)
    assert "takes 2 ms, it saves 1.3" in text


def test_where_it_saves_more_nothing_is_told():
    assert codec_warnings(CodecAdvice(ticking_clock(0.9e-3)), push(), 785.4e6) == []
    assert codec_warnings(CodecAdvice(), push("int4"), 1.25e6) == [], (
        "on 10 Mbit/s every codec pays"
    )


@pytest.mark.parametrize(
    ("message", "rate"), [(push("fp32"), 1e12), (push(count=999), 1e12), (push(), 0.0)]
)
def test_where_nothing_can_be_said_nothing_is(message, rate):
    assert codec_warnings(CodecAdvice(ticking_clock(1.0)), message, rate) == []


@pytest.mark.parametrize("codec", CODECS)
def test_coding_is_measured_on_a_sample_and_scaled(codec):
    assert coding_seconds(codec, 1 << 22, ticking_clock(0.25)) == pytest.approx(1.0)


def push_after_work(seconds, slot=1, phase=0, steps=5):
    message = push("fp32", phase=phase)
    header = {**message.header, "steps": steps, "compute_seconds": seconds}
    return dataclasses.replace(message, slot=slot, header=header)


def test_a_link_on_which_sending_takes_longer_than_the_work_is_told_once_a_phase():
    """1 MB takes 0.84 s at 10 Mbit/s, after work of 0.2 s."""
    advice = CodecAdvice()
    texts = [
        text for _ in range(9) if (text := advice.sending_advice(push_after_work(0.2), 1.25e6))
    ]
    assert texts == [
        "worker 1 sends for 81% of its time; got 1.05 MB at 1.25 MB/s after every 5 steps; "
        "agree less often, as averaging(every=Steps(84), gradients_until=0), or use a smaller codec"
    ]
    assert [
        bool(advice.sending_advice(push_after_work(0.2, phase=1), 1.25e6)) for _ in range(4)
    ] == [
        0,
        0,
        1,
        0,
    ]


def test_where_sending_is_quick_or_slow_now_and_then_nothing_is_told():
    advice = CodecAdvice()
    for seconds in (0.2, 0.2, 0.9) * 4:
        assert advice.sending_advice(push_after_work(seconds), 1.25e6) == ""
    for seconds, rate in ((0.0, 1.25e6), (0.2, 0.0)) * 4:
        assert advice.sending_advice(push_after_work(seconds), rate) == "", "nothing is known"
