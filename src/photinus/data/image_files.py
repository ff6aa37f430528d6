"""Images as files: a folder for each class, or tar files of images and their labels.

The process that needs images opens their files: on Spark that is the tasks; the driver only reads
names. Paths are local, or what fsspec reaches, as hdfs://host/pictures.
"""

from __future__ import annotations

import logging
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from photinus.core.addresses import filesystem, is_address, on_disk
from photinus.core.errors import DataError, UsageError, reason_of, user_message
from photinus.core.seeds import generator
from photinus.data.base import Array
from photinus.data.images import center_square

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_EXTENSIONS = ("jpg", "jpeg", "png")
_LABEL = "cls"
_DO = "name a folder with a folder of images for each class, or with .tar files"
_MEND = "mend the images, or allow a share of them to be left out: most_corrupt=0.01"
_KINDS = ("file", "directory")
_BATCH_BYTES = 32 << 20
"""Of pixels that pass at once between tasks of Spark and Python."""


class ImageFile(NamedTuple):
    """An image file that was read."""

    name: str
    label: int
    pixels: Array | None
    """uint8 [3, side, side]; None of a file that cannot be read."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Files of images by name, not read yet.

    Args:
        root: the folder that holds them.
        names: within it, in a random order: of images as CLASS/NAME, or of tar files.
        classes: the names of labels 0, 1, ...; of tar files they may be left open.
        side: each image's after reading.
        is_labelled: whether an image needs a label; without it, each one's is -1.
    """

    root: str
    names: tuple[str, ...]
    classes: tuple[str, ...]
    side: int
    is_labelled: bool = True

    def read(self, numbers: Iterable[int]) -> Iterator[ImageFile]:
        """Yields the images of some files, one at a time.

        Args:
            numbers: of the files, in `names`.

        Raises:
            DataError: a file is not there, a tar file is damaged, or a label is no class.
        """
        open_file = _opener(self.root)
        for number in numbers:
            name = self.names[number]
            with closing(open_file(name)) as file:
                if name.endswith(".tar"):
                    yield from self._read_tar(name, file)
                else:
                    folder = name.partition("/")[0]
                    label = self.classes.index(folder) if self.is_labelled else -1
                    yield self._decode(name, label, file.read())

    def _read_tar(self, name: str, file: Any) -> Iterator[ImageFile]:  # noqa: ANN401 - a binary file
        """Yields a shard's images; what belongs together has one name up to the first dot."""
        try:
            with tarfile.open(fileobj=file, mode="r|") as shard:
                for key, parts in groupby(_tar_members(shard), itemgetter(0)):
                    yield from self._read_example(
                        f"{name}/{key}", {part[1]: part[2] for part in parts}
                    )
        except (tarfile.TarError, EOFError) as error:
            do = "write the shard again"
            raise DataError(f"{self.root}/{name} is damaged", got=reason_of(error), do=do) from None

    def _read_example(self, name: str, parts: dict[str, bytes]) -> Iterator[ImageFile]:
        image = next((parts[extension] for extension in _EXTENSIONS if extension in parts), None)
        if image is None:
            return
        if not self.is_labelled:
            yield self._decode(name, -1, image)
            return
        if _LABEL not in parts:
            raise DataError(f"{name} has no label", do=f"add a file of its name and .{_LABEL}")
        yield self._decode(name, self._label(name, parts[_LABEL]), image)

    def _label(self, name: str, content: bytes) -> int:
        text = content.decode("utf-8", "replace").strip()
        if text in self.classes:
            return self.classes.index(text)
        if text.isdecimal() and (not self.classes or int(text) < len(self.classes)):
            return int(text)
        expected = f"one of {len(self.classes)} classes" if self.classes else "a number"
        raise DataError(f"the label of {name} must be {expected}", got=repr(text))

    def _decode(self, name: str, label: int, content: bytes) -> ImageFile:
        try:
            return ImageFile(name, label, center_square(content, self.side))
        except DataError as error:
            return ImageFile(name, label, None, str(error))

    def corruption_warning(self, bad: int, first: str, most_corrupt: float, images: int) -> str:
        """Returns the warning about images that cannot be read and are left out; empty if none is.

        Args:
            bad: how many.
            first: one of them, and why.
            most_corrupt: the share that may be.
            images: how many there are.

        Raises:
            DataError: there are more.
        """
        wrong = f"{bad} of {images} images of {self.root} cannot be read"
        if bad > most_corrupt * images:
            too_many = f"{wrong}, more than the share most_corrupt={most_corrupt:g}"
            raise DataError(too_many, got=first, do=_MEND)
        return user_message(f"{wrong}, and are left out", got=first) if bad else ""


