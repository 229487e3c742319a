"""Evaluations: their numbers agree with the metrics and with one another, and are plain JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import choral
from choral import metrics, models
from choral.base.errors import InputError
from choral.comparison import evaluation as evaluation
from choral.comparison.evaluation import evaluate, keep, make_trial, row_of
from choral.corruptions import corrupt
from choral.data.images import from_images, to_images
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training
from choral.tables.problems import load_problem

QUICK = Training(lr=0.005, optimizer=Adam(), batch_size=32)
DIGITS = load_problem("digits")
X, Y = DIGITS.x_test[:150], DIGITS.y_test[:150]


@pytest.fixture(scope="module")
def ensemble():
    recipe = make("snapshot", budget=6, members=3, training=QUICK)
    return choral.fit(lambda: models.mlp(64, 10, hidden=(32,)), (DIGITS.x_train, DIGITS.y_train), recipe)


@pytest.fixture(scope="module")
def found(ensemble):
    return evaluate(
        ensemble,
        X,
        Y,
        ood=1 - X,
        corruptions=("fog", "pixelate"),
        severities=(1, 4),
        image_shape=(8, 8),
        corrupted_rows=60,
    )


@pytest.fixture(scope="module")
def regression():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=g)
    y = x[:, :1] + 0.2 * torch.randn(120, 1, generator=g)
    recipe = make("deep_ensemble", budget=30, members=3, training=QUICK)
    fitted = choral.fit(lambda: models.mlp(2, 2, hidden=(16,)), (x, y), recipe)
    return fitted, x.numpy(), y.numpy()


def test_it_is_plain_json(found):
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_row_is_what_evaluate_gives_with_corruptions_and_auroc(ensemble, found):
    row, plain = row_of(ensemble, found), ensemble.evaluate(X, Y)
    assert {name: row[name] for name in plain} == plain
    assert row["ood_auroc"] == found["ood"]["scores"]["entropy"]["auroc"]
    cells = [c for cells in found["corruptions"]["table"].values() for c in cells]
    assert len(cells) == 4
    assert row["c_nll"] == pytest.approx(np.mean([c["nll"] for c in cells]))


def test_sizes_are_means_over_choices_of_members(ensemble, found):
    probs = ensemble._predictive(X).member_probs
    labels = torch.as_tensor(Y)
    assert [s["members"] for s in found["sizes"]] == [1, 2, 3]
    alone = [metrics.nll(p, labels) for p in probs]
    assert found["sizes"][0]["nll"] == pytest.approx(np.mean(alone))
    assert found["sizes"][0]["nll_std"] == pytest.approx(np.std(alone), abs=1e-6)
    pairs = [metrics.accuracy(probs[list(p)].mean(0), labels) for p in ((0, 1), (1, 2), (0, 2))]
    assert found["sizes"][1]["accuracy"] == pytest.approx(np.mean(pairs))
    assert found["sizes"][-1]["nll_std"] == 0
    assert found["sizes"][-1]["nll"] == pytest.approx(found["scores"]["nll"], rel=1e-6)


def test_reliability_adds_up_to_the_calibration_error(found):
    table = found["reliability"]
    counts = np.array(table["counts"])
    gaps = np.abs(np.array(table["accuracy"]) - np.array(table["confidence"]))
    assert counts.sum() == len(X)
    assert (counts * gaps).sum() / counts.sum() == pytest.approx(found["scores"]["ece"], abs=1e-5)


def test_histograms_are_shares_of_rows(ensemble, found):
    h = found["histograms"]
    assert sum(h["in"]) == pytest.approx(1, abs=1e-4)
    assert sum(h["out"]) == pytest.approx(1, abs=1e-4)
    entropy = ensemble.predict(X).entropy
    assert h["of"] == "entropy"
    assert h["in"][-1] == pytest.approx(float((entropy >= h["edges"][-2]).float().mean()), abs=1e-4)
    assert np.ptp(np.diff(np.log(h["edges"]))) == pytest.approx(0, abs=1e-4)


def test_risk_is_the_error_of_the_most_certain_rows(ensemble, found):
    p = ensemble.predict(X)
    wrong = (p.labels != torch.as_tensor(Y)).double()[p.entropy.argsort(stable=True)]
    kept = [round(share * len(X)) for share in found["risk"]["kept"]]
    assert kept[-1] == len(X)
    assert found["risk"]["risk"] == pytest.approx([float(wrong[:k].mean()) for k in kept], abs=1e-5)


def test_worst_rows_are_mistakes_the_least_probable_class_first(ensemble, found):
    p = ensemble.predict(X)
    rows = [w["row"] for w in found["worst"]]
    own = p.probs[range(len(X)), torch.as_tensor(Y)]
    assert rows[0] == int(own.argmin())
    assert all(int(p.labels[r]) != Y[r] for r in rows)
    assert found["worst"][0]["predicted"] == str(int(p.labels[rows[0]]))


def test_corrupted_cells_are_measured_on_corrupted_images(ensemble):
    trial = make_trial(X, Y, corruptions="fog", severities=(3,), image_shape=(8, 8), corrupted_rows=500)
    images = corrupt(to_images(X, shape=(8, 8)), "fog", severity=3)
    inputs = from_images(images, like=X)
    assert np.array_equal(trial.corrupted["fog"][0], inputs)
    cell = evaluate(ensemble, X, Y, corruptions="fog", severities=(3,), image_shape=(8, 8))["corruptions"]["table"][
        "fog"
    ][0]
    assert cell["nll"] == pytest.approx(ensemble.evaluate(inputs, Y)["nll"], rel=1e-6)


def test_diversity_of_members(ensemble, found):
    matrix = np.array(found["diversity"]["matrix"])
    labels = ensemble._predictive(X).logits.argmax(-1)
    assert matrix[0, 2] == pytest.approx(float((labels[0] != labels[2]).float().mean()), abs=1e-5)


def test_regression_has_coverage_intervals_and_scores_of_strangeness(regression):
    fitted, x, y = regression
    found = evaluate(fitted, x, y, ood=x * 8)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    covered = {c["level"]: c["coverage"] for c in found["coverage"]}
    assert covered[0.9] == pytest.approx(found["scores"]["coverage_90"])
    assert covered[0.5] <= covered[0.9] <= covered[0.99]
    inside = [r["low"] <= r["target"] <= r["high"] for r in found["intervals"]["rows"]]
    assert np.mean(inside) == pytest.approx(covered[0.9], abs=0.15)
    errors = [abs(r["mean"] - r["target"]) for r in found["intervals"]["rows"]]
    assert abs(found["worst"][0]["mean"] - found["worst"][0]["target"]) == max(errors)
    assert sum(found["pit"]) == pytest.approx(1, abs=1e-5)
    means = [r["mean"] for r in found["intervals"]["rows"]]
    assert means == sorted(means)
    assert found["ood"]["scores"]["epistemic"]["auroc"] > 0.8
    assert found["sizes"][-1]["rmse"] == pytest.approx(found["scores"]["rmse"], rel=1e-6)


def test_averaged_logits_are_scored_as_they_predict(ensemble):
    import copy
    from dataclasses import replace

    twin = copy.copy(ensemble)
    twin.recipe = replace(ensemble.recipe, combine="logits")
    probs = twin.predict(X).probs
    assert twin.evaluate(X, Y)["nll"] == pytest.approx(metrics.nll(probs, torch.as_tensor(Y)))
    assert evaluate(twin, X, Y)["sizes"][-1]["nll"] == pytest.approx(metrics.nll(probs, torch.as_tensor(Y)))


def test_weights_of_a_calibrated_ensemble_count(ensemble):
    from choral.calibration import StackingWeights

    alone = ensemble.with_posthoc(StackingWeights(weights=(0.0, 0.0, 1.0)))
    found = evaluate(alone, X, Y, ood=1 - X)
    last = ensemble._predictive(X).member_probs[2]
    assert found["scores"]["nll"] == pytest.approx(metrics.nll(last, torch.as_tensor(Y)))


def test_keeping_adds_to_a_run_folder_and_loading_ignores_it(tmp_path, found):
    recipe = make("single", budget=1, training=QUICK)
    build = lambda: models.mlp(64, 10, hidden=(8,))  # noqa: E731  # a factory in one line
    fitted = choral.fit(build, (X, Y), recipe, run_dir=tmp_path)
    before = dict(fitted.info)
    keep(tmp_path, fitted, found, make_trial(X, Y))
    assert json.loads((tmp_path / "evaluation.json").read_text())["evaluation"] == {"single": found}
    assert choral.load(tmp_path).info == before
    assert choral.fit(build, (X, Y), recipe, run_dir=tmp_path).info == before


def test_the_same_comparison_again_judges_nothing_anew(tmp_path, monkeypatch):
    build = lambda: models.mlp(64, 10, hidden=(8,))  # noqa: E731  # a factory in one line

    def compared(x_test=X[:80]):
        problem = replace(load_problem("digits"), x_test=x_test, y_test=Y[:80])
        return choral.compare(build, problem, ["single", "deep_ensemble"], budget=4, training=QUICK, run_dir=tmp_path)

    first, written = compared(), (tmp_path / "comparison.json").read_bytes()
    calls = []
    original = evaluation.judge
    monkeypatch.setattr(evaluation, "judge", lambda *a, **k: calls.append(1) or original(*a, **k))
    assert compared().rows == first.rows
    assert not calls
    assert (tmp_path / "comparison.json").read_bytes() == written
    assert compared(1 - X[:80]).rows != first.rows
    assert calls


def test_mistakes_are_answered_with_sentences(ensemble):
    with pytest.raises(InputError, match="corruption 'foq' is not known"):
        evaluate(ensemble, X, Y, corruptions="foq", image_shape=(8, 8))
    with pytest.raises(InputError, match="images are"):
        evaluate(ensemble, X, Y, corruptions="fog")
    with pytest.raises(InputError, match="150 rows and y 10"):
        evaluate(ensemble, X, Y[:10])


DRAWN = [("bnn", {"members": 2, "draws": 3}), ("rank1_bnn", {"members": 2, "draws": 3})]


@pytest.mark.parametrize(("name", "options"), DRAWN)
def test_diversity_and_sizes_are_by_member_with_its_draws_averaged_first(name, options):
    recipe = make(name, budget=4, training=QUICK, **options)
    fitted = choral.fit(lambda: models.mlp(64, 10, hidden=(16,)), (DIGITS.x_train[:300], DIGITS.y_train[:300]), recipe)
    prediction, labels = fitted._predictive(X), torch.as_tensor(Y)
    of = np.array(prediction.learners)
    assert of.tolist() == ([0, 0, 0, 1, 1, 1] if name == "bnn" else [0, 1, 0, 1, 0, 1])
    first, second = (prediction.member_probs[of == i].mean(0) for i in (0, 1))
    apart = float((first.argmax(-1) != second.argmax(-1)).double().mean())
    found = evaluate(fitted, X, Y)
    assert found["members"] == 2
    assert found["diversity"]["matrix"] == [[0, pytest.approx(apart)], [pytest.approx(apart), 0]]
    assert found["scores"]["disagreement"] == pytest.approx(apart)
    alone = [metrics.nll(p, labels) for p in (first, second)]
    assert found["scores"]["member_nll"] == pytest.approx(sum(alone) / 2)
    assert [s["members"] for s in found["sizes"]] == [1, 2]
    assert [s["nll"] for s in found["sizes"]] == pytest.approx([sum(alone) / 2, found["scores"]["nll"]], rel=1e-6)
    draws = metrics.mutual_information(prediction.member_probs).mean()
    assert found["scores"]["mutual_information"] == pytest.approx(float(draws))  # uncertainty still counts every draw


def test_the_draws_of_one_network_are_one_member():
    recipe = make("mc_dropout", budget=2, rate=0.3, draws=5, training=QUICK)
    fitted = choral.fit(lambda: models.mlp(64, 10, hidden=(16,)), (DIGITS.x_train[:300], DIGITS.y_train[:300]), recipe)
    found = evaluate(fitted, X, Y)
    assert found["members"] == len(found["sizes"]) == 1
    assert found["diversity"]["matrix"] == [[0]]
    assert "disagreement" not in found["scores"]
    assert found["scores"]["member_nll"] == pytest.approx(found["scores"]["nll"], rel=1e-6)


def test_errors_of_regression_members_are_those_of_the_mixture_of_their_draws():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=g)
    y = x[:, :1] + 0.2 * torch.randn(60, 1, generator=g)
    recipe = make("bnn", budget=4, members=2, draws=3, rho=-2.0, training=QUICK)
    fitted = choral.fit(lambda: models.mlp(2, 2, hidden=(8,)), (x, y), recipe)
    found, p = evaluate(fitted, x.numpy(), y.numpy()), fitted._predictive(x)
    parts = [(p.member_means[rows], p.member_variances[rows]) for rows in ([0, 1, 2], [3, 4, 5])]
    for name, measured in [
        ("member_rmse", [metrics.rmse(m, y) for m, _ in parts]),
        ("member_nll", [metrics.mixture_nll(m, v, y) for m, v in parts]),
    ]:
        assert found["scores"][name] == pytest.approx(sum(measured) / 2)
    errors = torch.stack([m.mean(0) - y for m, _ in parts]).flatten(1).numpy()
    assert found["scores"]["residual_correlation"] == pytest.approx(np.corrcoef(errors)[0, 1], rel=1e-4)
    assert found["diversity"]["matrix"][0][1] == pytest.approx(np.corrcoef(errors)[0, 1], rel=1e-4)
    assert [s["nll"] for s in found["sizes"]] == pytest.approx(
        [sum(metrics.mixture_nll(*part, y) for part in parts) / 2, found["scores"]["nll"]], rel=1e-6
    )


def test_the_time_of_a_prediction_is_not_that_of_its_first_call(monkeypatch):
    clock, taken = [0.0], iter([3.0, 0.25, 20.0, 0.5])

    class Slow:
        def _predictive(self, x, *, batch_size):
            clock[0] += next(taken)
            return "prediction"

    monkeypatch.setattr(evaluation.time, "perf_counter", lambda: clock[0])
    assert evaluation._timed(Slow(), X, 8) == ("prediction", 0.25)
    assert evaluation._timed(Slow(), X, 8) == ("prediction", 20.0)  # too long to be taken twice
