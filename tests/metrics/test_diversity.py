import numpy as np
import pytest
import torch
from scipy.special import rel_entr

from choral.base.errors import InputError
from choral.metrics import (
    average_draws,
    correlation_matrix,
    disagreement,
    disagreement_matrix,
    member_correlation,
    pair_matrices,
)
from choral.metrics import diversity as diversity_module


def kl_matrix(member_probs: torch.Tensor) -> torch.Tensor:
    return pair_matrices(member_probs)["pairwise_kl"]


def pairwise_kl(member_probs: torch.Tensor) -> float:
    return diversity_module.mean_of_pairs(kl_matrix(member_probs))


def members(seed: int = 0, shape: tuple[int, int, int] = (5, 60, 4)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


def test_matrices_agree_with_a_loop_over_pairs() -> None:
    member_probs = members()
    array = member_probs.numpy()
    apart, divergence = disagreement_matrix(member_probs).numpy(), kl_matrix(member_probs).numpy()
    for i in range(5):
        for j in range(5):
            assert apart[i, j] == pytest.approx((array[i].argmax(-1) != array[j].argmax(-1)).mean(), abs=1e-12)
            assert divergence[i, j] == pytest.approx(rel_entr(array[i], array[j]).sum(-1).mean(), abs=1e-12)
    for found in (correlation_matrix(member_probs), pair_matrices(member_probs)["member_correlation"]):
        np.testing.assert_allclose(found, np.corrcoef(array.reshape(5, -1)), atol=1e-12)


def test_scalars_are_means_over_ordered_pairs_of_different_members() -> None:
    member_probs = members(1)
    off = ~torch.eye(5, dtype=torch.bool)
    assert disagreement(member_probs) == pytest.approx(float(disagreement_matrix(member_probs)[off].mean()))
    assert pairwise_kl(member_probs) == pytest.approx(float(kl_matrix(member_probs)[off].mean()))
    assert member_correlation(member_probs) == pytest.approx(float(correlation_matrix(member_probs)[off].mean()))


def test_rows_are_summed_in_blocks_without_changing_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    member_probs = members(2)
    whole = kl_matrix(member_probs), disagreement_matrix(member_probs)
    chunks = diversity_module.row_chunks
    monkeypatch.setattr(
        diversity_module, "row_chunks", lambda batch, width: chunks(batch, width=width, elements=7 * width)
    )
    torch.testing.assert_close(kl_matrix(member_probs), whole[0])
    torch.testing.assert_close(disagreement_matrix(member_probs), whole[1])


def test_identical_members_do_not_differ() -> None:
    same = members(3)[:1].expand(6, -1, -1)
    assert disagreement(same) == 0.0
    assert pairwise_kl(same) < 1e-14
    assert member_correlation(same) == pytest.approx(1.0, abs=1e-12)


def test_hand_worked_divergence() -> None:
    member_probs = torch.tensor([[[0.5, 0.5]], [[0.75, 0.25]]], dtype=torch.float64)
    forward = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    backward = 0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5)
    assert kl_matrix(member_probs).tolist() == [[0.0, pytest.approx(forward)], [pytest.approx(backward), 0.0]]


def test_certain_opposed_members_give_a_finite_divergence() -> None:
    opposed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert pairwise_kl(opposed) == pytest.approx(87.3365, abs=1e-3)
    assert disagreement(opposed) == 1.0


def test_a_single_member_and_a_constant_member_give_numbers() -> None:
    one = members(4)[:1]
    assert (disagreement(one), pairwise_kl(one), member_correlation(one)) == (0.0, 0.0, 0.0)
    values = torch.tensor([[1.0, 2.0, 4.0], [0.1, 0.1, 0.1], [2.0, 4.0, 8.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(correlation_matrix(values), expected)


def test_draws_are_averaged_by_weight_within_each_learner() -> None:
    probs = members(shape=(5, 4, 3))
    found = average_draws(probs, [2, 0, 2, 0, 0], weights=torch.tensor([0.1, 0.0, 0.3, 0.0, 0.0]))
    torch.testing.assert_close(found[0], (probs[0] + 3 * probs[2]) / 4)
    torch.testing.assert_close(found[1], probs[[1, 3, 4]].mean(0))  # a learner without weight
    with pytest.raises(InputError, match="learners has 2 entries for 5 draws"):
        average_draws(probs, [0, 1])
