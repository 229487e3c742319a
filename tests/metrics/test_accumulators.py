import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral import metrics
from choral.base.errors import InputError
from choral.metrics import ClassificationStream, ScoreStream, evaluate, ood_scores
from choral.metrics.diversity import PairSums


def case(seed: int, members: int, batch: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(members, batch, classes, generator=generator).mul(2).softmax(-1)
    return probs, torch.randint(classes, (batch,), generator=generator)


@given(
    seed=st.integers(0, 10_000),
    members=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    classes=st.integers(2, 6),
)
@settings(max_examples=25, deadline=None)
def test_batches_give_the_same_numbers_as_the_plain_functions(
    seed: int, members: int, sizes: list[int], classes: int
) -> None:
    member_probs, labels = case(seed, members, sum(sizes), classes)
    weights = torch.rand(members, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    weights /= weights.sum()
    stream = ClassificationStream(bins=7, drop_at_most=2, weights=weights)
    for part, its_labels in zip(member_probs.split(sizes, 1), labels.split(sizes)):
        stream.update(part, its_labels)
    got = stream.compute()
    probs = metrics.mean_probs(member_probs, weights=weights)
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
        "pairwise_kl": metrics.pairwise_kl(member_probs),
        "member_correlation": metrics.member_correlation(member_probs),
        "member_accuracy": sum(metrics.accuracy(p, labels) for p in member_probs) / members,
        "member_nll": sum(metrics.nll(p, labels) for p in member_probs) / members,
    }
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-10), name
    matrices = stream.pairs()
    torch.testing.assert_close(matrices["pairwise_kl"], metrics.kl_matrix(member_probs))
    torch.testing.assert_close(matrices["disagreement"], metrics.disagreement_matrix(member_probs))
    table = metrics.reliability_table(probs, labels, bins=7)
    torch.testing.assert_close(stream.table().accuracy, table.accuracy)


def test_scores_of_batches_equal_scores_of_the_whole() -> None:
    logits = torch.randn(4, 3000, 6, generator=torch.Generator().manual_seed(0)) * 3
    stream = ScoreStream()
    for part in logits.split(700, 1):
        stream.update(part.softmax(-1), member_logits=part)
    whole = ood_scores(logits.softmax(-1), member_logits=logits)
    got = stream.compute()
    assert list(got) == list(whole)
    for name, values in whole.items():
        torch.testing.assert_close(got[name], values, rtol=0, atol=1e-12)


def test_memory_does_not_grow_with_the_rows() -> None:
    """A tenth of 50,000 rows x 10 classes x 100 members, whose probabilities in float64 would take 40 MB a tenth."""
    members, classes, rows, batches = 100, 10, 500, 10
    process = psutil.Process()
    stream, scores = ClassificationStream(), ScoreStream()
    resident = []
    for step in range(batches):
        member_probs, labels = case(step, members, rows, classes)
        stream.update(member_probs, labels)
        scores.update(member_probs)
        resident.append(process.memory_info().rss)
    assert max(resident[5:]) - max(resident[:5]) < 20e6
    assert stream.compute()["accuracy"] == pytest.approx(0.1, abs=0.03)


def test_one_large_batch_is_worked_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    member_probs, labels = case(0, 50, 8_000, 10)  # 32 MB in float64
    held: list[int] = []
    original = evaluate.pair_sums

    def watched(block: torch.Tensor) -> PairSums:
        held.append(block.numel())
        return original(block)

    monkeypatch.setattr(evaluate, "pair_sums", watched)
    metrics.evaluate_classification(member_probs, labels)
    assert sum(held) == member_probs.numel()
    assert max(held) <= 1 << 20


def test_wrong_use_is_refused() -> None:
    member_probs, labels = case(0, 3, 5, 4)
    stream = ClassificationStream(pairs=False)
    with pytest.raises(InputError, match="nothing was accumulated"):
        stream.compute()
    stream.update(member_probs, labels)
    assert "pairwise_kl" not in stream.compute()
    with pytest.raises(InputError, match="pairs=True"):
        stream.pairs()
    with pytest.raises(InputError, match="one stream for each ensemble"):
        stream.update(member_probs[:2], labels)
    with pytest.raises(InputError, match="member, batch, class"):
        stream.update(member_probs[0], labels)
    scores = ScoreStream()
    with pytest.raises(InputError, match="nothing was accumulated"):
        scores.compute()
    scores.update(member_probs)
    with pytest.raises(InputError, match="every batch or for none"):
        scores.update(member_probs, member_logits=member_probs.log())
