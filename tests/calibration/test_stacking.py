import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.calibration import fit_stacking
from choral.metrics import gaussian_log_scores, mixture_nll, nll
from choral.metrics.classification import nll_rows


def mean_log_score(log_scores: torch.Tensor, weights: torch.Tensor) -> float:
    return float((log_scores.double() + weights.log().unsqueeze(1)).logsumexp(0).mean())


@given(
    seed=st.integers(0, 100_000),
    members=st.integers(1, 8),
    batch=st.integers(1, 60),
    spread=st.floats(0.0, 60.0),
)
@settings(max_examples=60, deadline=None)
def test_never_worse_than_uniform_on_the_data_it_was_fitted_on(
    seed: int, members: int, batch: int, spread: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_scores = -spread * torch.rand(members, batch, generator=generator, dtype=torch.float64)
    fitted = fit_stacking(log_scores)
    uniform = torch.full((members,), 1 / members, dtype=torch.float64)
    assert (
        mean_log_score(log_scores, torch.tensor(fitted.weights, dtype=torch.float64))
        >= mean_log_score(log_scores, uniform) - 1e-12
    )
    assert sum(fitted.weights) == pytest.approx(1.0, abs=1e-9)
    assert min(fitted.weights) >= 0.0


@pytest.mark.parametrize("seed", range(5))
def test_weights_reach_the_optimum_found_by_a_general_solver(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    quality = torch.tensor([0.0, 0.3, 1.0, 3.0], dtype=torch.float64)
    log_scores = -torch.rand(4, 300, generator=generator, dtype=torch.float64) * 4 - quality[:, None]
    fitted = fit_stacking(log_scores)
    densities = log_scores.exp().numpy()
    solved = minimize(
        lambda w: -np.log(w @ densities).mean(),
        np.full(4, 0.25),
        jac=lambda w: -(densities / (w @ densities)).mean(1),
        bounds=[(1e-12, 1)] * 4,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(4)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert -mean_log_score(log_scores, torch.tensor(fitted.weights, dtype=torch.float64)) <= solved.fun + 1e-6
    assert fitted.weights == pytest.approx(solved.x, abs=5e-3)


def test_the_true_mixture_is_recovered_and_a_bad_member_dropped() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = 20_000
    first = torch.rand(batch, generator=generator) < 0.7
    targets = torch.where(first, 0.0, 4.0) + torch.randn(batch, generator=generator)
    means = torch.tensor([0.0, 4.0, 40.0])[:, None].expand(3, batch)
    variances = torch.ones(3, batch)
    fitted = fit_stacking(gaussian_log_scores(means, variances, targets))
    assert fitted.weights[:2] == pytest.approx([0.7, 0.3], abs=0.01)
    assert fitted.weights[2] < 1e-6
    stacked = mixture_nll(means, variances, targets, weights=torch.tensor(fitted.weights, dtype=torch.float64))
    assert stacked < mixture_nll(means, variances, targets)


def test_classification_scores_and_application() -> None:
    generator = torch.Generator().manual_seed(1)
    member_probs = torch.randn(3, 200, 4, generator=generator, dtype=torch.float64).softmax(-1)
    labels = torch.multinomial(member_probs[1], 1, generator=generator).squeeze(1)
    log_scores = -nll_rows(member_probs, labels)
    assert float(log_scores[2, 7]) == pytest.approx(float(member_probs[2, 7, labels[7]].log()))
    fitted = fit_stacking(log_scores)
    assert max(fitted.weights) == fitted.weights[1]
    assert nll(fitted.apply(member_probs), labels) < nll(member_probs.mean(0), labels)
    # Members that give the label exactly 0 are allowed.
    certain = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]])
    assert fit_stacking(-nll_rows(certain, torch.tensor([1, 1]))).weights == pytest.approx([0, 1], abs=1e-6)


def test_it_is_written_as_plain_numbers_and_read_back() -> None:
    fitted = fit_stacking(-torch.rand(3, 50, generator=torch.Generator().manual_seed(2)))
    assert from_dict(fitted.to_dict()) == fitted


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(member, batch\)"):
        fit_stacking(torch.zeros(3, 4, 2))
