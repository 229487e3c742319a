"""The words of a command: what is asked is done or refused, and nothing is ignored."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral, refused, run

import choral as library
from choral.cli import process

COMMANDS = ["methods", "plan", "fit", "compare", "predict", "evaluate", "report", "leaves", "run-leaf"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "t.csv"
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    pd.DataFrame({"a": x, "b": rng.choice(["u", "v"], 60), "y": 3 * x + rng.normal(size=60)}).to_csv(path, index=False)
    return path


def test_version_and_help():
    assert choral("--version").stdout == f"choral {library.__version__}\n"
    assert "compare" in choral(expect=2).stdout
    assert "--target" in choral("fit", "--help").stdout


MISUSED = {
    "unknown command": (["fitt"], "--help"),
    "unknown option": (["fit", "wine", "--epoch", "3"], "choral fit --help"),
    "no data": (["fit"], "--help"),
    "too many words": (["plan", "single", "digits", "more"], "--help"),
    "a word for a number": (["plan", "single", "--budget", "many"], "--budget"),
    "no epochs": (["plan", "single", "--budget", "0"], "--budget"),
    "a whole holdout": (["fit", "wine", "--holdout", "1"], "--holdout"),
    "a missing value": (["fit", "wine", "--budget"], "--budget"),
    "both progress": (["fit", "wine", "--progress=3"], "--progress"),
    "a flag with a value": (["fit", "wine", "--json=1"], "--json"),
    "no methods": (["compare", "--methods", ","], "methods is"),
    "members of one": (["fit", "wine", "--method", "single", "--members", "3"], "--members is 3, but single"),
    "members of dropout": (
        ["fit", "wine", "--method", "mc_dropout", "--members", "3"],
        "--members is 3, but mc_dropout",
    ),
    "members in a plan": (["plan", "single", "--members", "3"], "--members is 3"),
    "a target without a table": (["fit", "wine", "--target", "y"], "--target is about a table"),
    "a task without a table": (["fit", "wine", "--task", "regression"], "--task is about a table"),
    "a drop without a table": (["compare", "wine", "--drop", "y"], "--drop is about a table"),
    "a plan's target": (["plan", "single", "--target", "y"], "add the data"),
    "a plan's rate": (["plan", "single", "--lr", "0.1"], "add the data"),
    "a rate that is none": (["fit", "wine", "--lr", "nan"], "lr is nan"),
    "an endless rate": (["fit", "wine", "--lr", "inf"], "lr is inf"),
    "a holdout that is none": (["fit", "wine", "--holdout", "nan"], "--holdout"),
    "a validation that is none": (["fit", "wine", "--validation", "nan"], "--validation is nan"),
    "all for validation": (["fit", "wine", "--validation", "1"], "--validation is 1.0"),
    "no such likelihood": (["fit", "wine", "--likelihood", "gaus"], "Did you mean 'gaussian'?"),
    "no time": (["fit", "wine", "--time-limit", "-1"], "time_limit is -1.0"),
    "an old word": (["fit", "wine", "--keep", "best"], "keep"),
    "an executor": (["fit", "wine", "--executor", "gpu"], "executor"),
    "a schedule": (["fit", "wine", "--schedule", "cosin"], "schedule"),
    "few epochs": (
        ["compare", "wine", "--methods", "single,deep_ensemble", "--budget", "1"],
        "deep_ensemble",
    ),
    "held out of arrays": (["evaluate", "nowhere", "wine", "--held-out"], "does not exist"),
    "an ensemble that is none": (["predict", "/dev/null", "x.csv"], "/dev/null"),
    "a folder that is none": (["report", "nowhere"], "nowhere"),
    "a corruption": (["evaluate", "nowhere", "wine", "--corruptions", "fogg"], "nowhere"),
    "nul in a path": (["fit", "a\0b.csv", "--target", "y"], "choral: "),
    "a very long path": (["fit", "a" * 5000 + ".csv", "--target", "y"], "choral: "),
    "an empty path": (["fit", ""], "choral: "),
    "a dot": (["fit", "."], "choral: "),
    "an ending alone": (["fit", ".csv", "--target", "y"], "does not exist"),
}


@pytest.mark.parametrize("case", MISUSED)
def test_misused_words_are_one_sentence(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, expected = MISUSED[case]
    assert expected in refused(*words)
    assert not list(tmp_path.iterdir())


def test_a_plan_is_what_fit_does(table, tmp_path):
    words = ["--target", "y", "--budget", 8, "--lr", 0.02, "--batch-size", 16]
    text = choral("plan", "deep_ensemble", table, *words).stdout
    assert "Adam" in text
    assert "start=0.02" in text
    assert "batch 16" in text
    assert "45 training rows, 15 held out, regression" in text
    planned = json.loads(choral("plan", "deep_ensemble", table, *words, "--json").stdout)
    choral("fit", table, "--method", "deep_ensemble", *words, "--out", tmp_path / "run", "--json")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert planned["tree"] == plan["describe"]["tree"]
    assert [c["column"] for c in planned["columns"]] == ["a", "b"]
    assert "250 epochs" in choral("plan", "single", table, "--target", "y").stdout  # 500 steps
    assert "200 epochs" in choral("plan", "single").stdout


def test_a_changed_option_is_named_and_overwrite_starts_again(table, tmp_path, undrawn):
    words = ["fit", table, "--target", "y", "--method", "single", "--out", tmp_path / "run", "--json", "--budget"]
    choral(*words, 2)
    text = choral(*words, 3, expect=2).stderr.splitlines()[-1]
    assert "--out" in text
    assert "--overwrite" in text
    assert "epochs" in text
    row = json.loads(choral(*words, 3, "--overwrite").stdout)
    assert row["epochs"] == 3
    compare = ["compare", table, "--target", "y", "--methods", "single", "--out", tmp_path / "c", "--json"]
    choral(*compare, "--budget", 1)
    assert "--overwrite" in choral(*compare, "--budget", 2, expect=2).stderr
    choral(*compare, "--budget", 2, "--overwrite")


def test_progress_where_there_is_no_terminal(table, tmp_path):
    words = ["fit", table, "--target", "y", "--method", "single", "--budget", 20, "--json"]
    assert "epochs, loss" not in choral(*words, "--out", tmp_path / "a").stderr
    told = [
        line
        for line in choral(*words, "--out", tmp_path / "b", "--progress").stderr.splitlines()
        if "epochs, loss" in line
    ]
    assert len(told) == 10
    assert told[-1].startswith("choral: single: 20 of 20 epochs, loss ")


def test_tables_are_readable_at_eighty_columns(table, tmp_path, monkeypatch):
    words = ["compare", table, "--target", "y", "--budget", 1, "--methods", "single"]
    monkeypatch.delenv("COLUMNS", raising=False)  # runners of tests in parallel set it
    wide = choral(*words).stdout
    monkeypatch.setenv("COLUMNS", "80")
    text = choral(*words).stdout
    lines = [line for line in text.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, lines)) <= 80
    assert "columns not shown: " in text
    assert "predict_seconds" in text.split("columns not shown: ")[1]
    assert all(name in text for name in ("single", "rmse", "nll", "coverage_95"))
    assert "left out for want" not in wide
    assert "the operations of 1 epoch of one network" in wide


def test_errors_of_every_kind_have_a_sentence():
    kinds = {
        OSError(28, "No space left on device", "p.csv"): (2, "p.csv cannot be used (No space left on device)"),
        PermissionError(13, "Permission denied"): (2, "Permission denied"),
        MemoryError(): (2, "not enough memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"): (2, "fewer rows"),
        ValueError("a\nb"): (2, "a b"),
        RuntimeError(""): (2, "RuntimeError"),
        RecursionError("deep"): (2, "deep"),
        KeyboardInterrupt(): (130, "interrupted"),
        ModuleNotFoundError("No module named 'x'"): (2, "No module named 'x'"),
        KeyError("k"): (1, "unexpected KeyError: 'k'"),
        AssertionError(): (1, "unexpected AssertionError"),
    }
    for error, (code, words) in kinds.items():

        def fail(error=error):
            raise error

        with contextlib.redirect_stderr(io.StringIO()) as said:
            assert process.guarded(fail) == code, error
        lines = said.getvalue().strip().splitlines()
        assert words in lines[-1]
        assert (code == 1) == ("Traceback" in said.getvalue()) == (len(lines) > 1)


def test_an_interrupt_hidden_by_an_import_is_an_interrupt():
    def importing():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("numpy is half there") from error

    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert process.guarded(importing) == 130
    assert "interrupted" in said.getvalue()


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("CHORAL_DEBUG", "1")
    done = run("fit", "nowhere.csv", "--target", "y")
    assert done.code == 2
    assert "Traceback" in done.stderr
    assert "nowhere.csv" in done.stderr.splitlines()[-1]


def test_sigterm_ends_a_command_with_a_sentence():
    said = io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stderr(said):
        assert process.guarded(lambda: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(30) or 0) == 143
    assert "terminated; run the same command again" in said.getvalue()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_within_a_command_is_said(monkeypatch):
    def stopped(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    monkeypatch.setattr("choral.cli.app.write_json", stopped)
    done = choral("methods", "--json", expect=143)
    assert "terminated; run the same command again" in done.stderr


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_has_an_example(words):
    text = choral(*words).stdout
    assert words == ["--help"] or f"Example: choral {words[0]}" in text


def test_methods_show_their_papers():
    assert "arXiv:1612.01474" in choral("methods").stdout


def test_a_terminal_shows_ten_rounded_rows(table, tmp_path, monkeypatch):
    choral("fit", table, "--target", "y", "--method", "single", "--budget", 1, "--out", tmp_path / "r", "--json")
    whole = choral("predict", tmp_path / "r", table).stdout.splitlines()
    monkeypatch.setattr(io, "StringIO", type("Terminal", (io.StringIO,), {"isatty": lambda self: True}))
    shown = choral("predict", tmp_path / "r", table).stdout.splitlines()
    assert shown[-1] == "10 of 60 rows, rounded; --out predictions.csv writes all of them."
    assert len(whole) == 61
    first = [float(cell) for cell in whole[1].split(",")[1:]]
    assert [float(cell) for cell in shown[2].split()[1:]] == pytest.approx(first, abs=6e-5)
    assert shown[11].split()[0] == "9"


def test_a_pipe_that_is_closed():
    call = f"{sys.executable} -m choral methods --json | head -1"
    done = subprocess.run(call, shell=True, capture_output=True, text=True)
    assert done.stdout == "[\n"
    assert done.stderr == ""


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
def test_a_disk_that_is_full():
    call = f"{sys.executable} -m choral methods > /dev/full"
    done = subprocess.run(call, shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "choral: a file cannot be used (No space left on device); check the path, its permissions and the space left."
    ]


def test_test_rows_of_another_share_are_noticed(tmp_path):
    choral("fit", "wine", "--method", "single", "--budget", 1, "--holdout", 0.1, "--out", tmp_path / "r", "--json")
    assert "trained on" not in choral("evaluate", tmp_path / "r", "wine", "--holdout", 0.1, "--json").stderr
    assert "fitted on wine --holdout 0.1" in refused("evaluate", tmp_path / "r", "wine")
    assert "diabetes" in refused("evaluate", tmp_path / "r", "diabetes")


def test_members_are_added_to_a_run_at_the_shell(tmp_path):
    words = [
        "fit",
        "wine",
        "--validation",
        0,
        "--batch-size",
        32,
        "--executor",
        "sequential",
        "--json",
        "--out",
        tmp_path,
    ]
    choral(*words, "--members", 2, "--budget", 4)
    first = [(tmp_path / "members" / f"0000{i}.safetensors").read_bytes() for i in (0, 1)]
    assert "on_existing='extend' (--extend) to add members" in refused(*words, "--members", 3, "--budget", 6)
    assert "its rate is spread over the whole phase" in refused(*words, "--members", 3, "--budget", 9, "--extend")
    assert "give one of them" in refused(*words, "--members", 3, "--budget", 6, "--extend", "--overwrite")
    assert json.loads(choral(*words, "--members", 3, "--budget", 6, "--extend").stdout)["members"] == 3
    weights = [next(iter(network.parameters())) for network in library.load(tmp_path)]
    assert len({w.sum().item() for w in weights}) == 3
    assert [(tmp_path / "members" / f"0000{i}.safetensors").read_bytes()[-64:] for i in (0, 1)] == [
        b[-64:] for b in first
    ]
