"""Weights of classes: by rule or by name, on rows that train and rows that watch."""

import numpy as np
import pandas as pd
import pytest

from choral import Training
from choral.base.errors import InputError
from choral.data.problems import Problem, balanced
from choral.tables.fit import fit_table
from choral.tables.problems import Columns, load_problem

DRAW = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": DRAW.normal(size=400), "t": np.where(np.arange(400) % 8 == 0, "rare", "usual")})


def problem(**options):
    return load_problem(FRAME, target="t", holdout=None, **options)


def test_balanced_classes_count_the_same_in_all_and_rows_1_on_average():
    found, each = balanced(problem(), "balanced")
    assert each == pytest.approx({"rare": 4.0, "usual": 4 / 7})
    assert found.weights.mean() == pytest.approx(1)
    assert found.weights[found.y_train == 0].sum() == pytest.approx(found.weights[found.y_train == 1].sum())


def test_weights_by_name_multiply_those_of_rows():
    rows = np.arange(400) / 100
    found, each = balanced(problem(weights=rows), "rare=3")
    assert each == {"rare": 3.0, "usual": 1.0}
    assert found.weights == pytest.approx(rows * np.where(FRAME.t == "rare", 3, 1))
    assert (balanced(problem(weights=rows), {"rare": 3})[0].weights == found.weights).all()


def test_names_with_signs_and_numbers():
    frame = FRAME.assign(t=FRAME.t.map({"rare": "a=b", "usual": "c"}))
    assert balanced(load_problem(frame, target="t", holdout=None), " a=b = 2 ")[1] == {"a=b": 2.0, "c": 1.0}
    arrays = Problem("arrays", np.zeros((3, 1)), np.arange(3), np.zeros((0, 1)), np.arange(0))
    assert balanced(arrays, "2=2,0=0")[1] == {"0": 0.0, "1": 1.0, "2": 2.0}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("balance", "'balance'; the classes are rare, usual; write balanced"),
        ("rare=x", "'rare' with x"),
        ("rear=3", "name 'rear'; the classes are rare, usual"),
        ("rare=1,rare=2", "'rare' twice"),
        ("rare=-1", "'rare' with -1"),
        ("rare=inf", "'rare' with inf"),
        ("rare=nan", "'rare' with nan"),
    ],
)
def test_what_cannot_be_is_refused(asked, words):
    with pytest.raises(InputError, match=words):
        balanced(problem(), asked)


def test_numbers_have_no_classes():
    with pytest.raises(InputError, match="this one is a number"):
        balanced(load_problem(FRAME, target="a", holdout=None), "balanced")


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [None, "bernoulli"])
def test_probabilities_are_of_classes_as_common_as_their_weights(likelihood):
    """A column of noise says nothing, so every row gets the weighted share of the class."""
    options = {
        "model": "mlp",
        "members": 2,
        "epochs": 20,
        "likelihood": likelihood,
        "training": Training(lr=0.01),
        "progress": False,
    }
    shares = []
    for weights in (None, "balanced", {"rare": 7, "usual": 3}):
        ensemble = fit_table(FRAME, "t", class_weight=weights, validation=0.3, **options)
        shares.append(np.mean(ensemble.predict(FRAME).to_frame()["p_rare" if likelihood is None else "p_usual"]))
    common = 1 / 8, 0.5, 7 / (7 + 3 * 7)
    expected = common if likelihood is None else [1 - c for c in common]
    assert shares == pytest.approx(expected, abs=0.07)


def test_rows_of_a_group_that_watch_count_by_their_classes():
    frame = FRAME.assign(g=np.arange(400) // 20)
    found, _ = balanced(load_problem(frame, target="t", holdout=None, columns=Columns(group="g")), "balanced")
    _, held = found.validating(0.25)
    _, y, weights = held
    assert weights == pytest.approx(np.where(y == 0, 4.0, 4 / 7))
