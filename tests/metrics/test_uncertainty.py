import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from choral.base.errors import InputError
from choral.metrics import (
    aleatoric_variance,
    entropy,
    epistemic_variance,
    expected_entropy,
    mutual_information,
    variation_ratio,
)


def members(seed: int = 0, shape: tuple[int, int, int] = (5, 40, 6)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


def test_entropies_agree_with_scipy() -> None:
    member_probs = members()
    each = scipy_entropy(member_probs.numpy(), axis=-1)
    total = scipy_entropy(member_probs.mean(0).numpy(), axis=-1)
    np.testing.assert_allclose(entropy(member_probs).numpy(), each, atol=1e-12)
    np.testing.assert_allclose(expected_entropy(member_probs).numpy(), each.mean(0), atol=1e-12)
    np.testing.assert_allclose(mutual_information(member_probs).numpy(), total - each.mean(0), atol=1e-12)


def test_information_is_the_mean_divergence_from_the_average() -> None:
    member_probs, weights = members(1), torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64)
    mean = torch.einsum("m,mbc->bc", weights, member_probs.double())
    divergence = (member_probs * (member_probs / mean).log()).sum(-1)
    expected = (weights[:, None] * divergence).sum(0)
    torch.testing.assert_close(mutual_information(member_probs, weights=weights), expected)


def test_identical_members_hold_no_information_about_the_label() -> None:
    one = members(2)[:1]
    same = one.expand(7, -1, -1)
    assert float(mutual_information(same).max()) == 0.0
    assert float(variation_ratio(same).max()) == 0.0
    assert float(mutual_information(same.float()).max()) == 0.0


def test_opposed_certain_members_hold_all_of_it_and_zero_times_log_zero_is_zero() -> None:
    member_probs = torch.eye(4).unsqueeze(1)  # member m is certain of class m
    assert mutual_information(member_probs).tolist() == pytest.approx([np.log(4)])
    assert expected_entropy(member_probs).tolist() == [0.0]
    assert variation_ratio(member_probs).tolist() == [0.75]


def test_variation_ratio_counts_votes() -> None:
    member_probs = members(3, (9, 30, 4))
    votes = member_probs.argmax(-1).numpy()
    expected = [1 - np.bincount(votes[:, row]).max() / 9 for row in range(30)]
    assert variation_ratio(member_probs).tolist() == pytest.approx(expected)


def test_variances_add_up_to_the_variance_of_the_mixture() -> None:
    generator = torch.Generator().manual_seed(4)
    means, variances = torch.randn(3, 2, generator=generator), torch.rand(3, 2, generator=generator) + 0.1
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    draws = 400_000
    which = torch.multinomial(weights, draws, replacement=True, generator=generator)
    samples = means[which] + variances[which].sqrt() * torch.randn(draws, 2, generator=generator)
    total = aleatoric_variance(variances, weights=weights) + epistemic_variance(means, weights=weights)
    assert total.tolist() == pytest.approx(samples.double().var(0).tolist(), rel=0.01)


def test_weights_must_be_a_distribution_over_the_members() -> None:
    with pytest.raises(InputError, match="sum to 1"):
        mutual_information(members(), weights=torch.ones(5))
    with pytest.raises(InputError, match=r"\(5,\)"):
        mutual_information(members(), weights=torch.full((4,), 0.25))
