import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from choral.base.errors import InputError
from choral.metrics import (
    aupr,
    auroc,
    entropy,
    evaluate_ood,
    evaluate_scores,
    fpr95,
    max_logit_score,
    mutual_information,
    ood_scores,
    variation_ratio,
)


def scores(seed: int, n: int, m: int, *, ties: bool, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(n, generator=generator, dtype=torch.float64)
    outside = torch.randn(m, generator=generator, dtype=torch.float64) + 1
    return ((inside * 2).round(), (outside * 2).round()) if ties else (inside * scale, outside * scale)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 300),
    m=st.integers(1, 300),
    ties=st.booleans(),
    scale=st.sampled_from([1e-6, 1.0, 1e3]),
)
@settings(max_examples=40, deadline=None)
def test_measures_agree_with_scikit_learn(seed: int, n: int, m: int, ties: bool, scale: float) -> None:
    inside, outside = scores(seed, n, m, ties=ties, scale=scale)
    both = torch.cat([inside, outside]).numpy()
    is_out = np.r_[np.zeros(n), np.ones(m)]
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(is_out, both), abs=1e-6)
    assert aupr(inside, outside) == pytest.approx(average_precision_score(is_out, both), abs=1e-6)
    assert aupr(inside, outside, positive="in") == pytest.approx(average_precision_score(1 - is_out, -both), abs=1e-6)
    false, true, _ = roc_curve(is_out, both, drop_intermediate=False)
    assert fpr95(inside, outside) == pytest.approx(false[true >= 0.95 - 1e-12].min(), abs=1e-12)
    false, true, _ = roc_curve(1 - is_out, -both, drop_intermediate=False)
    assert fpr95(inside, outside, positive="in") == pytest.approx(false[true >= 0.95 - 1e-12].min(), abs=1e-12)


def test_logits_beyond_a_sigmoids_reach_are_told_apart() -> None:
    # A sigmoid maps all of these to exactly 1.
    assert auroc(torch.tensor([100.0, 101.0]), torch.tensor([200.0, 201.0])) == 1.0
    assert fpr95(torch.tensor([100.0, 101.0]), torch.tensor([200.0, 201.0])) == 0.0


def test_hand_worked_separation() -> None:
    inside, outside = torch.tensor([0.1, 0.2, 0.6, 0.3]), torch.tensor([0.5, 0.9])
    result = evaluate_scores(inside, outside)
    assert result["auroc"] == pytest.approx(7 / 8)
    assert result["aupr_out"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert result["fpr95_out"] == 0.25  # finding both strangers flags 0.6
    assert result["fpr95_in"] == 0.5  # accepting up to 0.6 lets 0.5 in
    assert auroc(torch.zeros(5), torch.zeros(3)) == 0.5


def test_scores_are_what_their_names_say_and_higher_for_stranger_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    familiar = torch.randn(1, 80, 6, generator=generator) * 0.1 + 12 * torch.eye(6)[torch.arange(80) % 6]
    logits_in = familiar + 0.3 * torch.randn(5, 80, 6, generator=generator)
    logits_out = 2 * torch.randn(5, 80, 6, generator=generator)
    inside = ood_scores(logits_in.softmax(-1), member_logits=logits_in)
    outside = ood_scores(logits_out.softmax(-1), member_logits=logits_out)
    assert set(inside) == {"max_probability", "max_logit", "entropy", "mutual_information", "variation_ratio"}
    table = evaluate_ood(inside, outside)
    assert all(row["auroc"] > 0.95 for row in table.values())
    probs = logits_out.softmax(-1)
    mean = probs.double().mean(0)
    torch.testing.assert_close(outside["max_probability"], 1 - mean.double().max(-1).values)
    torch.testing.assert_close(outside["max_logit"], -logits_out.double().mean(0).max(-1).values)
    torch.testing.assert_close(outside["max_logit"], max_logit_score(logits_out))
    torch.testing.assert_close(outside["entropy"], entropy(mean))
    torch.testing.assert_close(outside["mutual_information"], mutual_information(probs))
    torch.testing.assert_close(outside["variation_ratio"], variation_ratio(probs))
    assert "max_logit" not in ood_scores(probs)


def test_wrong_arguments_are_refused() -> None:
    good = torch.zeros(3)
    with pytest.raises(InputError, match="'in' or 'out'"):
        aupr(good, good, positive="ood")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InputError, match="at least one row"):
        auroc(good, torch.zeros(0))
    with pytest.raises(InputError, match="NaN"):
        auroc(good, good * float("nan"))
    with pytest.raises(InputError, match="recall"):
        fpr95(good, good, recall=0.0)
    with pytest.raises(InputError, match="member, batch, class"):
        max_logit_score(good)