def _tar_members(shard: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    """Yields (name up to the first dot, ending, content) of each file."""
    for member in shard:
        if (content := shard.extractfile(member)) is not None:
            folder, slash, file_name = member.name.removeprefix("./").rpartition("/")
            stem, _, extension = file_name.partition(".")
            yield f"{folder}{slash}{stem}", extension.lower(), content.read()


def list_image_files(path: str, side: int, classes: Sequence[str] = ()) -> ImageFiles:
    """Returns the image files under a path, in an order that chance decides, always the same.

    Args:
        path: of a folder with a folder for each class, or with tar files.
        side: as of `image_frame`.
        classes: likewise.

    Raises:
        DataError: there is no such folder, it holds no images, or a class is not among `classes`.
    """
    list_folder = _lister(path)
    files, folders = list_folder("")
    names = [name for name in files if name.endswith(".tar")]
    class_names = tuple(classes)
    if not names:
        class_names = class_names or tuple(folders)
        names_by_folder = {folder: list_folder(folder)[0] for folder in folders}
        names = [
            f"{folder_name}/{name}"
            for folder_name, file_names in names_by_folder.items()
            for name in file_names
            if _is_image(name)
        ]
        if unknown := sorted({name.partition("/")[0] for name in names}.difference(class_names)):
            wrong = f"{path}: the folder {unknown[0]!r} is no class"
            raise DataError(wrong, got=", ".join(class_names), do="name all folders as classes")
    if not names:
        raise DataError(f"{path} holds no images", do=_DO)
    order = generator(0, "image files").permutation(len(names))
    return ImageFiles(_root(path), tuple(names[n] for n in order), class_names, side)


def list_unlabelled(path: str, side: int) -> ImageFiles:
    """Returns the image files under a path by their names: images in it, in folders or tar files.

    Args:
        path: of the folder.
        side: as of `image_frame`.

    Raises:
        DataError: there is no such folder, or it holds no images.
    """
    list_folder = _lister(path)
    files, folders = list_folder("")
    names = [name for name in files if name.endswith(".tar") or _is_image(name)]
    for folder in folders:
        names += [f"{folder}/{name}" for name in list_folder(folder)[0] if _is_image(name)]
    if not names:
        raise DataError(f"{path} holds no images", do="name a folder with images, or .tar files")
    return ImageFiles(_root(path), tuple(names), (), side, is_labelled=False)


def _root(path: str) -> str:
    """Returns a path for tasks of Spark, too, which run in folders of their own."""
    return path.rstrip("/") if is_address(path) else str(on_disk(path).absolute())


def load_images(files: ImageFiles, most_corrupt: float = 0.0) -> tuple[Array, Array]:
    """Returns all images [n, 3 · side²], uint8, and labels [n], read by this process.

    Args:
        files: as `list_image_files` found them.
        most_corrupt: as of `image_frame`.

    Raises:
        DataError: as `image_frame`.
    """
    rows, labels = list[Array](), list[int]()
    for image, pixels in whole_images(files, most_corrupt):
        rows.append(pixels.reshape(-1))
        labels.append(image.label)
    return np.array(rows, np.uint8), np.array(labels, np.int64)


def whole_images(files: ImageFiles, most_corrupt: float) -> Iterator[tuple[ImageFile, Array]]:
    """Yields images that can be read, with their pixels; warns in the end of those that cannot.

    Args:
        files: are read by this process, in their order.
        most_corrupt: as of `image_frame`.

    Raises:
        DataError: as `image_frame`.
    """
    problems, whole = list[str](), 0
    for image in files.read(range(len(files.names))):
        if image.pixels is None:
            problems.append(f"{image.name}: {image.problem}")
            continue
        yield image, image.pixels
        whole += 1
    first, count = min(problems, default=""), len(problems) + whole
    _warn(files.corruption_warning(len(problems), first, most_corrupt, count))


def image_frame(
    spark: SparkSession,
    path: str,
    *,
    side: int = 224,
    classes: Sequence[str] = (),
    most_corrupt: float = 0.0,
    partitions: int | None = None,
) -> DataFrame:
    """Returns images as rows; tasks of Spark open and decode the files, and keep their middle.

    The rows of a partition are of chance classes. Batches between Spark and Python become smaller
    where images are large: the session's spark.sql.execution.arrow.maxRecordsPerBatch.

    Args:
        spark: the session.
        path: a folder with a folder of JPEG and PNG files for each class; or with tar files, where
            NAME.jpg stands beside NAME.cls, which holds the label. All executors must see it: a
            folder that they share, or hdfs://.
        side: the shorter side of each image is brought to it, and the middle square is kept.
        classes: the names of labels 0, 1, ...; left out, the names of the folders, sorted.
        most_corrupt: the share of images that may be damaged: a separate job counts them, the count
            is logged, and they are left out. 0: the first one ends the query that reads it.
        partitions: of the rows; left out, as Spark shuffles, and no more than there are files.

    Returns:
        `features`, 3 · side² bytes, all red, all green, all blue ones; and `label`.

    Raises:
        DataError: there are no images, a folder is no class, or too many images are damaged.
        UsageError: there are fewer files than partitions.

    Example:
        >>> image_frame(spark, "hdfs:///pictures", side=256).count()  # doctest: +SKIP
        50000
    """
    files = list_image_files(path, side, classes)
    default_partitions = int(str(spark.conf.get("spark.sql.shuffle.partitions", "200")))
    partition_count = (
        min(default_partitions, len(files.names)) if partitions is None else partitions
    )
    if partition_count > len(files.names):
        got, do = f"{len(files.names)} files of images", "write more and smaller tar files"
        raise UsageError(f"{partition_count} partitions need a file each", got=got, do=do)
    _keep_batches_small(spark, 3 * side**2)
    numbers = spark.range(0, len(files.names), 1, partition_count)
    if most_corrupt:
        counts = numbers.mapInArrow(
            _counting_task(files), "images long, bad long, first string"
        ).collect()
        images, bad = (sum(row[column] for row in counts) for column in ("images", "bad"))
        first = min((row["first"] for row in counts if row["bad"]), default="")
        _warn(files.corruption_warning(bad, first, most_corrupt, images))
    rows = numbers.mapInArrow(
        _reading_task(files, can_skip=bool(most_corrupt)), "features binary, label long"
    )
    if not files.classes:
        return rows
    label_attribute = {"type": "nominal", "vals": list(files.classes), "name": "label"}
    return rows.withMetadata("label", {"ml_attr": label_attribute})


def _keep_batches_small(spark: SparkSession, row_bytes: int) -> None:
    key, limit = "spark.sql.execution.arrow.maxRecordsPerBatch", max(1, _BATCH_BYTES // row_bytes)
    if not 0 < int(str(spark.conf.get(key, "10000"))) <= limit:
        spark.conf.set(key, limit)


_Task = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _counting_task(files: ImageFiles) -> _Task:
    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        images, problems = 0, list[str]()
        for image in files.read(_numbers(batches)):
            images += 1
            if image.pixels is None:
                problems.append(f"{image.name}: {image.problem}")
        counts = {"images": images, "bad": len(problems), "first": min(problems, default="")}
        yield pa.RecordBatch.from_pylist([counts])

    return count


def _reading_task(files: ImageFiles, *, can_skip: bool) -> _Task:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows_per_batch = max(1, _BATCH_BYTES // (3 * files.side**2))
        features, labels = list[bytes](), list[int]()

        def batch() -> pa.RecordBatch:
            columns = [pa.array(features, pa.binary()), pa.array(labels, pa.int64())]
            return pa.RecordBatch.from_arrays(columns, names=["features", "label"])

        for image in files.read(_numbers(batches)):
            if image.pixels is None:
                if not can_skip:
                    raise DataError(f"{files.root}/{image.name}: {image.problem}", do=_MEND)
                continue
            features.append(image.pixels.tobytes())
            labels.append(image.label)
            if len(features) == rows_per_batch:
                yield batch()
                features, labels = [], []
        yield batch()

    return read


def _warn(text: str) -> None:
    if text:
        logging.getLogger("photinus").warning(text)


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _EXTENSIONS


def _lister(root: str) -> Callable[[str], tuple[list[str], list[str]]]:
    """Returns a function that lists the files and the folders in a folder under `root`, sorted."""
    if not is_address(root):
        return lambda folder: _names_on_disk(f"{on_disk(root)}/{folder}")
    system, root_path = filesystem(root)

    def list_folder(folder: str) -> tuple[list[str], list[str]]:
        try:
            entries = system.ls(f"{root_path}/{folder}".rstrip("/"), detail=True)
        except OSError as error:
            raise DataError(f"{root} cannot be read", got=reason_of(error), do=_DO) from error
        names_and_types = [
            (str(entry["name"]).rstrip("/").rpartition("/")[2], entry["type"]) for entry in entries
        ]
        files, folders = (
            sorted(n for n, entry_type in names_and_types if entry_type == wanted_type)
            for wanted_type in _KINDS
        )
        return files, folders

    return list_folder


def _names_on_disk(folder: str) -> tuple[list[str], list[str]]:
    try:
        entries = sorted(on_disk(folder).iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read", got=reason_of(error), do=_DO) from error
    visible = [entry for entry in entries if not entry.name.startswith(".")]
    return [e.name for e in visible if e.is_file()], [e.name for e in visible if e.is_dir()]


def _opener(root: str) -> Callable[[str], Any]:
    """Returns what opens a file under `root`."""
    is_remote = is_address(root)
    system, root_path = filesystem(root) if is_remote else (None, str(on_disk(root)))

    def open_file(name: str) -> Any:  # noqa: ANN401 - a binary file
        path = f"{root_path}/{name}"
        try:
            return system.open(path, "rb") if system else open(path, "rb")
        except OSError as error:
            do = "" if is_remote else "all executors must see the folder: share it, or use hdfs://"
            raise DataError(f"{path} cannot be read", got=reason_of(error), do=do) from error

    return open_file
