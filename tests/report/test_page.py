from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from photinus.core import events as e
from photinus.core.errors import DataError, UsageError
from photinus.report.glossary import SETTINGS, WORDS
from photinus.report.journal import Journal
from photinus.report.markup import Markup, tag
from photinus.report.page import render, save
from photinus.run.presets import PRESETS, preset
from photinus.strategies.recipes import RECIPES, from_plain

TAGS = set(
    re.findall(
        r"\w+",
        "html head meta title style body header section footer h1 h2 p span div small b i figure "
        "figcaption svg line text polyline circle rect img table thead tbody tr th td pre",
    )
)
VOID = {"meta", "img"}
HOSTILE = (
    "\"><script>alert(1)</script><img src=x onerror=alert(2)>'&lt;</style>\x00\x1b javascript:"
)


class Reader(HTMLParser):
    """Checks that every element is one of ours and is closed, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.sources: list[str] = []
        self.policy = ""

    def handle_starttag(self, name, attributes):
        assert name in TAGS, name
        values = dict(attributes)
        assert not [a for a in values if a.startswith("on") or a in {"style", "href", "srcdoc"}]
        self.sources += [values["src"]] if "src" in values else []
        if values.get("http-equiv"):
            self.policy = values["content"]
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.handle_starttag(name, attributes)
        self.open.pop()

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append(data)


def parse_checked(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def page(sample) -> str:
    return render(sample, evaluate="photinus evaluate runs/a")


def test_the_page_is_well_formed_and_loads_nothing(page):
    reader = parse_checked(page)
    assert all(source.startswith("data:image/png;base64,") for source in reader.sources)
    assert len(reader.sources) == 1
    assert not re.search(r"https?://|url\(|@import", page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert reader.policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:"


def test_it_says_what_a_reader_wants_to_know(page):
    text = " ".join(parse_checked(page).text)
    for words in (
        "mnist-dbn", "done", "1.14%", "test error, 95 %: 0.95% to 1.37%", "22,500", "rbm 784-500",
        "reconstruction", "fine-tuning", "validation", "100 filters of 28 × 28", "996",
        "worker 2 is lost: no beat for 5 s", "average every 50 steps", "model.hidden", "[500, 500]",
        "torch", "2.13.0", "photinus evaluate runs/a", "duplicate", "6 taken for 9: 7",
    ):  # fmt: skip
        assert words in text


def test_hostile_strings_stay_text(tmp_path):
    """Every string of every event, and what hides in the extras, is markup of an attacker."""
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    h = HOSTILE
    extra = {"confusion": [[h, 1], [0, 1]], "interval": [h, h], "filters": {"rows": h, "images": h}}
    for event in (
        e.RunStarted(run=h, term=1, engine=h, workers=1, job={h: {h: h}}, versions={h: h}),
        e.PhaseStarted(phase=0, name=h, budget=9, parameters=1, strategy=h),
        e.WorkerJoined(slot=0, lease=1, host=h, attempt=h),
        e.RoundClosed(
            phase=0, version=1, slots=(0,), examples=1, progress=0.1, seconds=0.1, metrics={h: 1.0}
        ),
        e.WorkerReport(slot=0, phase=0, steps=1, examples=1, examples_per_second=1.0),
        e.WorkerLost(slot=0, lease=1, reason=h),
        e.CheckpointFailed(name=h, reason=h),
        e.Warned(text=h),
        e.Evaluated(phase=0, name=h, examples=1, metrics={h: 0.5}),
        e.Evaluated(phase=0, name="test", examples=1, metrics={"error": 0.5}, extra=extra),
        e.RunEnded(state=h, seconds=1.0, reason=h, counts={h: 1}),
    ):
        journal.write(event)
    page = render(path, evaluate=h)
    reader = parse_checked(page)
    assert reader.sources == []
    assert "alert(1)" in "".join(reader.text)
    assert "<script" not in page
    assert "\x00" not in page


def test_an_unfinished_run_and_an_empty_journal_have_a_page_too(tmp_path, timeline):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    assert "nothing has happened yet" in render(path)
    for n, (_, event) in enumerate(timeline):
        journal.write(event)
        if n % 100 == 0:
            parse_checked(render(path))
    with pytest.raises(DataError, match="cannot be read"):
        render(tmp_path / "none")


def test_numbers_that_are_not_finite_do_not_stop_the_page(tmp_path):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    nan, inf = float("nan"), float("inf")
    journal.write(e.PhaseStarted(phase=0, name="p", budget=0, parameters=1, strategy="s"))
    for loss in (nan, inf, 1.0):
        journal.write(
            e.RoundClosed(
                phase=0, version=1, slots=(), examples=1, progress=nan, seconds=inf,
                metrics={"loss": loss},
            )
        )  # fmt: skip
    journal.write(e.Evaluated(phase=0, name="test", examples=1, metrics={"error": nan}))
    journal.write(e.RunEnded(state="failed", seconds=inf, reason="not finite"))
    parse_checked(render(path))


@pytest.mark.parametrize("rows", [[], [[1]], [[1, 2]], [[1, -1], [0, 1]], [[0, 0], [0, 0]], 5])
def test_a_confusion_matrix_is_drawn_only_when_it_is_one(tmp_path, rows):
    path = tmp_path / "events.jsonl"
    Journal(path).write(
        e.Evaluated(phase=0, name="test", examples=1, metrics={}, extra={"confusion": rows})
    )
    is_square = rows in ([[1]], [[0, 0], [0, 0]])
    assert ("confusion matrix" in render(path)) == is_square


def test_it_is_saved_where_asked_or_says_why_not(sample, tmp_path):
    path = save(sample, tmp_path / "report.html")
    assert path.read_text().startswith("<!doctype html>")
    with pytest.raises(UsageError, match=r"report\.html cannot be written; got No such file"):
        save(sample, tmp_path / "no" / "report.html")


def test_a_long_list_of_events_is_cut_with_a_note(tmp_path):
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    for n in range(230):
        journal.write(e.Warned(text=f"number {n};"))
    page = render(path)
    assert "30 earlier lines are in events.jsonl" in page
    assert "number 29;" not in page
    assert "number 30;" in page


def test_text_is_escaped_in_content_and_attributes():
    html = tag("p", "<&>", Markup("<b>x</b>"), None, title='"<', data_x=0.5)
    assert html == '<p title="&quot;&lt;" data-x="0.5">&lt;&amp;&gt;<b>x</b></p>'
    assert tag("td", json.dumps({"a": "'"})) == "<td>{&quot;a&quot;: &quot;&#x27;&quot;}</td>"


PLAIN = {"every", "step", "steps", "seconds", "epochs", "in", "to", "all", "one", "by", "rounds"}
"""Words of a strategy's line that need no explanation."""


