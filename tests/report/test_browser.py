"""The report in a real browser, on a phone and on a desktop: nothing is cut off, no word breaks."""

import json
import re
import shutil
import subprocess

import pytest

from photinus.report.page import render

pytestmark = pytest.mark.browser
WIDTHS = (390, 1280)
FRAME = """<!doctype html><body style="margin:0">
<iframe src="report.html" width="{width}" height="6000" style="border:0"></iframe><pre></pre>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const broken = [];
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {{
    if (node.parentElement.closest("svg, style, pre")) continue;
    for (const word of node.data.matchAll(/[^\\s]+/g)) {{
      const range = page.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
      if (lines.size > 1 && !/[-\\/·–]/.test(word[0])) broken.push(word[0]);
    }}
  }}
  const size = page.documentElement;
  document.querySelector("pre").textContent = JSON.stringify({{
    broken, width: size.scrollWidth, height: size.scrollHeight,
    sections: [...page.querySelectorAll("h2")].map((h) => h.textContent),
    unseen: [...page.querySelectorAll("img, figure svg")].filter((p) => p.clientWidth < 50).length,
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def browser():
    programs = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    if not any(programs):
        pytest.skip("there is no chromium on this machine")
    program = next(filter(None, programs))
    return [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
    ]


def diagnose(browser, folder, page, width):
    """What a browser says of the page at this width; its picture lies beside it."""
    (folder / "report.html").write_text(page, encoding="utf-8")
    frame = folder / f"{width}.html"
    frame.write_text(FRAME.format(width=width))
    window = f"--window-size={max(width, 600)},6000"
    picture = folder / f"{width}.png"
    home = f"--user-data-dir={folder / 'home'}"
    command = [
        *browser,
        window,
        home,
        f"--screenshot={picture}",
        "--hide-scrollbars",
        frame.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert picture.stat().st_size > 50_000, "the picture is empty"
    command = [*browser, window, home, "--dump-dom", frame.as_uri()]
    dom = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return json.loads(re.search(r"<pre>(\{.*?\})</pre>", dom, re.DOTALL)[1].replace("&amp;", "&"))


@pytest.mark.parametrize("width", WIDTHS)
def test_on_a_phone_and_on_a_desktop_no_word_breaks_and_nothing_is_cut_off(
    browser, sample, tmp_path, width
):
    diagnosis = diagnose(browser, tmp_path, render(sample), width)
    assert diagnosis["broken"] == []
    assert diagnosis["width"] <= width
    assert diagnosis["unseen"] == 0
    assert diagnosis["sections"][0] == "Training", "the loss comes first"
    assert "Words" in diagnosis["sections"]


def test_the_check_finds_words_that_break_and_a_page_that_is_too_wide(browser, sample, tmp_path):
    """As the page was when long words were broken anywhere: one letter a line on a phone."""
    broken_style = (
        "</style><style>* { overflow-wrap: anywhere; } .stacks td { display: table-cell }"
    )
    broken_style += ".stacks tr { display: table-row } h1 { width: 900px }</style>"
    page = re.sub(r"<meta http-equiv[^>]*>", "", render(sample)).replace(
        "</style>", broken_style, 1
    )
    diagnosis = diagnose(browser, tmp_path, page, 390)
    assert "fine-tuning" in " ".join(diagnosis["broken"]) or len(diagnosis["broken"]) > 5
    assert diagnosis["width"] > 390
