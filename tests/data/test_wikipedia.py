"""A dump is read whole, whatever its parts and streams are."""

import bz2
import itertools
import sys

import pytest

from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.data.wikipedia import DumpPart, pages, parts_of, sentences, wikitext_reader

HEAD = '<mediawiki xml:lang="en">\n  <siteinfo><sitename>Wiki</sitename></siteinfo>\n'
END = "</mediawiki>\n"


def page(n, text="", ns=0, more=""):
    """A page of some hundred bytes, more for some."""
    text = (
        text
        or f"Page number {'word ' * (n * 37 % 211)}ends. It is '''[[bold|strong]]''' &lt;b&gt;."
    )
    return (
        f"  <page>\n    <title>P{n}</title>\n    <ns>{ns}</ns>\n    <id>{n}</id>\n{more}"
        f"    <revision><text>{text}</text></revision>\n  </page>\n"
    )


PAGES = [page(n) for n in range(60)]


def write_dump(folder, kind, pages_=PAGES):
    """Writes a dump: plain, one stream, a stream for ten pages, or streams that cut pages."""
    text = HEAD + "".join(pages_) + END
    if kind == "plain":
        pieces = [text.encode()]
    elif kind == "one stream":
        pieces = [bz2.compress(text.encode())]
    else:
        tens = ["".join(pages_[at : at + 10]) for at in range(0, len(pages_), 10)]
        blind = [text[at : at + 997] for at in range(0, len(text), 997)]
        rows = [HEAD, *tens, END] if kind == "multistream" else blind
        pieces = [bz2.compress(row.encode()) for row in rows]
    path = folder / ("d.xml" if kind == "plain" else "d.xml.bz2")
    path.write_bytes(b"".join(pieces))
    return str(path)


KINDS = ["plain", "one stream", "multistream", "streams that cut pages"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [1 << 20, 1500, 333, 61])
def test_every_page_is_in_one_part_only(tmp_path, kind, most):
    path = write_dump(tmp_path, kind)
    parts = parts_of(path, most)
    assert parts[0].start == 0
    assert all(a.end == b.start for a, b in itertools.pairwise(parts))
    read = [raw_page.decode() for part in parts for raw_page in pages(part)]
    assert read == [expected.strip() for expected in PAGES]


def test_words_of_articles_are_read_without_their_markup(tmp_path):
    text = (
        "'''Anarchism''' is a [[political philosophy|Philosophy]] &amp;amp; more."
        "&lt;ref&gt;Note&lt;/ref&gt; It is {{convert|5}} old!\n"
        "[[File:A.jpg|thumb|A caption]]\n== History ==\n* First item\nOne\n"
        "[[Category:Politics]]"
    )
    articles = [
        page(1, text),
        page(2, "Talk is no article.", ns=1),
        page(3, "#REDIRECT [[P1]]", more='    <redirect title="P1" />\n'),
        page(4, "Straße und Weg"),
    ]
    words = list(sentences(DumpPart(write_dump(tmp_path, "multistream", articles), 0, 1 << 20), 0))
    assert words == [
        ["anarchism", "is", "a", "philosophy", "more"],
        ["it", "is", "old"],
        ["first", "item"],
        ["straße", "und", "weg"],
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_cut_dump_is_one_sentence(tmp_path, kind, share):
    path = write_dump(tmp_path, kind)
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data[: int(share * len(data))])
    with pytest.raises(DataError, match=r"is cut; got .*; download it again") as caught:
        list(pages(DumpPart(path, 0, len(data))))
    assert "\n" not in str(caught.value)


def test_a_dump_cut_between_two_streams_is_cut(tmp_path):
    path = write_dump(tmp_path, "multistream")
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data[: data.rindex(b"BZh")])
    with pytest.raises(DataError, match="got no </mediawiki> at its end"):
        list(pages(DumpPart(path, 0, len(data))))


def test_corrupt_pages_are_counted_and_capped(tmp_path):
    changed_pages = list(PAGES)
    for n in (3, 30, 31):
        changed_pages[n] = changed_pages[n].replace("</revision>", "</revise>")
    whole = DumpPart(write_dump(tmp_path, "multistream", changed_pages), 0, 1 << 20)
    read_sentences = list(sentences(whole, 3))
    assert read_sentences.count(None) == 3
    all_sentences = list(sentences(DumpPart(write_dump(tmp_path, "plain"), 0, 1 << 20), 0))
    assert len(read_sentences) - 3 == len(all_sentences) - 3 * 2  # each page has two sentences
    with pytest.raises(DataError, match="too many corrupt pages; got more than 2 between bytes 0"):
        list(sentences(whole, 2))


def test_a_damaged_stream_is_counted_and_the_next_is_read(tmp_path):
    path = write_dump(tmp_path, "multistream")
    with open(path, "r+b") as file:
        data = file.read()
        second = data.index(b"BZh", data.index(b"BZh", 10) + 10)
        file.seek(second + 60)
        file.write(bytes(40))
    read = list(pages(DumpPart(path, 0, len(data))))
    assert read.count(None) == 1
    assert [one.decode() for one in read if one] == [
        one.strip() for n, one in enumerate(PAGES) if not 10 <= n < 20
    ]


def test_what_is_no_dump_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "d.xml.bz2").write_bytes(b"no bzip2 at all")
    with pytest.raises(DataError, match=r"d.xml.bz2 does not begin as bzip2"):
        list(pages(DumpPart(str(tmp_path / "d.xml.bz2"), 0, 15)))
    (tmp_path / "d.xml").write_text("a text")
    with pytest.raises(DataError, match=r"d.xml is cut; got no </mediawiki> at its end"):
        list(pages(DumpPart(str(tmp_path / "d.xml"), 0, 6)))
    with pytest.raises(UsageError, match=r"none.xml cannot be read; got No such file"):
        parts_of(str(tmp_path / "none.xml"), 10)
    with pytest.raises(UsageError, match=r"a dump is a file .xml or .xml.bz2; got d.txt"):
        parts_of("d.txt", 10)
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    with pytest.raises(NotReadyError, match=r'pip install "photinus\[wikipedia\]"'):
        wikitext_reader()
