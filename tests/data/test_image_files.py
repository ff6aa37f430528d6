import io
import logging
import tarfile

import numpy as np
import pytest

import photinus
from photinus.core.addresses import filesystem
from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.data.image_files import image_frame, list_image_files, load_images
from photinus.data.images import center_square
from photinus.run.data import read_test, read_train
from photinus.run.job import Job, Source

Image = pytest.importorskip("PIL.Image")
COLOURS = {"ants": (250, 10, 10), "black bees": (10, 250, 10), "wasps": (10, 10, 250)}
CLASSES = tuple(COLOURS)


def png(colour, size=(12, 8)):
    """Two thirds of one colour in the middle, the rest white: what is cut away can be seen."""
    image = Image.new("RGB", size, (255, 255, 255))
    width, height = size
    image.paste(colour, ((width - height) // 2, 0, (width + height) // 2, height))
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    for number, (name, colour) in enumerate(COLOURS.items()):
        (tmp_path / name).mkdir()
        for place in range(4 + number):
            (tmp_path / name / f"{place}.PNG").write_bytes(png(colour))
        (tmp_path / name / "notes.txt").write_text("no image")
    return tmp_path


def shard(path, members):
    with tarfile.open(path, "w") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path):
    for number in range(2):
        members = []
        for place, (name, colour) in enumerate(COLOURS.items()):
            label = name if number else str(place)
            members += [(f"a/{place}.v.png", b"other"), (f"a/{place}.png", png(colour))]
            members += [(f"a/{place}.cls", label.encode())]
        shard(tmp_path / f"part-{number}.tar", [*members, ("readme.md", b"no image")])
    return tmp_path


def check_images(features, labels, counts):
    assert np.bincount(labels).tolist() == counts
    for pixels, label in zip(features, labels, strict=True):
        assert (pixels.reshape(3, 4, 4) == np.array(COLOURS[CLASSES[label]])[:, None, None]).all()


def rows_of(frame):
    rows = frame.collect()
    return [np.frombuffer(row.features, np.uint8) for row in rows], [row.label for row in rows]


def test_an_image_keeps_the_middle_square_of_its_shorter_side():
    image = Image.new("RGB", (400, 200), (0, 0, 255))
    image.paste((200, 100, 0), (100, 0, 300, 200))
    file = io.BytesIO()
    image.save(file, "jpeg", quality=95)
    square = center_square(file.getvalue(), 20)
    assert (square.shape, square.dtype) == ((3, 20, 20), np.uint8)
    inner = square[:, :, 2:-2].reshape(3, -1).astype(int)
    assert np.abs(inner - np.array([[200], [100], [0]])).max() < 12  # what JPEG loses


def test_a_folder_for_each_class_is_read_with_the_folders_names_as_classes(folder):
    files = list_image_files(str(folder), 4)
    assert files.classes == CLASSES
    check_images(*load_images(files), [4, 5, 6])
    assert files.names == list_image_files(folder.as_uri(), 4).names
    kinds = [name.partition("/")[0] for name in files.names]
    assert kinds != sorted(kinds)  # partitions of them hold all classes


def test_tar_files_are_read_with_labels_by_number_or_by_name(shards):
    check_images(*load_images(list_image_files(str(shards), 4, CLASSES)), [2, 2, 2])


def test_a_label_that_is_no_class_is_named_with_its_shard(shards):
    with pytest.raises(DataError, match=r"label of part-1.tar/a/0 must be a number; got 'ants'"):
        load_images(list_image_files(str(shards), 4))
    with pytest.raises(DataError, match=r"part-.*must be one of 2 classes; got"):
        load_images(list_image_files(str(shards), 4, CLASSES[:2]))


def test_an_image_without_a_label_and_a_damaged_shard_are_named(tmp_path):
    shard(tmp_path / "one.tar", [("7.jpg", png((0, 0, 0)))])
    with pytest.raises(DataError, match=r"one\.tar/7 has no label; add a file of its name"):
        load_images(list_image_files(str(tmp_path), 4))
    content = (tmp_path / "one.tar").read_bytes()
    (tmp_path / "one.tar").write_bytes(content[:600])
    with pytest.raises(DataError, match=r"one\.tar is damaged; got"):
        load_images(list_image_files(str(tmp_path), 4))


def test_damaged_images_are_counted_and_capped(folder, caplog):
    (folder / "ants" / "2.PNG").write_bytes(png((0, 0, 0))[:40])
    (folder / "wasps" / "5.PNG").write_bytes(b"")
    message = (
        r"2 of 15 images of .* cannot be read, more than the share most_corrupt=0.1; got ants/2"
    )
    with pytest.raises(DataError, match=message):
        load_images(list_image_files(str(folder), 4), 0.1)
    with caplog.at_level(logging.WARNING, "photinus"):
        check_images(*load_images(list_image_files(str(folder), 4), 0.15), [3, 5, 5])
    assert "2 of 15 images" in caplog.text
    assert "and are left out; got ants/2.PNG: the image cannot be decoded" in caplog.text


def test_what_holds_no_images_is_refused(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no images; name a folder with a folder of"):
        list_image_files(str(tmp_path / "empty"), 4)
    with pytest.raises(DataError, match=r"nowhere/? cannot be read; got No such file"):
        list_image_files(str(tmp_path / "nowhere"), 4)
    with pytest.raises(DataError, match="the folder 'wasps' is no class; got ants, black bees"):
        list_image_files(str(folder), 4, CLASSES[:2])


def test_images_elsewhere_are_read_through_fsspec(folder):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in folder.rglob("*.PNG"):
        memory.pipe_file(f"/zoo/{path.parent.name}/{path.name}", path.read_bytes())
    try:
        check_images(*load_images(list_image_files("memory://zoo", 4)), [4, 5, 6])
        with pytest.raises((DataError, NotReadyError), match="cannot be read"):
            list_image_files("memory://nowhere", 4)
    finally:
        memory.rm("/zoo", recursive=True)


def test_a_job_measures_on_another_folder_by_the_same_classes(folder, tmp_path):
    (tmp_path / "test" / "wasps").mkdir(parents=True)
    (tmp_path / "test" / "wasps" / "0.png").write_bytes(png(COLOURS["wasps"]))
    train = tmp_path / "train"
    train.mkdir()
    for name in CLASSES:
        (folder / name).rename(train / name)
    source = Source(name="images", path=str(train), test=str(tmp_path / "test"), side=4)
    data = read_train(Job(data=source, engine="local"))
    check_images(data.features, data.labels, [4, 5, 6])
    assert data.checks.classes == 3
    assert read_test(source).labels.tolist() == [2]
    with pytest.raises(UsageError, match="a source of images needs a path"):
        Source(name="images")


@pytest.mark.spark
def test_executors_read_images_and_the_driver_reads_names_only(spark, folder):
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    frame = image_frame(spark, str(folder), side=4, partitions=3)
    check_images(*rows_of(frame), [4, 5, 6])
    assert (frame.rdd.getNumPartitions(), frame.columns) == (3, ["features", "label"])
    assert frame.schema["label"].metadata["ml_attr"]["vals"] == list(CLASSES)
    assert spark.conf.get(key) == before
    image_frame(spark, str(folder), side=1024)
    assert int(spark.conf.get(key)) == 10  # of 3 MiB each
    spark.conf.set(key, before)
    with pytest.raises(UsageError, match="16 partitions need a file each; got 15 files"):
        image_frame(spark, str(folder), side=4, partitions=16)


@pytest.mark.spark
def test_executors_count_damaged_images_before_they_leave_them_out(spark, folder, caplog):
    (folder / "ants" / "2.PNG").write_bytes(b"none")
    (folder / "wasps" / "5.PNG").write_bytes(b"none")
    with pytest.raises(DataError, match=r"2 of 15 images .*; got ants/2\.PNG: .*mend the images"):
        image_frame(spark, str(folder), side=4, most_corrupt=0.1)
    with caplog.at_level(logging.WARNING, "photinus"):
        frame = image_frame(spark, str(folder), side=4, most_corrupt=0.2)
    assert "2 of 15 images" in caplog.text
    check_images(*rows_of(frame), [3, 5, 5])
    with pytest.raises(Exception, match=r"PNG: the image cannot be decoded; got .*; mend"):
        image_frame(spark, str(folder), side=4).collect()


@pytest.mark.spark
def test_a_job_trains_on_tar_files_that_its_tasks_read(spark, shards, tmp_path):
    for path in list(shards.glob("*.tar")):
        for copy in range(4):
            path.with_name(f"{copy}-{path.name}").write_bytes(path.read_bytes())
    for path in shards.glob("*part-1.tar"):  # its labels are names
        path.unlink()
    source = Source(name="images", path=str(shards), side=4, scale=1 / 255, classes=3)
    config = photinus.ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 48, "out_features": 3},
        epochs=30.0,
        batch_size=6,
        lr=0.05,
    )
    job = Job(model=config, data=source, workers=2, engine="spark")
    test = load_images(list_image_files(str(shards), 4))
    outcome = photinus.train(job, folder=tmp_path / "run", test=test)
    assert outcome.metrics["error"] == 0


@pytest.mark.spark
@pytest.mark.slow
def test_executors_read_folders_and_tar_files_from_a_real_hdfs(spark, hdfs, folder, shards):
    home = f"{hdfs[0]}/user/test"
    system, place = filesystem(home)
    for path in (path for path in folder.rglob("*") if path.suffix in (".PNG", ".tar")):
        kind = f"tars/{path.name}" if path.suffix == ".tar" else f"zoo/{path.parent.name}"
        name = "" if path.suffix == ".tar" else f"/{path.name}"
        system.pipe_file(f"{place}/{kind}{name}", path.read_bytes())
    check_images(*rows_of(image_frame(spark, f"{home}/zoo", side=4, partitions=3)), [4, 5, 6])
    tars = image_frame(spark, f"{home}/tars", side=4, classes=CLASSES, most_corrupt=0.1)
    check_images(*rows_of(tars), [2, 2, 2])
