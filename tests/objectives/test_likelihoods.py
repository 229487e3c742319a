import pytest
import torch
import torch.nn.functional as F
from torch import distributions as d

from choral.base.errors import InputError
from choral.objectives.likelihoods import Categorical, FixedGaussian, LearnedGaussian, infer
from choral.objectives.penalties import L2, Objective


def data(members=3, batch=5, width=4):
    g = torch.Generator().manual_seed(0)
    return torch.randn(members, batch, width, generator=g, dtype=torch.float64), g


def test_the_loss_of_members_is_the_sum_of_their_own_losses():
    outputs, g = data()
    labels = torch.randint(4, (3, 5), generator=g)
    alone = sum(F.cross_entropy(outputs[m], labels[m]) for m in range(3))
    assert torch.allclose(Categorical().loss(outputs, labels), alone)
    reals = torch.randn(3, 5, 4, generator=g, dtype=torch.float64)
    for likelihood, out in (
        (FixedGaussian(precision=2.5), outputs),
        (LearnedGaussian(), torch.cat([outputs, outputs.flip(2)], -1)),
    ):
        alone = sum(likelihood.loss(out[m : m + 1], reals[m : m + 1]) for m in range(3))
        assert torch.allclose(likelihood.loss(out, reals), alone)


def test_gaussian_losses_are_torch_s_log_densities():
    outputs, g = data(1, 6, 2)
    targets = torch.randn(1, 6, 2, generator=g, dtype=torch.float64)
    mine = FixedGaussian(precision=4.0).loss(outputs, targets)
    assert torch.allclose(mine, -d.Normal(outputs, 0.5).log_prob(targets).sum(-1).mean())
    mean, raw = outputs[..., :1], outputs[..., 1:]
    mine = LearnedGaussian(floor=1e-6).loss(outputs, targets[..., 0])
    truth = -d.Normal(mean, (F.softplus(raw) + 1e-6).sqrt()).log_prob(targets[..., :1]).sum(-1).mean()
    assert torch.allclose(mine, truth)


def test_batches_add_up_to_the_full_negative_log_posterior():
    """N times the mean loss over equal batches = sum of NLL + penalty: the convention of the library."""
    outputs, g = data(1, 12, 3)
    labels = torch.randint(3, (1, 12), generator=g)
    params = {"w": torch.randn(4, 4, generator=g, dtype=torch.float64)}
    objective = Objective(penalties=(L2(precision=3.0),))
    batches = [
        Categorical().loss(outputs[:, i : i + 4], labels[:, i : i + 4]) + objective.penalty(params, {}, 0.0, 12)
        for i in (0, 4, 8)
    ]
    full = F.cross_entropy(outputs[0], labels[0], reduction="sum") + 1.5 * params["w"].square().sum()
    assert torch.allclose(12 * sum(batches) / 3, full)


def test_gradients_against_finite_differences():
    outputs, g = data(2, 3, 4)
    labels = torch.randint(4, (2, 3), generator=g)
    reals = torch.randn(2, 3, 2, generator=g, dtype=torch.float64)
    outputs.requires_grad_()
    assert torch.autograd.gradcheck(lambda o: Categorical().loss(o, labels), outputs)
    assert torch.autograd.gradcheck(lambda o: LearnedGaussian().loss(o, reals), outputs)
    assert torch.autograd.gradcheck(lambda o: FixedGaussian(precision=0.3).loss(o[..., :2], reals), outputs)


def test_l2_includes_and_excludes_by_pattern():
    params = {"a.weight": torch.ones(3), "a.bias": torch.ones(2), "norm.weight": torch.ones(5)}
    assert float(L2(precision=2.0)(params, {}, 0.0)) == 10
    assert float(L2(precision=2.0, exclude=("*bias", "norm*"))(params, {}, 0.0)) == 3
    assert float(L2(include=("nothing*",))(params, {}, 0.0)) == 0


def test_the_likelihood_follows_the_type_of_the_targets():
    assert infer(torch.tensor([0, 1]), (10,)) == Categorical()
    assert infer(torch.tensor([0.5, 1]), (1,)) == FixedGaussian()
    assert infer(torch.zeros(4, 3), (6,)) == LearnedGaussian()
    with pytest.raises(InputError, match="5 outputs for 1 real target"):
        infer(torch.tensor([0.5]), (5,))


@pytest.mark.parametrize(
    ("y", "outputs", "likelihood", "said"),
    [
        (torch.full((12,), 3.0), 1, None, "all targets are"),
        (torch.full((12,), 1), 2, None, "all targets are 1"),
        (torch.zeros(12, 1), 1, "bernoulli", "all targets are"),
        (torch.full((12,), 2), 3, "ordinal", "all targets are 2"),
        (torch.tensor([[1.0, 0.0]]).repeat(12, 1), 2, "bernoulli", "all targets are"),
    ],
)
def test_labels_of_one_class_alone_are_said_at_fit(y, outputs, likelihood, said):
    import choral

    with pytest.warns(UserWarning, match=said):
        choral.fit(lambda: torch.nn.Linear(3, outputs), (torch.randn(12, 3), y), "single", likelihood=likelihood)
    known = choral.objectives.Categorical()
    assert known.doubt(torch.tensor([0, 1, 0])) == known.doubt(torch.tensor([1])) == ""
    assert choral.objectives.Categorical(ignore=255, axis=1).doubt(torch.tensor([[255, 1], [1, 255]]))
