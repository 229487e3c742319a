"""Greedy selection with replacement against a slow search through the predictions themselves."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import l1_loss

import choral
from choral import models
from choral.base.errors import InputError
from choral.calibration import StackingWeights, bagged_selection, greedy_selection
from choral.calibration.members import mixture
from choral.plan import Adam
from choral.predictions import Classification, MultiLabel, Outputs, Predictive, QuantileRegression, Regression
from choral.recipes import make
from choral.recipes.training import Training

_ROWS = 24


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _targets(seed: int, high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def _each_task(seed: int) -> dict[str, tuple[Predictive, Tensor]]:
    strength = torch.linspace(0.9, 1.2, 5)[:, None, None]
    y, labels, several = _draw(seed, _ROWS, 2), _targets(seed, 3, _ROWS), _targets(seed, 2, _ROWS, 3)
    onehot = torch.nn.functional.one_hot(labels, 3).float()
    logits = 2 * onehot + strength * _draw(seed + 1, 5, _ROWS, 3)
    means = y + strength * _draw(seed + 2, 5, _ROWS, 2)
    quantiles = means.unsqueeze(-1) + torch.tensor([-1.0, 0.0, 1.0])
    pixels = _targets(seed, 3, _ROWS, 4)
    return {
        "classes": (Classification(logits), labels),
        "logits": (Classification(logits, combine="logits"), labels),
        "dense": (Classification(_draw(seed + 3, 5, _ROWS, 3, 4), axis=-2), pixels),
        "labels": (MultiLabel(2 * several + strength * _draw(seed + 4, 5, _ROWS, 3)), several.double()),
        "numbers": (Regression(means, strength.square().expand_as(means)), y.double()),
        "quantiles": (QuantileRegression(quantiles, (0.1, 0.5, 0.9)), y.double()),
        "outputs": (Outputs(means, lambda o, t: l1_loss(o, t, reduction="none")), y),
    }


def _slow(prediction: Predictive, targets: Tensor, picks: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(picks):
        costs = [_cost(prediction, targets, [*chosen, m]) for m in range(len(prediction))]
        chosen.append(min(range(len(costs)), key=lambda m: costs[m]))
    return chosen


def _greedy(prediction: Predictive, targets: Tensor, weights: Tensor | None = None, picks: int = 32) -> tuple[int, ...]:
    values, loss = prediction.blend(targets)
    return greedy_selection(values, loss, picks=picks, weights=weights)


def _cost(prediction: Predictive, targets: Tensor, rows: list[int]) -> float:
    return prediction.of_rows(rows).brief(targets)[prediction.score]


@pytest.mark.parametrize("task", sorted(_each_task(0)))
def test_the_choices_are_those_of_a_slow_search_by_the_tasks_own_score(task: str) -> None:
    prediction, targets = _each_task(3)[task]
    got = _greedy(prediction, targets, picks=4)
    chosen = _slow(prediction, targets, 4)
    costs = [_cost(prediction, targets, chosen[: k + 1]) for k in range(4)]
    kept = chosen[: 1 + min(range(4), key=lambda k: round(costs[k], 6))]
    assert list(got) == [kept.count(i) for i in range(len(prediction))]
    weighed = prediction.weighed([count / sum(got) for count in got])
    assert weighed.brief(targets)[prediction.score] == pytest.approx(costs[len(kept) - 1], rel=1e-5)


def test_two_choices_are_the_best_of_all_pairs_that_hold_the_best_member() -> None:
    prediction, targets = _each_task(5)["classes"]
    got = greedy_selection(prediction.log_scores(targets), picks=2)
    first = min(range(5), key=lambda m: _cost(prediction, targets, [m]))
    pairs = [p for p in itertools.combinations_with_replacement(range(5), 2) if first in p]
    rows = [i for i, count in enumerate(got) for _ in range(count)]
    assert _cost(prediction, targets, rows) == pytest.approx(
        min(_cost(prediction, targets, list(p)) for p in pairs), abs=1e-6
    )


def test_a_third_share_is_found_where_halves_gain_nothing() -> None:
    first, second = torch.full((100,), 0.5), torch.tensor([1e-6] * 40 + [1.0] * 60)
    halves = torch.stack([first, second])
    assert float(-halves.mean(0).log().mean()) > float(-first.log().mean())
    got = greedy_selection(halves.log(), picks=16)
    assert got[0] > got[1] >= 1


def test_it_stops_when_nothing_is_gained() -> None:
    scores = torch.tensor([[-1.0, -1.0], [-2.0, -2.0]])
    assert greedy_selection(scores, picks=1000) == (1, 0)


def test_points_of_no_weight_do_not_count_and_a_double_weight_is_the_point_twice() -> None:
    prediction, targets = _each_task(7)["numbers"]
    weights = torch.tensor([0.0] * 6 + [2.0] * 6 + [1.0] * 12)
    rows = [*range(6, 12), *range(6, 24)]
    again = Regression(prediction.member_values[:, rows], prediction.member_variances[:, rows])  # type: ignore[attr-defined]
    assert _greedy(prediction, targets, weights) == _greedy(again, targets[rows])


def test_a_member_that_diverged_is_never_chosen() -> None:
    scores = torch.stack(
        [torch.full((4,), torch.nan), torch.full((4,), -1.0), torch.tensor([0.0, 0.0, 0.0, -torch.inf])]
    )
    assert greedy_selection(scores)[0] == 0
    with pytest.raises(InputError, match="nothing to choose from"):
        greedy_selection(scores[:1])


def test_log_scores_far_below_zero_are_compared_exactly() -> None:
    scores = torch.tensor([[-5000.0, -5001.0], [-5001.0, -5000.0]], dtype=torch.float64)
    assert greedy_selection(scores) == (1, 1)
    values, cost = mixture(scores)
    assert float(cost(values.mean(0, keepdim=True)).mean()) == pytest.approx(
        float(-(scores.logsumexp(0) - torch.tensor(2.0).log()).mean())
    )


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="not empty"):
        greedy_selection(torch.zeros(2, 0))
    with pytest.raises(InputError, match="not all 0"):
        greedy_selection(torch.zeros(2, 3), weights=torch.zeros(3))


@pytest.mark.parametrize("likelihood", ["gaussian", "quantiles"])
def test_an_ensemble_predicts_saves_and_loads_with_the_weights(likelihood: str, tmp_path: Path) -> None:
    x = _draw(0, 40, 2)
    y = x[:, :1] + 0.3 * _draw(1, 40, 1)
    outputs = {"gaussian": 2, "quantiles": 5}[likelihood]
    training = Training(lr=0.01, optimizer=Adam(), batch_size=16)
    recipe = make("deep_ensemble", budget=4, members=4, training=training)
    ensemble = choral.fit(lambda: models.mlp(2, outputs, hidden=(4,)), (x, y), recipe, likelihood=likelihood)
    before = ensemble._predictive(x)
    counts = _greedy(before, before.targets(y), picks=8)
    weights = StackingWeights(weights=tuple(count / sum(counts) for count in counts))
    chosen = ensemble.with_posthoc(weights)
    after = chosen._predictive(x)
    assert after.weights == weights.weights
    score = before.score
    alone = [before.of_rows([i]).brief(before.targets(y))[score] for i in range(4)]
    assert after.brief(after.targets(y))[score] <= min(alone) + 1e-9
    chosen.save(tmp_path / "e.choral")
    assert torch.equal(choral.load(tmp_path / "e.choral")._predictive(x).mean, after.mean)


def test_bagged_selection_takes_more_members_and_is_decided_by_the_seed() -> None:
    prediction, targets = _each_task(11)["numbers"]
    scores = prediction.log_scores(targets)
    bagged = bagged_selection(scores, seed=3)
    assert bagged == bagged_selection(scores, seed=3)
    assert bagged != bagged_selection(scores, seed=4)
    assert sum(w > 0 for w in bagged.weights) >= sum(n > 0 for n in greedy_selection(scores))
    assert sum(bagged.weights) == pytest.approx(1.0)
    lost = torch.cat([scores, torch.full_like(scores[:1], torch.nan)])
    assert bagged_selection(lost).weights[-1] == 0
    with pytest.raises(InputError, match="nothing to choose from"):
        bagged_selection(lost[-1:])
