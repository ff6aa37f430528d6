import builtins
import contextlib
import dataclasses
import json
import os
import pickle  # noqa: TID251 - to throw at the decoder
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photinus.core.errors import FrameError
from photinus.transport import frames
from photinus.transport.frames import DTYPES, KINDS, Decoder, Frame, encode_frame

RUN = bytes(range(16))
HEAD = "<B16s5qIB"


def wire(frame, **options):
    return b"".join(encode_frame(frame, **options))


def assert_same(received, sent):
    for field in dataclasses.fields(Frame):
        a, b = getattr(received, field.name), getattr(sent, field.name)
        if field.name == "arrays":
            assert [(n, x.dtype, x.tobytes()) for n, x in a.items()] == [
                (n, x.dtype, x.tobytes()) for n, x in b.items()
            ]
        else:
            assert a == b, field.name


numbers = st.integers(0, 2**63 - 1)
vectors = st.builds(
    lambda dtype, n, seed: np.random.default_rng(seed).integers(0, 255, n).astype(dtype),
    st.sampled_from(DTYPES),
    st.sampled_from([0, 1, 2, 7, 300]),
    st.integers(0, 9),
)
valid = st.builds(
    Frame,
    kind=st.sampled_from(KINDS),
    run=st.binary(min_size=16, max_size=16),
    term=numbers,
    phase=numbers,
    slot=st.integers(-1, 99),
    lease=numbers,
    sequence=numbers,
    header=st.dictionaries(
        st.text(), st.none() | st.booleans() | st.floats(-1, 1) | numbers | st.text()
    ),
    arrays=st.dictionaries(st.text(max_size=60), vectors, max_size=16),
)


@settings(deadline=None, max_examples=60)
@given(valid, st.integers(20, 500), st.integers(9, 999), st.booleans())
def test_a_frame_arrives_as_it_was_however_it_is_cut(frame, piece_bytes, cut, checksums):
    data = wire(frame, piece_bytes=piece_bytes, checksums=checksums)
    decoder = Decoder(checksums=checksums)
    received = [f for i in range(0, len(data), cut) for f in decoder.feed(data[i : i + cut])]
    assert len(received) == 1
    assert_same(received[0], frame)


@settings(deadline=None, max_examples=60)
@given(valid, st.integers(20, 500), st.integers(9, 400))
def test_the_fast_path_equals_the_plain_path(frame, piece_bytes, most):
    data = wire(frame, piece_bytes=piece_bytes) * 2
    decoder, received = Decoder(), []
    while data:
        target = decoder.payload_target()
        if target is None:
            n = min(most, 9)
            received += decoder.feed(data[:n])
        else:
            n = min(most, len(target), len(data))
            target[:n] = data[:n]
            received += decoder.payload_received(n)
        data = data[n:]
    assert len(received) == 2
    for copy in received:
        assert_same(copy, frame)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=400))
def test_random_bytes_give_frame_errors_only(data):
    with contextlib.suppress(FrameError):
        assert Decoder().feed(data) == []


@settings(deadline=None, max_examples=60)
@given(valid, st.data())
def test_a_mutated_frame_is_refused_or_waits(frame, data):
    whole = bytearray(wire(frame, piece_bytes=100))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(FrameError):
        assert Decoder().feed(whole) == []


@settings(deadline=None, max_examples=60)
@given(valid, st.data())
def test_a_cut_or_spliced_frame_is_refused_or_waits(frame, data):
    whole = wire(frame, piece_bytes=100)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    with contextlib.suppress(FrameError):
        assert Decoder().feed(whole[:start] + whole[stop:]) == []


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=62, max_size=700), st.integers(1, 20))
def test_a_head_of_nonsense_with_a_right_checksum_gives_frame_errors_only(body, parts):
    with contextlib.suppress(FrameError):
        Decoder(max_vector_bytes=1 << 20).feed(piece(body, parts=parts))


def piece(body, part=0, parts=1, checked=1, length=None, magic=b"PHOT", version=2):
    header = struct.pack(
        "<4sBBIII", magic, version, checked, part, parts, len(body) if length is None else length
    )
    words = body if checked else b""
    blocks = len(words) // 4096
    sums = [sum(struct.unpack_from("<1024I", words, 4096 * b)) % 2**32 for b in range(blocks)]
    checksum = zlib.crc32(struct.pack(f"<{blocks}I", *sums), zlib.crc32(header))
    checksum = zlib.crc32(words[4096 * blocks :], checksum)
    return header + struct.pack("<I", checksum) + body


