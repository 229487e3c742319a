"""Closed-form scores of mixtures against samples, coverage against its promise, and rules that are refused by name."""

import numpy as np
import pytest
import torch
from torch import distributions as d

from choral.base.errors import InputError
from choral.ensemble.ensemble import correct, fit_corrections
from choral.objectives.likelihoods import (
    About,
    Bernoulli,
    Categorical,
    Laplace,
    LearnedGaussian,
    Loss,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantiles,
    StudentT,
    TargetScale,
)
from choral.predictions import Counts, MultiLabel

G = torch.Generator().manual_seed(1)
SCALE = TargetScale(mean=(10.0,), std=(5.0,))
FAMILIES = {
    "student": StudentT(scale=SCALE),
    "laplace": Laplace(scale=SCALE),
    "gaussian": LearnedGaussian(scale=SCALE),
    "poisson": Poisson(base=4.0),
    "negative binomial": NegativeBinomial(base=4.0),
}


def outputs(likelihood, members=3, rows=4, spread=0.4):
    return spread * torch.randn(members, rows, likelihood.outputs_each, generator=G)


def sampled(likelihood, raw, count):
    """Return draws of the mixture by torch's own sampler, in units of the data (draw, row)."""
    torch.manual_seed(0)
    wide = raw.double()
    if isinstance(likelihood, LearnedGaussian):
        mean, variance = likelihood.moments(wide)
        each = d.Normal(mean, variance.sqrt()).sample((count,))
    else:
        each = likelihood.distribution(wide).sample((count,))
    flat = each.flatten(0, 1)[..., 0]
    return flat if isinstance(likelihood, Poisson | NegativeBinomial) else flat * 5 + 10


@pytest.mark.parametrize("name", FAMILIES)
def test_moments_distribution_function_and_intervals_are_those_of_samples(name):
    likelihood = FAMILIES[name]
    raw = outputs(likelihood)
    p, draws = likelihood.predict(raw, About()), sampled(likelihood, raw, 40_000)
    assert torch.allclose(p.mean[:, 0].double(), draws.mean(0), rtol=0.02)
    assert torch.allclose(p.variance[:, 0].double(), draws.var(0), rtol=0.15)
    assert torch.allclose(p.variance, p.aleatoric + p.epistemic)
    at = draws[7].unsqueeze(1)
    assert torch.allclose(p.cdf(at)[:, 0], (draws <= at[:, 0]).double().mean(0), atol=0.01)
    low, high = p.mixture_interval(0.8)
    inside = ((draws >= low[:, 0]) & (draws <= high[:, 0])).double().mean(0)
    assert bool((inside > 0.79).all())
    assert p.task == "counts" or bool((inside < 0.81).all())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_scored_density_is_the_derivative_of_the_distribution_function(name):
    likelihood = FAMILIES[name]
    p = likelihood.predict(outputs(likelihood), About())
    at, step = p.mean.double().round(), 1.0 if p.task == "counts" else 1e-4
    density = (-p.nll_rows(at)).exp()
    ahead, behind = (at, at - 1) if p.task == "counts" else (at + step / 2, at - step / 2)
    assert torch.allclose((p.cdf(ahead) - p.cdf(behind))[:, 0] / step, density, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_coverage_on_targets_of_the_prediction_itself_is_what_it_promises(name):
    likelihood = FAMILIES[name]
    raw = outputs(likelihood, members=2, rows=1).expand(-1, 4000, -1)
    torch.manual_seed(1)
    y = sampled(likelihood, raw[:, :1], 2000)[:, 0][torch.randperm(4000)]
    p = likelihood.predict(raw, About())
    found = p.scores(p.targets(y))
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.02)
    levels = {c["level"]: c["coverage"] for c in p.details(p.targets(y))["coverage"]}
    assert all(abs(levels[n] - n) < 0.03 for n in (0.2, 0.5, 0.8))


