"""What the shell shows of names from outside."""

import contextlib
import io
import shutil

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from tests.cli.test_app import choral, sentence

from choral.cli import output
from choral.engine.files import read_json, write_json

NAMES = ["[/b]", "[bold red]x[/bold red]", "[link=x]y", ":smile:", "[/]", "a[0]", "\\[x]", "[@click=x]y[/]"]


def shown(monkeypatch, terminal, *arguments):
    """Return what a table looks like, on a terminal with colors or in a file."""
    out = io.StringIO()
    made = Console(file=out, force_terminal=terminal, width=160, color_system="truecolor" if terminal else None)
    monkeypatch.setattr("rich.console.Console", lambda *a, **k: made)
    output.table(*arguments)
    return out.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_table_is_neither_markup_nor_lost(monkeypatch, name):
    rows = [{"method": name, "nll": 0.5, name: name}, {"method": "other", "nll": 0.25, name: 1}]
    text = shown(monkeypatch, False, f"the title {name}", ["method", "nll", name], rows)
    assert text.count(name) == 4
    assert "\x1b[31m" not in shown(monkeypatch, True, name, ["method", name], rows)


def test_the_best_is_still_bold(monkeypatch):
    text = shown(monkeypatch, True, "t", ["method", "nll"], [{"method": "a", "nll": 0.5}, {"method": "b", "nll": 0.25}])
    assert "\x1b[1m0.2500" in text
    assert "\x1b[1m0.5000" not in text


def test_nothing_reaches_the_terminal_that_it_would_obey(monkeypatch):
    name = "\x1b[2J\x07\u202e\x9b1m\udcff"
    for write, stream in ((output.say, "stdout"), (output.note, "stderr")):
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf8")
        monkeypatch.setattr(f"sys.{stream}", out)
        write(f"report: {name}")
        out.flush()
        assert out.buffer.getvalue().decode() == "report: �[2J��" + "�1m�\n"
    assert "\x1b" not in shown(monkeypatch, False, name, [name], [{name: name}])


def test_a_narrow_encoding_is_no_reason_to_stop(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    output.say("└ Collect()")
    out.flush()
    assert out.buffer.getvalue() == b"? Collect()\n"


def test_progress_shows_names_as_they_are(monkeypatch):
    out = io.StringIO()
    made = Console(file=out, force_terminal=True, width=160)
    monkeypatch.setattr("rich.console.Console", lambda *a, **k: made)
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    with output.progress(quiet=False) as bar:
        hear = bar("[/b] x", 2)
        hear({"kind": "epoch", "counted": {"epochs": 1}, "losses": [0.5]})
    assert "[/b] x" in out.getvalue()


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("[b]odd[slash]")
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"[/b]": draw.normal(size=40), "<script>": draw.normal(size=40)})
    frame["[red]kind"] = np.where(frame["[/b]"] > 0, "[/b]", "<b>'\\d")
    frame.to_csv(folder / "[/b]odd[i].csv".replace("/", ""), index=False)
    return folder


def test_odd_columns_classes_and_paths_go_through_every_command(tables):
    data, run = tables / "[b]odd[i].csv", tables / "[bold]run"
    call = ["fit", data, "--target", "[red]kind", "--budget", 2, "--members", 2, "--out", run]
    with contextlib.chdir(tables):
        assert "[red]kind" in choral(*call).stderr
        assert "[bold]run" in " ".join(choral(*call).stdout.split())
        assert choral("predict", run, data).stdout.splitlines()[0].endswith("p_<b>'\\d,p_[/b]")
        assert "[b]odd[i].csv" in choral("evaluate", run, data).stdout
        assert "[bold]run" in choral("report", run).stdout
    assert "<b>'" not in (run / "report.html").read_text()


def test_odd_names_in_mistakes_are_one_sentence(tables, tmp_path):
    assert "'[/b]'" in sentence(choral("plan", "[/b]", expect=2))
    assert "[/b].csv" in sentence(choral("fit", "[/b].csv", "--target", "y", expect=2))
    assert "[red]" in sentence(choral("fit", tables / "[b]odd[i].csv", "--target", "[red]", expect=2))
    assert "[/b]" in sentence(choral("report", tmp_path / "[/b]", expect=2))
    assert "\x1b" not in sentence(choral("report", tmp_path / "\x1b[2J", expect=2))


def test_usage_mistakes_with_brackets_are_answered():
    assert "[/b]" in choral("[/b]", expect=2).stderr
    assert "--budget" in choral("fit", "digits", "--budget", "[/b]", expect=2).stderr


def test_a_method_named_like_markup_is_reported(tables, tmp_path):
    shutil.copytree(tables / "[bold]run", tmp_path / "run")
    plan = read_json(tmp_path / "run" / "plan.json")
    plan["describe"]["name"] = "[/b]<img src=x>"
    write_json(tmp_path / "run" / "plan.json", plan)
    choral("report", tmp_path / "run")
    assert "<img" not in (tmp_path / "run" / "report.html").read_text()
