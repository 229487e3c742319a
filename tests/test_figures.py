"""Figures in the README and the benchmarks page are those of the results files that it names beside them."""

import itertools
import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def passages(text):
    """Yield each paragraph that names results files, with what follows up to the next such paragraph or heading."""
    files: list[str] = []
    for part in re.split(r"\n\n+", text):
        named = re.findall(r"`(?:results/)?(\w+\.json)`", part)
        if part.startswith("#"):
            files = []
        elif named:
            files = named
        if files:
            yield files, part


def held(name):
    """Return every number a results file holds, and the means, medians and deviations of rows of the same label."""
    content = json.loads((RESULTS / name).read_text())
    found: set[float] = set(numbers(content))
    for rows in (content[k] for k in ("rows", "table") if isinstance(content.get(k), list)):
        for _, same in itertools.groupby(sorted(rows, key=label), key=label):
            group = list(same)
            for key in group[0]:
                values = [r[key] for r in group if isinstance(r.get(key), int | float)]
                if len(values) > 1:
                    found |= {statistics.mean(values), statistics.median(values), statistics.stdev(values)}
    return found


def label(row):
    return f"{row.get('set', '')} {row.get('label') or row.get('method')}"


def numbers(item):
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list):
        for part in item:
            yield from numbers(part)
    elif isinstance(item, int | float) and not isinstance(item, bool):
        yield float(item)


def known(figure, values):
    """Return whether some value rounds to a figure, as it is or in per cent."""
    digits = len(figure.split(".")[1])
    return any(f"{v * scale:.{digits}f}" == figure for v in values for scale in (1, 100))


FOLDER = {  # of a run or comparison
    f"{name}.json" for name in ("plan", "command", "likelihood", "results", "evaluation", "comparison", "report")
}


def measured():
    for page in ("README.md", "docs/benchmarks.md"):
        yield from passages((ROOT / page).read_text())


@pytest.mark.parametrize(("files", "text"), list(measured()), ids=lambda p: p[0] if isinstance(p, list) else "")
def test_every_figure_shown_is_in_the_file_it_names(files, text):
    values = {v for name in files for v in held(name)}
    missing = [f for f in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text) if not known(f, values)]
    assert not missing, f"{files} hold nothing that rounds to {missing}"


def test_files_named_anywhere_exist():
    for page in ("README.md", "benchmarks/README.md", "docs/benchmarks.md", "docs/reference/files.md"):
        for name in re.findall(r"`(?:results/)?(\w+\.json)`", (ROOT / page).read_text()):
            assert (RESULTS / name).exists() or name in FOLDER, f"{page}: {name}"
