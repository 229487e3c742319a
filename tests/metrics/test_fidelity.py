import numpy as np
import pytest
import torch
from benchmarks.fidelity import agreement, total_variation, w1, w2, wasserstein_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import wasserstein_distance


def transport_cost(a: np.ndarray, b: np.ndarray, order: int) -> float:
    """The optimal transport problem itself, as a linear program over couplings."""
    n, m = len(a), len(b)
    cost = np.abs(a[:, None] - b[None]) ** order
    rows, columns = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    masses = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    return float(linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=masses).fun ** (1 / order))


@given(seed=st.integers(0, 10_000), n=st.integers(1, 9), m=st.integers(1, 9), order=st.sampled_from([1, 2]))
@settings(max_examples=30, deadline=None)
def test_distance_solves_the_transport_problem(seed: int, n: int, m: int, order: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=n).round(1), generator.normal(size=m).round(1)  # rounding makes ties
    got = wasserstein_rows(torch.tensor(a).unsqueeze(1), torch.tensor(b).unsqueeze(1), order=order)
    assert float(got[0]) == pytest.approx(transport_cost(a, b, order), abs=1e-6)


@pytest.mark.parametrize(("n", "m"), [(50, 50), (51, 20), (7, 300), (1, 5)])
def test_w1_agrees_with_scipy(n: int, m: int) -> None:
    generator = torch.Generator().manual_seed(n * m)
    samples = torch.randn(n, 12, generator=generator, dtype=torch.float64)
    reference = torch.randn(m, 12, generator=generator, dtype=torch.float64) * 2 + 1
    expected = [wasserstein_distance(samples[:, i].numpy(), reference[:, i].numpy()) for i in range(12)]
    assert wasserstein_rows(samples, reference, order=1).tolist() == pytest.approx(expected, abs=1e-10)
    assert w1(samples, reference) == pytest.approx(np.mean(expected), abs=1e-10)


def test_w2_of_gaussian_samples_approaches_the_closed_form() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(40_000, 1, generator=generator, dtype=torch.float64)
    reference = torch.randn(30_000, 1, generator=generator, dtype=torch.float64) * 3 + 2
    assert w2(samples, reference) == pytest.approx(np.sqrt((3 - 1) ** 2 + 2**2), abs=0.05)


def test_distances_do_not_depend_on_sample_count_or_order() -> None:
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(10, 3, generator=generator, dtype=torch.float64)
    shuffled = samples[torch.randperm(10, generator=generator)]
    assert w2(samples, shuffled.repeat(3, 1)) == pytest.approx(0.0, abs=1e-12)
    assert w2(samples, shuffled + 0.5) == pytest.approx(0.5)
    assert w1(samples.unsqueeze(-1), shuffled.unsqueeze(-1) + 0.5) == pytest.approx(0.5)


def test_agreement_and_total_variation_by_hand() -> None:
    probs = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.2, 0.6]], dtype=torch.float64)
    reference = torch.tensor([[0.3, 0.6, 0.1], [0.2, 0.3, 0.5]], dtype=torch.float64)
    assert agreement(probs, reference) == 0.5
    assert total_variation(probs, reference) == pytest.approx((0.3 + 0.1) / 2)
    assert total_variation(torch.eye(2), torch.eye(2).flip(0)) == 1.0