@pytest.mark.parametrize("name", RECIPES)
def test_every_word_of_a_strategy_is_explained_on_the_page(name):
    line = str(from_plain(name)).removeprefix(name)
    explained = " ".join(f"{word} {meaning}" for word, meaning in WORDS)
    used = set(re.findall(r"[a-z]+[0-9]*", line)) - PLAIN
    known = set(re.findall(r"[a-z]+[0-9]*", explained))
    assert used <= known


@pytest.mark.parametrize("name", ["applied", "missed", "refused", "duplicate", "gap", "fenced"])
def test_every_count_of_pushes_is_explained_on_the_page(name):
    assert any(name in word for word, _ in WORDS)


PLAIN_SETTINGS = set(
    """
    buckets cbow centering classes columns data deadline_seconds device dims dropout_hidden
    dropout_input
    encoders engine epochs every falls features fine_tuning fragments hidden inputs label
    label_smoothing labels loss metrics model module momentum name negatives optimizer output path
    persistent phase points pretraining recipe resources sample scale security seconds steps
    strategies strategy subwords test visible weight_decay window words workers
    """.split()  # noqa: SIM905 - a list, one a line, is a page
)
"""Settings whose names say what they are."""


NAMED_BY_USERS = {"arguments", "settings", "l2", "encoders", "inputs", "strategies"}
"""Tables whose names are those of the user's own code and columns, or of phases."""


def _names(plain):
    for name, value in plain.items():
        yield name
        if isinstance(value, dict) and name not in NAMED_BY_USERS:
            yield from _names(value)


@pytest.mark.parametrize("preset_name", PRESETS)
def test_every_setting_of_a_job_is_explained_on_the_page_or_says_what_it_is(preset_name):
    plain = preset(preset_name, 2).to_dict()
    assert set(_names(plain)) - PLAIN_SETTINGS - SETTINGS.keys() - {"merge"} == set()


@pytest.mark.parametrize("word", ["confusion", "why"])
def test_a_part_of_the_page_whose_name_does_not_say_what_it_is_is_explained(word):
    assert word in [name for name, _ in WORDS]


@pytest.mark.parametrize(("engine", "speeds"), [("simulate", 0), ("local", 1)])
def test_the_last_line_of_a_simulated_phase_has_no_second_speed(tmp_path, engine, speeds):
    journal = Journal(tmp_path / "events.jsonl")
    journal.write(e.RunStarted(run="r", term=1, workers=1, engine=engine, job={}))
    journal.write(e.PhaseStarted(phase=0, name="p", budget=600, parameters=1, strategy="s"))
    journal.write(e.PhaseEnded(phase=0, name="p", examples=600, seconds=2.0, metrics={}))
    journal.close()
    page = render(tmp_path / "events.jsonl")
    assert page.count("300 examples/s") == speeds
    assert ("p: done in 2.0 s of virtual time" in page) == (engine == "simulate")


def test_one_worker_is_one_and_a_simulated_run_says_which_time_is_virtual(tmp_path):
    pages = []
    for engine in ("simulate", "local"):
        journal = Journal(tmp_path / f"{engine}.jsonl")
        journal.write(
            e.RunStarted(run="r", term=1, workers=1, engine=engine, job={"transport": "sockets"})
        )
        journal.close()
        pages.append(render(tmp_path / f"{engine}.jsonl"))
    assert all("1 worker, engine" in page for page in pages)
    assert ["virtual time" in page for page in pages] == [True, False]
    assert all(SETTINGS["transport"] in page and SETTINGS["priority"] not in page for page in pages)


def test_a_worker_that_has_not_told_about_itself_has_no_speed_and_no_bytes(tmp_path):
    journal = Journal(tmp_path / "events.jsonl")
    journal.write(e.RunStarted(run="r", term=1, workers=2, engine="local", job={}))
    for slot in (0, 1):
        journal.write(e.WorkerJoined(slot=slot, lease=1, attempt="a", examples=7))
    journal.write(
        e.WorkerReport(slot=1, phase=0, steps=2, examples=4, examples_per_second=3.0, bytes_sent=5)
    )
    journal.close()
    page = render(tmp_path / "events.jsonl")
    cells = re.findall(r'data-name="(?:examples/s|waits|sent|received)">([^<]*)<', page)
    assert cells == ["–", "–", "–", "–", "3", "0%", "5 B", "0 B"]
