import gzip
import hashlib
import io
import stat
import tarfile
import urllib.error
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import DataError, NotReadyError
from photinus.data import mnist
from photinus.data.download import run_client


def idx(shape: tuple[int, ...]) -> bytes:
    values = np.arange(np.prod(shape), dtype=np.uint8)
    sizes = np.array(shape, ">u4").tobytes()
    return bytes([0, 0, 8, len(shape)]) + sizes + values.tobytes()


TINY = {
    "train-images-idx3-ubyte": idx((3, 2, 2)),
    "train-labels-idx1-ubyte": idx((3,)),
    "t10k-images-idx3-ubyte": idx((2, 2, 2)),
    "t10k-labels-idx1-ubyte": idx((2,)),
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def packed(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def refuse() -> dict[str, bytes]:
    raise NotReadyError("it is not installed")


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    """MNIST is five images here, and no source reaches out."""
    monkeypatch.setattr(mnist, "_PLAIN", {name: sha256(data) for name, data in TINY.items()})
    monkeypatch.setattr(
        mnist, "_GZIPPED", {name: sha256(gzipped(data)) for name, data in TINY.items()}
    )
    monkeypatch.setattr(mnist, "_from_npm", refuse)
    monkeypatch.setattr(mnist, "_from_pip", refuse)
    monkeypatch.setattr(mnist, "_MIRRORS", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PHOTINUS_MNIST", raising=False)


def assert_tiny(digits: mnist.Mnist) -> None:
    np.testing.assert_array_equal(digits.train_images, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(digits.train_labels, [0, 1, 2])
    np.testing.assert_array_equal(digits.test_images, np.arange(8).reshape(2, 4))
    np.testing.assert_array_equal(digits.test_labels, [0, 1])
    assert digits.train_images.dtype == np.uint8
    assert digits.train_images.flags.writeable


def test_a_folder_of_plain_files_is_read(tmp_path):
    assert_tiny(mnist.load(write(tmp_path / "own", TINY)))


def test_a_folder_of_gzipped_files_is_read(tmp_path):
    own = write(tmp_path / "own", {f"{name}.gz": gzipped(data) for name, data in TINY.items()})
    assert_tiny(mnist.load(own))


def test_the_environment_names_the_users_own_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("PHOTINUS_MNIST", str(write(tmp_path / "own", TINY)))
    assert_tiny(mnist.load())


def test_the_package_is_known_by_its_checksum_not_by_its_name(tmp_path, monkeypatch):
    archive = packed(TINY)
    monkeypatch.setattr(mnist, "_NPM_SHA256", sha256(archive))
    (tmp_path / "download.bin").write_bytes(archive)
    assert_tiny(mnist.load(tmp_path / "download.bin"))


def test_a_wheel_is_known_by_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "_WHEEL_SHA256", sha256(b"the wheel"))
    monkeypatch.setattr(mnist, "read_wheel", lambda wheel: TINY)
    (tmp_path / "wheel").write_bytes(b"the wheel")
    assert_tiny(mnist.load(tmp_path / "wheel"))


def test_any_other_file_is_refused_unopened(tmp_path):
    (tmp_path / "other.tgz").write_bytes(b"something")
    with pytest.raises(DataError, match=r"other\.tgz is neither .*; got SHA-256 3fc9"):
        mnist.load(tmp_path / "other.tgz")


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere cannot be read; got No such file"):
        mnist.load(tmp_path / "nowhere")


def test_a_folder_without_one_of_the_files_is_refused(tmp_path):
    own = write(tmp_path / "own", TINY)
    (own / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"own has neither t10k-labels-idx1-ubyte nor .*\.gz"):
        mnist.load(own)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_changed_file_is_refused_before_it_is_opened(tmp_path, ending, monkeypatch):
    own = write(tmp_path / "own", TINY)
    (own / "train-images-idx3-ubyte").unlink()
    (own / f"train-images-idx3-ubyte{ending}").write_bytes(b"changed")
    monkeypatch.setattr(gzip, "decompress", lambda data: pytest.fail("it was opened"))
    with pytest.raises(DataError, match=r"train-images.* is not the published MNIST"):
        mnist.load(own)


def test_a_wrong_path_is_never_passed_over_for_another_source(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "_from_npm", lambda: TINY)
    with pytest.raises(DataError):
        mnist.load(tmp_path / "nowhere")


def test_a_download_is_kept_and_then_read_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "_from_npm", lambda: TINY)
    assert_tiny(mnist.load())
    monkeypatch.setattr(mnist, "_from_npm", refuse)
    assert_tiny(mnist.load())
    cache = tmp_path / "xdg" / "photinus" / "mnist"
    assert sorted(file.name for file in cache.iterdir()) == sorted(TINY)


def test_a_damaged_cache_is_replaced(tmp_path, monkeypatch):
    cache = write(tmp_path / "cache", {**TINY, "train-labels-idx1-ubyte": b"cut"})
    monkeypatch.setattr(mnist, "_from_npm", lambda: TINY)
    assert_tiny(mnist.load(cache=cache))
    assert (cache / "train-labels-idx1-ubyte").read_bytes() == TINY["train-labels-idx1-ubyte"]


def test_a_cache_that_cannot_be_written_costs_no_run(tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(mnist, "_from_npm", lambda: TINY)
    assert_tiny(mnist.load(cache=blocked))
    assert "could not be kept" in caplog.text


def test_no_source_lists_each_with_its_reason(tmp_path, monkeypatch):
    def unplugged(address: str, timeout: float) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(mnist, "_MIRRORS", ("https://mirror.example/",))
    monkeypatch.setattr("urllib.request.urlopen", unplugged)
    with pytest.raises(NotReadyError) as caught:
        mnist.load(cache=tmp_path)
    message = str(caught.value)
    assert f"the cache {tmp_path}: nothing is kept there yet" in message
    assert "npm: it is not installed" in message
    assert "pip: it is not installed" in message
    assert "https://mirror.example/: <urlopen error Name or service not known>" in message
    assert "PHOTINUS_MNIST" in message


def test_a_mirror_that_sends_something_else_is_refused(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: io.BytesIO(b"<html>"))
    with pytest.raises(DataError, match="is not the published MNIST"):
        mnist._mirror("https://mirror.example/")()


def test_a_mirror_serves_the_gzipped_files(monkeypatch):
    served = {
        f"https://mirror.example/{name}.gz": io.BytesIO(gzipped(data))
        for name, data in TINY.items()
    }
    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: served[address])
    assert mnist._mirror("https://mirror.example/")() == TINY


def test_a_client_that_fails_gives_its_first_error_as_the_reason(tmp_path):
    client = tmp_path / "client"
    client.write_text("#!/bin/sh\necho hello >&2\necho Error: gone >&2\necho the log >&2\nexit 1\n")
    client.chmod(client.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(NotReadyError, match=r"^Error: gone$"):
        run_client([str(client)], str(tmp_path))


@pytest.mark.parametrize(
    ("data", "claim"),
    [
        (b"", "is no IDX file"),
        (b"\0\0\x08", "is no IDX file"),
        (b"\0\0\x08\x03\0\0\0\x01", "is no IDX file"),
        (b"\x1f\x8b\x08\x01" + bytes(8), "is no IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0", "is no IDX file"),
        (TINY["train-images-idx3-ubyte"][:-1], r"states the shape \[3, 2, 2\].*got 11 bytes"),
        (TINY["train-images-idx3-ubyte"] + b"\0", r"states the shape .*got 13 bytes"),
    ],
)
def test_a_file_that_is_no_idx_file_is_refused_by_name(data, claim):
    with pytest.raises(DataError, match=rf"digits\.idx {claim}"):
        mnist.parse_idx(data, "digits.idx")


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 3), (1, 2, 3, 4)])
def test_an_idx_file_of_any_rank_is_read(shape):
    np.testing.assert_array_equal(
        mnist.parse_idx(idx(shape), "it"), np.arange(np.prod(shape)).reshape(shape)
    )


