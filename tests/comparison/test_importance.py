"""Importance and dependence of columns: closed forms of linear effects, columns of a table together, members apart."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import InputError
from choral.comparison.importance import importance, partial_dependence, parts_of, permutation_importance
from choral.data.sources import as_inputs
from choral.fit import train
from choral.objectives.likelihoods import FixedGaussian, LearnedGaussian
from choral.tables.table import learn_table

ROWS = 400
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(ROWS, 4)).astype(np.float32) * [1.0, 3.0, 1.0, 0.0] + [0.0, 0.0, 0.0, 7.0]
X = X.astype(np.float32)


def linear(*weights):
    network = nn.Linear(len(weights), 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([weights]))
        network.bias.zero_()
    return network


def of(*weights, y):
    return choral.ensemble_of([linear(*w) for w in weights], data=(X, y), likelihood=FixedGaussian(precision=1.0))


def by_column(found):
    return {row["column"]: row for row in found}


def test_a_linear_effect_has_twice_its_variance():
    y = 2 * X[:, :1] - X[:, 1:2]
    found = permutation_importance(of((2, -1, 0, 5), y=y), X, y + 5 * X[:, 3:], repeats=25)
    held = by_column(found)
    for i, weight in enumerate((2, -1, 0, 5)):  # the mean squared error, of which nll is the half
        assert held[f"x{i}"]["worse"]["nll"] == pytest.approx(weight**2 * X[:, i].var(), rel=0.06, abs=1e-5)
    assert [row["column"] for row in found][:2] == ["x1", "x0"]
    assert held["x2"]["worse"]["nll"] == held["x3"]["worse"]["nll"] == 0.0  # no weight, and constant


def test_the_error_is_that_of_a_mean_over_permutations():
    y = 2 * X[:, :1]
    ensemble = of((2, 0, 0, 0), y=y)
    one, two = (by_column(permutation_importance(ensemble, X, y, repeats=n))["x0"] for n in (1, 2))
    assert two["error"]["nll"] == pytest.approx(abs(one["worse"]["nll"] - two["worse"]["nll"]), rel=1e-6) != 0
    assert one["error"]["nll"] == 0


def test_members_are_judged_alone():
    y = X[:, :1]
    pair = of((1, 0, 0, 0), (-1, 0, 0, 0), y=y)
    row = by_column(permutation_importance(pair, X, 0 * y, repeats=3))["x0"]
    # shuffling does not change the size of their errors
    assert row["members"]["nll"] == pytest.approx([0, 0], abs=1e-5)
    row = by_column(permutation_importance(pair, X, y, repeats=40))["x0"]
    spread = X[:, 0].var()
    assert row["members"]["nll"] == pytest.approx([spread, -spread], rel=0.1)


def test_rows_and_exchanges_are_decided_by_the_seed():
    y = X[:, :1]
    ensemble = of((1, 1, 0, 0), y=y)
    one, same, other = (permutation_importance(ensemble, X, y, rows=50, seed=s) for s in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.fixture(scope="module")
def town():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": [f"a{i}" for i in range(240)],
            "size": draw.normal(50, 9, 240).round(1),
            "kind": draw.choice(["flat", "house", "hut"], 240),
            "rank": draw.choice(["low", "medium", "high"], 240),
            "built": pd.date_range("2001-01-05", periods=240, freq="9D").astype(str),
        }
    )
    frame.loc[:9, "size"] = None
    frame["sold"] = np.where((frame.kind == "hut") ^ (draw.random(240) < 0.02), "yes", "no")
    table = learn_table(frame, "sold", orders={"rank": ("low", "medium", "high")})
    ensemble = train(
        models.mlp(table.width, 2, hidden=(16,)),
        (table.inputs(frame), table.targets(frame)),
        choral.recipes.deep_ensemble(budget=80, members=2),
        table=table,
    )
    return ensemble, table, frame


def test_a_table_s_column_is_exchanged_whole(town):
    ensemble, table, frame = town
    x, y = table.inputs(frame), table.targets(frame)
    parts = {p.name: (p.places.start, p.places.stop) for p in parts_of(ensemble, as_inputs(x))}
    assert parts == {"size": (0, 2), "kind": (2, 5), "rank": (5, 7), "built": (7, 12)}
    found = permutation_importance(ensemble, x, y)
    assert found[0]["column"] == "kind"
    (row,) = [row for row in found if row["column"] == "kind"]
    targets, falls = torch.as_tensor(y), []
    for i in range(40):
        order = np.random.default_rng(i).permutation(len(frame))
        mixed = table.inputs(frame.assign(kind=frame.kind.to_numpy()[order]))
        falls.append(ensemble.evaluate(x, targets)["accuracy"] - ensemble.evaluate(mixed, targets)["accuracy"])
    assert row["worse"]["accuracy"] == pytest.approx(np.mean(falls), abs=0.04)
    assert np.mean(falls) > 0.2
    assert list(row["worse"]) == ["nll", "accuracy"]


def test_a_data_frame_is_read_as_the_ensemble_reads_it(town):
    ensemble, table, frame = town
    expected = permutation_importance(ensemble, table.inputs(frame), table.targets(frame), repeats=1)
    mixed = frame[sorted(frame.columns)].assign(more=1)
    assert permutation_importance(ensemble, mixed, repeats=1) == expected
    assert partial_dependence(ensemble, mixed, "kind") == partial_dependence(ensemble, table.inputs(frame), "kind")


def test_names_of_a_frame_without_a_table():
    frame, y = pd.DataFrame(X[:, :2], columns=["long", "wide"]), torch.from_numpy(X[:, :1])
    ensemble = choral.fit(
        linear(1, 0), (frame, y), choral.recipes.single(budget=1), likelihood=FixedGaussian(precision=1.0)
    )
    assert {r["column"] for r in permutation_importance(ensemble, frame[["wide", "long"]], y)} == {"long", "wide"}
    with pytest.raises(InputError, match="y is None"):
        permutation_importance(ensemble, frame)


def test_dependence_is_the_mean_over_rows_with_one_value(town):
    ensemble, table, frame = town
    x = table.inputs(frame)
    kinds = partial_dependence(ensemble, x, "kind")
    assert kinds["values"] == ["flat", "house", "hut"]
    assert kinds["at"] is None
    assert kinds["outputs"] == ["no", "yes"]
    for i, kind in enumerate(kinds["values"]):
        prediction = ensemble.predict(table.inputs(frame.assign(kind=kind)))
        assert kinds["mean"][i] == pytest.approx(prediction.probs.mean(0).tolist(), abs=1e-5)
        assert np.array(kinds["members"])[:, i] == pytest.approx(prediction.members.mean(1).numpy(), abs=1e-5)
    assert partial_dependence(ensemble, x, "rank")["values"] == ["low", "medium", "high"]
    size = partial_dependence(ensemble, x, "size", points=7)
    assert len(size["at"]) == 7
    assert size["at"][0] == pytest.approx(frame["size"].min(), rel=1e-4)
    assert float(size["values"][-1]) == pytest.approx(frame["size"].max(), rel=1e-4)
    marked = ensemble.predict(table.inputs(frame.assign(size=frame["size"].min())))
    assert size["mean"][0] == pytest.approx(marked.probs.mean(0).tolist(), abs=1e-4)
    assert partial_dependence(ensemble, x, "built", points=3)["values"][0] == "2001-01-05"


def test_a_linear_effect_is_a_line():
    y = X[:, :1]
    found = partial_dependence(of((2, 0, 0, 0), (4, 0, 0, 0), y=y), X, "x0", points=5)
    assert np.array(found["mean"])[:, 0] == pytest.approx(3 * np.array(found["at"]), abs=1e-4)
    assert np.array(found["members"])[1, :, 0] == pytest.approx(4 * np.array(found["at"]), abs=1e-4)
    assert partial_dependence(of((2, 0, 0, 0), y=y), X, "x3")["at"] == [7.0]


def test_noise_is_the_mean_aleatoric_standard_deviation_at_each_value():
    network = nn.Linear(4, 2)
    nn.init.zeros_(network.bias)
    network.weight.data = torch.tensor([[0.0, 0, 0, 0], [1.0, 0, 0, 0]])  # the raw variance is x0
    likelihood = LearnedGaussian(standardize=False)
    ensemble = choral.ensemble_of([network], data=(X, X[:, :1]), likelihood=likelihood)
    found = partial_dependence(ensemble, X, "x0", points=5)
    variances = nn.functional.softplus(torch.tensor(found["at"])) + likelihood.floor
    assert found["noise"] == pytest.approx(variances.sqrt().tolist(), rel=1e-5)


def test_what_an_evaluation_keeps_is_plain_json(town):
    ensemble, table, frame = town
    found = importance(ensemble, table.inputs(frame), table.targets(frame), shown=2)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [c["column"] for c in found["dependence"]] == [r["column"] for r in found["columns"]][:2]


def test_several_inputs_are_exchanged_one_by_one():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(1, 1)

        def forward(self, a, b):
            return self.a(a) + 0 * self.b(b)

    x = {"a": torch.from_numpy(X[:, :2]), "b": torch.from_numpy(X[:, 2:3])}
    y = torch.from_numpy(X[:, :1])
    ensemble = choral.ensemble_of([Sum()], data=(x, y), likelihood=FixedGaussian(precision=1.0))
    found = by_column(permutation_importance(ensemble, x, y))
    assert set(found) == {"x['a']", "x['b']"}
    assert found["x['a']"]["worse"]["nll"] != 0 == found["x['b']"]["worse"]["nll"]
    assert importance(ensemble, x, y)["dependence"] == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: permutation_importance(e, X, X[:5, :1]), "400 rows and y 5"),
        (lambda e: partial_dependence(e, X, "x00"), "no column 'x00'; known: x0, x1"),
    ],
)
def test_what_cannot_be_done_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call(of((1, 0, 0, 0), y=X[:, :1]))


def test_images_are_refused():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    x, y = torch.randn(8, 3, 2, 2), torch.tensor([0, 1] * 4)
    ensemble = choral.ensemble_of([net], data=(x, y))
    with pytest.raises(InputError, match="whose columns have no meaning"):
        permutation_importance(ensemble, x, y)
