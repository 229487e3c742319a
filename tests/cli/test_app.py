"""The shell: contracts for machines, sentences for people, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral, refused, sentence

from choral.recipes import METHODS


def test_methods_and_plan_for_machines():
    rows = json.loads(choral("methods", "--json").stdout)
    assert [r["name"] for r in rows] == list(METHODS)
    assert all({"name", "family", "summary", "paper"} <= r.keys() for r in rows)
    plan = json.loads(choral("plan", "snapshot", "--budget", 40, "--members", 4, "--json").stdout)
    assert (plan["name"], plan["epochs"], plan["members"]) == ("snapshot", 40, 4)
    assert plan["tree"]["epochs"] == 40
    assert "repeat 4x" in choral("plan", "snapshot", "--budget", 40, "--members", 4).stdout


def test_compare_gives_the_promised_fields_resumes_and_refuses_another_seed(tmp_path, undrawn):
    call = [
        "compare",
        "wine",
        "--methods",
        "single,deep_ensemble,snapshot",
        "--budget",
        5,
        "--out",
        tmp_path / "c",
        "--json",
    ]
    rows = json.loads(choral(*call, "--seed", 1).stdout)["rows"]
    wanted = [
        "method",
        "members",
        "epochs",
        "accuracy",
        "nll",
        "ece",
        "parameters",
        "train_flops",
        "train_seconds",
        "predict_seconds",
    ]
    assert [r["method"] for r in rows] == ["single", "deep_ensemble", "snapshot"]
    assert all(r[w] is not None for r in rows for w in wanted)
    again = json.loads(choral(*call, "--seed", 1).stdout)["rows"]
    assert [r["nll"] for r in again] == [r["nll"] for r in rows]
    assert "seed was 1, now 2" in sentence(choral(*call, "--seed", 2, expect=2))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    size, town = rng.normal(100, 20, 200), rng.choice(["north", "south"], 200)
    price = 1000 * size + 20000 * (town == "north") + rng.normal(0, 2000, 200)
    frame = pd.DataFrame({"size": size, "town": town, "price": price, "sold": np.where(price > 110_000, "yes", "no")})
    frame.drop(columns="sold").to_csv(folder / "houses.csv", index=False)
    frame.drop(columns="price").to_parquet(folder / "sales.parquet")
    frame.loc[[3, 7], "size"] = np.nan
    frame.to_csv(folder / "holes.csv", index=False)
    return folder


def test_a_table_from_fit_to_predictions(tables, tmp_path):
    done = choral(
        "fit", tables / "houses.csv", "--target", "price", "--budget", 40, "--out", tmp_path / "run", "--json"
    )
    assert "read as a regression target" in done.stderr
    row = json.loads(done.stdout)
    assert row["rmse"] < 12_000
    saved = row["saved"]
    lines = choral("predict", saved, tables / "houses.csv").stdout.splitlines()
    assert lines[0] == "row,mean,std,low_95,high_95,aleatoric_std,epistemic_std"
    assert len(lines) == 201
    truth = pd.read_csv(tables / "houses.csv")["price"].to_numpy()
    means = np.array([float(line.split(",")[1]) for line in lines[1:]])
    assert np.sqrt(np.mean((means - truth) ** 2)) < 12_000
    choral("predict", saved, tables / "houses.csv", "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == lines[0]
    scores = json.loads(choral("evaluate", saved, tables / "houses.csv", "--json").stdout)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((means - truth) ** 2)), rel=1e-3)


def test_classes_in_words_come_back_as_words(tables, tmp_path):
    done = choral(
        "fit", tables / "sales.parquet", "--target", "sold", "--budget", 30, "--out", tmp_path / "run", "--json"
    )
    assert "read as a classification target" in done.stderr
    rows = json.loads(choral("predict", json.loads(done.stdout)["saved"], tables / "sales.parquet", "--json").stdout)
    assert {r["prediction"] for r in rows} == {"no", "yes"}
    assert all(r["p_no"] + r["p_yes"] == pytest.approx(1, abs=1e-4) for r in rows)


def test_mistakes_are_one_sentence_exit_2_and_write_nothing(tables, tmp_path):
    half, pickled = tmp_path / "half.choral", tmp_path / "w.pt"
    choral("fit", "wine", "--budget", 2, "--members", 2, "--out", tmp_path / "ok", "--json")
    half.write_bytes((tmp_path / "ok" / "ensemble.choral").read_bytes()[:3000])
    pickled.write_bytes(b"\x80\x04\x95")
    np.savez(
        tmp_path / "nan.npz",
        x_train=np.full((9, 2), np.nan),
        y_train=np.arange(9) % 2,
        x_test=np.ones((9, 2)),
        y_test=np.arange(9) % 2,
    )
    np.savez(
        tmp_path / "words.npz",
        x_train=np.ones((9, 2)),
        y_train=np.array(["a"] * 9),
        x_test=np.ones((9, 2)),
        y_test=np.array(["a"] * 9),
    )
    np.savez(tmp_path / "part.npz", x_train=np.ones((9, 2)))
    out = ["--out", tmp_path / "never"]
    cases = [
        (["plan", "snapshott"], "Did you mean 'snapshot'?"),
        (["fit", "digits", "--method", "deepensemble", *out], "Did you mean 'deep_ensemble'?"),
        (["compare", "--methods", "single,swagg", *out], "Did you mean 'swag'?"),
        (["fit", "digits", "--budget", "3", "--members", "4", *out], "too few for 4 members"),
        (["fit", "digit", *out], "Did you mean 'digits'?"),
        (["fit", tables / "houses.csv", *out], "--target price"),
        (["fit", tables / "houses.csv", "--target", "prize", *out], "Did you mean 'price'?"),
        (["fit", tables / "houses.csv", "--target", "price", "--drop", "sizes", *out], "Did you mean 'size'?"),
        (["fit", tables / "none.csv", "--target", "price", *out], "does not exist"),
        (["fit", tmp_path / "nan.npz", *out], "NaN or infinite values in 9 row(s)"),
        (["fit", tmp_path / "words.npz", *out], "encode labels"),
        (["fit", tmp_path / "part.npz", *out], "give x_train, y_train, x_test, y_test"),
        (["fit", "digits", "--model", "mpl", *out], "Did you mean 'mlp'?"),
        (["fit", "digits", "--optimizer", "adm", *out], "Did you mean 'adam'?"),
        (["fit", "digits", "--lr", "-1", *out], "above 0"),
        (["fit", "digits", "--model", "resnet20", *out], "reads images"),
        (["predict", half, tables / "houses.csv"], "cut short, damaged"),
        (["predict", pickled, tables / "houses.csv"], "is a pickle"),
        (["predict", tmp_path / "ok", tables / "houses.csv"], "fitted on arrays"),
        (["evaluate", tmp_path / "gone", "digits"], "does not exist"),
    ]
    for arguments, expected in cases:
        assert expected in sentence(choral(*arguments, expect=2)), arguments
    assert not (tmp_path / "never").exists()


@pytest.mark.full
def test_interrupted_by_the_keyboard_says_how_to_go_on(tmp_path):
    call = [
        sys.executable,
        "-m",
        "choral",
        "compare",
        "wine",
        "--methods",
        "single",
        "--budget",
        "100000",
        "--out",
        str(tmp_path / "c"),
    ]
    process = subprocess.Popen(
        call,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell ignores it for what runs behind it
    )
    log = tmp_path / "c" / "single" / "log.jsonl"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (log.exists() and "epoch" in log.read_text()):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again" in text
    assert "Traceback" not in text


def test_validation_stops_training_early_and_a_limit_ends_it(tmp_path):
    watched = ["--validation", 0.2, "--patience", 2, "--budget", 400, "--lr", 0.05, "--members", 2]
    found = choral("fit", "wine", "--out", tmp_path / "w", *watched)
    assert "2 trainings stopped early, after" in found.stderr
    first = json.loads((tmp_path / "w" / "log.jsonl").read_text().splitlines()[2])
    assert (first["measure"], len(first["validation"])) == ("nll", len(first["places"]))
    limited = choral("fit", "wine", "--out", tmp_path / "l", "--time-limit", 1e-6, "--executor", "sequential")
    assert "the time limit was reached: " in limited.stderr
    plan = choral("plan", "deep_ensemble", "--patience", 16).stdout
    assert "epochs are upper bounds: each training ends after 16 epochs without a better score" in plan


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--patience", 3, "--validation", 0], "early_stopping needs held-out points; give validation=0.2"),
        (["--validation", 1.5], "validation is 1.5"),
        (["--time-limit", -1], "time_limit is -1.0; give a finite number above 0"),
    ],
)
def test_wrong_wishes_for_validation_are_one_sentence(options, said, tmp_path):
    assert said in refused("fit", "wine", "--budget", 4, "--out", tmp_path / "r", *options)
