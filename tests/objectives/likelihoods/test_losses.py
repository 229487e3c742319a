"""Every likelihood's loss is torch's own log density, its gradient is right, and weights count as repetition."""

import pytest
import torch
import torch.nn.functional as F
from torch import distributions as d

from choral.objectives.likelihoods import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    Laplace,
    LearnedGaussian,
    Loss,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantiles,
    StudentT,
)

G = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


M, B = 2, 5
REAL, WIDE = normal(M, B, 2), normal(M, B, 4)
COUNTS = torch.poisson(torch.full((M, B, 2), 3.0, dtype=torch.float64), generator=G)
LABELS = torch.randint(4, (M, B), generator=G)
BITS = torch.randint(2, (M, B, 4), generator=G).double()


def positive(raw, floor=1e-3):
    return F.softplus(raw) + floor


FIRST, SECOND = WIDE[..., :2], WIDE[..., 2:]
CASES = {
    "fixed": (FixedGaussian(precision=4.0), FIRST, REAL, d.Normal(FIRST, 0.5)),
    "fixed by target": (
        FixedGaussian(precision=(4.0, 1.0)),
        FIRST,
        REAL,
        d.Normal(FIRST, torch.tensor([0.5, 1.0], dtype=torch.float64)),
    ),
    "learned": (LearnedGaussian(), WIDE, REAL, d.Normal(FIRST, positive(SECOND, 1e-6).sqrt())),
    "student": (StudentT(df=5.0), WIDE, REAL, d.StudentT(5.0, FIRST, positive(SECOND))),
    "laplace": (Laplace(), WIDE, REAL, d.Laplace(FIRST, positive(SECOND))),
    "poisson": (Poisson(base=2.0), FIRST, COUNTS, d.Poisson(2 * FIRST.exp())),
    "negative binomial": (
        NegativeBinomial(base=2.0),
        WIDE,
        COUNTS,
        d.NegativeBinomial(positive(SECOND), probs=2 * FIRST.exp() / (2 * FIRST.exp() + positive(SECOND))),
    ),
    "categorical": (Categorical(), WIDE, LABELS, d.Categorical(logits=WIDE)),
    "bernoulli": (Bernoulli(), WIDE, BITS, d.Bernoulli(logits=WIDE)),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_torch_s_log_densities_summed_over_targets_and_averaged_over_the_batch(name):
    likelihood, outputs, targets, truth = CASES[name]
    density = truth.log_prob(targets)
    density = density.sum(-1) if density.dim() == 3 else density
    assert torch.allclose(likelihood.loss(outputs, targets), -density.mean(1).sum())


EVERY = {n: c[:3] for n, c in CASES.items()} | {
    "ordinal": (Ordinal(), WIDE[..., :3], LABELS),
    "quantiles": (Quantiles(levels=(0.1, 0.9)), WIDE, REAL),
    "smoothed and weighted": (Categorical(smoothing=0.1, class_weights=(1.0, 2.0, 0.5, 1.0)), WIDE, LABELS),
    "own": (Loss(lambda o, t: (o - t).abs().sum(-1)), FIRST, REAL),
    "pixels": (Categorical(axis=-3), normal(M, B, 4, 3, 2), torch.randint(4, (M, B, 3, 2), generator=G)),
    "tokens, some ignored": (
        Categorical(axis=-1, ignore=3),
        normal(M, B, 6, 4),
        torch.randint(4, (M, B, 6), generator=G),
    ),
    "binary pixels": (Bernoulli(), normal(M, B, 1, 3, 2), torch.randint(2, (M, B, 3, 2), generator=G).double()),
}


@pytest.mark.parametrize("name", EVERY)
def test_gradients_against_finite_differences(name):
    likelihood, outputs, targets = EVERY[name]
    outputs = outputs.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda o: likelihood.loss(o, targets), outputs)


