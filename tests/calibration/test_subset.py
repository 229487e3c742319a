import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.calibration import MemberSelection, label_log_scores, select_members
from choral.metrics import nll


def case(seed: int, members: int = 6, batch: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(batch, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(truth.softmax(-1), 1, generator=generator).squeeze(1)
    noise = torch.randn(members, batch, 4, generator=generator, dtype=torch.float64)
    strength = torch.linspace(0.5, 4, members, dtype=torch.float64)[:, None, None]
    return (truth + strength * noise).softmax(-1), labels


def slow_greedy(member_probs: torch.Tensor, labels: torch.Tensor, count: int, replacement: bool) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        options = [m for m in range(len(member_probs)) if replacement or m not in chosen]
        chosen.append(min(options, key=lambda m: nll(member_probs[[*chosen, m]].mean(0), labels)))
    return chosen


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_choices_are_those_of_a_slow_greedy_search(seed: int, replacement: bool) -> None:
    member_probs, labels = case(seed)
    log_scores = label_log_scores(member_probs, labels)
    got = select_members(log_scores, members=5, replacement=replacement, exact=True)
    assert list(got.indices) == slow_greedy(member_probs, labels, 5, replacement)
    values = [nll(member_probs[list(got.indices[: k + 1])].mean(0), labels) for k in range(5)]
    assert got.nll == pytest.approx(values, abs=1e-10)
    torch.testing.assert_close(got.apply(member_probs), member_probs[list(got.indices)])


@given(seed=st.integers(0, 10_000), members=st.integers(1, 6), replacement=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_kept_run_is_its_best_and_never_worse_than_the_best_member(
    seed: int, members: int, replacement: bool
) -> None:
    member_probs, labels = case(seed)
    log_scores = label_log_scores(member_probs, labels)
    kept = select_members(log_scores, members=members, replacement=replacement)
    every = select_members(log_scores, members=members, replacement=replacement, exact=True)
    assert every.indices[: len(kept.indices)] == kept.indices
    assert kept.nll[-1] == min(every.nll)
    assert kept.nll[-1] <= min(nll(probs, labels) for probs in member_probs) + 1e-12


def test_pairs_are_as_good_as_the_best_pair_that_holds_the_best_member() -> None:
    member_probs, labels = case(9)
    got = select_members(label_log_scores(member_probs, labels), members=2, exact=True)
    pairs = [pair for pair in itertools.combinations(range(6), 2) if got.indices[0] in pair]
    best = min(nll(member_probs[list(pair)].mean(0), labels) for pair in pairs)
    assert got.nll[1] == pytest.approx(best, abs=1e-12)


def test_it_is_written_as_plain_numbers_and_read_back() -> None:
    member_probs, labels = case(3)
    got = select_members(label_log_scores(member_probs, labels), members=3)
    assert from_dict(got.to_dict()) == got


def test_wrong_arguments_are_refused() -> None:
    scores = torch.zeros(3, 5)
    with pytest.raises(InputError, match="allow replacement"):
        select_members(scores, members=4)
    with pytest.raises(InputError, match="members is 0"):
        select_members(scores, members=0)
    with pytest.raises(InputError, match="member 5 is among"):
        MemberSelection(indices=(5,), nll=(0.1,)).apply(torch.zeros(3, 2))
