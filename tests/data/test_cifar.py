import io
import sys

import numpy as np
import pytest

from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.data import cifar

TRAIN = cifar.FILES["train"]


def records(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (count, cifar.RECORD_BYTES)).astype(np.uint8)
    rows[:, 0] %= 10
    return rows


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate((*TRAIN, "test_batch.bin")):
        records(4, number).tofile(tmp_path / name)
    return tmp_path


def archive(path, **changes):
    """Six pictures of one colour each, as PNG: nothing is lost, and Pillow tells them by itself."""
    image = pytest.importorskip("PIL.Image")
    files = []
    for colour in range(6):
        file = io.BytesIO()
        image.new("RGB", (32, 32), (colour, 10 * colour, 200)).save(file, "png")
        files.append(file.getvalue())
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": np.arange(6, dtype=np.uint8),
        "is_train": np.array([0, 1, 1, 0, 1, 1], bool),
    }
    np.savez(path / "cifar10_jpeg.npz", **arrays | changes)
    return arrays


def test_the_binary_version_is_read_in_the_published_order(folder):
    images, labels = cifar.load(folder)
    expected = np.concatenate([records(4, number) for number in range(5)])
    np.testing.assert_array_equal(images, expected[:, 1:])
    np.testing.assert_array_equal(labels, expected[:, 0])
    test_images, test_labels = cifar.load(str(folder), "test")
    np.testing.assert_array_equal(test_images, records(4, 5)[:, 1:])
    assert (test_images.flags.writeable, test_labels.shape) == (True, (4,))


def test_a_path_with_the_scheme_of_files_is_read_by_the_driver_too(folder):
    by_address, by_path = cifar.load(folder.as_uri(), "test"), cifar.load(folder, "test")
    np.testing.assert_array_equal(by_address[0], by_path[0])


def test_the_environment_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("PHOTINUS_CIFAR10", str(folder))
    assert len(cifar.load()[0]) == 20
    monkeypatch.delenv("PHOTINUS_CIFAR10")
    with pytest.raises(NotReadyError, match="not downloaded by itself; name a folder"):
        cifar.load()


@pytest.mark.parametrize("kept", [2 * cifar.RECORD_BYTES + 100, 1])
def test_a_file_cut_short_is_named_with_its_record(folder, kept):
    path = folder / TRAIN[2]
    path.write_bytes(path.read_bytes()[:kept])
    record, rest = divmod(kept, cifar.RECORD_BYTES)
    message = f"{TRAIN[2]} is cut short in record {record}.*got {rest} bytes"
    with pytest.raises(DataError, match=message):
        cifar.load(folder)


def test_a_file_cut_at_a_records_border_is_found_too(folder):
    path = folder / TRAIN[3]
    path.write_bytes(path.read_bytes()[: 3 * cifar.RECORD_BYTES])
    with pytest.raises(DataError, match=rf"{TRAIN[3]} is cut short.*{TRAIN[0]}, 4; got 3"):
        cifar.load(folder)


def test_an_empty_file_is_refused(folder):
    (folder / TRAIN[0]).write_bytes(b"")
    with pytest.raises(DataError, match="cut short in record 0"):
        cifar.load(folder)


def test_a_label_above_nine_is_named_with_its_file_and_record(folder):
    bad = records(4)
    bad[2, 0] = 10
    bad.tofile(folder / TRAIN[4])
    with pytest.raises(DataError, match=rf"{TRAIN[4]} record 2: a label must lie in 0..9; got 10"):
        cifar.load(folder)


def test_a_missing_file_and_a_wrong_folder_are_said(folder, tmp_path_factory):
    (folder / TRAIN[1]).unlink()
    with pytest.raises(DataError, match=f"has no {TRAIN[1]}"):
        cifar.load(folder)
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match=r"holds no CIFAR-10; got no data_batch_1\.bin, no cifar10"):
        cifar.load(empty)
    with pytest.raises(UsageError, match="unknown split; got 'tset'; did you mean 'test'"):
        cifar.load(folder, "tset")
    (empty / TRAIN[0]).mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        cifar.load(empty)


def test_the_jpeg_form_is_decoded_plane_by_plane(tmp_path):
    archive(tmp_path)
    images, labels = cifar.load(tmp_path)
    assert labels.tolist() == [1, 2, 4, 5]
    planes = images.reshape(4, 3, 1024)
    assert planes[2].min(1).tolist() == planes[2].max(1).tolist() == [4, 40, 200]
    assert cifar.load(tmp_path, "test")[1].tolist() == [0, 3]


def test_a_damaged_archive_is_named_with_its_record(tmp_path):
    arrays = archive(tmp_path)
    archive(tmp_path, jpeg=arrays["jpeg"][: arrays["offsets"][4] + 5])
    with pytest.raises(DataError, match="cut short in record 4"):
        cifar.load(tmp_path)
    hole = arrays["jpeg"].copy()
    hole[arrays["offsets"][2] : arrays["offsets"][3]] = 0
    archive(tmp_path, jpeg=hole)
    with pytest.raises(DataError, match="record 2 is no image"):
        cifar.load(tmp_path)
    archive(tmp_path, labels=np.array([0, 1, 2, 3, 12, 5], np.uint8))
    with pytest.raises(DataError, match=r"record 4: a label must lie in 0\.\.9; got 12"):
        cifar.load(tmp_path)
    archive(tmp_path, labels=np.arange(5, dtype=np.uint8))
    with pytest.raises(DataError, match="do not belong together; got 5 labels, 7 offsets"):
        cifar.load(tmp_path)
    (tmp_path / "cifar10_jpeg.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is no archive of CIFAR-10"):
        cifar.load(tmp_path)


def test_a_picture_of_another_size_is_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (31, 32)).save(file, "png")
    small = np.frombuffer(file.getvalue(), np.uint8)
    one = {"labels": np.zeros(1, np.uint8), "is_train": np.ones(1, bool)}
    archive(tmp_path, jpeg=small, offsets=np.array([0, len(small)]), **one)
    with pytest.raises(DataError, match="record 0: an image must be 32 x 32 x 3; got"):
        cifar.load(tmp_path)


def test_a_picture_of_a_rarer_format_is_not_even_opened(tmp_path):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (32, 32)).save(file, "bmp")
    rare = np.frombuffer(file.getvalue(), np.uint8)
    one = {"labels": np.zeros(1, np.uint8), "is_train": np.ones(1, bool)}
    archive(tmp_path, jpeg=rare, offsets=np.array([0, len(rare)]), **one)
    with pytest.raises(DataError, match="record 0 is no image; got UnidentifiedImageError"):
        cifar.load(tmp_path)


def test_without_pillow_it_says_what_to_install(tmp_path, monkeypatch):
    archive(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(NotReadyError, match=r"pip install photinus\[jpeg\]"):
        cifar.load(tmp_path)


def test_a_folder_elsewhere_is_read_through_fsspec(folder):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/pictures/{path.name}", path.read_bytes())
    np.testing.assert_array_equal(cifar.load("memory://pictures")[0], cifar.load(folder)[0])
    memory.rm(f"/pictures/{TRAIN[1]}")
    with pytest.raises(DataError, match=f"has no {TRAIN[1]}"):
        cifar.load("memory://pictures")
    with pytest.raises(NotReadyError, match="cannot be opened"):
        cifar.load("nowhere://pictures")


def test_without_fsspec_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(NotReadyError, match=r"pip install 'photinus\[hdfs\]'"):
        cifar.load("hdfs://there/cifar10")