def head(frame=None, **changes):
    """Returns the body of a frame's head, with some of its raw fields changed."""
    frame = frame or Frame("push", RUN)
    body = encode_frame(frame)[0][22:]
    names = ["kind", "run", "term", "phase", "slot", "lease", "sequence", "header_bytes", "arrays"]
    values = dict(zip(names, struct.unpack_from(HEAD, body), strict=True)) | changes
    return struct.pack(HEAD, *values.values()) + body[struct.calcsize(HEAD) :]


def array(dtype, size, name=b"a", length=None):
    """Returns an entry of the table of arrays."""
    return struct.pack("<BQB", dtype, size, len(name) if length is None else length) + name


def test_the_helper_makes_the_true_bytes():
    frame = Frame("push", RUN, header={"a": 1})
    assert piece(head(frame)) == wire(frame)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (piece(b"x" * 200, magic=b"HTTP"), "no frame of ours"),
        (
            piece(b"x" * 200, version=1),
            "speaks version 2 .* got a frame of version 1; .* one version",
        ),
        (
            piece(b"x" * 200, version=3),
            "speaks version 2 .* got a frame of version 3; .* one version",
        ),
        (piece(b"x" * 200, checked=7), "no frame of ours"),
        (piece(head(), part=1, parts=2), "out of order"),
        (piece(head(), parts=0), "out of order"),
        (piece(b"", length=2**32 - 1), "must hold"),
        (piece(b"x"), "must hold"),
        (piece(head(), checked=0), "without a checksum"),
        (piece(head(kind=200)), "do not agree"),
        (piece(head(arrays=17)), "do not agree"),
        (piece(head(header_bytes=2**31)), "do not agree"),
        (piece(head(slot=-2)), "whole numbers"),
        (piece(head(sequence=-(2**63))), "whole numbers"),
        (piece(head() + array(9, 1)), "do not agree"),
        (piece(head(arrays=1) + array(9, 1), parts=2), "unknown type"),
        (piece(head(arrays=1) + array(0, 2**61), parts=2), "at most"),
        (piece(head(arrays=1) + array(0, 2**64 - 1), parts=2), "at most"),
        (piece(head(arrays=1) + array(0, 1)), "add up"),
        (piece(head(arrays=1) + array(0, 1, b"\xff")), "no names"),
        (piece(head(arrays=1) + array(0, 1, b"a", 9)), "do not agree"),
        (piece(head(arrays=1) + b"\0\0"), "no names"),
        (piece(head(arrays=2) + array(0, 1) * 2, parts=3), "do not agree"),
        (piece(head(), parts=2), "add up"),
        (wire(Frame("push", arrays={"a": np.ones(3)}), checksums=False), "without a checksum"),
        (
            piece(head(Frame("push", RUN, header={"a": 1})).replace(b'{"a":1}', b"{'a':1}")),
            "no JSON",
        ),
        (
            piece(head(Frame("push", RUN, header={"a": 1})).replace(b'{"a":1}', b"[1,2,3]")),
            "object",
        ),
        (
            piece(head(Frame("push", RUN, header={"a": 1})).replace(b'{"a":1}', b"[[[[[[[")),
            "no JSON",
        ),
        (
            piece(head(Frame("push", RUN, header={"a": 1})).replace(b'{"a":1}', b"\xff" * 7)),
            "no JSON",
        ),
    ],
)
def test_bytes_that_lie_are_refused_by_name(data, words):
    decoder = Decoder()
    with pytest.raises(FrameError, match=words):
        decoder.feed(data)
    with pytest.raises(FrameError, match="nothing is read after"):
        decoder.feed(b"x" * 22)
    assert decoder.payload_target() is None


def test_a_payload_piece_longer_than_its_array_is_refused():
    [first, header, view] = encode_frame(Frame("push", RUN, arrays={"a": np.ones(3, "u1")}))
    decoder = Decoder()
    assert decoder.feed(first) == []
    with pytest.raises(FrameError, match="must hold 1 to 3 bytes"):
        decoder.feed(piece(b"1234", part=1, parts=2))
    assert len(header) == 22
    assert len(view) == 3


