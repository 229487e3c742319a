import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError
from choral.data.problems import load_problem, split
from choral.data.tables import encode_inputs, encode_target, guess_task, learn_encoding

FRAME = pd.DataFrame(
    {"a": [1.0, 2.0, 3.0, 4.0], "c": ["x", "y", "x", "z"], "flat": [5, 5, 5, 5], "t": [10.0, 20.0, 30.0, 40.5]}
)


def test_numbers_are_standardised_categories_one_hot_and_constants_harmless():
    encoding = learn_encoding(FRAME, "t")
    x = encode_inputs(FRAME, encoding)
    assert x[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert x[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert x[:, 1:4].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert (x[:, 4] == 0).all()
    scaled = encode_target(FRAME, encoding, scaled=True)
    assert scaled * encoding["target_std"] + encoding["target_mean"] == pytest.approx(FRAME["t"].to_numpy(), rel=1e-5)


def test_the_task_is_guessed_from_the_target():
    assert guess_task(pd.Series(["a", "b"]))[0] == "classification"
    assert guess_task(pd.Series([0, 1, 1]))[0] == "classification"
    assert guess_task(pd.Series([True, False]))[0] == "classification"
    assert guess_task(pd.Series(np.arange(100)))[0] == "regression"
    assert guess_task(pd.Series([0.5, 1.0]))[0] == "regression"


def test_integer_classes_keep_their_order():
    frame = pd.DataFrame({"a": np.arange(12.0), "t": [10, 9, 2] * 4})
    encoding = learn_encoding(frame, "t")
    assert encoding["classes"] == ["2", "9", "10"]
    assert encode_target(frame, encoding, scaled=True)[:3].tolist() == [2, 1, 0]


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
        learn_encoding(frame, "t")


def test_prediction_rows_must_fit_the_encoding():
    encoding = learn_encoding(FRAME, "t")
    with pytest.raises(InputError, match="'q', which was not in the training data; known values: x, y, z"):
        encode_inputs(FRAME.assign(c="q"), encoding)
    with pytest.raises(InputError, match="holds text where training had numbers"):
        encode_inputs(FRAME.assign(a="q"), encoding)
    with pytest.raises(InputError, match="no column 'c'"):
        encode_inputs(FRAME.drop(columns="c"), encoding)


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
