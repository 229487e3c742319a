"""What rows count, and what categories are called, wherever they come in again: files, rows that watch, comparisons."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import choral
from choral import models
from choral.comparison.compare import compare
from choral.comparison.comparison import Comparison, over_seeds
from choral.recipes.training import Training
from choral.tables.problems import Columns, load_problem

DRAW = np.random.default_rng(0)


def frame(rows: int = 60) -> pd.DataFrame:
    x = DRAW.normal(size=rows)
    return pd.DataFrame({"x": x, "z": DRAW.normal(size=rows), "y": np.where(x + DRAW.normal(size=rows) > 0, "b", "a")})


def test_weights_of_a_file_are_read_with_the_decimals_of_its_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{i / 10:.2f};{i / 7:.2f};{w}".replace(".", ",") for i, w in enumerate(["1", "0.836", "2", "1.204"] * 10)]
    path.write_text("\n".join(["x;y;w", *rows]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = load_problem(path, columns=Columns(target="y"), weights="w", holdout=None)
    assert problem.weights is not None
    np.testing.assert_allclose(problem.weights[:4], [1, 0.836, 2, 1.204])


def test_rows_that_watch_count_as_those_that_train() -> None:
    whole, seen = frame(), []

    def listen(event: Any) -> None:
        if event["kind"] == "epoch":
            seen.append(event["validation"][0])

    def first(**options: Any) -> float:
        seen.clear()
        choral.fit_table(
            whole[:40],
            "y",
            method="single",
            epochs=1,
            training=Training(lr=1e-12),
            early_stopping=choral.EarlyStopping(patience=1),
            validation=whole[40:],
            callbacks=listen,
            progress=False,
            **options,
        )
        return float(seen[0])

    plain, weighed = first(), first(class_weight={"b": 20, "a": 1})
    assert plain != weighed
    whole["w"] = np.where(whole["y"] == "b", 20.0, 1.0)
    assert first(sample_weight="w") == pytest.approx(weighed, rel=1e-4)


def test_a_comparison_trains_by_the_weights_and_the_likelihood_of_its_problem() -> None:
    draw = np.random.default_rng(1)
    table = pd.DataFrame({"x": draw.normal(size=80), "w": np.arange(80) % 2 * 1.0, "y": draw.poisson(3, size=80)})
    table.loc[table["w"] == 0, "y"] += 100

    def build() -> Any:
        return models.mlp(1, 1, hidden=(8,))

    options: dict[str, Any] = {"budget": 3, "training": Training(optimizer="sgd", batch_size=128, lr=0.01)}
    weighed = load_problem(table, columns=Columns(target="y", drop=("w",)), weights="w", likelihood="poisson")
    plain = load_problem(table, columns=Columns(target="y", drop=("w",)), likelihood="poisson")
    one, other = (compare(build, problem, ["single"], **options) for problem in (weighed, plain))
    assert one.rows[0]["nll"] != other.rows[0]["nll"]
    assert one.details["evaluation"]["single"]["task"] == "counts"


def test_categories_are_known_as_floats_and_as_whole_numbers() -> None:
    codes = DRAW.permutation(np.repeat(np.arange(-2, 6), 10))
    table = pd.DataFrame({"c": pd.Series(codes.astype(float)).astype("category"), "y": 10.0 * codes})
    table.loc[0, "c"] = np.nan
    ensemble = choral.fit_table(table, "y", method="single", epochs=2, progress=False)
    assert ensemble.table is not None
    floats = ensemble.table.inputs(table[1:])
    whole = pd.DataFrame({"c": pd.Series(codes[1:]).astype("category"), "y": table["y"][1:].to_numpy()})
    np.testing.assert_array_equal(ensemble.table.inputs(whole), floats)


def test_what_a_seed_lacks_has_no_mean() -> None:
    one = Comparison([{"method": "single", "nll": 1.0, "relative": 0.5}], {}, {})
    two = Comparison([{"method": "single", "nll": 2.0}], {}, {})
    (row,) = over_seeds({0: one, 1: two}, baseline="single").rows
    assert row == {"method": "single", "nll": 1.5}