def test_a_deeply_nested_header_is_refused():
    deep = b"[" * 60_000
    body = head(header_bytes=len(deep))[:-2] + deep
    with pytest.raises(FrameError, match="JSON"):
        Decoder().feed(piece(body))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "evil"}, "kind"),
        ({"run": b"short"}, "16 bytes"),
        ({"slot": -2}, "whole numbers"),
        ({"lease": 1.5}, "whole numbers"),
        ({"sequence": 2**63}, "whole numbers"),
        ({"header": {"a": object()}}, "JSON"),
        ({"header": {"a": "x" * 65_536}}, "65536"),
        ({"arrays": {"a": np.ones((2, 2))}}, "vector of"),
        ({"arrays": {"a": np.array(["a"], object)}}, "vector of"),
        ({"arrays": {"a": np.ones(2, "c16")}}, "vector of"),
        ({"arrays": {"a": [1.0]}}, "vector of"),
        ({"arrays": {str(n): np.ones(1) for n in range(17)}}, "at most 16"),
        ({"arrays": {"ü" * 128: np.ones(1)}}, "255 bytes"),
    ],
)
def test_what_may_not_travel_is_refused_before_it_does(changes, words):
    frame = Frame(**({"kind": "push"} | changes))
    with pytest.raises(FrameError, match=words):
        encode_frame(frame)


def test_a_loss_that_diverged_may_be_told():
    [received] = Decoder().feed(wire(Frame("note", header={"loss": float("inf")})))
    assert received.header == {"loss": float("inf")}


def test_encoding_copies_no_vector():
    vector = np.zeros(1000, "f4")
    pieces = encode_frame(Frame("push", arrays={"a": vector}))
    assert np.shares_memory(vector, np.frombuffer(pieces[2], "u1"))


def test_a_big_vector_travels_in_pieces_and_is_delivered_whole_or_not_at_all():
    big = np.arange(5_000_000, dtype="f4")
    pieces = encode_frame(Frame("push", arrays={"a": big, "b": big[:1]}))
    assert [len(p) for p in pieces[2::2]] == [4 << 20] * 4 + [20_000_000 - (16 << 20), 4]
    decoder = Decoder()
    assert all(decoder.feed(p) == [] for p in pieces[:-1])
    [received] = decoder.feed(pieces[-1])
    np.testing.assert_array_equal(received.arrays["a"], big)


def test_the_cap_of_a_vector_is_checked_before_memory_is_taken():
    pieces = encode_frame(Frame("push", arrays={"a": np.zeros(3_000_000, "f8")}))
    tracemalloc.start()
    with pytest.raises(FrameError, match="at most 1000 bytes"):
        Decoder(max_vector_bytes=1000).feed(pieces[0])
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_piece_above_the_cap_is_refused_before_it_is_read():
    pieces = encode_frame(Frame("push", arrays={"a": np.zeros(300_000, "u1")}))
    decoder = Decoder(max_frame_bytes=200_000)
    decoder.feed(pieces[0])
    with pytest.raises(FrameError, match="200000"):
        decoder.feed(pieces[1])


def test_other_byte_orders_arrive_as_the_same_numbers():
    [received] = Decoder().feed(wire(Frame("push", arrays={"a": np.arange(5, dtype=">f8")})))
    assert received.arrays["a"].tolist() == [0, 1, 2, 3, 4]
    assert received.arrays["a"].flags.writeable


def test_a_pickle_bomb_is_bytes_like_any_other(monkeypatch):
    class Bomb:
        def __reduce__(self):
            return os.system, ("exit 1",)

    bomb = pickle.dumps(Bomb())
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("code ran"))
    monkeypatch.setattr(builtins, "eval", lambda text: pytest.fail("code ran"))
    [received] = Decoder().feed(
        wire(Frame("push", header={"b": bomb.hex()}, arrays={"a": np.frombuffer(bomb, "u1")}))
    )
    assert received.arrays["a"].tobytes() == bomb
    for data in (bomb, bomb * 20, piece(bomb * 20)):
        with contextlib.suppress(FrameError):
            Decoder().feed(data)


def test_the_wire_format_imports_no_clock_chance_socket_or_file():
    banned = {"os", "time", "threading", "socket", "random", "logging", "ssl", "pickle"}
    assert not banned & set(vars(frames))
    assert json.dumps(KINDS)


def test_frames_before_bad_bytes_are_given_first():
    decoder = Decoder()
    [received] = decoder.feed(wire(Frame("push")) + b"x" * 50)
    assert received.kind == "push"
    assert decoder.is_broken
    with pytest.raises(FrameError, match="no frame of ours"):
        decoder.feed(b"")
