"""fit_table: the same as `choral fit FILE`, from a data frame or a file, with everything a table may have."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import choral
from choral.base.errors import InputError
from choral.cli.app import app
from choral.report.content import collect
from choral.tables.fit import prepared
from choral.tables.problems import Columns, load_problem

QUICK: dict[str, Any] = {"members": 2, "budget": 4, "progress": False}


def houses(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    g = np.random.default_rng(seed)
    size, town = g.normal(100, 20, rows), g.choice(["Ulm", "Bonn", "Kiel"], rows)
    price = 3 * size + 50 * (town == "Bonn") + g.normal(0, 10, rows)
    sold = np.where(price > 310, "yes", "no")
    return pd.DataFrame({"size": size, "town": town, "price": price, "sold": sold})


def test_a_frame_and_its_file_and_the_shell_give_the_same_members(tmp_path: Path) -> None:
    frame = houses()
    frame.to_csv(tmp_path / "h.csv", index=False)
    by_frame = choral.fit_table(frame, "price", **QUICK)
    by_file = choral.fit_table(tmp_path / "h.csv", "price", **QUICK)
    assert torch.allclose(by_frame.predict(frame).mean, by_file.predict(frame).mean, rtol=1e-4)
    assert torch.equal(by_file.predict(tmp_path / "h.csv").mean, by_file.predict(str(tmp_path / "h.csv")).mean)
    assert by_file.evaluate(tmp_path / "h.csv") == pytest.approx(by_file.evaluate(frame), rel=1e-4)
    held = ["--holdout", "0.25", "--out", str(tmp_path / "run"), "--budget", "4", "--members", "2", "--json"]
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "h.csv"), "--target", "price", *held])
    assert done.exit_code == 0, done.output
    problem = load_problem(str(tmp_path / "h.csv"), target="price")
    same = prepared(problem, budget=4, members=2).run(progress=False)
    shell = choral.load(tmp_path / "run")
    assert torch.equal(shell.predict(problem.x_test).mean, same.predict(problem.x_test).mean)
    assert json.loads(done.stdout)["task"] == "regression"


def test_predictions_take_frames_in_any_order_with_blank_and_unseen_cells(tmp_path: Path) -> None:
    ensemble = choral.fit_table(houses(), "sold", columns=Columns(drop=["price"]), **QUICK)
    ensemble.save(tmp_path / "e.choral")
    new = pd.DataFrame({"else": [1, 2], "town": ["Bonn", "Rome"], "size": ["80", ""]}, index=[7, 3])
    with pytest.warns(UserWarning, match="town|size"):
        found = choral.load(tmp_path / "e.choral").predict(new)
    with pytest.warns(UserWarning, match="town|size"):
        assert torch.equal(found.probs, ensemble.predict(ensemble.table.inputs(new)).probs)  # type: ignore[union-attr]
    assert set(found.to_frame()["prediction"]) <= {"no", "yes"}
    with pytest.raises(InputError, match="no column 'town'"):
        ensemble.predict(new.drop(columns="town"))


def test_scores_read_the_target_of_a_frame_or_what_is_given_in_its_words() -> None:
    frame = houses()
    frame["grade"] = np.where(frame["sold"] == "yes", 2, 1)  # class numbers 0 and 1 are named 1 and 2
    ensemble = choral.fit_table(frame, "grade", columns=Columns(drop=["price", "sold"]), **QUICK)
    whole = ensemble.evaluate(frame)
    assert ensemble.evaluate(frame.drop(columns="grade"), frame["grade"]) == whole
    codes = (frame["grade"] - 1).to_numpy()
    assert ensemble.evaluate(ensemble.table.inputs(frame), codes) == whole  # type: ignore[union-attr]
    assert ensemble.calibrated(frame, level=0.8)._predictive(frame).conformal.level == 0.8
    with pytest.raises(InputError, match="did not have"):
        ensemble.evaluate(frame, [3] * 60)


def test_rows_without_a_target_are_left_out_of_scores() -> None:
    frame = houses(60)
    ensemble = choral.fit_table(frame, "price", columns=Columns(drop=["sold"]), **QUICK)
    gaps = frame.assign(price=frame["price"].astype(object))
    gaps.loc[[3, 7], "price"] = ["", None]
    with pytest.warns(UserWarning, match="2 of 60 row.s. have no value of the target"):
        found = ensemble.evaluate(gaps)
    assert found == ensemble.evaluate(frame.drop(index=[3, 7]))


def test_weights_are_a_column_or_numbers_and_a_row_twice_is_a_weight_of_two() -> None:
    frame = houses(40)
    frame.loc[3, "price"] = np.nan  # left out, with its weight
    weights = np.where(np.arange(40) % 2, 1.0, 2.0)
    options: dict[str, Any] = {**QUICK, "training": choral.Training(batch_size=100, optimizer="sgd", lr=0.01)}
    with pytest.warns(UserWarning, match="no value of the target"):
        by_numbers = choral.fit_table(frame, "price", sample_weight=weights, **options)
    with pytest.warns(UserWarning, match="no value of the target"):
        by_column = choral.fit_table(frame.assign(w=weights), "price", sample_weight="w", **options)
    assert torch.equal(by_numbers.predict(frame).mean, by_column.predict(frame.assign(w=1)).mean)
    assert by_column.table is not None
    assert {c["column"]: c["read_as"] for c in by_column.table.describe()}["w"] == "left out"
    with pytest.raises(InputError, match="weights"):
        choral.fit_table(frame, "price", sample_weight=[1.0, 2.0], **options)


def test_rows_that_watch_are_a_share_or_a_frame_and_groups_stay_together() -> None:
    frame = houses(120)
    wild: dict[str, Any] = {
        "members": 2,
        "epochs": 100,
        "training": choral.Training(lr=0.5),
        "early_stopping": choral.EarlyStopping(patience=1),
        "progress": False,
    }
    own = choral.fit_table(frame, "price", columns=Columns(drop=["sold"]), validation=houses(30, seed=1), **wild)
    assert own.info["counted"]["epochs"] < 100
    frame["owner"] = np.arange(120) // 4
    problem = load_problem(frame, target="price", holdout=None)
    assert len(problem.x_test) == 0
    assert prepared(problem).folds == 8
    assert prepared(problem, members=2).validation == 0.2
    grouped = choral.fit_table(frame, "price", columns=Columns(drop=["sold"], group="owner"), **QUICK)
    assert grouped.table is not None
    assert "owner" in grouped.table.beside
    with pytest.raises(InputError, match="data frame with the target"):
        choral.fit_table(frame, "price", validation=(1, 2), **QUICK)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (houses(), {"target": "prize"}, "no column 'prize'.*price"),
        (houses(), {}, "column to predict must be named"),
        ([[1, 2]], {"target": "a"}, "give a pandas data frame"),
        (houses().iloc[:0], {"target": "price"}, "has no rows"),
        (houses().assign(price=1.0), {"target": "price"}, "nothing to learn"),
        (houses().set_axis(["a", "a", "b", "c"], axis=1), {"target": "b"}, "more than one column named 'a'"),
        (houses(), {"target": "price", "method": "single", "members": 3}, "trains one network"),
        (houses(), {"target": "price", "members": 0}, "members"),
        ("nowhere.csv", {"target": "price"}, "does not exist"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(data: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        choral.fit_table(data, **options)


def test_columns_named_by_numbers_and_a_run_folder(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    frame = pd.DataFrame(g.normal(size=(40, 3)))
    ensemble = choral.fit_table(frame, "2", run_dir=tmp_path / "run", **QUICK)
    again = choral.fit_table(frame, "2", run_dir=tmp_path / "run", **QUICK)
    assert torch.equal(ensemble.predict(frame).mean, again.predict(frame).mean)
    assert len(frame.columns) == 3
    assert list(frame.columns) == [0, 1, 2]  # the user's frame is left alone


def test_folds_of_a_table_hold_groups_out_together_and_the_shell_says_what_they_tell(tmp_path: Path) -> None:
    frame = houses(40)
    frame["owner"] = [f"o{i // 4}" for i in range(40)]
    ensemble = choral.fit_table(
        frame, "price", columns=Columns(drop=["sold"], group="owner"), cv=2, epochs=4, progress=False
    )
    assert ensemble.members == 2
    folds = ensemble._out_of_fold.folds.numpy()
    assert all(len(set(folds[frame["owner"] == o])) == 1 for o in set(frame["owner"]))
    named = prepared(load_problem(houses(120), target="price", holdout=None), method="deep_ensemble", folds=5)
    assert named.recipe.epochs == 5 * 300
    assert prepared(load_problem(frame, target="price", holdout=None), folds=5).recipe.epochs >= 5 * 60
    with pytest.raises(InputError, match="time and cv both say which rows are held out"):
        choral.fit_table(frame, "price", columns=Columns(time="size"), cv=2)
    frame.to_csv(tmp_path / "h.csv", index=False)
    words = ["fit", str(tmp_path / "h.csv"), "--target", "price", "--cv", "2", "--budget", "4"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "out of fold, over 30 training rows: rmse" in done.stderr
    assert "of 90% cover" in done.stderr
    planned = CliRunner().invoke(app, ["plan", "packed", *words[1:6], "--json"])
    assert "Fold(folds=2)" in json.loads(planned.stdout)["text"]


SHORT: dict[str, Any] = {
    "early_stopping": choral.EarlyStopping(patience=1),
    "training": choral.Training(batch_size=128),
    "progress": False,
}


def test_the_default_chooses_by_folds_and_says_why(tmp_path: Path) -> None:
    frame = houses(110)
    frame.to_csv(tmp_path / "h.csv", index=False)
    words = ["fit", str(tmp_path / "h.csv"), "--target", "sold", "--drop", "price", "--patience", "1"]
    held = ["--batch-size", "128", "--holdout", "0.05", "--out", str(tmp_path / "run"), "--quiet"]
    done = CliRunner().invoke(app, [*words, *held])
    assert done.exit_code == 0, done.output
    assert "epochs at most: 8 members, out-of-fold nll" in done.stderr
    assert "out of fold, over 104 training rows: accuracy" in done.stderr
    ensemble = choral.load(tmp_path / "run")
    assert ensemble.recipe.name == "auto"
    assert ensemble._out_of_fold.prediction(ensemble).scores(ensemble._out_of_fold.y)["nll"] == pytest.approx(
        ensemble.info["auto"]["validation"], abs=1e-4
    )
    assert ensemble.predict(frame).to_frame()["prediction"][0] in ("yes", "no")
    assert (tmp_path / "run" / "periodic" / "plan.json").exists()
    judged = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), str(tmp_path / "h.csv"), "--json"])
    assert json.loads(judged.stdout)["epochs"] == ensemble.info["counted"]["epochs"] > 0
    page = collect(tmp_path / "run")
    assert page.title == "auto in run"
    assert page.evaluations["auto"]["scores"]["accuracy"] > 0
    assert page.results["findings"][0] == ensemble.info["auto"]["reasons"][-1]
    assert {row["method"] for row in page.results["rows"]} == {
        "auto",
        "deep_ensemble",
        "periodic",
        "linear",
    }
    planned = CliRunner().invoke(app, ["plan", "auto", *words[1:6], "--holdout", "0.05"])
    assert planned.exit_code == 0, planned.output
    assert "candidate: periodic" in planned.stdout
    (tmp_path / "run" / "plan.json").write_text("{}")
    again = CliRunner().invoke(app, [*words, *held])
    assert "holds the run of one method" in str(again.exception)


def test_what_is_chosen_and_what_decides_it() -> None:
    frame = houses(120)
    frame["owner"], frame["day"] = np.arange(120) // 4, np.arange(120)
    whole = load_problem(frame, target="price", holdout=None)
    clean = ["residual", "waves"]  # networks for targets with little noise
    assert [c.name for c in prepared(whole).candidates] == ["deep_ensemble", *clean, "periodic", "linear"]
    assert [c.name for c in prepared(whole).candidates if c.clean] == clean
    assert [c.name for c in prepared(whole).candidates if c.stacked] == ["periodic"]
    assert prepared(whole, folds=5).candidates[0].members == 5
    assert prepared(whole, validation=0.2).folds is None
    assert prepared(whole, validation=0.2).candidates
    assert not prepared(whole, validation=0).candidates
    assert not prepared(whole, epochs=20).candidates
    assert not prepared(whole, method="deep_ensemble").candidates
    later = load_problem(frame, holdout=None, columns=Columns(target="price", time="day"))
    assert (prepared(later).folds, prepared(later).validation) == (None, 0.2)
    together = load_problem(frame, holdout=None, columns=Columns(target="price", group="owner"))
    assert prepared(together).folds == 8
    towns = load_problem(frame, holdout=None, columns=Columns(target="price", group="town"))
    assert prepared(towns).folds is None  # three groups are too few to hold out eight parts
    with pytest.raises(InputError, match="'auto' chooses these by itself"):
        choral.fit_table(frame, "sold", method="auto", members=3)
    with pytest.raises(InputError, match=r"table of 32.*30; name a method"):
        choral.fit_table(houses(30), "price", method="auto")
    few = prepared(load_problem(houses(30), target="price", holdout=None))
    assert not few.candidates  # too few rows to choose by
    in_turn = prepared(load_problem(houses(40), target="price", holdout=None))
    assert in_turn.candidates  # each row is held out of one member alone
    assert in_turn.folds == 8
    with pytest.raises(InputError, match="table of 100 training rows or more, but there are 40"):
        choral.fit_table(houses(40), "price", method="auto", validation=0.2)


def test_auto_says_what_it_cannot_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = houses(150)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"run_dir": "memory://auto"}, "name a method, such as deep_ensemble, for several processes, leaves or a URL"),
        ({"compute": choral.Compute(data_parallel=True)}, "method auto chooses within one process"),
        ({"compute": choral.Compute(cluster=choral.Ray())}, "a cluster needs run_dir"),
        ({"compute": choral.Compute(cluster="ray"), "run_dir": tmp_path}, "cluster is 'ray'; give choral.Ray"),
        (
            {"compute": choral.Compute(cluster=choral.Ray(), time_limit=9.0), "run_dir": tmp_path},
            "time_limit is 9.0, which a run on a",
        ),
    ]
    for options, said in refused:
        with pytest.raises(InputError, match=said):
            choral.fit_table(frame, "sold", columns=Columns(drop=["price"]), method="auto", **options)
    assert not list(tmp_path.iterdir())
    frame.to_csv(tmp_path / "h.csv", index=False)
    monkeypatch.chdir(tmp_path)
    words = ["fit", "h.csv", "--target", "sold", "--drop", "price", "--method", "auto", "--quiet"]
    for more in (["--prepare"], ["--out", "memory://auto"]):
        done = CliRunner().invoke(app, [*words, *more])
        assert isinstance(done.exception, InputError)
        assert "method auto chooses within one process" in str(done.exception)
    assert [p.name for p in tmp_path.iterdir()] == ["h.csv"]


def test_the_time_is_kept_and_folds_may_be_named(tmp_path: Path) -> None:
    frame = houses(110).drop(columns="sold")
    limited = choral.fit_table(
        frame, "price", compute=choral.Compute(time_limit=1e-3), run_dir=tmp_path / "run", **SHORT
    )
    assert "no others were tried" in " ".join(limited.info["auto"]["reasons"])
    assert torch.isfinite(limited.predict(frame).mean).all()
    whole = choral.fit_table(frame, "price", cv=3, **SHORT)
    assert whole.info["out_of_fold"]["folds"] == 3
    assert whole.members % 3 == 0


def test_networks_that_rounding_keeps_from_being_stacked_are_trained_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = list[str]()

    def refused(job: Any, phase: Any) -> None:
        executors.append(job.compute.executor)
        raise InputError("its parameter gets another gradient than alone")

    frame = houses(110).drop(columns="price")
    whole = choral.fit_table(frame, "sold", **SHORT)
    monkeypatch.setattr("choral.engine.job._check_stackable", refused)
    alone = choral.fit_table(frame, "sold", **SHORT)
    assert executors == ["auto", "vectorized", "auto"]  # waves, whose convolutions 'auto' does not stack; lines
    assert alone.info["auto"]["tried"] == whole.info["auto"]["tried"]


KILLED = """
import os, signal, sys
import pandas as pd
import choral