@pytest.mark.parametrize("rule", ["scaled", "residual", "quantile"])
def test_conformal_intervals_of_any_family_hold_what_they_promise(rule):
    likelihood = StudentT()
    raw = outputs(likelihood, members=2, rows=1).expand(-1, 3000, -1)
    y = 1.5 * sampled(StudentT(scale=SCALE), raw[:, :1], 1500)[:, 0][torch.randperm(3000)]  # wider than predicted
    p = likelihood.predict(raw, About())
    known, new = p.of_points(slice(0, 1500)), p.of_points(slice(1500, 3000))
    (fitted,) = fit_corrections(known, y[:1500], level=0.8, conformal=rule)
    low, high = correct(new, [fitted]).conformal_interval()
    held = ((low[:, 0] <= y[1500:]) & (y[1500:] <= high[:, 0])).double().mean()
    assert float(held) == pytest.approx(0.8, abs=0.04)


def test_labels_by_hand():
    p = Bernoulli().predict(torch.tensor([[[0.0, 2.0]], [[0.0, -2.0]]]), About())
    yes = torch.tensor(2.0).sigmoid()
    assert torch.allclose(p.probs, torch.tensor([[0.5, 0.5]]))
    y = p.targets(np.array([[1, 1]]))
    assert p.scores(y)["nll"] == pytest.approx(float(-(0.5 * 0.5 * yes + 0.5 * 0.5 * (1 - yes)).log()) / 2)
    assert p.scores(y)["brier"] == pytest.approx(0.25)
    assert float(p.epistemic[0, 0]) == 0
    assert float(p.epistemic[0, 1]) == pytest.approx(
        float(torch.tensor(2.0).log() - d.Bernoulli(yes).entropy()), abs=1e-6
    )
    with pytest.raises(InputError, match="0 or 1"):
        p.targets([[2, 1]])


def test_sets_of_labels_hold_each_label_as_promised():
    logits = 2 * torch.randn(1, 4000, 2, generator=G)
    y = (torch.rand(4000, 2, generator=G) < (0.5 * logits[0]).sigmoid()).long()
    p = Bernoulli().predict(logits, About())
    (rule,) = fit_corrections(p.of_points(slice(0, 2000)), y[:2000], level=0.9)
    sets = correct(p.of_points(slice(2000, 4000)), [rule]).sets()
    held = sets.gather(-1, y[2000:].unsqueeze(-1)).double().mean(0)
    assert torch.allclose(held, torch.full_like(held, 0.9), atol=0.03)
    cooled = fit_corrections(p, y, temperature="ensemble")[0]
    assert cooled.temperatures[0] == pytest.approx(2, rel=0.15)


def test_ordered_classes_are_also_scored_by_how_far_off_they_are():
    p = Ordinal().predict(torch.randn(2, 6, 3, generator=G), About())
    y = p.targets([0, 1, 2, 3, 3, 0])
    probs = p.probs.double().numpy()
    ranked = [sum((probs[i, : k + 1].sum() - (c <= k)) ** 2 for k in range(4)) for i, c in enumerate(y.tolist())]
    assert p.scores(y)["ranked_probability"] == pytest.approx(np.mean(ranked))


def test_quantiles_are_in_order_and_scored_by_pinball():
    raw = torch.tensor([[[3.0, 1.0, 2.0]], [[1.0, 1.0, 4.0]]])
    p = Quantiles(levels=(0.1, 0.5, 0.9)).predict(raw, About())
    assert p.quantiles.tolist() == [[[1.0, 1.5, 3.5]]]
    y = p.targets([2.0])
    pinball = (0.1 * 1.0 + 0.5 * 0.5 + 0.1 * 1.5) / 3
    assert p.scores(y)["pinball"] == pytest.approx(pinball)
    assert p.scores(y)["coverage"] == 1
    with pytest.raises(InputError, match="no log score"):
        fit_corrections(p, [2.0], stacking=True)


def test_raw_outputs_have_a_mean_and_a_spread_and_the_loss_of_the_user():
    loss = Loss(lambda o, t: (o[:, 0] - t).abs(), output=torch.exp)
    p = loss.predict(torch.tensor([[[0.0]], [[2.0]]]), About())
    assert float(p.mean) == pytest.approx((1 + np.exp(2)) / 2)
    assert float(p.std) == pytest.approx((np.exp(2) - 1) / 2)
    found = p.scores(p.targets([1.0]))
    assert (found["loss"], found["member_loss"]) == (0.0, 1.0)
    for wrong in ({"level": 0.9}, {"temperature": "ensemble"}, {"stacking": True}):
        with pytest.raises(InputError):
            fit_corrections(p, [1.0], **wrong)


