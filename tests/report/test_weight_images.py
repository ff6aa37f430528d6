from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.report.weight_images import data_uri, mosaic, pack, png, unpack


def decode_png(data: bytes) -> np.ndarray:
    """A reader of grey PNGs, written from the standard, apart from the writer."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + body
        )
        chunks[kind] = body
        at += 12 + size
    cols, rows, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colour, rest) == (8, 0, [0, 0, 0])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(rows, cols + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:]


def test_a_picture_comes_back_from_its_png():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9)).astype(np.uint8)
    assert np.array_equal(decode_png(png(pixels)), pixels)
    uri = data_uri(pixels)
    assert np.array_equal(decode_png(base64.b64decode(uri.partition(",")[2])), pixels)


def test_filters_are_scaled_each_by_itself_with_zero_in_the_middle():
    images = np.array([[[-1.0, 0.0], [1.0, 0.5]], [[0, 0], [0, 0]], [[0, np.nan], [9, np.inf]]])
    grey = unpack(pack(images))
    assert grey.shape == (3, 2, 2)
    assert grey[0].tolist() == [[0, 128], [255, 191]]
    assert grey[1].tolist() == [[128, 128], [128, 128]]
    assert grey[2].tolist() == [[128, 128], [255, 128]]
    with pytest.raises(UsageError, match=r"must be an array \[k, rows, cols\]; got \[2\]"):
        pack(np.zeros(2))


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"rows": "x", "cols": 2, "images": []},
        {"rows": 2, "cols": 2, "images": ["<script>"]},
        {"rows": 2, "cols": 2, "images": [base64.b64encode(b"abc").decode()]},
        {"rows": 0, "cols": 0, "images": [""]},
        {"rows": 2, "cols": 2, "images": [3]},
    ],
)
def test_what_is_no_picture_is_left_out(packed):
    assert len(unpack(packed)) == 0


def test_pictures_lie_side_by_side_with_a_white_pixel_between():
    sheet = mosaic(np.zeros((3, 2, 2), np.uint8), columns=2)
    assert sheet.shape == (7, 7)
    assert sheet[:3].tolist()[1] == [255, 0, 0, 255, 0, 0, 255]
    assert (sheet[4:6, 4:6] == 255).all()
    assert not sheet[4:6, 1:3].any()
