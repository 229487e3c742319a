"""What outputs mean is inferred where there is no doubt; where there is, the sentence says what to write."""

import pytest
import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.objectives.likelihoods import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    LearnedGaussian,
    Poisson,
    TargetScale,
    infer,
    resolve,
)

ONE_HOT = torch.eye(3)[[0, 1, 2, 1]]
SEVERAL = torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0]])
PRICES = torch.tensor([200_000.0, 150_000.0, 310_500.0])
SURE: list[tuple[str, Tensor, tuple[int, ...], type]] = [
    ("class numbers", torch.tensor([0, 2, 1]), (3,), Categorical),
    ("class numbers as reals", torch.tensor([0.0, 2.0, 1.0]), (3,), Categorical),
    ("one-hot reals", ONE_HOT, (3,), Categorical),
    ("one-hot whole numbers", ONE_HOT.long(), (3,), Categorical),
    ("labels as reals", SEVERAL, (3,), Bernoulli),
    ("labels as whole numbers", SEVERAL.long(), (3,), Bernoulli),
    ("0 and 1 as reals, one output", torch.tensor([0.0, 1.0, 1.0]), (1,), Bernoulli),
    ("0 and 1 as reals, outputs (batch,)", torch.tensor([0.0, 1.0, 1.0]), (), Bernoulli),
    ("0 and 1 as whole numbers, one output", torch.tensor([0, 1, 1]), (1,), Bernoulli),
    ("prices", PRICES, (1,), FixedGaussian),
    ("prices, mean and variance", PRICES, (2,), LearnedGaussian),
    ("ratings, one output", torch.tensor([0.0, 1.0, 2.0, 5.0]), (1,), FixedGaussian),
    ("two real targets", torch.rand(4, 2), (2,), FixedGaussian),
    ("pixels", torch.randint(2, (4, 8, 8)), (2, 8, 8), Categorical),
    ("tokens", torch.randint(3, (4, 7)), (7, 3), Categorical),
]


@pytest.mark.parametrize(("targets", "outputs", "kind"), [c[1:] for c in SURE], ids=[c[0] for c in SURE])
def test_sure_cases(targets, outputs, kind):
    found = resolve(None, targets, outputs)
    assert type(found) is kind
    assert torch.isfinite(found.loss(torch.zeros(1, len(targets), *outputs), found.read(targets).unsqueeze(0)))


DOUBTFUL = [
    (
        "0 and 1 as reals, two outputs",
        torch.tensor([0.0, 1.0]),
        (2,),
        "likelihood='categorical' or likelihood='gaussian'",
    ),
    ("whole numbers, one output", torch.tensor([0, 5, 2]), (1,), "likelihood='poisson' for counts"),
    ("rows of whole numbers", torch.tensor([[0, 5], [1, 2]]), (2,), "likelihood='poisson' for counts"),
    ("tokens as many as classes", torch.randint(5, (4, 5)), (5, 5), r"Categorical\(axis=-1\) for tokens"),
    ("labels of another size", torch.randint(2, (4, 9, 9)), (2, 8, 8), "without the axis of classes"),
    ("a label too many", torch.tensor([0, 3]), (3,), "class label 3 but the network gives 3 outputs"),
    ("labels 0 and ten million", torch.tensor([0, 10_000_000]), (2,), "renumber the labels"),
    ("a negative label", torch.tensor([0, -1]), (3,), "negative label -1"),
    ("five outputs for a real", torch.tensor([0.5, 1.5]), (5,), "5 outputs for 1 real target"),
]


@pytest.mark.parametrize(("targets", "outputs", "said"), [c[1:] for c in DOUBTFUL], ids=[c[0] for c in DOUBTFUL])
def test_doubtful_cases_are_refused_with_what_to_write(targets, outputs, said):
    with pytest.raises(InputError, match=said):
        resolve(None, targets, outputs)


def test_what_the_sentence_says_to_write_is_accepted():
    binary = torch.tensor([0.0, 1.0])
    assert resolve("categorical", binary, (2,)) == Categorical()
    assert type(resolve("gaussian", binary, (2,))) is LearnedGaussian
    assert resolve("poisson", torch.tensor([0, 5, 2]), (1,)) == Poisson(base=7 / 3)
    tokens = torch.randint(5, (4, 5))
    assert resolve(Categorical(axis=-1), tokens, (5, 5)).axis == -1
    assert resolve(Categorical(axis=1), tokens, (5, 5)).axis == -2
    with pytest.raises(InputError, match=r"likelihood is 'bernouli'.*bernoulli"):
        resolve("bernouli", binary, (1,))
    with pytest.raises(InputError, match="likelihood is MSELoss"):
        resolve(torch.nn.MSELoss(), binary, (1,))


def test_real_targets_are_standardized_unless_their_noise_is_given():
    assert resolve(None, PRICES, (1,)).scale == TargetScale.of(PRICES.unsqueeze(1))
    assert resolve("student_t", PRICES, (2,)).scale is not None
    given = FixedGaussian(precision=4.0)
    assert resolve(given, PRICES, (1,)) == given
    assert resolve(given, PRICES, (1,), standardize=True).scale is not None
    assert resolve(None, PRICES, (1,), standardize=False).scale is None
    assert infer(PRICES, (1,)) == FixedGaussian()
