"""Reads dumps of Wikipedia, XML as it is or by bzip2, in parts that lie anywhere in a file.

A multistream dump is many bzip2 streams one after the other. A part of a file begins with the first
stream in it, and ends with the last page that begins in it, wherever that ends.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree

from photinus.core.addresses import filesystem, is_address, on_disk
from photinus.core.errors import DataError, NotReadyError, UsageError

_DUMP = re.compile(r"\.xml(-p\d+p\d+)?(\.bz2)?$")
_STREAM = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
"""The head of a stream, and that of its first block or of its end."""
_HEAD_BYTES = 10
_CHUNK_BYTES = 256 << 10
_OPEN_TAG, _CLOSE_TAG, _END_TAG = b"<page>", b"</page>", b"</mediawiki>"
_TAIL_BYTES = len(_END_TAG) + 2
_SENTENCE = re.compile(r"\n|(?<=[.!?])\s")
_WORD = re.compile(r"[^\W\d_]+")
_NOT_TEXT = ("file", "image", "category")


class DumpPart(NamedTuple):
    """A part of a dump."""

    path: str
    start: int
    end: int
    """Bytes; pages that begin before it belong to the part."""


def is_dump(path: object) -> bool:
    """Returns whether a name is that of a dump.

    Example:
        >>> names = "wiki-pages-articles-multistream.xml.bz2", "wiki.xml-p1p99.bz2", "texts"
        >>> [is_dump(name) for name in names]
        [True, True, False]
    """
    return bool(_DUMP.search(str(path)))


def parts_of(path: str, most_bytes: int) -> list[DumpPart]:
    """Returns a dump in parts of so many bytes, at most.

    Args:
        path: of a file, or an address that fsspec opens.
        most_bytes: in a part.

    Raises:
        UsageError: there is no such file, or it is none of XML.
        NotReadyError: the address cannot be opened.
    """
    if not is_dump(path):
        raise UsageError("a dump is a file .xml or .xml.bz2", got=path)
    try:
        files, name = filesystem(path) if is_address(path) else (None, "")
        size = int(files.size(name)) if files else on_disk(path).stat().st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read", got=error.strerror or str(error)) from error
    starts = range(0, max(1, size), most_bytes)
    return [DumpPart(path, start, min(start + most_bytes, size)) for start in starts]


def sentences(part: DumpPart, most_corrupt: int) -> Iterator[list[str] | None]:
    """Yields the sentences of a part's articles, as words in lower case; None for a corrupt page.

    Redirects and pages that are no articles are left out. So are templates, references, captions
    and categories.

    Args:
        part: of a dump.
        most_corrupt: so many pages that are no XML, or damaged streams, are left out.

    Raises:
        DataError: the dump is cut or no dump, or more is corrupt.
        NotReadyError: mwparserfromhell is missing.
    """
    strip_markup, corrupt = wikitext_reader(), 0
    for page in pages(part):
        text = None if page is None else _article(page)
        if text is None:
            corrupt += 1
            if corrupt > most_corrupt:
                got = f"more than {most_corrupt} between bytes {part.start} and {part.end}"
                do = "download it again, or allow more corrupt pages"
                raise DataError(f"{part.path} has too many corrupt pages", got=got, do=do)
            yield None
            continue
        for line in _SENTENCE.split(strip_markup(text)):
            words = _WORD.findall(line.lower())
            if len(words) > 1:
                yield words


def wikitext_reader() -> Callable[[str], str]:
    """Returns what takes the markup away.

    Raises:
        NotReadyError: mwparserfromhell is missing.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        do = 'pip install "photinus[wikipedia]"'
        raise NotReadyError(
            "articles are read by mwparserfromhell", got=str(error), do=do
        ) from error

    def strip_markup(text: str) -> str:
        code = mwparserfromhell.parse(text, skip_style_tags=True)
        for link in code.filter_wikilinks(recursive=False):
            if str(link.title).partition(":")[0].strip().lower() in _NOT_TEXT:
                code.remove(link)
        for tag in code.filter_tags(matches=lambda tag: tag.tag == "ref", recursive=False):
            code.remove(tag)
        return str(code.strip_code())

    return strip_markup


def _article(page: bytes) -> str | None:
    """Returns the markup of an article, "" for what is none; None where the page is no XML."""
    try:
        # it begins with <page>, so that it can declare no entities
        tree = ElementTree.fromstring(page)  # noqa: S314
    except ElementTree.ParseError:
        return None
    if tree.findtext("ns", "0") != "0" or tree.find("redirect") is not None:
        return ""
    return tree.findtext("revision/text", "")


