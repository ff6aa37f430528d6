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
from photinus.core.errors import DataError, UsageError, message, reason_of
from photinus.core.seeds import generator
from photinus.data.base import Array
from photinus.data.images import squared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ENDINGS = ("jpg", "jpeg", "png")
_LABEL = "cls"
_DO = "name a folder with a folder of images for each class, or with .tar files"
_MEND = "mend the images, or allow a share of them to be left out: most_corrupt=0.01"
_KINDS = ("file", "directory")
_BATCH_BYTES = 32 << 20
"""Of pixels that pass at once between tasks of Spark and Python."""


class ImageFile(NamedTuple):
    """An image file that was read."""

    place: str
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
    """

    root: str
    names: tuple[str, ...]
    classes: tuple[str, ...]
    side: int

    def read(self, numbers: Iterable[int]) -> Iterator[ImageFile]:
        """Yields the images of some files, one at a time.

        Args:
            numbers: of the files, in `names`.

        Raises:
            DataError: a file is not there, a tar file is damaged, or a label is no class.
        """
        opened = _opener(self.root)
        for number in numbers:
            name = self.names[number]
            with closing(opened(name)) as file:
                if name.endswith(".tar"):
                    yield from self._of_tar(name, file)
                else:
                    label = self.classes.index(name.partition("/")[0])
                    yield self._picture(name, label, file.read())

    def _of_tar(self, name: str, file: Any) -> Iterator[ImageFile]:  # noqa: ANN401 - a binary file
        """Yields a shard's images; what belongs together has one name up to the first dot."""
        try:
            with tarfile.open(fileobj=file, mode="r|") as shard:
                for key, parts in groupby(_parts(shard), itemgetter(0)):
                    yield from self._of_parts(f"{name}/{key}", {part[1]: part[2] for part in parts})
        except (tarfile.TarError, EOFError) as error:
            do = "write the shard again"
            raise DataError(f"{self.root}/{name} is damaged", got=reason_of(error), do=do) from None

    def _of_parts(self, place: str, parts: dict[str, bytes]) -> Iterator[ImageFile]:
        image = next((parts[ending] for ending in _ENDINGS if ending in parts), None)
        if image is None:
            return
        if _LABEL not in parts:
            raise DataError(f"{place} has no label", do=f"add a file of its name and .{_LABEL}")
        yield self._picture(place, self._label(place, parts[_LABEL]), image)

    def _label(self, place: str, content: bytes) -> int:
        text = content.decode("utf-8", "replace").strip()
        if text in self.classes:
            return self.classes.index(text)
        if text.isdecimal() and (not self.classes or int(text) < len(self.classes)):
            return int(text)
        known = f"one of {len(self.classes)} classes" if self.classes else "a number"
        raise DataError(f"the label of {place} must be {known}", got=repr(text))

    def _picture(self, place: str, label: int, content: bytes) -> ImageFile:
        try:
            return ImageFile(place, label, squared(content, self.side))
        except DataError as error:
            return ImageFile(place, label, None, str(error))

    def refused(self, bad: int, first: str, most_corrupt: float, images: int) -> str:
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
            more = f"{wrong}, more than the share most_corrupt={most_corrupt:g}"
            raise DataError(more, got=first, do=_MEND)
        return message(f"{wrong}, and are left out", got=first) if bad else ""


