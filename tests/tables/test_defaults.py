"""What is done where the user says nothing."""

from dataclasses import fields

import numpy as np
import pytest

import choral
from choral.base.errors import InputError
from choral.cli.options import Reading, Settings, Watching, prepare_fit
from choral.data.problems import Problem
from choral.models import spec_of
from choral.plan import AdamW, EarlyStopping
from choral.tables.defaults import LATE, default_model, epochs_of, factory, is_table, stopping, training_for
from choral.tables.fit import prepared


def problem(rows=400, shape=(5,), image_shape=None, dtype=np.float32):
    g = np.random.default_rng(0)
    x = g.normal(size=(rows, *shape)).astype(np.float32)
    y = np.floor(2 * x.reshape(rows, -1)[:, 0]).astype(dtype)  # steps, which a plain perceptron learns slowly
    return Problem("steps", x, y, x[:50], y[:50], image_shape=image_shape)


def test_tables_whose_training_is_watched_get_bins_and_others_do_not():
    assert default_model(problem(), validated=True) == "tabular"
    assert default_model(problem(rows=5001), validated=True) == "tabular_embedded"
    assert default_model(problem(rows=5001), validated=True, networks=64) == "tabular"
    assert default_model(problem()) == "mlp"
    assert default_model(problem(rows=60), validated=True) == "mlp"  # too few to hold some out
    assert default_model(problem(shape=(64,), image_shape=(8, 8)), validated=True) == "mlp"
    assert default_model(problem(shape=(3, 32, 32)), validated=True) == "lenet_s"
    assert not is_table(problem(shape=(3, 32, 32)))
    with pytest.raises(InputError, match="reads rows of numbers"):
        factory(problem(shape=(3, 32, 32)), "tabular")


def test_a_member_has_its_whole_training_however_many_there_are():
    p = problem()
    training = training_for(p, model="tabular")
    assert isinstance(training.optimizer, AdamW)
    assert epochs_of(p, training, model="tabular", most=600) == 600
    assert epochs_of(p, training, model="mlp", most=600) is None
    large = problem(rows=200_000, shape=(1,))
    assert epochs_of(large, training_for(large, model="tabular"), model="tabular", most=600) == 96
    assert prepared(p, method="bagged", members=3).recipe.epochs == 3 * 300
    assert prepared(p, method="packed").recipe.epochs == 300


@pytest.mark.parametrize(
    ("rows", "patience", "quick"), [(100, 150, 40), (400, 47, 20), (1500, 20, 20), (200_000, 20, 20)]
)
def test_a_member_waits_for_enough_steps_of_a_small_table(rows, patience, quick):
    regression, classes = problem(rows), problem(rows, dtype=np.int64)
    assert (stopping(regression).patience, stopping(classes).patience) == (patience, quick)
    rates = [training_for(p, model="tabular").lr for p in (regression, classes)]
    assert (rates == [0.001, 0.004]) == (rows < 1000)


def test_a_search_of_a_small_table_begins_with_quick_training_and_keeps_wide_networks_for_targets_without_noise():
    found = prepared(problem())
    assert (found.training.lr, found.early_stopping) == (0.004, stopping(problem(), quick=True))
    assert spec_of(found.build())["arguments"]["hidden"] == [64, 64]
    hidden = {c.name: spec_of(c.build())["arguments"]["hidden"] for c in found.candidates if c.clean}
    assert hidden == {"residual": [256], "waves": [256, 256]}
    kinds = {(c.clean, c.epochs, c.early_stopping) for c in found.candidates}
    quick, late = stopping(problem(), quick=True), stopping(problem(), **LATE)
    assert kinds == {(None, 600, quick), (False, 600, quick), (True, 900, late)}
    assert late.patience > stopping(problem(), quick=False).patience > quick.patience
    assert prepared(problem(), patience=3).candidates[1].early_stopping == EarlyStopping(patience=3)
    assert not any(c.clean for c in prepared(problem(dtype=np.int64)).candidates)
    large = prepared(problem(rows=1000))
    assert [c.name for c in large.candidates] == ["deep_ensemble", "residual", "periodic", "linear"]
    assert {(c.clean, c.early_stopping) for c in large.candidates} == {(None, stopping(problem(rows=1000)))}


def ready(tmp_path, **said):
    x = problem().x_train
    np.savez(tmp_path / "d.npz", x_train=x, y_train=problem().y_train, x_test=x[:9], y_test=problem().y_train[:9])
    parts = [
        kind(**{n: said.pop(n) for n in [f.name for f in fields(kind)] if n in said})
        for kind in (Reading, Settings, Watching)
    ]
    wanted = {"method": None, "epochs": None, "members": None} | said
    return prepare_fit(str(tmp_path / "d.npz"), *parts, quiet=True, **wanted)


def test_what_is_said_goes_before_the_usual(tmp_path):
    found = ready(tmp_path)
    assert (found.recipe.members, found.folds, found.validation, found.early_stopping) == (
        8,
        8,
        None,
        stopping(problem(), quick=True),
    )
    named = ready(tmp_path, method="deep_ensemble")
    assert (named.recipe.members, named.folds, named.validation, named.early_stopping) == (
        8,
        None,
        0.2,
        stopping(problem()),
    )
    found = ready(tmp_path, validation=0.0)
    assert (found.recipe.members, found.recipe.epochs, found.validation, found.early_stopping) == (4, 800, None, None)
    assert choral.models.spec_of(found.build())["name"] == "mlp"
    found = ready(tmp_path, budget=40, patience=3)
    assert (found.recipe.members, found.recipe.epochs, found.validation, found.early_stopping.patience) == (
        4,
        40,
        0.2,
        3,
    )
    assert ready(tmp_path, model="mlp").validation == "auto"
    assert (
        choral.models.spec_of(ready(tmp_path, method="mimo").build())["name"] == "mlp"
    )  # its first layer reads the input


def test_the_usual_serves_every_task(tmp_path):
    found = ready(tmp_path, epochs=8, likelihood="quantiles")
    p = problem()
    ensemble = choral.fit(
        found.build,
        (p.x_train, p.y_train),
        found.recipe,
        likelihood="quantiles",
        validation=found.validation,
        early_stopping=found.early_stopping,
    )
    assert ensemble.task == "quantiles"
