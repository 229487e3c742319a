"""What `Ensemble.predict` returns: an array over rows, in the shape and units of y."""

import numpy as np
import pytest
import torch
from torch import nn

import choral
from choral.objectives.likelihoods import (
    About,
    Laplace,
    LearnedGaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
    TargetScale,
)
from choral.predictions import Prediction
from choral.recipes import make

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()
RECIPE = make("deep_ensemble", epochs=8, members=3, training=choral.Training(optimizer=choral.Adam(), lr=0.05))
TARGETS = {"(n,)": 100 + 10 * X[:, 0], "(n, 1)": 100 + 10 * X[:, :1], "(n, 3)": 100 + 10 * X}
NUMBERS = ("mean", "std", "aleatoric_std", "epistemic_std")
CLASSES = ("probs", "labels", "confidence", "entropy", "expected_entropy", "mutual_information")


def fitted(y, outputs, **options):
    return choral.fit(
        lambda: nn.Linear(3, outputs), (X, y), RECIPE, compute=choral.Compute(executor="sequential"), **options
    )


@pytest.fixture(scope="module")
def numbers():
    """Return an ensemble for each shape of the targets."""
    return {name: fitted(y, 2 * y.reshape(60, -1).shape[1]) for name, y in TARGETS.items()}


@pytest.fixture(scope="module")
def classes():
    return fitted(LABELS, 3)


@pytest.mark.parametrize("name", TARGETS)
def test_numbers_have_the_shape_and_the_units_of_the_targets_also_after_loading(numbers, name, tmp_path):
    ensemble, y = numbers[name], TARGETS[name]
    ensemble.save(tmp_path / "e.choral")
    loaded = choral.load(tmp_path / "e.choral", build=lambda: nn.Linear(3, 2 * y.reshape(60, -1).shape[1]))
    for p in (ensemble.predict(X), loaded.predict(X)):
        shown = [*(getattr(p, n) for n in NUMBERS), *p.interval(0.9), p.samples(2)[1], p.members[0]]
        assert [v.shape for v in shown] == [y.shape] * len(shown)
        assert p.quantiles((0.1, 0.9)).shape == (*y.shape, 2)
        torch.testing.assert_close(p.std**2, p.aleatoric_std**2 + p.epistemic_std**2)
        torch.testing.assert_close(p.members.mean(0), p.mean)
        torch.testing.assert_close(p.members.var(0, correction=0).sqrt(), p.epistemic_std)
        assert p.scores(y) == ensemble.evaluate(X, y)
        assert p.scores(y)["rmse"] == pytest.approx(float((p.mean - y).square().mean().sqrt()), rel=1e-5)
        assert np.array_equal(np.asarray(p), np.asarray(p.mean))


def test_every_shape_of_one_target_is_the_same_prediction(numbers):
    flat, column = (numbers[name].predict(X) for name in ("(n,)", "(n, 1)"))
    for name in NUMBERS:
        assert torch.equal(getattr(flat, name), getattr(column, name)[:, 0])
    assert torch.equal(flat.quantiles(), column.quantiles()[:, 0])


