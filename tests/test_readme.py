"""The README and the pages name what exists, what can be pasted runs, and prints what is shown."""

import contextlib
import io
import json
import re
import runpy
import shlex
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral
from typer.main import get_command

from choral.cli.app import app
from choral.fit import fit
from choral.recipes import METHODS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
MADE = ("_build", "methods", "gallery", "generated")  # folders that the documentation's build writes
DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if not set(page.parts) & set(MADE))
PAGES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", *DOCS]
START = "docs/start.md"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


GIVEN = blocks(START, "python")[0].split("\n\n\nensemble =")[0]
"""Imports, data and build of the start page."""


def test_it_names_every_method():
    named = set(re.findall(r"`(\w+)`", TEXT.split("All of them:")[1].split("##")[0]))
    assert named == set(METHODS)
    assert f"{len(METHODS)} methods" in TEXT


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_results_of_another_version_are_marked(page):
    text = (ROOT / page).read_text()
    for name in re.findall(r"`(\w+\.json)`", text):
        version = json.loads((ROOT / "benchmarks" / "results" / name).read_text())["machine"]["choral"]
        assert version == metadata.version("choral") or f"`{name}`, {version})" in text


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


@pytest.mark.parametrize("page", sorted({*PAGES, *(p.name for p in ROOT.glob("*.md"))}))
def test_lines_are_short(page):
    assert not [line for line in (ROOT / page).read_text().splitlines() if len(line) > 120]


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_pages_are_short(page):
    text = (ROOT / page).read_text()
    free = any(part in page for part in ("reference/", "pitfalls", "fidelity"))  # fidelity.md is a generated table
    assert free or len(text.split()) <= 900


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_picture_exists(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\((?!\.\./\.\./actions)([^)#:]+)(?:#[\w-]+)?\)", text)  # those are pages of GitHub
    assert not [t for t in targets if not (set(t.split("/")) & set(MADE) or ((ROOT / page).parent / t).exists())]
    for kind, name in re.findall(r"\]\((?:\.\./)?(methods|gallery)/(\w+)\.\w+\)", text):
        assert (
            (name in METHODS) if kind == "methods" else (ROOT / f"docs/tutorials/{name}.py").exists() or name == "index"
        )
    named = re.findall(r"`((?:docs|src|tests|benchmarks|examples)/[\w/.]+)`", text)
    assert not [n for n in named if not (ROOT / n).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / page).read_text()
    named = re.findall(r"`make (\w+)`", text) + re.findall(r"^make (\w+)", text, flags=re.MULTILINE)
    assert not [n for n in named if f"\n{n}:" not in makefile]


_NUMBER = re.compile(r"-?\d+\.?\d*")


def agree(printed: str, shown: str) -> None:
    """Compare what a snippet prints with what its page shows: the same words, and numbers within 5 % or one unit.

    Training amplifies the last bits of sums, which differ between kinds of processors.
    """
    assert _NUMBER.sub("#", printed).split() == _NUMBER.sub("#", shown).split()
    for own, other in zip(_NUMBER.findall(printed), _NUMBER.findall(shown)):
        unit = 10.0 ** -len(other.partition(".")[2])
        assert abs(float(own) - float(other)) <= max(1.01 * unit, 0.05 * abs(float(other)))


@pytest.mark.slow
def test_what_python_is_shown_prints_what_is_shown(tmp_path):
    code, printed = blocks("README.md", "python"), blocks("README.md", "text")
    assert len(code) == len(printed) == 2
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        for block, shown in zip(code, printed):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(block, names)
            agree(said.getvalue(), shown)
    assert {p.name for p in tmp_path.iterdir()} == {"runs", "digits.choral"}


@pytest.mark.full
@pytest.mark.parametrize("page", [page for page in DOCS if blocks(page, "python")])
def test_what_python_a_page_shows_runs_after_the_start(page, tmp_path):
    script = tmp_path / "pasted.py"
    script.write_text("\n".join([*([GIVEN] if page != START else []), *blocks(page, "python")]))
    with contextlib.chdir(tmp_path):
        runpy.run_path(str(script), run_name="pasted")  # as in test_snippets: one name for the values of a page


@pytest.mark.full
def test_what_python_the_pages_show_passes_a_type_checker(tmp_path):
    api = pytest.importorskip("mypy.api")
    scripts = []
    for page in ["README.md", *(p for p in DOCS if blocks(p, "python"))]:
        scripts.append(tmp_path / f"{Path(page).stem}_pasted.py")
        start = [] if page in ("README.md", START) else [GIVEN]
        scripts[-1].write_text("\n".join([*start, *blocks(page, "python")]))
    options = ["--ignore-missing-imports", "--check-untyped-defs", "--follow-imports=silent"]
    with contextlib.chdir(ROOT):
        said, errors, status = api.run([*options, f"--cache-dir={ROOT / '.mypy_cache'}", *map(str, scripts)])
    assert status == 0, said + errors


@pytest.mark.full
def test_the_ensemble_of_the_readme_is_better_than_one_network(tmp_path):
    with contextlib.chdir(tmp_path):
        names: dict[str, Any] = {}
        exec(GIVEN, names)
        build, data, test = names["build"], (names["x"], names["y"]), (names["x_test"], names["y_test"])
        found = {
            name: np.mean([fit(build, data, name, seed=seed).evaluate(*test)["nll"] for seed in range(3)])
            for name in ("prune_and_tune", "single")
        }
    printed = map(float, re.findall(r"0\.\d{3}", TEXT.split("NLL of three seeds")[1])[:2])
    assert found["prune_and_tune"] < found["single"]
    assert found == pytest.approx(dict(zip(found, printed)), abs=0.01)


def commands() -> list[list[str]]:
    """Every `choral ...` line of the README's shell blocks, without its comment."""
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("choral ")]


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path):
    draw = np.random.default_rng(0)
    houses = pd.DataFrame({"rooms": draw.integers(1, 9, 160), "garden": draw.choice(["yes", "no"], 160)})
    houses["area"] = draw.normal(100, 20, 160).round(1)
    houses.assign(price=houses["rooms"] * 1e5).to_csv(tmp_path / "houses.csv", index=False)
    houses.to_csv(tmp_path / "new_houses.csv", index=False)
    assert [c[0] for c in commands()] == ["fit", "predict", "report"]
    with contextlib.chdir(tmp_path):
        for command in commands():
            quick = [*command, *(["--budget", "10"] if command[0] == "fit" else [])]
            assert choral(*quick).code == 0
    assert (tmp_path / "runs" / "houses" / "report.html").exists()
    assert (tmp_path / "predictions.csv").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/howto/tables.md"])
def test_every_command_and_option_it_names_exists(page):
    made = get_command(app).commands  # type: ignore[attr-defined]  # a group
    lines = re.findall(r"`choral ([a-z]+)([^`]*)`", (ROOT / page).read_text())
    assert lines
    for name, rest in lines:
        options = {o for p in made[name].params for o in p.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= options
    assert all("--json" in {o for p in c.params for o in p.opts} for c in made.values())  # "every command takes --json"


def test_one_oldest_python_is_named_and_the_pins_accept_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert f"Python {oldest} or newer" in TEXT
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert set(re.findall(r"[Pp]ython (3\.\d+)", "".join((ROOT / p).read_text() for p in PAGES))) == {oldest}
    floors = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if "==" in line:
            with contextlib.suppress(metadata.PackageNotFoundError):
                needed = metadata.metadata(line.split("==")[0])["Requires-Python"] or ">=3"
                floors[line] = tuple(int(p) for p in re.findall(r">=\s*([\d.]+)", needed)[0].split(".")[:2])
    assert len(floors) > 15
    assert max(floors.values()) == tuple(map(int, oldest.split("."))), json.dumps(floors, indent=1)
