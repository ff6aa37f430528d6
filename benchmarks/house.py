"""How large the house is, and what a push and a batch touch in it.

    python benchmarks/house.py [REVISION ...]   # this tree, and others beside it
    python benchmarks/house.py --lines          # lines and files by room, against the budget
    python benchmarks/house.py --small          # likewise

Calls are counted by `sys.setprofile` over simulated runs of `averaging` with two workers, on the
driver's thread. Two runs of equally many steps, of which one pushes twice as often, differ by what
pushes cost. Two runs of equally many pushes, of which one takes twice as many steps, differ by
what batches cost. A file counts where it is called at least once in two pushes (or batches). The
simulator has no wire: `transport` is in these figures only where it is called without one.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from statistics import mean

import machine

ROOT = Path(__file__).parents[1]
BUDGET = {
    **{"core": 950, "strategies": 2_500, "models": 2_400, "data": 1_900, "transport": 2_450},
    **{"checkpoint": 1_050, "training": 650, "protocol": 950, "coordinator": 2_200},
    **{"engine": 3_100, "deploy": 600, "report": 1_900, "run": 1_400, "estimators": 1_650},
    **{"cli": 1_100, "testing": 1_850},
}
"""Lines of each room; `devices` and `embeddings` are younger than the budget."""
_LOOPS = ("expr>", "comp>")
"""Comprehensions and generator expressions have frames of their own, and are no calls."""
ROWS, STEPS = 1_600, 200
_NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def lines(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Files, lines and lines of code of each room below a folder of the package."""
    rooms: dict[str, list[int]] = {}
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).parts
        room = rooms.setdefault(inner[0] if len(inner) > 1 else "(package)", [0, 0, 0])
        text = path.read_text()
        for i, more in enumerate((1, len(text.splitlines()), code_lines(text))):
            room[i] += more
    return {room: tuple(counts) for room, counts in rooms.items()}


def code_lines(text: str) -> int:
    """Lines that hold code: no blank ones, no comments, no text that stands alone."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*_NOT_CODE, tokenize.ENDMARKER):
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            numbers.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(numbers)


def print_lines() -> None:
    """Lines and files by room, against the budget."""
    rooms = lines(ROOT / "src" / "photinus")
    print(f"{'room':<14}{'files':>6}{'lines':>8}{'code':>8}{'budget':>8}")
    for room, counts in sorted(rooms.items()):
        print(f"{room:<14}{counts[0]:>6}{counts[1]:>8}{counts[2]:>8}{BUDGET.get(room, '-'):>8}")
    files, total, code = (sum(counts[i] for counts in rooms.values()) for i in range(3))
    print(f"{'src':<14}{files:>6}{total:>8}{code:>8}{sum(BUDGET.values()):>8}")
    tests = [sum(rooms) for rooms in zip(*lines(ROOT / "tests").values(), strict=True)]
    print(f"{'tests':<14}{tests[0]:>6}{tests[1]:>8}{tests[2]:>8}{'-':>8}")


def calls(epochs: float, every: int) -> Counter[tuple[str, str]]:
    """Calls of each function of the package in one simulated run."""
    import numpy as np

    import photinus as ph

    home = os.path.join(os.path.dirname(ph.__file__), "")
    rng = np.random.default_rng(0)
    data = ph.ArrayData(rng.standard_normal((ROWS, 8), np.float32), np.arange(ROWS) % 3)
    make = ph.LogisticConfig if hasattr(ph, "LogisticConfig") else ph.LogisticStage
    config = make(features=8, classes=3, epochs=epochs, batch_size=ROWS // STEPS)
    try:
        strategy = ph.averaging(every=ph.Steps(every), gradients_until=0)
    except ph.UsageError:  # its name in older revisions
        strategy = ph.averaging(every=ph.Steps(every), per_step_until=0)
    job = ph.Job(model=config, workers=2, strategy=strategy, engine="simulate")
    counts: Counter[tuple[str, str]] = Counter()

    def count(frame, event, _):
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(home)
            and code.co_name[-5:] not in _LOOPS
        ):
            counts[code.co_filename.removeprefix(home), code.co_name] += 1

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        sys.setprofile(count)
        try:
            ph.train(job, data, folder=f"{folder}/run")
        finally:
            sys.setprofile(None)
    return counts


def of_each(more: Counter, fewer: Counter, times: float) -> tuple[int, int]:
    """Calls and files of each of so many things that one run does more than another."""
    grown = {key: more[key] - fewer[key] for key in {*more, *fewer}}
    files: Counter[str] = Counter()
    for (file, _), n in grown.items():
        files[file] += n
    return round(sum(files.values()) / times), sum(n >= times / 2 for n in files.values())


def measured() -> dict[str, object]:
    """Figures of the package that is imported here."""
    import photinus

    calls(1, 5)  # what only the first run does is not counted
    base, rarer, longer = calls(1, 5), calls(1, 10), calls(2, 10)
    names = set(photinus.__all__)
    with contextlib.suppress(ImportError):  # older ones have no such room
        import photinus.testing

        names |= set(photinus.testing.__all__)
    batches = base["models/logistic.py", "learn"]  # of each: the longer run has twice as many
    push = of_each(base, rarer, batches / 5 - batches / 10)
    batch = of_each(longer, base, batches)
    return {
        "public names": len(names),
        "calls of a push": push[0],
        "files of a push": push[1],
        "calls of a batch": batch[0],
        "files of a batch": batch[1],
    }


def table(tree: Path) -> dict[str, object]:
    """All figures of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measured"]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    rooms = lines(tree / "src" / "photinus")
    sentences = runpy.run_path(str(ROOT / "tests/house/test_sentences.py"))["sentences"]
    pages = [*(tree / "docs").rglob("*.md"), tree / "README.md"]
    words = [n for page in pages for n in sentences(page.read_text()).values()]
    return {
        "files": sum(counts[0] for counts in rooms.values()),
        "lines": sum(counts[1] for counts in rooms.values()),
        "lines of code": sum(counts[2] for counts in rooms.values()),
        **json.loads(process.stdout.splitlines()[-1]),
        "words of a sentence, mean": round(mean(words), 1),
        **{f"{room}: files, lines": counts[:2] for room, counts in sorted(rooms.items())},
    }


def main(*revisions: str) -> None:
    tables = {}
    for revision in revisions:
        with tempfile.TemporaryDirectory() as folder:
            command = ["git", "-C", str(ROOT), "archive", revision, "src", "docs", "README.md"]
            tarred = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(tarred)) as tree:
                tree.extractall(folder, filter="data")
            tables[revision] = table(Path(folder))
    tables["now"] = table(ROOT)
    print(f"| | {' | '.join(tables)} |\n|---|{'---|' * len(tables)}")
    for name in dict.fromkeys(name for figures in tables.values() for name in figures):
        cells = [figures.get(name, "") for figures in tables.values()]
        texts = [", ".join(map(str, c)) if isinstance(c, tuple) else str(c) for c in cells]
        print(f"| {name} | {' | '.join(texts)} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measured"]:
        print(json.dumps(measured()))
        sys.exit()
    machine.begin("--lines")
    parser = argparse.ArgumentParser()
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    parser.add_argument("--lines", action="store_true")
    options = parser.parse_args()
    if options.lines:
        print_lines()
    else:
        main(*options.revisions)
