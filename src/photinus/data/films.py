"""Sentences of film reviews, each with a score: what the VADER lexicon was measured on.

10,605 sentences of Rotten Tomatoes (Pang and Lee, 2004), rated by twenty people from -4 to 4 (Hutto
and Gilbert, 2014). They are in the source distribution of the package vaderSentiment.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from photinus.core.addresses import cache_folder
from photinus.core.errors import DataError, NotReadyError, reason_of
from photinus.data.download import run_client

_NAME: Final = "vaderSentiment-3.3.2"
_SHA256: Final = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
_INNER: Final = f"{_NAME}/additional_resources/hutto_ICWSM_2014.tar.gz"
_FILE: Final = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
_DO: Final = f"name the file {_NAME}.tar.gz as data.path, or as PHOTINUS_FILMS in the environment"
_TEST_ROWS: Final = 1600


def film_sentences(path: str = "") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the sentences to train on, 9,005, and to test on, 1,600: always the same ones.

    Args:
        path: the archive; left out, the environment's PHOTINUS_FILMS, the cache
            (`~/.cache/photinus/films`), or a download by pip.

    Returns:
        Twice a list of dicts: "text", and "label", 1 where the score is above 0, else 0.

    Raises:
        DataError: it is not the published archive.
        NotReadyError: it cannot be had.

    Example:
        >>> train, test = film_sentences()  # doctest: +SKIP
        >>> len(train), len(test)  # doctest: +SKIP
        (9005, 1600)
    """
    lines = [line.split("\t") for line in _text(_read_archive(path)).splitlines()]
    rows = [{"text": line[2], "label": int(float(line[1]) > 0)} for line in lines]
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = np.sort(order[_TEST_ROWS:]), np.sort(order[:_TEST_ROWS])
    return [rows[n] for n in train], [rows[n] for n in test]


def _read_archive(path: str) -> bytes:
    own_path = path or os.environ.get("PHOTINUS_FILMS", "")
    if own_path:
        return _read_checked(Path(own_path))
    cached = cache_folder("films") / f"{_NAME}.tar.gz"
    if not cached.is_file():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            _download(folder)
            downloaded = Path(folder, cached.name)
            if not downloaded.is_file():
                downloaded = Path(folder, cached.name.lower())
            _read_checked(downloaded)
            downloaded.replace(cached)
    return _read_checked(cached)


def _read_checked(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read", got=error.strerror, do=_DO) from error
    if (digest := hashlib.sha256(data).hexdigest()) != _SHA256:
        raise DataError(f"{file} is not the published {_NAME}.tar.gz", got=digest, do=_DO)
    return data


def _download(folder: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    command += ["--no-binary=:all:", "vaderSentiment==3.3.2"]
    try:
        run_client(command, folder)
    except NotReadyError as error:
        wrong = "pip cannot download vaderSentiment"
        raise NotReadyError(wrong, got=reason_of(error), do=_DO) from None


def _text(archive: bytes) -> str:
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        inner = outer.extractfile(_INNER)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as inner_tar:
            file = inner_tar.extractfile(_FILE)
            assert file is not None
            return file.read().decode("utf-8-sig")
