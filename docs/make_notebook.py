"""Writes the tutorial as a notebook: python docs/make_notebook.py."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).with_name("tutorial.md")
BLOCK = re.compile(r"^```python *(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([\w.]+)"')


def notebook(page: str) -> str:
    """Returns a page as a notebook: text as it is, Python blocks as cells.

    Args:
        page: in Markdown.
    """
    cells, end = [], 0
    for found in BLOCK.finditer(page):
        title = TITLE.search(found[1])
        head = f"%%writefile {title[1]}\n" if title else ""
        cells += [_cell("markdown", page[end : found.start()]), _cell("code", head + found[2])]
        end = found.end()
    cells.append(_cell("markdown", page[end:]))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def _cell(kind: str, text: str) -> dict[str, object]:
    cell: dict[str, object] = {
        "cell_type": kind,
        "metadata": {},
        "source": text.strip().splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(PAGE.read_text()))