ROWS = {
    "a row": 3,
    "the last row": -1,
    "a slice": slice(2, 40, 3),
    "a mask": X[:, 0].numpy() > 0,
    "a mask of torch": X[:, 0] > 0,
    "indices": [5, 0, 5],
    "indices of torch": torch.tensor([7, 2]),
    "none": slice(0, 0),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_some_rows_of_a_prediction_are_the_prediction_of_those_rows(numbers, classes, rows):
    which = np.atleast_1d(np.arange(60)[rows])
    for ensemble, names in ((numbers["(n,)"], NUMBERS), (numbers["(n, 3)"], NUMBERS), (classes, CLASSES)):
        whole = ensemble.predict(X)
        some = whole[rows]
        assert isinstance(some, Prediction)
        assert len(some) == len(which)
        for name in names:
            assert torch.equal(getattr(some, name), getattr(whole, name)[which])
        if len(which):
            alone = ensemble.predict(X[which])
            for name in names:
                torch.testing.assert_close(getattr(some, name), getattr(alone, name), rtol=1e-4, atol=1e-5)


def test_rows_beyond_the_last_and_further_axes_are_index_errors(classes):
    p = classes.predict(X)
    for wrong in (60, [0, 99], (0, 1), np.zeros((2, 2), int), np.ones(59, bool)):
        with pytest.raises(IndexError):
            p[wrong]
    assert len(list(p)) == len(p) == 60


def test_conformal_intervals_and_sets_are_those_of_the_distribution(numbers, classes):
    for name, y in TARGETS.items():
        ensemble = numbers[name].calibrated(X, y, level=0.8)
        for ours, theirs in zip(ensemble.predict(X).conformal_interval(), ensemble._predictive(X).conformal_interval()):
            assert torch.equal(ours, theirs.reshape(y.shape))
        low, high = ensemble.predict(X).conformal_interval()
        assert 0.75 < float(((low <= y) & (y <= high)).double().mean()) < 0.9
        part = ensemble.predict(X)[10:20].conformal_interval()[0]
        torch.testing.assert_close(part, low[10:20])
    calibrated = classes.calibrated(X, LABELS, level=0.8)
    assert torch.equal(calibrated.predict(X).sets(seed=2), calibrated._predictive(X).sets(seed=2))


def test_uncertainties_of_classes_add_up(classes):
    p = classes.predict(X)
    torch.testing.assert_close(p.entropy, p.expected_entropy + p.mutual_information)
    torch.testing.assert_close(p.members.mean(0), p.probs)
    assert torch.equal(p.labels, p.probs.argmax(1))
    assert torch.equal(p.confidence, p.probs.max(1).values)
    assert p.scores(LABELS)["accuracy"] == pytest.approx(float((p.labels == LABELS).double().mean()))


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_yes_or_no_has_the_shape_of_the_targets(shape):
    ensemble = fitted((X[:, 0] > 0).float().reshape(shape), 1)
    p = ensemble.calibrated(X, (X[:, 0] > 0).float(), level=0.9).predict(X)
    assert all(getattr(p, name).shape == shape for name in CLASSES)
    assert p.sets().shape == (*shape, 2)
    torch.testing.assert_close(p.confidence, torch.maximum(p.probs, 1 - p.probs))


@pytest.mark.parametrize("method", ["mc_dropout", "bnn"])
def test_draws_of_one_member_are_one_member(method):
    build = lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2))  # noqa: E731  # a factory in one line
    p = choral.fit(build, (X, TARGETS["(n,)"]), make(method, budget=2, draws=5)).predict(X)
    assert p.members.shape == (1, 60)
    torch.testing.assert_close(p.members[0], p.mean)


def test_a_frame_holds_the_values_of_the_tensors(numbers, classes):
    p = numbers["(n,)"].predict(X)
    frame, (low, high) = p.to_frame(), p.interval(0.95)
    assert list(frame) == ["mean", "std", "low_95", "high_95", "aleatoric_std", "epistemic_std"]
    for name, values in ({n: getattr(p, n) for n in NUMBERS} | {"low_95": low, "high_95": high}).items():
        assert frame[name].to_numpy() == pytest.approx(values.numpy(), rel=1e-6)
    three = numbers["(n, 3)"].predict(X)
    assert three.to_frame()["std_2"].to_numpy() == pytest.approx(three.std[:, 2].numpy(), rel=1e-6)
    p = classes.predict(X)
    assert p[4:9].to_frame()["p_1"].to_numpy() == pytest.approx(p.probs[4:9, 1].numpy(), rel=1e-5)
    assert p.to_frame()["prediction"].tolist() == p.labels.tolist()


