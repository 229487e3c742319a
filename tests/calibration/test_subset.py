import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.calibration import label_log_scores, select_members
from choral.metrics import nll


def case(seed: int, members: int = 6, batch: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(batch, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(truth.softmax(-1), 1, generator=generator).squeeze(1)
    noise = torch.randn(members, batch, 4, generator=generator, dtype=torch.float64)
    strength = torch.linspace(0.5, 4, members, dtype=torch.float64)[:, None, None]
    return (truth + strength * noise).softmax(-1), labels


def slow_greedy(member_probs: torch.Tensor, labels: torch.Tensor, count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        options = [m for m in range(len(member_probs)) if m not in chosen]
        chosen.append(min(options, key=lambda m: nll(member_probs[[*chosen, m]].mean(0), labels)))
    return chosen


@pytest.mark.parametrize("seed", range(4))
def test_choices_are_those_of_a_slow_greedy_search(seed: int) -> None:
    member_probs, labels = case(seed)
    got = select_members(label_log_scores(member_probs, labels), members=5)
    slow = slow_greedy(member_probs, labels, 5)
    values = [nll(member_probs[slow[: k + 1]].mean(0), labels) for k in range(5)]
    kept = 1 + values.index(min(values))
    assert list(got.indices) == slow[:kept]
    assert got.nll == pytest.approx(values[:kept], abs=1e-10)
    torch.testing.assert_close(got.apply(member_probs), member_probs[list(got.indices)])


@given(seed=st.integers(0, 10_000), members=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_kept_run_is_its_best_and_never_worse_than_the_best_member(seed: int, members: int) -> None:
    member_probs, labels = case(seed)
    kept = select_members(label_log_scores(member_probs, labels), members=members)
    assert len(set(kept.indices)) == len(kept.indices) <= members
    assert kept.nll[-1] == min(kept.nll)
    assert kept.nll[-1] <= min(nll(probs, labels) for probs in member_probs) + 1e-12


def test_it_is_written_as_plain_numbers_and_read_back() -> None:
    member_probs, labels = case(3)
    got = select_members(label_log_scores(member_probs, labels), members=3)
    assert from_dict(got.to_dict()) == got


def test_wrong_arguments_are_refused() -> None:
    scores = torch.zeros(3, 5)
    assert len(select_members(torch.eye(3, 5), members=4).indices) <= 3
    with pytest.raises(InputError, match="members is 0"):
        select_members(scores, members=0)
