"""Branches of forks that differ in their settings keep them when any process trains them."""

import os
import subprocess
import sys
import time  # noqa: F401  # for the script that begins with all of this
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import choral
from choral import models
from choral.plan import SGD, Collect, LogUniform, OneOf, Reset, Resize, Space, Train, Uniform, fork, seq
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 5, generator=G), torch.randint(0, 3, (60,), generator=G)
OPTIONS = {"compute": choral.Compute(threads=1, executor="sequential", checkpoint_seconds=0.0)}
STEP = Train(epochs=1, batch_size=20, optimizer=SGD(momentum=0.5))
STEEP = [{"rate": 3.0, "weight_decay": 0.2, "momentum": 0.9}, {"rate": 0.1, "weight_decay": 0.0, "momentum": 0.0}]
SOFT = [{"dropout": 0.6, "smoothing": 0.3}, {"dropout": 0.0, "smoothing": 0.0}]
CUT = [{"depth": 1.0, "width": 3.0}, {"depth": 2.0, "width": 8.0}]
SPACE = Space(rate=LogUniform(0.1, 10.0), dropout=OneOf((0.0, Uniform(0.2, 0.6))))


def net():
    return models.tabular(5, 3, hidden=(8,) * 3, embedding="none", dropout=0.1, skippable=True)


def nested(outer, inner):
    """A fork in a fork, with training before, between and behind them."""
    within = fork(2, STEP, Collect(), **inner)
    return seq(Reset(), STEP, fork(2, Resize(), STEP, within, STEP, Collect(), **outer))


PLANS = {
    "one": fork(3, Reset(), STEP, Collect(), sample=SPACE),
    "outer": nested({"variants": STEEP}, {}),
    "inner": nested({}, {"variants": SOFT}),
    "both": nested({"variants": CUT}, {"variants": STEEP}),
    "same settings": nested({"variants": STEEP}, {"variants": [{"rate": 0.5}, {"rate": 2.0}]}),
    "drawn": nested({"sample": SPACE}, {"sample": Space(rate=Uniform(0.5, 2.0), weight_decay=Uniform(0.0, 0.3))}),
    "no leaf of its own": fork(fork(Reset(), STEP, Collect(), variants=SOFT), variants=STEEP),
    "three deep": fork(
        Reset(), STEP, fork(Resize(), STEP, fork(STEP, Collect(), variants=SOFT), variants=CUT), variants=STEEP
    ),
}


def files(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def train(folder, build, data, recipe, **options):
    """Train leaves as they become ready, the last one first."""
    while ready := [row["path"] for row in choral.leaves(folder) if row["state"] in ("ready", "begun")]:
        choral.run_leaf(folder, ready[-1], build, data, recipe, **options)


def check_same(tmp_path, build, data, recipe, **options):
    whole = choral.fit(build, data, recipe, run_dir=tmp_path / "whole", **options)
    rows = choral.prepare(build, data, recipe, run_dir=tmp_path / "cut", **options)
    train(tmp_path / "cut", build, data, recipe, **options)
    cut = choral.fit(build, data, recipe, run_dir=tmp_path / "cut", **options)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert torch.equal(cut.predict(X).probs, whole.predict(X).probs)
    return rows, cut, whole


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_leaves_have_the_settings_of_all_forks_they_are_in(name, tmp_path):
    check_same(tmp_path, net, (X, Y), Recipe(name="r", plan=PLANS[name]), **OPTIONS)


def test_stacked_leaves_have_them_too(tmp_path):
    options = OPTIONS | {"compute": choral.Compute(executor="vectorized")}
    rows, *_ = check_same(tmp_path, net, (X, Y), Recipe(name="r", plan=PLANS["three deep"]), **options)
    assert [row["networks"] for row in rows] == [2, 4, 8]


QUICK = Training(lr=0.02, optimizer=SGD(momentum=0.5), batch_size=20)
CHOSEN = {
    "hyper_ensemble": make("hyper_ensemble", budget=24, members=4, picks=4, patience=3, training=QUICK),
    "tabpack": make("tabpack", budget=24, members=4, picks=4, patience=9),
    "tabpack, sgd": make("tabpack", budget=24, members=4, picks=4, patience=9, training=QUICK),
}
WATCHED = {
    "chosen": {"validation": 0.3},
    "not chosen": {},
    "in folds": {"cv": 2},
    "stopped one by one": {"validation": 0.3, "early_stopping": choral.EarlyStopping(patience=2)},
    "stopped together": {"validation": 0.3, "early_stopping": choral.EarlyStopping(patience=2, by="ensemble")},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "watched"),
    [
        ("hyper_ensemble", "chosen"),
        ("hyper_ensemble", "not chosen"),
        ("hyper_ensemble", "stopped together"),
        ("tabpack", "chosen"),
        ("tabpack", "stopped one by one"),
        ("tabpack, sgd", "not chosen"),
    ],
)
def test_choices_among_branches_are_those_of_one_process(name, watched, tmp_path):
    executor = "vectorized" if name == "tabpack" else "sequential"
    options = OPTIONS | WATCHED[watched] | {"compute": choral.Compute(executor=executor)}
    rows, cut, whole = check_same(tmp_path, net, (X, Y), CHOSEN[name], **options)
    assert len(rows) == (4 if watched == "not chosen" and executor == "sequential" else 1)
    assert cut.members == whole.members
    for told in ("stopped", "selected", "shares", "out_of_fold"):
        assert cut.info.get(told) == whole.info.get(told)
    assert [str(c) for c in cut.posthoc] == [str(c) for c in whole.posthoc]


