"""Misuse drawn by lot over the whole shell: always an answer or one sentence, never a traceback, never silence."""

import json
import random

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral, run

ROWS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "n": rng.normal(size=ROWS).round(3),
            "word": rng.choice(["u", "v", "w"], ROWS),
            "flag": rng.choice(["yes", "no"], ROWS),
            "day": [f"2026-0{1 + i % 9}-1{i % 10}" for i in range(ROWS)],
            "size": rng.choice(["small", "medium", "large"], ROWS),
            "t": rng.choice(["a", "b"], ROWS),
        }
    )
    frame.to_csv(folder / "t.csv", index=False)
    choral(
        "fit", folder / "t.csv", "--target", "t", "--method", "single", "--budget", 1, "--out", folder / "run", "--json"
    )
    np.savez(folder / "d.npz", x=frame[["n"]].to_numpy(), y=np.arange(ROWS) % 2)
    return folder


def answered(*words):
    """What a command said: exit 0 or 2, and if 2, a sentence as its last line."""
    done = run(*words)
    assert done.code in (0, 2), f"{words}: exit {done.code}: {done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr + done.stdout, words
    if done.code == 2:
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("choral: "), (words, last)
        assert len(last) > 20, (words, last)
    return done


def mutated(data, dice):
    """A file's bytes, changed in one to four places."""
    data = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data))
        kind = dice.randrange(6)
        if kind == 0:
            data[at] = dice.randrange(256)
        elif kind == 1:
            del data[at : at + dice.randint(1, 200)]
        elif kind == 2:
            data[at:at] = dice.choice(
                [b",", b'"', b"\n", b"\r", b";", b"\t", b"\x00", b"\xff", "é".encode(), b"'", b"\\"]
            )
        elif kind == 3:
            data[at:at] = data[at : at + dice.randint(1, 80)]
        elif kind == 4:
            data[at : at + 1] = dice.choice(
                [b"9" * 400, b"1e999", b"=1+1", b"[/b]", b"\x1b[31m", b"{" * 50, b" " * 300]
            )
        else:
            del data[at:]
        data = data or bytearray(b"x")
    return bytes(data)


@pytest.mark.parametrize("seed", range(45))
def test_changed_bytes_of_a_table(seed, place, tmp_path):
    dice = random.Random(seed)
    path = tmp_path / dice.choice(["t.csv", "t.tsv", "T.CSV"])
    path.write_bytes(mutated((place / "t.csv").read_bytes(), dice))
    words = [
        ["plan", "single", path, "--target", "t"],
        ["predict", place / "run", path, "--json"],
        ["evaluate", place / "run", path, "--json"],
    ][seed % 3]
    done = answered(*words)
    if words[0] == "predict" and done.code == 0:
        assert all(0 <= row["p_a"] <= 1 for row in json.loads(done.stdout))


@pytest.mark.parametrize("seed", range(12))
def test_changed_bytes_of_arrays_and_ensembles(seed, place, tmp_path):
    dice = random.Random(seed)
    if seed % 2:
        (tmp_path / "d.npz").write_bytes(mutated((place / "d.npz").read_bytes(), dice))
        answered("evaluate", place / "run", tmp_path / "d.npz")
    else:
        (tmp_path / "e.choral").write_bytes(mutated((place / "run" / "ensemble.choral").read_bytes(), dice))
        assert answered("predict", tmp_path / "e.choral", place / "t.csv").code == 2


STRANGE = [
    "½",
    "٣",
    "0x10",
    "1e",
    "1e400",
    "++1",
    "1,2,3",
    "12:30",
    "Infinity",
    "-inf",
    "NaN",
    "#REF!",
    "=cmd()",
    "1_000",
    "''",
    "nul",
    "%s",
    "{}",
    "\\N",
    "🦊",
    "\u202eabc",
    "1.2.3",
    "--5",
    "£",
    "%",
    "$",
    "(",
    ")",
    "()",
    "9999999999999999999999",
]


READ = ("9999999999999999999999",)  # as a number


@pytest.mark.parametrize("cell", STRANGE)
def test_strange_cells_are_read_or_said(cell, place, tmp_path):
    columns = ["n", "word", "flag", "day", "size"]
    frame = pd.read_csv(place / "t.csv", dtype=str).head(5)
    for row, column in enumerate(columns):
        frame.loc[row, column] = cell
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = answered("predict", place / "run", tmp_path / "new.csv", "--json")
    read = cell in READ
    for column in columns[read:] if done.code == 0 else ["n"]:
        assert f"'{column}'" in done.stderr, (column, cell, done.stderr)


POOL = {
    "--target": ["t", "n", "word", "day", "x", "", "T"],
    "--task": ["classification", "regression", "ranking", ""],
    "--drop": ["n", "t", "word", "nothing"],
    "--id": ["word", "t", "day", "-"],
    "--order": ["size=small<medium<large", "size=a<b", "size", "=", "size=<", "t=a<b"],
    "--group": ["word", "t", "n", "gone"],
    "--time": ["day", "n", "word"],
    "--budget": ["1", "2", "0", "-1", "1.5", "one", "9" * 40],
    "--members": ["1", "2", "0", "x"],
    "--lr": ["0.1", "0", "-3", "1e-300", "x", "nan"],
    "--batch-size": ["1", "7", "100000", "0", "1e3"],
    "--optimizer": ["sgd", "adam", "adamw", "Adam", "lion"],
    "--schedule": ["cosine", "constant", "steps", "warm"],
    "--holdout": ["0.01", "0.5", "0.9", "0.95", "0", "-1", "half"],
    "--model": ["mlp", "mlp_wide", "lenet_s", "resnet20", "gpt"],
}


@pytest.mark.parametrize("seed", range(45))
def test_options_drawn_by_lot(seed, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dice = random.Random(1000 + seed)
    method = dice.choice(["single", "single", "deep_ensemble", "packed", "sngle"])
    data = dice.choice([str(place / "t.csv")] * 4 + ["wine", str(place / "d.npz"), "gone.csv", ""])
    words: list[str] = []
    for option in dice.sample(sorted(POOL), dice.randint(1, 4)):
        words += [option, dice.choice(POOL[option])]
    if "--target" not in words and data.endswith("t.csv") and dice.random() < 0.8:
        words += ["--target", "t"]
    answered("plan", method, data, *words, *(["--json"] if dice.random() < 0.5 else []))


@pytest.mark.parametrize("seed", range(8))
def test_short_fits_drawn_by_lot_leave_a_whole_run_or_none(seed, place, tmp_path):
    dice = random.Random(2000 + seed)
    words = ["--target", dice.choice(["t", "n", "word", "size"]), "--budget", "1", "--method", "single"]
    for option in dice.sample(["--drop", "--id", "--group", "--time", "--lr", "--holdout"], 2):
        words += [option, dice.choice(POOL[option])]
    done = answered("fit", place / "t.csv", "--out", tmp_path / "r", "--json", *words)
    if done.code == 0:
        assert answered("predict", tmp_path / "r", place / "t.csv").code == 0
    else:
        assert not (tmp_path / "r" / "ensemble.choral").exists()
