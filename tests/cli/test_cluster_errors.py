"""Wrong words for runs in leaves, clusters, folds and automatic choice: each is refused with one sentence before anything is trained."""

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral, run

ROWS = 48


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaling")
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    frame = pd.DataFrame({"a": x, "b": rng.choice(["u", "v"], ROWS), "g": np.arange(ROWS) // 6, "y": 3 * x})
    frame.to_csv(folder / "t.csv", index=False)
    words = ("--target", "y", "--budget", 4, "--members", 2, "--out", folder / "run", "--prepare", "--quiet")
    choral("fit", folder / "t.csv", *words)
    (folder / "torn").mkdir()
    (folder / "torn" / "command.json").write_text("{")
    (folder / "empty").mkdir()
    return folder


FIT = ["fit", "t.csv", "--target", "y"]
WRONG = {
    "leaves of nowhere": (["leaves", "nowhere"], "nowhere"),
    "leaves of an empty folder": (["leaves", "empty"], "no run"),
    "leaves of a file": (["leaves", "t.csv"], "t.csv"),
    "leaves of nothing": (["leaves"], "--help"),
    "leaves of an empty word": (["leaves", ""], "choral: "),
    "leaves of a scheme": (["leaves", "zz://run"], "zz"),
    "leaves of two runs": (["leaves", "run", "run"], "--help"),
    "a leaf without a path": (["run-leaf", "run"], "--index"),
    "a leaf with both": (["run-leaf", "run", "f0", "--index", "0"], "give one leaf"),
    "a leaf that is none": (["run-leaf", "run", "f00"], "has no leaf"),
    "an empty leaf": (["run-leaf", "run", ""], "has no leaf"),
    "a number past the last": (["run-leaf", "run", "--index", "99"], "has leaves 0 to"),
    "a number below 0": (["run-leaf", "run", "--index", "-1"], "--index"),
    "a word for a number": (["run-leaf", "run", "--index", "one"], "--index"),
    "a wait that is none": (["run-leaf", "run", "f0", "--wait", "nan"], "--wait"),
    "a wait below 0": (["run-leaf", "run", "f0", "--wait", "-1"], "--wait"),
    "data elsewhere that is not": (["run-leaf", "run", "--index", "0", "--data", "nowhere.csv"], "nowhere.csv"),
    "other data": (["run-leaf", "run", "--index", "0", "--data", "wine"], "--target"),
    "a run without words": (["run-leaf", "empty", "f0"], "no run"),
    "a torn run": (["run-leaf", "torn", "f0"], "torn"),
    "a leaf of nowhere": (["run-leaf", "nowhere", "f0"], "nowhere"),
    "a stack without leaves": ([*FIT, "--stack", "2"], "--prepare"),
    "an empty stack": ([*FIT, "--prepare", "--stack", "0"], "--stack"),
    "leaves with a clock": ([*FIT, "--prepare", "--time-limit", "3"], "--time-limit"),
    "leaves on a cluster": ([*FIT, "--prepare", "--cluster", "ray"], "--prepare"),
    "a cluster with a clock": ([*FIT, "--cluster", "ray", "--time-limit", "3"], "--time-limit"),
    "leaves to be extended": ([*FIT, "--prepare", "--extend"], "--extend"),
    "leaves chosen automatically": ([*FIT, "--method", "auto", "--prepare"], "within one process"),
    "leaves of another seed": ([*FIT, "--budget", "4", "--members", "2", "--out", "run", "--prepare", "--seed", "1"], "seed"),
    "leaves of another budget": ([*FIT, "--budget", "6", "--members", "2", "--out", "run", "--prepare"], "epochs"),
    "leaves in a file": ([*FIT, "--prepare", "--out", "t.csv"], "t.csv"),
    "one fold": ([*FIT, "--cv", "1"], "--cv"),
    "folds that are none": ([*FIT, "--cv", "2.5"], "--cv"),
    "more folds than rows": ([*FIT, "--cv", "99", "--members", "99", "--budget", "99"], "folds"),
    "folds and validation": ([*FIT, "--cv", "3", "--validation", "0.2"], "validation"),
    "an automatic choice by a share of few rows": ([*FIT, "--validation", "0.2", "--method", "auto"], "there are 36"),
    "more folds than groups": ([*FIT, "--group", "g", "--cv", "20", "--members", "20", "--budget", "20"], "g"),
    "automatic members": ([*FIT, "--method", "auto", "--members", "3"], "auto"),
    "automatic epochs": ([*FIT, "--method", "auto", "--budget", "3"], "auto"),
    "automatic without validation": ([*FIT, "--method", "auto", "--validation", "0"], "auto"),
    "automatic model": ([*FIT, "--method", "auto", "--model", "mlp"], "auto"),
    "automatic on images": (["fit", "digits", "--method", "auto"], "no table"),
    "nearly automatic": ([*FIT, "--method", "aut"], "no method 'aut'"),
    "parts of a batch": ([*FIT, "--accumulate", "0"], "--accumulate"),
    "parts that are none": ([*FIT, "--accumulate", "1.5"], "--accumulate"),
    "parts of members' rows": ([*FIT, "--method", "mimo", "--accumulate", "2", "--budget", "3"], "accumulate"),
    "automatic plan": (["plan", "auto"], "auto"),
    "a plan in one fold": (["plan", "snapshot", "--cv", "1"], "--cv"),
    "a comparison on a cluster": (["compare", "wine", "--cluster", "ray"], "--out"),
}  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_wrong_words_are_one_sentence(part, place, monkeypatch):
    monkeypatch.chdir(place)
    before = sorted(path.name for path in place.rglob("*.safetensors"))
    fallen = {}
    for name in list(WRONG)[part::4]:
        words, expected = WRONG[name]
        done = run(*words)
        said = done.stderr.strip().splitlines()[-1:]  # after what was understood of the data
        if done.code != 2 or not said[0].startswith("choral: ") or expected not in said[0] or "error of" in said[0]:
            fallen[name] = (done.code, *said, done.stdout[:60])
    assert not fallen
    assert sorted(path.name for path in place.rglob("*.safetensors")) == before
