from __future__ import annotations

import re

from photinus.report.page import render
from photinus.report.style import STYLE


def test_every_class_of_the_page_has_a_style_and_every_colour_a_dark_twin(sample):
    used = set(" ".join(re.findall(r'class="([^"]+)"', render(sample))).split())
    styled = set(re.findall(r"\.([A-Za-z][\w-]*)", STYLE))
    # plain lines of the log carry their event's kind for whoever reads the page's source
    assert used - styled <= {
        "RunStarted", "RunEnded", "PhaseStarted", "PhaseEnded", "WorkerJoined", "Evaluated",
    }  # fmt: skip
    light, dark = STYLE.split("prefers-color-scheme: dark")
    names = set(re.findall(r"(--[\w]+):", light))
    assert names == set(re.findall(r"(--[\w]+):", dark))
    assert set(re.findall(r"var\((--\w+)\)", STYLE)) <= names
