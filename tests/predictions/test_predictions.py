import pytest
import torch
from torch import distributions as d

from choral.base.errors import InputError
from choral.predictions import Classification, Regression

G = torch.Generator().manual_seed(0)


def test_entropies_by_hand():
    certain, opposite = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 100.0]])
    p = Classification(torch.stack([certain, opposite]))
    assert p.probs.tolist() == [[0.5, 0.5]]
    assert float(p.entropy) == pytest.approx(0.693147, abs=1e-5)
    assert float(p.aleatoric) == pytest.approx(0, abs=1e-5)
    assert float(p.epistemic) == pytest.approx(0.693147, abs=1e-5)
    same = Classification(torch.stack([certain, certain]))
    assert float(same.epistemic) == 0


def test_logits_averaging_is_a_choice():
    logits = torch.randn(3, 5, 4, generator=G)
    assert torch.allclose(Classification(logits, "logits").probs, logits.mean(0).softmax(-1))
    assert torch.allclose(Classification(logits).probs, logits.softmax(-1).mean(0))


def test_votes_count_members_and_mean_probabilities_decide_ties():
    sure, unsure, other = [0.0, 9.0, 0.0], [0.0, 0.1, 0.0], [5.0, 0.0, 0.0]
    vote = Classification(torch.tensor([[other], [unsure], [unsure]]), "vote")
    assert vote.labels.tolist() == [1]  # two votes against one, although the mean probability is that of class 0
    assert Classification(vote.logits).labels.tolist() == [0]
    torch.testing.assert_close(vote.probs[0], torch.tensor([1 / 3, 2 / 3, 0.0]), atol=1e-3, rtol=0)
    assert (vote.probs > 0).all()
    assert vote.probs.sum().item() == pytest.approx(1)
    for first, second in ((other, sure), (sure, other)):
        tied = Classification(torch.tensor([[first], [second]]), "vote")
        assert tied.labels.tolist() == [1]  # the surer of the two
    with pytest.raises(InputError, match="no mixture"):
        vote.fit_temperature(torch.tensor([1]), per="ensemble")


def test_mixture_moments_match_samples():
    means, variances = torch.randn(4, 3, 1, generator=G), torch.rand(4, 3, 1, generator=G) + 0.1
    p = Regression(means, variances)
    torch.manual_seed(0)
    samples = torch.stack([d.Normal(means[w_], variances[w_].sqrt()).sample((50_000,)) for w_ in range(4)]).flatten(
        0, 1
    )
    assert torch.allclose(samples.mean(0), p.mean, atol=0.02)
    assert torch.allclose(samples.var(0), p.variance, rtol=0.03)
    assert torch.allclose(p.variance, p.aleatoric + p.epistemic)
    low, high = p.interval(0.95)
    wanted = torch.quantile(samples, torch.tensor([0.025, 0.975]), dim=0)
    assert torch.allclose(torch.stack([low, high]), wanted, atol=0.03)
    inside = ((low <= samples) & (samples <= high)).double().mean(0)
    assert torch.allclose(inside, torch.full_like(inside, 0.95), atol=0.003)


def test_weights_of_members_are_honored():
    logits = torch.randn(2, 3, 4, generator=G)
    assert torch.allclose(Classification(logits, weights=(1.0, 0.0)).probs, logits[0].softmax(-1))
    means = torch.randn(2, 3, 1, generator=G)
    assert torch.allclose(Regression(means, means**2, weights=(0.0, 1.0)).mean, means[1])


def test_quantiles_invert_the_distribution_function_of_a_weighted_mixture():
    generator = torch.Generator().manual_seed(5)
    means = torch.randn(4, 6, 1, generator=generator, dtype=torch.float64)
    variances = torch.rand(4, 6, 1, generator=generator, dtype=torch.float64) + 0.05
    p = Regression(means, variances, weights=(0.4, 0.3, 0.2, 0.1))
    at = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    below = d.Normal(means, variances.sqrt()).cdf(at)
    assert torch.allclose(p.cdf(at), torch.tensordot(torch.tensor(p.weights, dtype=torch.float64), below, 1))
    for level in (0.01, 0.5, 0.975):
        assert torch.allclose(p.cdf(p.quantiles_at([level])[..., 0]), torch.tensor(level).double(), atol=1e-9)
    assert torch.allclose(p.mixture_interval(0.9)[0], p.quantiles_at([0.05])[..., 0])