@pytest.mark.parametrize(
    "watched",
    [
        pytest.param("in folds", marks=pytest.mark.full),
        "stopped one by one",
        pytest.param("stopped together", marks=pytest.mark.full),
    ],
)
def test_forks_in_forks_are_watched_as_in_one_process(watched, tmp_path):
    check_same(tmp_path, net, (X, Y), Recipe(name="r", plan=PLANS["same settings"]), **OPTIONS | WATCHED[watched])


def test_an_attempt_that_ends_in_the_middle_goes_on_with_its_settings(tmp_path):
    recipe = Recipe(name="r", plan=fork(Reset(), replace(STEP, epochs=4), Collect(), variants=STEEP))
    choral.fit(net, (X, Y), recipe, run_dir=tmp_path / "whole", **OPTIONS)
    choral.prepare(net, (X, Y), recipe, run_dir=tmp_path / "cut", **OPTIONS)

    def stop(event):
        if event["kind"] == "epoch" and event["epoch"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        choral.run_leaf(tmp_path / "cut", "f0", net, (X, Y), recipe, callbacks=stop, **OPTIONS)
    train(tmp_path / "cut", net, (X, Y), recipe, **OPTIONS)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.full
@pytest.mark.slow
def test_three_shells_train_what_one_process_does(tmp_path):
    """Another process knows nothing but the plan: every setting must follow from it."""
    script = tmp_path / "leaf.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import choral\n"
        "from tests.cluster.test_variants import *\n"
        "recipe = Recipe(name='r', plan=PLANS['drawn'])\n"
        "for path in sys.argv[2:]:\n"
        "    while path not in [r['path'] for r in choral.leaves(sys.argv[1]) if r['state'] in ('ready', 'begun')]: time.sleep(0.05)\n"
        "    choral.run_leaf(sys.argv[1], path, net, (X, Y), recipe, **OPTIONS)\n"
    )
    recipe = Recipe(name="r", plan=PLANS["drawn"])
    choral.fit(net, (X, Y), recipe, run_dir=tmp_path / "whole", **OPTIONS)
    paths = [row["path"] for row in choral.prepare(net, (X, Y), recipe, run_dir=tmp_path / "cut", **OPTIONS)]
    environment = os.environ | {"PYTHONPATH": str(Path(choral.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    begun = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path / "cut"), *paths[i::3]], env=environment)
        for i in range(3)
    ]
    assert [process.wait(timeout=120) for process in begun] == [0, 0, 0]
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
