"""Data frames whose columns stand in another order than those fitted on give the same predictions, or a refusal."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import choral
from choral.base.errors import InputError
from choral.comparison.evaluation import evaluate

DRAW = np.random.default_rng(0)
FRAME = pd.DataFrame(DRAW.normal(size=(40, 3)) * (1, 5, 20), columns=["age", "income", "rooms"])
LABELS = (FRAME["age"] > 0).astype(int)
OTHER = FRAME[["rooms", "age", "income"]]


def build():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def ensemble():
    return choral.fit(build, (FRAME, LABELS), choral.recipes.deep_ensemble(budget=2, members=2))


def test_columns_are_found_by_name(ensemble, tmp_path):
    expected = ensemble.predict(FRAME.to_numpy()).probs
    assert torch.equal(ensemble.predict(OTHER).probs, expected)
    assert ensemble.evaluate(OTHER, LABELS) == ensemble.evaluate(FRAME, LABELS)
    scores = [evaluate(ensemble, frame, LABELS, ood=frame) for frame in (FRAME, OTHER)]
    assert scores[0]["scores"] == scores[1]["scores"]
    assert scores[0]["ood"] == scores[1]["ood"]
    assert ensemble.calibrated(OTHER, LABELS).posthoc == ensemble.calibrated(FRAME, LABELS).posthoc
    ensemble.save(tmp_path / "e.choral")
    assert torch.equal(choral.load(tmp_path / "e.choral", build).predict(OTHER).probs, expected)


def test_rows_in_another_order_than_their_targets_are_refused(ensemble):
    shuffled = FRAME.sample(frac=1, random_state=0)
    with pytest.raises(InputError, match="same index in another order"):
        choral.fit(build, (shuffled, LABELS), "single")
    with pytest.raises(InputError, match="same index in another order"):
        ensemble.evaluate(shuffled, LABELS)
    with pytest.raises(InputError, match="same index in another order"):
        choral.compare(build, (FRAME, LABELS, shuffled, LABELS), ["single"])
    paired = ensemble.evaluate(shuffled, LABELS[shuffled.index])
    assert paired == pytest.approx(ensemble.evaluate(FRAME, LABELS), rel=1e-4)
    assert ensemble.evaluate(shuffled.to_numpy(), LABELS[shuffled.index]) == paired


def test_another_frame_is_refused_and_an_array_is_read_by_position(ensemble):
    with pytest.raises(InputError, match=r"lacks rooms and adds room; give those columns"):
        ensemble.predict(FRAME.rename(columns={"rooms": "room"}))
    with pytest.raises(InputError, match="adds id"):
        ensemble.predict(FRAME.assign(id=1))
    with pytest.raises(InputError, match="lacks rooms"):
        ensemble.predict(FRAME[["age", "income"]])
    counted = pd.DataFrame(FRAME.to_numpy())
    assert torch.equal(ensemble.predict(counted).probs, ensemble.predict(FRAME).probs)


def test_validation_and_test_rows_are_found_by_name():
    recipe = choral.recipes.single(budget=3)
    curves = []
    for frame in (FRAME, OTHER):
        heard = []
        choral.fit(build, (FRAME, LABELS), recipe, validation=(frame, LABELS), callbacks=heard.append)
        curves.append([event["validation"] for event in heard if "validation" in event])
    assert curves[0] == curves[1] != []
    tables = [
        choral.compare(build, (FRAME, LABELS, frame, LABELS), ["single"], budget=2).rows for frame in (FRAME, OTHER)
    ]
    assert tables[0][0]["nll"] == tables[1][0]["nll"]


def test_several_frames_and_several_targets_are_found_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, one, two):
            return self.layer(torch.cat([one, two], 1))

    y = pd.DataFrame({"low": FRAME["age"] * 2, "high": FRAME["rooms"]})
    x = {"one": FRAME, "two": FRAME[["age", "rooms"]]}
    fitted = choral.fit(Two, (x, y), choral.recipes.single(budget=2))
    turned = {"one": OTHER, "two": FRAME[["rooms", "age"]]}
    assert torch.equal(fitted.predict(turned).mean, fitted.predict(x).mean)
    assert fitted.evaluate(turned, y[["high", "low"]]) == fitted.evaluate(x, y)


def test_validation_data_may_be_dicts_as_the_data():
    data = {"input": torch.randn(12, 3), "label": torch.arange(12) % 2}

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, input):
            return self.layer(input)

    choral.fit(Named, data, choral.recipes.single(budget=1), target="label", validation=data)


def test_networks_that_read_a_table_read_a_frame_as_one():
    from choral.tables.table import learn_table

    frame = FRAME.assign(price=FRAME["age"] * 2.5)
    table = learn_table(frame, "price")
    x = table.inputs(frame)
    points = (x, table.targets(frame))
    fitted = choral.fit(lambda: nn.Linear(x.shape[1], 1), points, choral.recipes.single(budget=1))
    fitted.table = table
    expected = fitted.predict(x).mean
    assert torch.equal(fitted.predict(OTHER).mean, expected)  # read as the table, not as raw numbers
    price = pd.Series(frame["price"])
    for scores in (evaluate(fitted, OTHER, price), evaluate(fitted, x, table.targets(frame))):
        assert scores["scores"]["rmse"] == pytest.approx(fitted.evaluate(frame)["rmse"])