def pages(part: DumpPart) -> Iterator[bytes | None]:
    """Yields the pages that begin in a part, as XML; None for a stream that is damaged.

    Raises:
        DataError: the dump is cut, or no dump.
    """
    with _open_dump(part.path) as file:
        read_chunks = _read_streams if part.path.endswith(".bz2") else _read_plain
        buffer, own_bytes, tail = b"", 0, b""  # the first `own_bytes` belong to the part
        for is_own, chunk in read_chunks(file, part):
            if not is_own and not own_bytes:
                return
            if chunk is None:
                buffer, own_bytes = b"", 0
                yield None
                continue
            tail = (tail + chunk)[-_TAIL_BYTES:]
            buffer, own_bytes = buffer + chunk, own_bytes + len(chunk) * is_own
            whole_pages, buffer, own_bytes = _split_pages(buffer, own_bytes)
            yield from whole_pages
    # fewer bytes than the end tag has do not show whether the dump is whole
    is_cut = _END_TAG not in tail and (len(tail) == _TAIL_BYTES or not part.start)
    if buffer.startswith(_OPEN_TAG) or is_cut:
        got = f"no {_END_TAG.decode()} at its end"
        raise DataError(f"{part.path} is cut", got=got, do="download it again")


def _split_pages(buffer: bytes, own_bytes: int) -> tuple[list[bytes], bytes, int]:
    """Returns the whole pages that begin in the first `own_bytes`, and what is left of both."""
    whole_pages, position = list[bytes](), 0
    while 0 <= (start := buffer.find(_OPEN_TAG, position)) < own_bytes:
        stop = buffer.find(_CLOSE_TAG, start)
        if stop < 0:
            return whole_pages, buffer[start:], own_bytes - start
        position = stop + len(_CLOSE_TAG)
        whole_pages.append(buffer[start:position])
    # the last bytes may be a half of a tag
    rest_start = max(position, len(buffer) - len(_OPEN_TAG) + 1)
    return whole_pages, buffer[rest_start:], max(0, own_bytes - rest_start)


def _open_dump(path: str) -> IO[bytes]:
    if is_address(path):
        files, name = filesystem(path)
        file: Any = files.open(name, "rb")
        return file  # type: ignore[no-any-return]
    return on_disk(path).open("rb")


def _read_plain(file: IO[bytes], part: DumpPart) -> Iterator[tuple[bool, bytes | None]]:
    """Yields the text of a part and what follows it, and whether it belongs to the part."""
    file.seek(part.start)
    remaining = part.end - part.start
    while chunk := file.read(min(_CHUNK_BYTES, remaining) if remaining else _CHUNK_BYTES):
        yield remaining > 0, chunk
        remaining = max(0, remaining - len(chunk))


def _read_streams(file: IO[bytes], part: DumpPart) -> Iterator[tuple[bool, bytes | None]]:
    """Yields the text of the streams from a part on, and whether they begin in it; None: damage.

    Raises:
        DataError: the last stream is cut or damaged, or there is none.
    """
    start = _next_stream(file, part.start)
    if part.start == 0 and start != 0:
        raise DataError(f"{part.path} does not begin as bzip2", do="download it again")
    while start is not None:
        is_own, reader = start < part.end, bz2.BZ2Decompressor()
        file.seek(start)
        try:
            while not reader.eof and (data := file.read(_CHUNK_BYTES)):
                yield is_own, reader.decompress(data)
        except OSError as error:
            start = _next_stream(file, start + 1)
            if start is None:
                wrong = f"the last stream of {part.path} is damaged"
                raise DataError(wrong, got=str(error), do="download it again") from error
            yield is_own, None
            continue
        if not reader.eof:
            got = "a bzip2 stream without an end"
            raise DataError(f"{part.path} is cut", got=got, do="download it again")
        start = _next_stream(file, file.tell() - len(reader.unused_data))


def _next_stream(file: IO[bytes], start: int) -> int | None:
    """Returns where the next stream begins, at `start` or after it."""
    file.seek(start)
    buffer = b""
    while data := file.read(_CHUNK_BYTES):
        buffer += data
        if found := _STREAM.search(buffer):
            return start + found.start()
        start += max(0, len(buffer) - _HEAD_BYTES + 1)
        buffer = buffer[-_HEAD_BYTES + 1 :]
    return None
