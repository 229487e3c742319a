"""Plots show the numbers of predictions: the same whether they come from a prediction, an array or an evaluation."""

import matplotlib
import numpy as np
import pytest
import torch

import choral
from choral import metrics, models, plots
from choral.comparison.evaluation import evaluate
from choral.recipes import make
from choral.tables.problems import load_problem

matplotlib.use("agg")
DIGITS = load_problem("digits")
X, Y = DIGITS.x_test[:120], DIGITS.y_test[:120]


@pytest.fixture(autouse=True)
def closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def ensemble():
    data = (DIGITS.x_train[:300], DIGITS.y_train[:300])
    return choral.fit(
        lambda: models.mlp(64, 10, hidden=(16,)), data, make("snapshot", members=3, budget=6), progress=False
    )


@pytest.fixture(scope="module")
def regression():
    g = np.random.default_rng(0)
    x = g.normal(size=(200, 2)).astype("f")
    y = 100 * (x[:, 0] + 0.3 * g.normal(size=200)).astype("f")
    fitted = choral.fit(
        lambda: models.mlp(2, 2, hidden=(8,)), (x, y), make("deep_ensemble", members=3, budget=9), progress=False
    )
    return fitted, x, y


def points(ax, number=0):
    return np.array(ax.lines[number].get_xydata())


def drawn(ax):
    return ax.collections[-1].get_offsets().data  # (confidence, accuracy) of each bin


def test_reliability_shows_accuracy_by_confidence_and_the_counts(ensemble):
    p = ensemble.predict(X)
    ax = plots.reliability(p, Y)
    table = metrics.reliability_table(p.probs, torch.as_tensor(Y))
    held = table.counts > 0
    assert drawn(ax)[:, 1] == pytest.approx(table.accuracy[held].numpy(), abs=1e-5)
    assert [bar.get_height() * len(X) for bar in ax.patches] == pytest.approx(table.counts.tolist(), abs=1e-3)
    assert np.array_equal(drawn(plots.reliability(p.probs.numpy(), Y)), drawn(ax))


def test_predictions_arrays_and_evaluations_are_drawn_alike(ensemble):
    p, found = ensemble.predict(X), evaluate(ensemble, X, Y)
    stored = points(plots.risk_coverage(found["risk"]))
    assert stored[-1, 1] == pytest.approx(1 - found["scores"]["accuracy"], abs=1e-6)
    assert np.allclose(points(plots.risk_coverage(p, Y)), stored)
    sizes = points(plots.ensemble_size(p, Y, measure="nll"))
    assert np.allclose(sizes, points(plots.ensemble_size(found["sizes"], measure="nll")))
    assert sizes[-1, 1] == pytest.approx(found["scores"]["nll"], rel=1e-5)
    assert np.allclose(points(plots.ensemble_size(p.members.numpy(), Y)), sizes, atol=1e-5)


def test_confusion_counts_every_row(ensemble):
    p = ensemble.predict(X)
    cells = plots.confusion(p, Y).texts
    assert sum(int(cell.get_text()) for cell in cells) == len(X)
    right = [int(c.get_text()) for c in cells if c.get_position()[0] == c.get_position()[1]]
    assert sum(right) == int((p.labels.numpy() == Y).sum())


def test_histograms_hold_all_rows_on_a_logarithmic_axis(ensemble):
    ax = plots.entropy_histograms(ensemble.predict(X), ensemble.predict(1 - X))
    assert ax.get_xscale() == "log"
    for stairs in ax.patches:
        assert sum(stairs.get_data().values) == pytest.approx(1, abs=1e-5)


def test_agreement_has_one_scale(ensemble):
    p = ensemble.predict(X)
    mesh = plots.agreement(p, Y, scale=0.5).collections[0]
    said = p.members.argmax(-1)
    assert mesh.get_clim() == (0, 0.5)
    assert mesh.get_array()[0, 1] == pytest.approx(float((said[0] != said[1]).double().mean()), abs=1e-5)


def test_numbers_are_drawn_in_their_units(regression):
    fitted, x, y = regression
    p = fitted.predict(x)
    at = points(plots.predicted_vs_actual(p, y), 1)
    assert sorted(at[:, 0]) == pytest.approx(sorted(p.mean.tolist()), rel=1e-4)
    assert sorted(at[:, 1]) == pytest.approx(sorted(y.tolist()), rel=1e-4)
    left = points(plots.residuals(p.mean.numpy(), y), 1)
    assert left[:, 1] == pytest.approx(y - p.mean.numpy(), abs=1e-3)
    low, high = (v.numpy() for v in p.interval(0.9))
    ax = plots.intervals((low, high), y, rows=1000)
    outside = (y < low) | (y > high)
    assert len(points(ax, 2)) == outside.sum()


def test_pit_is_the_share_of_rows_by_rank(regression):
    fitted, x, y = regression
    p = fitted.predict(x)
    heights = [bar.get_height() for bar in plots.pit(p, y).patches]
    ranks = p._found.ranks(p._found.targets(y)).flatten().numpy()
    assert heights == pytest.approx(np.histogram(ranks, bins=20, range=(0, 1))[0] / len(y), abs=1e-5)


def test_training_curves_follow_the_log(tmp_path):
    data = (DIGITS.x_train[:100], DIGITS.y_train[:100])
    events: list = []
    options = {"run_dir": tmp_path, "callbacks": events.append, "progress": False}
    choral.fit(lambda: models.mlp(64, 10, hidden=(8,)), data, make("single", budget=4), **options)
    ax = plots.training_curves(tmp_path)
    assert points(ax)[:, 0].tolist() == [1, 2, 3, 4]
    assert np.array_equal(points(plots.training_curves(events)), points(ax))
    with open(tmp_path / "log.jsonl", "a") as log:
        log.write('[1]\n{"kind": "epoch", "losses": 3}\n{"kind": "epo')
    assert np.array_equal(points(plots.training_curves(tmp_path)), points(ax))


def test_costs_have_error_bars_and_names():
    rows = [{"method": "a", "nll": 0.1, "predict_flops": 10.0}, {"method": "b", "nll": 0.2, "predict_flops": 1000.0}]
    ax = plots.cost_vs_score(rows, spreads={"a": {"nll": 0.05}})
    assert [t.get_text() for t in ax.texts] == ["a", "b"]
    segments = [c.get_segments()[0] for c in ax.collections]
    assert np.allclose(segments[0], [[10, 0.05], [10, 0.15]])
    comparison = choral.Comparison(rows, details={"deviations": {"a": {"nll": 0.05}}})
    assert np.allclose(plots.cost_vs_score(comparison).collections[0].get_segments()[0], segments[0])


def test_names_at_the_ends_of_lines_are_moved_apart():
    ax = plots._axes(None)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    plots.label_ends(ax, [(1, y, str(i), "C0") for i, y in enumerate((0.99, 0.991, 0.992, 0.2, float("nan")))])
    heights = {t.get_text(): t.get_position()[1] for t in ax.texts}
    assert list(heights) == ["3", "0", "1", "2"]
    assert heights["3"] == pytest.approx(0.2)
    gaps = np.diff(list(heights.values()))
    assert gaps.min() > 0.02
    assert max(heights.values()) <= 1


def test_dates_are_written_on_the_axis_of_a_dependence():
    curve = {"column": "sold", "at": [18262.0, 18628.0], "values": ["2020-01-01", "2021-01-01"]}
    ax = plots.dependence(curve | {"mean": [[1.0], [2.0]], "members": [[[1.0], [2.0]]]})
    assert [text.get_text() for text in ax.get_xticklabels()] == ["2020-01-01", "2021-01-01"]
