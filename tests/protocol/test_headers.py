"""What a peer says in a header is looked at before anybody reads it."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photinus.core.errors import FrameError
from photinus.protocol.headers import ARRAYS, FIELDS, NEEDED, NUMBERS, checked
from photinus.transport.frames import KINDS, Decoder, Frame, encode_frame

SOUND = {
    **{"version": 3, "position": 8, "attempt": "a", "hello": 1, "rows": 5, "has": 0, "budget": 9},
    **{"progress": 0.5, "span": [0.0, 1.0], "sends_inner": True},
    **{"is_fresh": False, "is_idle": False, "is_unfinished": False},
    "is_behind": False,
    **{"shard": {"vector": ["float32", [4, 2]]}, "history": [3], "name": "vector"},
    **{"start": -1, "kinds": {}, "is_last": False, "call": True, "edition": 2},
    **{"peers": [[0, 1, "host:7"]], "slots": [0, 1], "parts": [], "wholes": [1], "near": []},
}
"""A header that holds what any kind must have."""


def frame_of(kind, **changes):
    arrays = {name: np.ones(2) for name in ("vector", "floats", "integers", "squares")}
    header = {**SOUND, **changes}
    present = {name: value for name, value in header.items() if value is not ...}
    return Frame(kind, slot=7, header=present, arrays=arrays)


def test_a_whole_header_passes_as_every_kind():
    for kind in KINDS:
        [read] = Decoder().feed(b"".join(encode_frame(frame_of(kind))))
        assert checked(read) is read


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, names in NEEDED.items() for name in names]
)
def test_what_a_kind_must_have_is_missed_by_name(kind, name):
    with pytest.raises(FrameError, match=rf"a {kind} must hold .*none of {name} from worker 7"):
        checked(frame_of(kind, **{name: ...}))


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, names in ARRAYS.items() for name in names]
)
def test_an_array_that_a_kind_must_have_is_missed_by_name(kind, name):
    frame = frame_of(kind)
    del frame.arrays[name]
    with pytest.raises(FrameError, match=rf"a {kind} must hold .*none of {name} from worker 7"):
        checked(frame)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", ["norm", "part", "whole", "fetch", "heal"])
def test_an_array_of_one_number_that_is_empty_is_refused_by_name(kind, name):
    frame = frame_of(kind)
    frame.arrays[name] = np.empty(0, np.int64)
    with pytest.raises(FrameError, match=f"a {kind} of worker 7 must hold a number in {name}; got"):
        checked(frame)


def test_a_member_that_owns_no_numbers_may_send_empty_arrays():
    for kind in ("part", "whole", "state"):
        frame = frame_of(kind)
        frame.arrays.update({name: np.empty(0) for name in ("vector", "floats", "integers")})
        assert checked(frame) is frame


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("metrics", value) for value in ({"loss": 10**400}, {"loss": -(10**400)})),
        ("seconds", 10**400),
        *(("version", value) for value in (1.5, "3", None, True, -2, 2**63, [3])),
        *(("seconds", value) for value in (math.nan, math.inf, -0.5, "1", None, False)),
        *(("progress", value) for value in (math.nan, -math.inf)),
        *(("attempt", value) for value in (3, None, ["a"])),
        *(("stop", value) for value in (1, "yes", None)),
        *(("fragment", value) for value in ([3, 2], [-1, 2], [1], [1, 2, 3], "12", [0, 1.5])),
        *(("codec", value) for value in ("fp64", 3, None, [], {})),
        *(("slots", value) for value in (3, "01", [0, "1"], {"0": 1})),
        *(("metrics", value) for value in ([1.0], {"loss": "low"}, {"loss": None})),
        *(("sent", value) for value in ({"a": 3}, {"-1": 3}, {"1": 0.5})),
        *(("labels", value) for value in ({"cat": 1.5}, [3])),
        *(("kinds", value) for value in ({"a": ["f4"]}, {"a": ["f4", 3]}, {"a": 3}, [])),
        *(("peers", value) for value in ([[0, 1]], [[0, 1, 2]], [["0", 1, "a"]], [3])),
        *(("span", value) for value in ([0.0], [0.0, "1"], 1.0)),
    ],
)
def test_a_field_of_another_kind_is_refused_by_name(name, value):
    with pytest.raises(FrameError, match=f"{name} in a push of worker 7 must be "):
        checked(frame_of("push", **{name: value}))


def test_a_loss_that_diverged_may_be_told():
    checked(frame_of("push", metrics={"loss": math.nan}, measured={"loss": math.inf}))


def test_a_field_is_no_array_and_an_array_no_field():
    hello, state = frame_of("hello", rows=...), frame_of("state", floats=[1.0])
    with pytest.raises(FrameError, match="none of rows from worker 7"):
        checked(dataclasses.replace(hello, arrays={**hello.arrays, "rows": np.ones(2)}))
    arrays = {name: array for name, array in state.arrays.items() if name != "floats"}
    with pytest.raises(FrameError, match="none of floats from worker 7"):
        checked(dataclasses.replace(state, arrays=arrays))


def test_what_nobody_reads_may_be_anything():
    checked(frame_of("push", of_a_newer_version=[None]))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(KINDS), st.sampled_from(sorted(FIELDS)), plain)
def test_nonsense_gives_frame_errors_only(kind, name, value):
    with contextlib.suppress(FrameError):
        checked(frame_of(kind, **{name: value}))