left = [int(sys.argv[2])]

def hear(event):
    left[0] -= event["kind"] == "epoch"
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

options = {"early_stopping": choral.EarlyStopping(patience=1), "training": choral.Training(batch_size=128), "progress": False}
options |= {"compute": choral.Compute(threads=1, executor="vectorized", checkpoint_seconds=0.0), "run_dir": sys.argv[1]}
choral.fit_table(pd.read_csv(sys.argv[1] + ".csv"), "price", callbacks=hear, **options)
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_search_that_is_killed_ends_with_the_same_members(tmp_path: Path) -> None:
    houses(110).drop(columns="sold").to_csv(tmp_path / "run.csv", index=False)
    frame, heard = pd.read_csv(tmp_path / "run.csv"), [0]

    def hear(event: dict[str, Any]) -> None:
        heard[0] += event["kind"] == "epoch"

    fixed: dict[str, Any] = {**SHORT, "compute": choral.Compute(threads=1, executor="vectorized")}
    whole = choral.fit_table(frame, "price", callbacks=hear, **fixed)
    late = str(heard[0] * 3 // 4)  # while a rival of the default is trained
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run"), late])
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "run" / "periodic").exists()
    assert not (tmp_path / "run" / "ensemble.choral").exists()
    choral.fit_table(
        frame,
        "price",
        run_dir=tmp_path / "run",
        **fixed | {"compute": replace(fixed["compute"], checkpoint_seconds=0.0)},
    )
    found = choral.load(tmp_path / "run")
    assert found.posthoc == whole.posthoc
    assert found.info["auto"] == whole.info["auto"]
    for a, b in zip(found.states(), whole.states(), strict=True):
        assert {n: t.numpy().tobytes() for n, t in a.params.items()} == {
            n: t.numpy().tobytes() for n, t in b.params.items()
        }


@pytest.mark.parametrize("kind", [int, float, str])
def test_zeros_and_ones_are_two_classes_or_as_asked_numbers(kind: type) -> None:
    frame = houses()
    frame["sold"] = (frame["sold"] == "yes").astype(float if kind is float else int).astype(kind)
    classes = choral.fit_table(frame, "sold", **QUICK).predict(frame)
    assert set(classes.to_frame()["prediction"]) <= {"0", "1"}
    numbers = choral.fit_table(frame, "sold", task="regression", **QUICK).predict(frame)
    assert {"mean", "std"} <= set(numbers.to_frame())


@pytest.mark.filterwarnings("ignore")  # a short training
def test_a_batch_size_replaces_that_of_a_method_with_settings_of_its_own():
    frame = pd.DataFrame({"a": np.arange(60.0), "k": ["x", "y"] * 30})
    fitted = choral.fit_table(frame, "k", method="bnn", epochs=1, training=choral.Training(batch_size=17))
    assert '"batch_size": 17' in json.dumps(fitted.recipe.to_dict())