def test_dense_scores_are_those_of_flattened_positions_without_ignored_ones():
    logits, labels = torch.randn(2, 3, 4, 5, generator=G), torch.randint(4, (3, 5), generator=G)
    dense = Categorical(axis=-2, ignore=1).predict(logits, About())
    kept = labels.flatten() != 1
    rows = Categorical().predict(logits.movedim(2, -1).flatten(1, 2)[:, kept], About())
    mine, flat = dense.scores(dense.targets(labels)), rows.scores(labels.flatten()[kept])
    assert mine.keys() == flat.keys()
    assert all(mine[n] == pytest.approx(flat[n], nan_ok=True) for n in flat)
    total = rows.log_scores(labels.flatten()[kept]).sum(1)
    assert torch.allclose(dense.log_scores(labels).sum(1), total)
    with pytest.raises(InputError, match="exchangeable rows"):
        fit_corrections(Categorical(axis=-2).predict(logits, About()), labels, level=0.9)


EACH = [
    ("categorical", Categorical(), 3, torch.tensor([0, 2, 1, 1])),
    ("ordinal", Ordinal(), 2, torch.tensor([0, 2, 1, 1])),
    ("bernoulli", Bernoulli(), 2, torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])),
    ("gaussian", LearnedGaussian(), 2, torch.tensor([0.1, 1.0, -0.5, 2.0])),
    ("student", StudentT(), 2, torch.tensor([0.1, 1.0, -0.5, 2.0])),
    ("poisson", Poisson(base=1.0), 1, torch.tensor([0, 3, 1, 2])),
    ("quantiles", Quantiles(levels=(0.1, 0.5, 0.9)), 3, torch.tensor([0.1, 1.0, -0.5, 2.0])),
    ("own", Loss(lambda o, t: (o[:, 0] - t).abs()), 1, torch.tensor([0.1, 1.0, -0.5, 2.0])),
]


@pytest.mark.parametrize(("likelihood", "width", "y"), [e[1:] for e in EACH], ids=[e[0] for e in EACH])
def test_every_kind_gives_what_whoever_judges_it_asks_for(likelihood, width, y):
    p = likelihood.predict(torch.randn(3, 4, width, generator=G), About())
    targets = p.targets(y)
    scores = p.scores(targets)
    assert set(p.shown) <= scores.keys()
    assert p.score in p.brief(targets)
    assert p.brief(targets)[p.score] == pytest.approx(scores[p.score], rel=1e-5)
    assert p.alarming[0] in p.alarms()
    assert all(v.shape == (4,) for v in p.alarms().values())
    assert p.sureness()[1].shape == (4,)
    assert p.likeness(targets)[1].shape == (3, 3)
    assert len({len(column) for column in p.columns().values()}) == 1
    assert all(v.shape[:1] == (4,) for v in p.row_scores(targets).values())
    weighed = p.weighed((1.0, 0.0, 0.0))
    assert torch.allclose(weighed.mean.double(), p.of_rows([0]).mean.double())


def test_scores_are_counted_as_docs_tasks_says():
    draw = torch.Generator().manual_seed(0)
    logits, truth = torch.randn(3, 7, 4, generator=draw), (torch.rand(7, 4, generator=draw) > 0.5).double()
    each = torch.where(truth > 0.5, logits.sigmoid(), 1 - logits.sigmoid()).double()
    by_hand = -each.prod(2).mean(0).log().mean() / 4
    assert MultiLabel(logits).scores(truth)["nll"] == pytest.approx(float(by_hand), rel=1e-5)
    rates = torch.full((1, 4000, 1), 1.2)
    counts = Counts(rates.log(), lambda outputs: torch.distributions.Poisson(outputs.exp(), validate_args=False))
    y = torch.poisson(rates[0], generator=draw).double()
    low, high = counts.interval(0.9)
    inside = float(((low <= y) & (y <= high)).double().mean())
    scores = counts.scores(y)
    assert scores["coverage_90"] == pytest.approx(0.9, abs=0.015)
    assert inside > 0.92
    assert scores["coverage_90"] == counts.scores(y)["coverage_90"]