def _parts(shard: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    """Yields (name up to the first dot, ending, content) of each file."""
    for member in shard:
        if (content := shard.extractfile(member)) is not None:
            folder, slash, last = member.name.removeprefix("./").rpartition("/")
            own, _, ending = last.partition(".")
            yield f"{folder}{slash}{own}", ending.lower(), content.read()


def listed(path: str, side: int, classes: Sequence[str] = ()) -> ImageFiles:
    """Returns the image files under a path, in an order that chance decides, always the same.

    Args:
        path: of a folder with a folder for each class, or with tar files.
        side: as of `image_frame`.
        classes: likewise.

    Raises:
        DataError: there is no such folder, it holds no images, or a class is not among `classes`.
    """
    names_in = _lister(path)
    files, folders = names_in("")
    names = [name for name in files if name.endswith(".tar")]
    known = tuple(classes)
    if not names:
        known = known or tuple(folders)
        found = {folder: names_in(folder)[0] for folder in folders}
        names = [f"{of}/{name}" for of, all_ in found.items() for name in all_ if _is_image(name)]
        if strange := sorted({name.partition("/")[0] for name in names}.difference(known)):
            wrong = f"{path}: the folder {strange[0]!r} is no class"
            raise DataError(wrong, got=", ".join(known), do="name all folders as classes")
    if not names:
        raise DataError(f"{path} holds no images", do=_DO)
    order = generator(0, "image files").permutation(len(names))
    # tasks of Spark run in folders of their own
    root = path.rstrip("/") if is_address(path) else str(on_disk(path).absolute())
    return ImageFiles(root, tuple(names[n] for n in order), known, side)


def load_images(files: ImageFiles, most_corrupt: float = 0.0) -> tuple[Array, Array]:
    """Returns all images [n, 3 · side²], uint8, and labels [n], read by this process.

    Args:
        files: as `listed` found them.
        most_corrupt: as of `image_frame`.

    Raises:
        DataError: as `image_frame`.
    """
    rows, labels, bad = list[Array](), list[int](), list[str]()
    for picture in files.read(range(len(files.names))):
        if picture.pixels is None:
            bad.append(f"{picture.place}: {picture.problem}")
            continue
        rows.append(picture.pixels.reshape(-1))
        labels.append(picture.label)
    _tell(files.refused(len(bad), min(bad, default=""), most_corrupt, len(bad) + len(rows)))
    return np.array(rows, np.uint8), np.array(labels, np.int64)


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
    files = listed(path, side, classes)
    usual = int(str(spark.conf.get("spark.sql.shuffle.partitions", "200")))
    parts = min(usual, len(files.names)) if partitions is None else partitions
    if parts > len(files.names):
        got, do = f"{len(files.names)} files of images", "write more and smaller tar files"
        raise UsageError(f"{parts} partitions need a file each", got=got, do=do)
    _keep_batches_small(spark, 3 * side**2)
    numbers = spark.range(0, len(files.names), 1, parts)
    if most_corrupt:
        told = numbers.mapInArrow(_counts(files), "images long, bad long, first string").collect()
        images, bad = (sum(row[column] for row in told) for column in ("images", "bad"))
        first = min((row["first"] for row in told if row["bad"]), default="")
        _tell(files.refused(bad, first, most_corrupt, images))
    rows = numbers.mapInArrow(
        _rows(files, can_skip=bool(most_corrupt)), "features binary, label long"
    )
    if not files.classes:
        return rows
    named = {"type": "nominal", "vals": list(files.classes), "name": "label"}
    return rows.withMetadata("label", {"ml_attr": named})


def _keep_batches_small(spark: SparkSession, row_bytes: int) -> None:
    key, most = "spark.sql.execution.arrow.maxRecordsPerBatch", max(1, _BATCH_BYTES // row_bytes)
    if not 0 < int(str(spark.conf.get(key, "10000"))) <= most:
        spark.conf.set(key, most)


_Task = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _counts(files: ImageFiles) -> _Task:
    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        images, bad = 0, list[str]()
        for picture in files.read(_numbers(batches)):
            images += 1
            if picture.pixels is None:
                bad.append(f"{picture.place}: {picture.problem}")
        told = {"images": images, "bad": len(bad), "first": min(bad, default="")}
        yield pa.RecordBatch.from_pylist([told])

    return count


def _rows(files: ImageFiles, *, can_skip: bool) -> _Task:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        some = max(1, _BATCH_BYTES // (3 * files.side**2))
        features, labels = list[bytes](), list[int]()

        def batch() -> pa.RecordBatch:
            columns = [pa.array(features, pa.binary()), pa.array(labels, pa.int64())]
            return pa.RecordBatch.from_arrays(columns, names=["features", "label"])

        for picture in files.read(_numbers(batches)):
            if picture.pixels is None:
                if not can_skip:
                    raise DataError(f"{files.root}/{picture.place}: {picture.problem}", do=_MEND)
                continue
            features.append(picture.pixels.tobytes())
            labels.append(picture.label)
            if len(features) == some:
                yield batch()
                features, labels = [], []
        yield batch()

    return read


def _tell(text: str) -> None:
    if text:
        logging.getLogger("photinus").warning(text)


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _ENDINGS


def _lister(root: str) -> Callable[[str], tuple[list[str], list[str]]]:
    """Returns a function that lists the files and the folders in a folder under `root`, sorted."""
    if not is_address(root):
        return lambda folder: _names_on_disk(f"{on_disk(root)}/{folder}")
    system, place = filesystem(root)

    def names(folder: str) -> tuple[list[str], list[str]]:
        try:
            found = system.ls(f"{place}/{folder}".rstrip("/"), detail=True)
        except OSError as error:
            raise DataError(f"{root} cannot be read", got=reason_of(error), do=_DO) from error
        named = [(str(one["name"]).rstrip("/").rpartition("/")[2], one["type"]) for one in found]
        files, folders = (sorted(n for n, kind in named if kind == of) for of in _KINDS)
        return files, folders

    return names


def _names_on_disk(folder: str) -> tuple[list[str], list[str]]:
    try:
        entries = sorted(on_disk(folder).iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read", got=reason_of(error), do=_DO) from error
    shown = [entry for entry in entries if not entry.name.startswith(".")]
    return [e.name for e in shown if e.is_file()], [e.name for e in shown if e.is_dir()]


def _opener(root: str) -> Callable[[str], Any]:
    """Returns what opens a file under `root`."""
    is_far = is_address(root)
    system, place = filesystem(root) if is_far else (None, str(on_disk(root)))

    def opened(name: str) -> Any:  # noqa: ANN401 - a binary file
        path = f"{place}/{name}"
        try:
            return system.open(path, "rb") if system else open(path, "rb")
        except OSError as error:
            do = "" if is_far else "all executors must see the folder: share it, or use hdfs://"
            raise DataError(f"{path} cannot be read", got=reason_of(error), do=do) from error

    return opened
