"""Passes mapped together are the passes one after the other."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.base import draws
from choral.base.errors import InputError
from choral.engine import evaluate
from choral.engine.evaluate import Evaluation, PlainEvaluator
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.layers.keyed import keyed
from choral.recipes import make

DRAWING = ["mc_dropout", "drop_connect", "emp", "ecmp", "bnn", "ssbnn", "rank1_bnn", "bnn_sequential", "sebays_freeze"]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def pictures() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def trained(name: str, x: Tensor, build=perceptron) -> Ensemble:
    options = {"members": 2} if name in ("bnn_sequential", "sebays_freeze") else {}
    return fit(build, (x, torch.arange(len(x)) % 3), make(name, budget=4, draws=7, **options))


def evaluation(ensemble: Ensemble, *, images: bool = False) -> Evaluation:
    return copy.copy(ensemble)._evaluation_for(torch.zeros([1] * (4 if images else 2)), "cpu", "fp32")


def settled(ensemble: Ensemble, x: Tensor, each: int | None = None) -> list[PlainEvaluator]:
    """Return the evaluators, set to map some passes at a time."""
    found = [e for e in evaluation(ensemble, images=x.dim() == 4).evaluators(x) if isinstance(e, PlainEvaluator)]
    for evaluator in found:
        evaluator.each = each or evaluator.each
    return found


def joined(evaluators: list[PlainEvaluator], x: Tensor) -> Tensor:
    return torch.cat([e.outputs(x, 1024).flatten(0, 1) for e in evaluators])


@pytest.mark.parametrize("name", DRAWING)
def test_mapped_passes_draw_what_single_passes_draw(name: str) -> None:
    x = torch.randn(12, 4)
    ensemble = trained(name, x)
    found = joined(settled(ensemble, x), x)
    for each in (1, 3, 7):
        torch.testing.assert_close(joined(settled(ensemble, x, each), x), found, rtol=1e-4, atol=1e-5)
    assert len(found) % 7 == 0
    assert len(found.flatten(1).unique(dim=0)) > 2  # two passes may draw the same components


def test_what_comes_before_the_first_draw_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(12, 3, 8, 8)
    ensemble = trained("emp", x, pictures)
    alone = joined(settled(ensemble, x, 1), x)
    behind = settled(ensemble, x)
    rows: list[int] = []
    real = nn.Conv2d._conv_forward

    def counted(layer: nn.Conv2d, x: Tensor, *weights: Tensor) -> Tensor:
        rows.append(len(x))
        return real(layer, x, *weights)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", counted)
    torch.testing.assert_close(joined(behind, x), alone)
    assert rows == [12]


@pytest.mark.parametrize("name", ["mc_dropout", "bnn", "ecmp"])
def test_convolutions_that_depend_on_a_draw_run_pass_by_pass(name: str) -> None:
    x = torch.randn(12, 3, 8, 8)

    def build() -> nn.Module:
        front = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(4, 4, 3)]
        return nn.Sequential(*front, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

    ensemble = trained(name, x, build)
    assert torch.isfinite(ensemble.outputs(x)).all()
    assert [e.each for e in settled(ensemble, x)] == [1]


def test_large_draws_are_mapped_a_few_at_a_time() -> None:
    network = nn.Linear(3, 3)

    def run(numbers: int) -> Tensor:
        return network(torch.ones(1, 3)) + draws.uniform((numbers,), like=torch.ones(())).mean()

    for numbers, each in ((10, 50), (1 << 17, 8), (1 << 21, 1)):
        assert evaluate.room(network, 0, partial(run, numbers), 50) == each


def test_steps_may_be_mapped_with_keys_of_either_kind() -> None:
    like = torch.zeros(())
    steps = torch.arange(4, dtype=torch.int32)
    for key in (2**45 + 17, draws.words(2**45 + 17)):

        def some(step: int | Tensor, key: int | Tensor = key) -> Tensor:
            with keyed(key, step):
                first = draws.uniform((5,), like=like)
                with draws.Branch().member(2):
                    inside = draws.normal((5,), like=like)
                return torch.stack((first, inside, F.dropout(torch.ones(5), 0.5)))

        single = torch.stack([some(int(step)) for step in steps])
        assert torch.equal(torch.func.vmap(some)(steps), single)
        assert len(single.flatten(1).unique(dim=0)) == 4


def test_a_wrong_input_does_not_decide_how_the_next_one_is_run() -> None:
    x = torch.randn(12, 4)
    ensemble = trained("emp", x)
    with pytest.raises(InputError):
        ensemble.outputs(torch.randn(3, 5))
    assert torch.isfinite(ensemble.outputs(x)).all()
    assert settled(ensemble, x)[0].each > 1
