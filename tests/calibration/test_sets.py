import numpy as np
import pytest
import torch

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.calibration import ConformalSets, evaluate_sets, fit_conformal_sets
from choral.calibration.conformal import _shares


def case(seed: int, batch: int, *, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels from one distribution, probabilities that are `sharpness` times too confident."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(batch, 8, generator=generator, dtype=torch.float64) * 1.5
    labels = torch.multinomial(truth.softmax(-1), 1, generator=generator).squeeze(1)
    return (sharpness * truth).softmax(-1), labels


@pytest.mark.parametrize("options", [{}, {"penalty": 0.05, "free_classes": 2}], ids=["aps", "raps"])
@pytest.mark.parametrize("randomized", [True, False])
@pytest.mark.parametrize(("level", "sharpness"), [(0.9, 1.0), (0.8, 0.3), (0.95, 4.0)])
def test_coverage_is_as_promised_over_twenty_seeds(
    options: dict[str, float], randomized: bool, level: float, sharpness: float
) -> None:
    reports = []
    for seed in range(20):
        probs, labels = case(seed, 2_000, sharpness=sharpness)
        rule = fit_conformal_sets(
            probs[:1_000],
            labels[:1_000],
            level=level,
            randomized=randomized,
            seed=seed,
            **options,  # type: ignore[arg-type]  # mixed options
        )
        reports.append(evaluate_sets(rule.apply(probs[1_000:], seed=seed), labels[1_000:]))
    assert np.mean([report["coverage"] for report in reports]) == pytest.approx(level, abs=0.015)


def slow_set(probs: list[float], share: float, threshold: float, penalty: float, free: int) -> list[bool]:
    inside = [False] * len(probs)
    gathered = 0.0
    for rank, index in enumerate(sorted(range(len(probs)), key=lambda k: -probs[k]), start=1):
        score = gathered + share * probs[index] + penalty * max(0, rank - free)
        inside[index] = score <= threshold
        gathered += probs[index]
    return inside


def test_sets_agree_with_a_slow_reference() -> None:
    probs, _ = case(3, 100, sharpness=1.0)
    rule = ConformalSets(threshold=0.85, level=0.9, penalty=0.04, free_classes=3, randomized=False)
    expected = [slow_set(row, 1.0, 0.85, 0.04, 3) for row in probs.tolist()]
    assert rule.apply(probs).tolist() == expected
    plain = ConformalSets(threshold=0.85, level=0.9, randomized=False)
    assert plain.apply(probs).tolist() == [slow_set(row, 1.0, 0.85, 0.0, 0) for row in probs.tolist()]


def test_hand_worked_threshold_and_sets() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]] * 4, dtype=torch.float64)
    # Deterministic scores of classes 0, 1, 2 are 0.5, 0.8, 1.0; of four held-out rows the ceil(5 * 0.6) = 3rd counts.
    rule = fit_conformal_sets(probs, torch.tensor([0, 1, 0, 2]), level=0.6, randomized=False)
    assert rule.threshold == pytest.approx(0.8)
    assert rule.apply(probs[:1]).tolist() == [[True, True, False]]
    assert fit_conformal_sets(probs, torch.tensor([0, 1, 0, 2]), level=0.9).threshold is None
    assert fit_conformal_sets(probs, torch.tensor([0, 1, 0, 2]), level=0.9).apply(probs).all()


def test_a_penalty_makes_the_largest_sets_smaller() -> None:
    probs, labels = case(5, 4_000, sharpness=0.5)
    sizes = {}
    for penalty in (0.0, 0.5):
        rule = fit_conformal_sets(probs[:2_000], labels[:2_000], penalty=penalty, free_classes=3)
        sizes[penalty] = rule.apply(probs[2_000:]).sum(1)
    assert sizes[0.5].max() < sizes[0.0].max()


def test_random_shares_come_from_the_seed() -> None:
    probs, labels = case(7, 500, sharpness=1.0)
    rule = fit_conformal_sets(probs, labels, seed=1)
    assert rule == fit_conformal_sets(probs, labels, seed=1) != fit_conformal_sets(probs, labels, seed=2)
    assert torch.equal(rule.apply(probs, seed=3), rule.apply(probs, seed=3))
    assert not torch.equal(rule.apply(probs, seed=3), rule.apply(probs, seed=4))


def test_it_is_written_as_plain_numbers_and_read_back() -> None:
    probs, labels = case(8, 5, sharpness=1.0)
    for level in (0.5, 0.99):  # a threshold, and None
        rule = fit_conformal_sets(probs, labels, level=level, penalty=0.1, free_classes=1)
        assert from_dict(rule.to_dict()) == rule


def test_wrong_arguments_are_refused() -> None:
    probs, labels = case(9, 20, sharpness=1.0)
    with pytest.raises(InputError, match="between 0 and 1"):
        fit_conformal_sets(probs, labels, level=90)
    with pytest.raises(InputError, match=r"penalty is -1.0; give .* 0 or more"):
        fit_conformal_sets(probs, labels, penalty=-1.0)
    with pytest.raises(InputError, match="bool"):
        evaluate_sets(probs, labels)


def test_the_set_of_a_row_does_not_depend_on_where_it_stands() -> None:
    probs, labels = case(10, 4_000, sharpness=1.0)
    rule = fit_conformal_sets(probs, labels, level=0.8)
    order = torch.randperm(4_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rule.apply(probs)[order], rule.apply(probs[order]))
    for row in range(20):
        assert len(rule.apply(probs[row : row + 1].repeat(50, 1)).unique(dim=0)) == 1


def test_random_shares_are_even_and_unlike_those_of_neighbors() -> None:
    probs, _ = case(11, 20_000, sharpness=1.0)
    near = probs.clone()
    near[:, 0] = probs[:, 0].nextafter(torch.ones(1, dtype=torch.float64))
    shares, others, seeded = _shares(probs, 0), _shares(near, 0), _shares(probs, 1)
    assert (torch.histc(shares, 20, 0, 1) / 1_000 - 1).abs().max() < 0.12
    for other in (others, seeded, probs[:, :1]):
        assert abs(float(torch.corrcoef(torch.cat([shares, other], 1).T)[0, 1])) < 0.03


def test_a_threshold_of_one_takes_every_class_whatever_float32_rounds():
    probs = (3 * torch.randn(500, 10, generator=torch.Generator().manual_seed(0))).softmax(-1)
    assert not bool((probs.double().sum(-1) == 1).all())
    assert bool(ConformalSets(threshold=1.0, level=0.9, randomized=False).apply(probs).all())