def test_what_a_task_does_not_have_is_an_attribute_error_that_names_what_it_has(numbers, classes):
    number, label = numbers["(n,)"].predict(X), classes.predict(X)
    for name in CLASSES:
        with pytest.raises(AttributeError, match=rf"regression has no '{name}'; it has mean, std, .*quantiles"):
            getattr(number, name)
        assert not hasattr(number, name)
    for name in NUMBERS:
        with pytest.raises(AttributeError, match=rf"classification has no '{name}'; it has probs, labels"):
            getattr(label, name)
    for call in (label.interval, label.quantiles, label.conformal_interval, lambda: label.samples(3), number.sets):
        with pytest.raises(AttributeError, match="it has"):
            call()
    assert set(dir(number)).isdisjoint(CLASSES)
    assert all(hasattr(number, name) for name in dir(number))


SCALE = TargetScale(mean=(10.0,), std=(5.0,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood",
    [
        LearnedGaussian(scale=SCALE),
        StudentT(scale=SCALE),
        Laplace(scale=SCALE),
        Poisson(base=4.0),
        NegativeBinomial(base=4.0),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_samples_and_quantiles_are_those_of_the_mixture(likelihood):
    raw = 0.5 * torch.randn(3, 4, likelihood.outputs_each, generator=torch.Generator().manual_seed(1))
    found = likelihood.predict(raw, About()).weighed((0.6, 0.3, 0.1))
    p = Prediction(found, ())
    draws = p.samples(6000)
    assert torch.equal(draws, p.samples(6000))
    assert not torch.equal(draws[:9], p.samples(9, seed=1))
    assert bool(((draws.mean(0) - p.mean).abs() < 4 * p.std / 6000**0.5).all())
    assert torch.allclose(draws.std(0).double(), p.std.double(), rtol=0.12)
    levels = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    at = p.quantiles(levels.tolist()).double()
    for i, level in enumerate(levels):
        share = (draws.double() <= at[:, i]).double().mean(0)
        assert bool((share > level - 0.03).all())
        assert p.task == "counts" or bool((share < level + 0.03).all())


def test_fitted_quantiles_are_given_as_they_are():
    ensemble = fitted(TARGETS["(n,)"], 3, likelihood=choral.objectives.Quantiles(levels=(0.1, 0.5, 0.9)))
    p = ensemble.predict(X)
    assert p.quantiles().shape == (60, 3)
    assert torch.equal(p.quantiles((0.5,))[:, 0], p.mean)
    for narrow in (p.interval(), p.interval(0.8)):
        assert torch.equal(torch.stack(narrow, -1), p.quantiles((0.1, 0.9)))
    with pytest.raises(choral.ChoralError, match="give some of these"):
        p.quantiles((0.25,))


def test_what_is_printed_is_short_and_escaped(numbers, classes):
    for ensemble in (*numbers.values(), classes):
        for p in (ensemble.predict(X), ensemble.predict(X)[:1], ensemble.predict(X)[:0]):
            assert len(repr(p).splitlines()) <= 5
            assert max(map(len, repr(p).splitlines())) <= 120
            assert f"{len(p)} row" in repr(p)
        assert "<table>" in p._repr_html_()
        assert "deep_ensemble: 3 members" in ensemble._repr_html_()
    named = choral.predictions.Classification(torch.zeros(2, 1, 2), names=("<script>", "b"))
    assert "<script>" in repr(Prediction(named))
    assert "<script>" not in Prediction(named)._repr_html_()
    assert "&lt;script&gt;" in Prediction(named)._repr_html_()
    table = choral.Comparison([{"method": "<b>", "members": 1, "epochs": 2, "nll": 0.5}])
    assert "&lt;b&gt;" in table._repr_html_()
    assert "<b>" not in table._repr_html_()


def test_there_are_few_public_names():
    def public(cls):
        return [name for name in vars(cls) if not name.startswith("_")]

    assert len(public(Prediction)) <= 20
    ensemble = fitted(LABELS, 3)
    assert len({*public(choral.Ensemble), *(n for n in vars(ensemble) if not n.startswith("_"))}) <= 16


def test_help_describes_each_value_of_a_prediction():
    names = ("mean", "std", "aleatoric_std", "epistemic_std", "probs", "labels", "entropy", "mutual_information")
    assert len({getattr(choral.Prediction, name).__doc__ for name in names}) == len(names)