@pytest.mark.mnist
def test_the_real_mnist_has_its_shapes_and_its_mean(monkeypatch):
    monkeypatch.undo()
    try:
        digits = mnist.load()
    except NotReadyError as error:
        pytest.skip(str(error))
    assert digits.train_images.shape == (60_000, 784)
    assert digits.test_images.shape == (10_000, 784)
    assert np.bincount(digits.test_labels).tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
    ]
    assert digits.train_images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_it_is_kept_at_an_address_once_and_read_from_there(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    address = f"memory://{tmp_path.name}/mnist"
    monkeypatch.setenv("PHOTINUS_MNIST", str(write(tmp_path / "own", TINY)))
    mnist.keep_at(address)
    monkeypatch.setenv("PHOTINUS_MNIST", "nowhere")
    mnist.keep_at(address)
    digits = mnist.load(address)
    assert digits.train_images.shape == (3, 4)
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/{tmp_path.name}/mnist/train-labels-idx1-ubyte", b"another")
    with pytest.raises(DataError, match="is not the published MNIST"):
        mnist.load(address)
    memory.rm(f"/{tmp_path.name}/mnist/train-labels-idx1-ubyte")
    memory.pipe(
        f"/{tmp_path.name}/mnist/train-labels-idx1-ubyte.gz",
        gzipped(TINY["train-labels-idx1-ubyte"]),
    )
    assert mnist.load(address).train_labels.tolist() == digits.train_labels.tolist()


def test_an_address_without_it_is_named():
    pytest.importorskip("fsspec")
    with pytest.raises(DataError, match="memory://empty has neither train-images"):
        mnist.load("memory://empty")


def test_an_address_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("PHOTINUS_MNIST", str(write(tmp_path / "own", TINY)))

    def refuse(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", refuse)
    with pytest.raises(DataError, match="cannot be written to; got no space"):
        mnist.keep_at("memory://full/mnist")