@pytest.mark.parametrize("name", EVERY)
def test_integer_weights_are_repetition_in_loss_and_gradient(name):
    likelihood, outputs, targets = EVERY[name]
    counts = torch.tensor([2, 1, 0, 3, 1])
    weights = (counts.double() / counts.double().mean()).expand(M, -1)
    leaf = outputs.clone().requires_grad_()
    weighed = likelihood.loss(leaf, targets, weights)
    (found,) = torch.autograd.grad(weighed, leaf)
    again = outputs.clone().requires_grad_()
    rows = torch.arange(B).repeat_interleave(counts)
    repeated = likelihood.loss(again[:, rows], targets[:, rows])
    (wanted,) = torch.autograd.grad(repeated, again)
    assert torch.allclose(weighed, repeated, atol=1e-12)
    assert torch.allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_members_add_up_and_are_mapped_like_any_other_loss(name):
    likelihood, outputs, targets = EVERY[name]
    alone = [likelihood.loss(outputs[m : m + 1], targets[m : m + 1]) for m in range(M)]
    assert torch.allclose(likelihood.loss(outputs, targets), sum(alone))
    mapped = torch.func.vmap(lambda o, t: likelihood.loss(o[None], t[None]))(outputs, targets)
    assert torch.allclose(mapped, torch.stack(alone))


def test_dense_labels_are_flattened_rows_and_ignored_ones_are_not_there():
    logits, labels = normal(1, 3, 4, 5, 2), torch.randint(4, (1, 3, 5, 2), generator=G)
    rows = logits[0].movedim(1, -1).reshape(1, -1, 4)
    pixels = Categorical(axis=-3)
    assert torch.allclose(pixels.loss(logits, labels), Categorical().loss(rows, labels.reshape(1, -1)))
    kept = labels.flatten() != 2
    some = Categorical(axis=-3, ignore=2).loss(logits, labels)
    assert torch.allclose(some, Categorical().loss(rows[:, kept], labels.flatten()[None, kept]))
    none = Categorical(axis=-3, ignore=2).loss(logits, torch.full_like(labels, 2))
    assert float(none) == 0


def test_ordered_classes_have_positive_probabilities_that_sum_to_one():
    logs = Ordinal().log_probs(3 * normal(2, 50, 4))
    assert torch.allclose(logs.exp().sum(-1), torch.ones(2, 50, dtype=torch.float64))
    outputs = torch.tensor([[[0.3, 1.0, -2.0]]], dtype=torch.float64)
    above = torch.tensor(
        [0.3, 0.3 - F.softplus(torch.tensor(1.0)), 0.3 - F.softplus(torch.tensor(1.0)) - F.softplus(torch.tensor(-2.0))]
    )
    share = torch.cat([torch.ones(1), above.sigmoid(), torch.zeros(1)])
    assert torch.allclose(Ordinal().log_probs(outputs).exp()[0, 0].float(), share[:-1] - share[1:])


@pytest.mark.parametrize("likelihood", [FixedGaussian(precision=2.0), Bernoulli(), Poisson(base=1.0)])
def test_a_missing_last_axis_is_one_target_and_never_broadcasts(likelihood):
    outputs, targets = normal(1, 6, 1), torch.randint(2, (1, 6, 1), generator=G).double()
    wanted = likelihood.loss(outputs, targets)
    for o in (outputs, outputs[..., 0]):
        for t in (targets, targets[..., 0]):
            assert torch.allclose(likelihood.loss(o, t), wanted), (o.shape, t.shape)
    hand = 0.5 * 2.0 * (outputs - targets).square().mean() + d.Normal(0.0, 0.5**0.5).entropy() - 0.5
    if isinstance(likelihood, FixedGaussian):
        assert torch.allclose(wanted, hand.double())


def test_probabilities_far_from_calibrated_are_said_to_be_flat_or_sharp():
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 400, 3, generator=g)
    labels = torch.multinomial(logits.softmax(-1).mean(0), 1, generator=g).squeeze(1)
    assert not Categorical().miscalibrated(logits, labels)
    flat, sharp = (Categorical().miscalibrated(scale * logits, labels) for scale in (0.3, 4.0))
    assert "too flat" in flat
    assert "too sharp" in sharp
    assert not Categorical().miscalibrated(0.3 * logits[:, :8], labels[:8])  # so few rows may be chance
    assert not Categorical(class_weights=(1.0, 2.0, 3.0)).miscalibrated(0.3 * logits, labels)  # tilted on purpose


def test_weighted_rows_are_compared_with_the_weighted_majority():
    labels = torch.tensor([0] * 9 + [1])
    outputs = torch.tensor([[[0.0, 1.0]]]).expand(1, 10, 2)  # always the rare class
    assert Categorical().constant(outputs, labels) == "the most frequent class"
    weights = torch.tensor([1.0] * 9 + [30.0])
    better = torch.where(labels[:, None] == 1, torch.tensor([0.0, 2.0]), torch.tensor([0.3, 0.0]))[None]
    assert not Categorical().constant(better, labels, weights)
    assert Categorical().constant(-better, labels, weights) == "the most frequent class"
