"""Mistakes and short cuts of users of the Python functions: the right answer, or one clear sentence before any compute."""

import inspect
import re
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base import errors
from choral.base.errors import ChoralError
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=G)
Y = (X[:, 0] > 0).long()
QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=8)
ONE = make("single", budget=1, training=QUICK)


def build():
    return models.mlp(3, 2, hidden=(4,))


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def fitted():
    return choral.fit(build, (X, Y), ONE)


api: Any = choral  # wrong on purpose
training: Any = Training
REFUSED = {
    "an uncalled recipe": (lambda: api.fit(build, (X, Y), choral.recipes.snapshot), r"snapshot\(epochs="),
    "an unknown method": (lambda: api.fit(build, (X, Y), "snapshots"), "no method 'snapshots'.*Did you mean 'snapshot'"),
    "a recipe of another kind": (lambda: api.fit(build, (X, Y), 3), "recipe is 3"),
    "a factory of nothing": (lambda: api.fit(lambda: None, (X, Y), ONE), "must return a new nn.Module"),
    "a rate in quotes": (lambda: training(lr="0.1"), "lr is '0.1'"),
    "a rate that is no number": (lambda: training(lr=float("nan")), "lr is nan"),
    "an unknown optimizer": (lambda: training(optimizer="adamm"), "Did you mean 'adam'"),
    "a batch of half a point": (lambda: training(batch_size=2.5), "batch_size is 2.5"),
    "epochs in quotes": (lambda: make("snapshot", epochs="60"), "epochs is '60'"),
    "half a member": (lambda: make("deep_ensemble", budget=4, members=1.5), "members is 1.5"),
    "a seed in words": (lambda: api.fit(build, (X, Y), ONE, seed="one"), "seed is 'one'"),
    "several seeds for one": (lambda: api.fit(build, (X, Y), ONE, seed=(0, 1)), r"seed is \(0, 1\)"),
    "a run_dir that is none": (lambda: api.fit(build, (X, Y), ONE, run_dir=3), "run_dir is 3"),
    "a transform alone": (lambda: api.fit(build, (X, Y), ONE, transforms=3), "transforms is 3"),
    "an unknown argument": (lambda: api.fit(build, (X, Y), ONE, sead=3), "sead.*Did you mean 'seed'"),
    "seconds in words": (lambda: api.Compute(checkpoint_seconds="5"), "checkpoint_seconds is '5'"),
    "a callback that cannot be called": (lambda: api.fit(build, (X, Y), ONE, callbacks=3), "callbacks is 3"),
    "an odd wish for a run that is there": (lambda: api.fit(build, (X, Y), ONE, on_existing="no"), "on_existing is 'no'"),
    "one row for BatchNorm": (lambda: api.fit(normed, (X[:1], Y[:1]), ONE), "cannot be trained on a batch of 1 row.*two rows"),
    "batches of one for BatchNorm": (
        lambda: api.fit(normed, (X, Y), make("single", budget=1, training=Training(lr=0.1, optimizer="sgd", batch_size=1))),
        "cannot be trained on a batch of 1 row",
    ),
    "two arrays to compare on": (lambda: api.compare(build, (X, Y), ["single"]), r"\(x_train, y_train, x_test, y_test\)"),
    "the same seed twice": (lambda: api.compare(build, (X, Y, X, Y), ["single"], seed=(0, 0)), r"such as \(0, 1, 2\)"),
    "no methods": (lambda: api.compare(build, (X, Y, X, Y), []), r"methods is \[\]"),
    "methods of another kind": (lambda: api.compare(build, (X, Y, X, Y), [3]), "3"),
    "too few epochs for a method": (
        lambda: api.compare(build, (X, Y, X, Y), ["single", "snapshot"], budget=1, training=QUICK), "snapshot: 1 epochs in all are too few"),
    "nothing to load": (lambda: api.load("nowhere.choral"), "does not exist"),
    "a load of nothing": (lambda: api.load(None), "path is None"),
    "words in a frame": (
        lambda: api.fit(build, (pandas.DataFrame({"a": ["x"] * 24}), Y), ONE), "not numbers"),
    "words as labels": (lambda: api.fit(build, (X, pandas.Series(["cat", "dog"] * 12)), ONE), "encode labels"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = REFUSED[name]
    with pytest.raises(ChoralError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


PREDICTED = {
    "too narrow": (lambda e: e.predict(X[:, :2]), r"\(24, 2\).*fitted on rows like \(1, 3\)"),
    "too wide": (lambda e: e.predict(np.zeros((4, 7))), r"\(4, 7\)"),
    "one flat row": (lambda e: e.predict(X[0]), r"\(3,\)"),
    "words": (lambda e: e.predict([["a", "b", "c"]]), "not numbers"),
    "nothing": (lambda e: e.predict(None), "not numbers"),
    "NaN": (lambda e: e.predict(torch.full((2, 3), torch.nan)), "NaN"),
    "a batch of nothing": (lambda e: e.predict(X, batch_size=0), "batch_size is 0"),
    "an odd device": (lambda e: e.predict(X, device="warp"), "device is 'warp'"),
    "an odd precision": (lambda e: e.predict(X, precision="fp8"), "precision is 'fp8'"),
    "fewer labels": (lambda e: e.evaluate(X, Y[:5]), "5.*24"),
    "a member too far": (lambda e: e.member(9), "member 9 does not exist"),
    "a folder to save": (lambda e: e.save("."), "is a folder"),
    "below a file": (lambda e: e.save("file/e.choral"), "cannot be written"),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_wrong_uses_of_an_ensemble_are_one_sentence(name, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    call, message = PREDICTED[name]
    with pytest.raises(ChoralError, match=message) as caught:
        call(fitted)
    assert "\n" not in str(caught.value)


HINTED = {
    "lr of fit": (lambda: api.fit(build, (X, Y), ONE, lr=0.1), r"training=choral\.Training\(lr="),
    "lr of a recipe": (lambda: api.recipes.deep_ensemble(lr=0.1), r"training=choral\.Training\(lr="),
    "lr of a method by name": (lambda: make("snapshot", learning_rate=0.1), r"training=choral\.Training\(lr="),
    "another word for lr": (lambda: training(learning_rate=0.1), r"write lr="),
    "an optimizer of a recipe": (lambda: api.recipes.packed(optimizer="adam"), r"Training\(optimizer='adam'\)"),
    "batch_size of fit": (lambda: api.fit(build, (X, Y), ONE, batch_size=8), r"Training\(batch_size="),
    "epochs of fit": (lambda: api.fit(build, (X, Y), ONE, epochs=8), r"deep_ensemble\(epochs="),
    "scikit-learn's members": (lambda: api.fit(build, (X, Y), ONE, n_estimators=8), r"deep_ensemble\(members="),
    "verbose": (lambda: api.fit(build, (X, Y), ONE, verbose=True), "write progress="),
    "threads of fit": (lambda: api.fit(build, (X, Y), ONE, threads=2), r"compute=choral\.Compute\(threads="),
    "x and y apart": (lambda: api.fit(build, X, Y, ONE), r"give x and y as a pair: fit\(build, \(x, y\), recipe\)"),
    "options of fit_table": (
        lambda: api.fit_table(None, "t", verbose=1),
        "fit_table has no argument 'verbose'; write progress=",
    ),
    "scikit-learn's members of a recipe": (lambda: api.recipes.bagged(n_estimators=8), "write members="),
    "a loss of fit": (lambda: api.fit(build, (X, Y), ONE, criterion=nn.MSELoss()), "write likelihood="),
    "training and test rows apart": (
        lambda: api.compare(build, (X, Y), (X, Y), ["single"]),
        r"\(x, y, x_test, y_test\)",
    ),
}


@pytest.mark.parametrize("name", HINTED)
def test_words_that_people_try_are_answered_with_what_to_write(name):
    call, message = HINTED[name]
    with pytest.raises(ChoralError, match=message) as caught:
        call()
    assert "overwrite" not in str(caught.value)


def test_what_is_suggested_can_be_written():
    offered = set(inspect.signature(choral.fit).parameters) | set(inspect.signature(choral.compare).parameters)
    for write, where in errors.HINTS.values():
        if ": " in where:
            suggested = where.format(write.replace("...", "None")).partition(": ")[2]
            with suppress(ChoralError) if "..." in write else nullcontext():  # a name that exists, without a value
                eval(suggested.removeprefix("compute=").removeprefix("early_stopping="))
        elif re.match(r"\w+=", write):
            assert write.partition("=")[0] in offered


@pytest.mark.parametrize("name", sorted(errors.ATTRIBUTES))
def test_attributes_that_people_try_are_answered_with_what_to_write(name, fitted):
    with pytest.raises(AttributeError, match=re.escape(errors.ATTRIBUTES[name])):
        getattr(
            api if name in ("predict", "evaluate", "save") else fitted.predict(X) if name != "scores" else fitted, name
        )


def test_a_misspelled_recipe_is_corrected_and_recipes_are_listed_alone():
    with pytest.raises(AttributeError, match="Did you mean 'deep_ensemble'"):
        _ = choral.recipes.deep_ensembel
    assert dir(choral.recipes) == sorted(choral.recipes.METHODS)
    assert all("Cost: " in getattr(choral.recipes, name).__doc__ for name in choral.recipes.METHODS)
    assert "ICLR 2023" in choral.recipes.packed.__doc__
    for name, method in choral.recipes.METHODS.items():  # every argument is explained, wherever that is written
        said = getattr(choral.recipes, name).__doc__.partition("Args:\n")[2]
        assert all(re.search(rf"^    {argument}: \S", said, re.MULTILINE) for argument in method.options), name


@pytest.mark.parametrize(("function", "most"), [("fit", 18), ("fit_table", 14), ("compare", 12)])
def test_public_functions_take_few_arguments(function, most):
    taken = inspect.signature(getattr(choral, function)).parameters.values()
    assert sum(p.kind is not p.VAR_KEYWORD for p in taken) <= most


def test_device_is_short_for_a_compute_and_auto_is_a_device(fitted):
    given = choral.fit(build, (X, Y), ONE, device="cpu")
    found = choral.fit(build, (X, Y), ONE, compute=choral.Compute(device="auto"))
    assert torch.equal(found.predict(X, device="auto").probs, given.predict(X, device="cpu").probs)
    with pytest.raises(ChoralError, match="device is 'warp'"):
        choral.fit(build, (X, Y), ONE, device="warp", compute=choral.Compute(device="cpu"))


def test_a_method_by_name_is_its_recipe():
    fast = choral.fit(build, (X, Y), "single")
    assert fast.recipe == choral.recipes.single().settled(len(X), sum(p.numel() for p in build().parameters()))


def test_an_optimizer_by_name_is_the_optimizer():
    assert training(optimizer="adam") == Training(optimizer=Adam())
    assert training(optimizer="adam").to_dict()["optimizer"]["kind"] == "Adam"


def test_numbers_of_numpy_are_numbers():
    assert training(lr=np.float32(0.5), batch_size=np.int64(8)).lr == pytest.approx(0.5)
    assert make("snapshot", budget=np.int64(8), members=np.int32(2)).members == 2


def test_frames_and_series_are_arrays(fitted):
    frame, labels = pandas.DataFrame(X.numpy(), columns=list("abc")), pandas.Series(Y.numpy())
    again = choral.fit(build, (frame, labels), ONE)
    assert torch.equal(again.predict(frame).probs, fitted.predict(X).probs)
    assert again.evaluate(frame, labels) == fitted.evaluate(X, Y)


def test_saving_makes_the_folder(fitted, tmp_path):
    fitted.save(tmp_path / "new" / "deep" / "e.choral")
    assert len(choral.load(tmp_path / "new" / "deep" / "e.choral")) == 1


def test_a_trained_network_that_would_be_drawn_anew_is_said():
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    nn.functional.cross_entropy(net(X), Y).backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="'single' draws its weights anew.*pretrained"):
        choral.fit(net, (X, Y), ONE)
    choral.fit(build(), (X, Y), ONE)  # nothing is lost of a new one
    choral.fit(net, (X, Y), make("prune_and_tune", budget=2, members=2, parent_epochs=0, training=QUICK))


def test_all_methods_are_all():
    from choral.comparison.compare import recipes_for

    assert len(recipes_for("all", budget=60, members=None, training=QUICK)) == len(choral.recipes.METHODS)
    assert len(recipes_for("single", budget=60, members=None, training=QUICK)) == 1


def test_networks_that_fail_are_said_with_the_shapes():
    class Odd(nn.Linear):
        def forward(self, x):
            if len(x) > 10:
                raise OSError("no such disk")
            return super().forward(x)

    ensemble = choral.fit(lambda: Odd(3, 2), (X, Y), ONE)
    with pytest.raises(ChoralError, match=re.escape("(20, 3)") + ".*no such disk"):
        ensemble.predict(X[:20])
