"""Strategies, as a table and as a page."""

import re
from dataclasses import replace

from photinus.report.comparison import Compared, comparison_page, comparison_table

GOOD = Compared(
    strategy="all_reduce <every step>",
    seconds=90.0,
    rounds=1200,
    bytes=2_000_000,
    error=0.0125,
    loss=0.5,
    staleness=1.25,
    curve=((0.0, 2.0), (90.0, 0.5)),
)
BAD = Compared(strategy="downpour", seconds=0.0, failure="it diverged")


def test_a_line_says_what_is_known_and_marks_what_is_not():
    names, good, bad = comparison_table([GOOD, BAD])
    assert good[:2] == ("all_reduce <every step>", "1.25%")
    assert good[4:] == ("2.0 MB", "1,200", "1.2", "–", "0", "–")
    assert comparison_table([Compared(strategy="gossip", seconds=1.0)])[1][4] == "–"
    assert bad[:2] == ("downpour", "it diverged")
    assert {len(line) for line in (names, good, bad)} == {10}


def test_passes_are_those_of_the_worker_with_fewest_and_of_the_one_with_most():
    even, uneven = (replace(GOOD, examples=4000, passes=p) for p in ((2.0, 2.0), (0.5, 2.0)))
    assert [line[-2:] for line in comparison_table([even, uneven])[1:]] == [
        ("4,000", "2.00"),
        ("4,000", "0.50–2.00"),
    ]


def test_a_small_spread_is_no_zero():
    row = Compared(strategy="publish", seconds=1.0, spread=0.00123)
    assert comparison_table([row])[1][-3] == "0.00123"


def test_where_seconds_are_virtual_the_clocks_stand_beside_them():
    rows = [replace(GOOD, wall_seconds=0.25), BAD]
    names, good, bad = comparison_table(rows)
    assert names[3:5] == ("#virtual", "#wall")
    assert good[3:5] == ("1 min 30 s", "250 ms")
    assert {len(line) for line in (names, good, bad)} == {11}


def test_the_page_draws_a_curve_for_each_that_has_one_and_escapes_names(tmp_path):
    text = comparison_page([GOOD, BAD], "a job", tmp_path / "page.html").read_text()
    assert "all_reduce &lt;every step&gt;" in text
    assert text.count("<polyline") == 1
    assert "of publish and gossip the exact averages alone" in text
    assert not re.search(r"<script|https?://", text)
