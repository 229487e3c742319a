"""Every measure at once: the plain functions' numbers, in blocks of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral import metrics
from choral.base.errors import InputError
from choral.metrics import diversity, evaluate, inputs


def case(seed: int, members: int, batch: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(members, batch, classes, generator=generator).mul(2).softmax(-1)
    return probs, torch.randint(classes, (batch,), generator=generator)


@given(
    seed=st.integers(0, 10_000),
    members=st.integers(1, 6),
    batch=st.integers(1, 200),
    block=st.integers(1, 60),
    classes=st.integers(2, 6),
)
@settings(max_examples=25, deadline=None)
def test_blocks_give_the_same_numbers_as_the_plain_functions(
    seed: int, members: int, batch: int, block: int, classes: int
) -> None:
    member_probs, labels = case(seed, members, batch, classes)
    weights = torch.rand(members, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    weights /= weights.sum()
    with pytest.MonkeyPatch.context() as patch:
        for module in (evaluate, diversity):
            patch.setattr(module, "row_chunks", lambda n, width: inputs.row_chunks(n, width=1, elements=block))
        got = metrics.evaluate_classification(member_probs, labels, bins=7, drop_at_most=2, weights=weights)
    probs = torch.einsum("m,mbc->bc", weights, member_probs.double())
    expected = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.ece(probs, labels, bins=7),
        "mce": metrics.mce(probs, labels, bins=7, drop_at_most=2),
        "adaptive_ece": metrics.adaptive_ece(probs, labels, bins=7),
        "entropy": float(metrics.entropy(probs).mean()),
        "expected_entropy": float(metrics.expected_entropy(member_probs, weights=weights).mean()),
        "mutual_information": float(metrics.mutual_information(member_probs, weights=weights).mean()),
        "variation_ratio": float(metrics.variation_ratio(member_probs, weights=weights).mean()),
        "disagreement": metrics.disagreement(member_probs),
        "pairwise_kl": diversity.mean_of_pairs(diversity.pair_matrices(member_probs)["pairwise_kl"]),
        "member_correlation": metrics.member_correlation(member_probs),
        "member_accuracy": sum(metrics.accuracy(p, labels) for p in member_probs) / members,
        "member_nll": sum(metrics.nll(p, labels) for p in member_probs) / members,
    }
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-10), name


def test_wrong_shapes_are_refused_and_pairs_are_left_out() -> None:
    member_probs, labels = case(0, 3, 5, 4)
    assert "pairwise_kl" not in metrics.evaluate_classification(member_probs, labels, pairs=False)
    with pytest.raises(InputError, match="member, batch, class"):
        metrics.evaluate_classification(member_probs[0], labels)
