"""Runs that several processes train: prepared, listed, trained leaf by leaf by shells that know nothing of each other."""

import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.cli.shell import choral, refused


@pytest.fixture
def table(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(150, 3))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{a + b * c + draw.normal() / 9:.4f}" for a, b, c in x]
    path = tmp_path / "points.csv"
    path.write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return path


def words(table, method="hyper_ensemble", epochs=30):
    sizes = ["--method", method, "--members", "3", "--budget", str(epochs), "--batch-size", "16"]
    return ["fit", table, "--target", "y", *sizes, "--executor", "sequential", "--validation", "0", "--quiet"]


def files(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def start(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "choral", *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL
    )


@pytest.mark.slow
@pytest.mark.full
def test_three_shells_one_of_them_killed_train_the_bytes_of_one_command(table, tmp_path):
    choral(*words(table), "--out", tmp_path / "whole")
    run = tmp_path / "run"
    listed = json.loads(choral(*words(table), "--out", run, "--prepare", "--json").stdout)
    assert [row["path"] for row in listed] == ["f0", "f1", "f2"]
    first = [start("run-leaf", run, row["path"], "--quiet") for row in listed]
    log = run / "leaves" / "f1"
    while not any(log.glob("*.jsonl")) and first[1].poll() is None:
        time.sleep(0.01)
    time.sleep(random.Random(3).uniform(0, 0.05))
    first[1].kill()
    assert [p.wait(timeout=120) for p in first][0::2] == [0, 0]
    assert start("run-leaf", run, "--index", 1, "--quiet").wait(timeout=120) == 0
    assert files(run) == files(tmp_path / "whole")
    choral(*words(table), "--out", run)
    assert (run / "ensemble.choral").exists()


def test_leaves_say_what_is_ready_and_what_waits(table, tmp_path):
    run = tmp_path / "run"
    choral(*words(table, "prune_and_tune", 9)[:-1], "--quiet", "--members", "2", "--out", run, "--prepare")
    assert choral("leaves", run, "--ready").stdout.split() == ["start"]
    early = choral("run-leaf", run, "2/f0", "--quiet", expect=2)
    assert "continues from leaf 'start', which is not trained yet" in early.stderr
    assert "start" in choral("run-leaf", run, "start", "--quiet").stdout
    assert choral("leaves", run, "--ready").stdout.split() == ["2/f0", "2/f1"]
    states = {row["path"]: row["state"] for row in json.loads(choral("leaves", run, "--json").stdout)}
    assert states == {"start": "done", "2/f0": "ready", "2/f1": "ready"}
    moved = tmp_path / "elsewhere.csv"
    table.rename(moved)
    assert "points.csv" in refused("run-leaf", run, "2/f0", "--quiet")
    choral("run-leaf", run, "2/f0", "--quiet", "--data", moved)
    moved.write_text(moved.read_text() + "1,1,1,1\n")
    assert "holds another run" in choral("run-leaf", run, "2/f1", "--quiet", "--data", moved, expect=2).stderr


def test_words_that_do_not_go_together_are_refused(table, tmp_path):
    run = tmp_path / "run"
    assert "--time-limit" in refused(*words(table), "--out", run, "--prepare", "--time-limit", "9")
    assert "add --prepare" in refused(*words(table), "--out", run, "--stack", "2")
    assert "holds no run" in refused("leaves", run)
    choral(*words(table), "--out", run, "--prepare")
    assert "give one leaf" in refused("run-leaf", run)
    assert "has leaves 0 to 2" in refused("run-leaf", run, "--index", "3")
    assert "no leaf 'f9'" in refused("run-leaf", run, "f9")
    (run / "command.json").unlink()
    assert "has no command.json" in refused("run-leaf", run, "f0")


def test_folders_that_hold_something_else_are_said(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choral(*words(table, epochs=9), "--out", "whole")
    again = choral(*words(table, epochs=9), "--out", "whole", "--prepare", expect=2)
    assert "holds this run already, trained as a whole" in again.stderr
    assert "whole holds a run that is not cut into leaves" in refused("run-leaf", "whole", "f0")
    assert "Not a directory" in refused("leaves", "points.csv")
    assert "Not a directory" in refused("run-leaf", "points.csv", "f0")
    assert "nowhere holds no run" in refused("run-leaf", "nowhere", "f0")
    choral(*words(table, epochs=9), "--out", "run", "--prepare")
    other = choral(*words(table, epochs=9), "--out", "run", "--prepare", "--seed", "3", expect=2)
    assert "seed was 0, now 3" in other.stderr
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert "moved holds no run" in refused("run-leaf", "moved", "f0")
    choral("run-leaf", "../moved", "f0", "--quiet")
    manifest = tmp_path / "moved" / "leaves" / "f0" / "manifest.json"
    whole = manifest.read_bytes()
    for damaged in (b"", b"\x00\xff", whole[:50], whole.replace(b"members/00000", b"members/00001")):
        manifest.write_bytes(damaged)
        assert "f0" in choral("leaves", "../moved", "--ready").stdout


def test_a_run_at_a_url_is_prepared_trained_and_put_together(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = "memory://cli/run"
    choral(*words(table, epochs=9), "--out", run, "--prepare")
    for path in choral("leaves", run, "--ready").stdout.split():
        choral("run-leaf", run, path, "--quiet")
    assert "saved runs/points-hyper_ensemble/ensemble.choral" in choral(*words(table, epochs=9), "--out", run).stdout
    assert not (tmp_path / "memory:").exists()
    assert "give a path" in choral("compare", table, "--target", "y", "--methods", "single",
                                   "--budget", "3", "--out", run, expect=2).stderr  # fmt: skip
