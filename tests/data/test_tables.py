import json

import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError, RunError
from choral.data.columns import CategoryColumn, NumberColumn, Scale
from choral.data.problems import load_problem, split
from choral.data.tables import Table, guess_task, learn_table, table_from

FRAME = pd.DataFrame(
    {"a": [1.0, 2.0, 3.0, 4.0], "c": ["x", "y", "x", "z"], "flat": [5, 5, 5, 5], "t": [10.0, 20.0, 30.0, 40.5]}
)


def test_numbers_are_standardised_categories_one_hot_and_constants_harmless():
    table = learn_table(FRAME, "t")
    x = table.inputs(FRAME)
    assert x[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert x[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert x[:, 1:4].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert (x[:, 4] == 0).all()
    scaled = table.targets(FRAME, scaled=True)
    assert table.scale.undo(scaled) == pytest.approx(FRAME["t"].to_numpy(), rel=1e-5)


def test_the_task_is_guessed_from_the_target():
    assert guess_task(pd.Series(["a", "b"]))[0] == "classification"
    assert guess_task(pd.Series([0, 1, 1]))[0] == "classification"
    assert guess_task(pd.Series([True, False]))[0] == "classification"
    assert guess_task(pd.Series(np.arange(100)))[0] == "regression"
    assert guess_task(pd.Series([0.5, 1.0]))[0] == "regression"


def test_integer_classes_keep_their_order():
    frame = pd.DataFrame({"a": np.arange(12.0), "t": [10, 9, 2] * 4})
    table = learn_table(frame, "t")
    assert table.classes == ("2", "9", "10")
    assert table.targets(frame, scaled=True)[:3].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns=["a", "c", "flat"]), "no column besides the target"),
        (FRAME.assign(a=[1, np.nan, 2, 3]), r"missing values in 'a' \(rows 3\)"),
        (FRAME.assign(a=[1, np.inf, 2, 3]), "infinite values"),
        (FRAME.assign(t="same"), "a single value"),
    ],
)
def test_tables_that_cannot_be_learned_from(frame, message):
    with pytest.raises(InputError, match=message):
        learn_table(frame, "t")


def test_prediction_rows_must_fit_the_encoding():
    table = learn_table(FRAME, "t")
    with pytest.raises(InputError, match="'q', which was not in the training data; known values: x, y, z"):
        table.inputs(FRAME.assign(c="q"))
    with pytest.raises(InputError, match="holds text where training had numbers"):
        table.inputs(FRAME.assign(a="q"))
    with pytest.raises(InputError, match="no column 'c'"):
        table.inputs(FRAME.drop(columns="c"))


def test_statistics_come_from_the_training_rows_only(tmp_path):
    FRAME.sample(100, replace=True, random_state=0).to_csv(tmp_path / "t.csv", index=False)
    problem = load_problem(str(tmp_path / "t.csv"), target="t", holdout=0.5)
    assert problem.x_train[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert abs(problem.x_test[:, 0].mean()) > 1e-3
    train, test = split(100, 0.5, 0)
    assert sorted([*train, *test]) == list(range(100))


@pytest.mark.parametrize("name", ["digits", "diabetes", "wine", "breast_cancer"])
def test_built_in_problems_load(name):
    problem = load_problem(name)
    assert problem.task == ("regression" if name == "diabetes" else "classification")
    assert len(problem.x_train) == len(problem.y_train) > len(problem.x_test) == len(problem.y_test)


def test_a_table_comes_back_from_plain_content_and_encodes_the_same():
    table = learn_table(FRAME, "t")
    again = table_from(json.loads(json.dumps(table.to_dict())), "table.json")
    assert again == table
    assert again.width == 5
    shuffled = FRAME[["t", "flat", "c", "a"]].assign(other="x")
    assert np.array_equal(again.inputs(shuffled), table.inputs(FRAME))
    assert table_from(None, "table.json") is None


HOSTILE = {
    "nan": ({"scale": {"kind": "Scale", "mean": float("nan"), "std": 1.0}}, "mean nan"),
    "no deviation": ({"scale": {"kind": "Scale", "mean": 0.0, "std": 0.0}}, "deviation 0.0"),
    "no classes": ({"task": "classification"}, "has no classes"),
    "another task": ({"task": "clustering"}, "task is 'clustering'"),
    "equal classes": ({"task": "classification", "classes": ["a", "a"]}, "2 values, 1 of them different"),
    "a column twice": ({"columns": [NumberColumn(name="a", scale=Scale()).to_dict()] * 2}, "2 columns, 1 of them"),
    "no categories": ({"columns": [{"kind": "CategoryColumn", "name": "a", "values": []}]}, "has 0 values"),
    "a long name": (
        {"columns": [{"kind": "NumberColumn", "name": "a" * 20_000, "scale": {"kind": "Scale"}}]},
        "20,000 characters",
    ),
    "a number as text": ({"scale": {"kind": "Scale", "mean": "0", "std": 1.0}}, "mean is '0'"),
    "an unknown field": ({"colour": "red"}, "cannot be made from the fields"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_refused_in_one_sentence(case):
    content, message = HOSTILE[case]
    with pytest.raises(RunError, match=message) as caught:
        table_from({"kind": "Table"} | content, "f.choral")
    assert "f.choral" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_table_of_an_older_choral_is_refused():
    with pytest.raises(RunError, match=r"t\.json holds a table in the form of an older choral.*fit it again"):
        table_from({"target_mean": 1.0, "target_std": 2.0}, "t.json")


def test_a_table_that_names_other_classes_than_the_network_gives_is_refused():
    table = Table(columns=(CategoryColumn(name="a", values=("x",)),), task="classification", classes=("n", "y"))
    assert table.names_of(2) == ("n", "y")
    assert Table().names_of(7) is None
    with pytest.raises(RunError, match="names 2 classes but the network gives 3"):
        table.names_of(3)
