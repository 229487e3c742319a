"""The public suite passes what is sound and names what is not."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from choral.objectives import Objective
from choral.plan import SGD, Adam, Collect, Operator, Reset, Train, fork, seq
from choral.plan.schedules import Constant
from choral.recipes.recipe import Recipe
from choral.testing import CHECKS, check_recipe
from choral.testing.checks import Nonconforming
from choral.testing.problems import PROBLEMS

TRAIN = Train(epochs=2, batch_size=16, schedule=Constant(0.02), optimizer=SGD(momentum=0.9))


def shaken_by(operator: Operator) -> Recipe:
    return Recipe(name="shaken", plan=fork(2, Reset(), TRAIN, operator, TRAIN, Collect()))


def moved(state, drawn):
    return state.having(params={n: p + 0.01 * drawn(p) for n, p in state.params.items()})


@dataclass(frozen=True, kw_only=True)
class KeyedShake(Operator):
    def apply(self, state, context):
        generator = context.generator("shake")
        return moved(state, lambda p: torch.randn(p.shape, generator=generator))


@dataclass(frozen=True, kw_only=True)
class GlobalShake(Operator):
    def apply(self, state, context):
        return moved(state, torch.randn_like)


COUNT = [0.0]


@dataclass(frozen=True, kw_only=True)
class RememberingShake(Operator):
    """Depends on how often it was applied in this process: nothing random, and yet not exact."""

    def apply(self, state, context):
        COUNT[0] += 1
        return moved(state, lambda p: torch.full_like(p, COUNT[0]))


@pytest.mark.full
def test_a_sound_recipe_passes_everything():
    check_recipe(shaken_by(KeyedShake()))


def test_an_operator_that_draws_from_the_global_generator_is_named():
    with pytest.raises(Nonconforming, match=r"GlobalShake drew from torch's global generator \(by randn_like\)"):
        check_recipe(shaken_by(GlobalShake()), problems=("classification",))


@pytest.mark.parametrize("check", ["seed_decides", "resumes_exactly"])
def test_an_operator_that_remembers_is_found(check):
    with pytest.raises(Nonconforming, match="different members"):
        CHECKS[check](shaken_by(RememberingShake()), PROBLEMS["classification"])


def test_a_plan_that_cannot_run_fails_with_its_reason():
    recipe = Recipe(name="empty", plan=seq(TRAIN, Collect()))
    with pytest.raises(Nonconforming, match=r"is_sound on regression: Nonconforming: .*no weights yet"):
        check_recipe(recipe, problems=("regression",))


def test_an_objective_is_part_of_what_is_checked():
    recipe = replace(shaken_by(KeyedShake()), objective=Objective())
    CHECKS["is_sound"](recipe, PROBLEMS["images"])


def test_rounding_that_adam_blows_up_is_no_difference_between_executors():
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    trial = replace(PROBLEMS["classification"], build=build)
    train = Train(epochs=12, batch_size=16, schedule=Constant(0.03), optimizer=Adam())
    executors_agree = CHECKS["executors_agree"]
    executors_agree(Recipe(name="biased", plan=fork(2, Reset(), train, Collect())), trial)


def test_a_difference_that_double_precision_keeps_is_one(monkeypatch):
    from choral.engine.trainers import StackedTrainer

    right = StackedTrainer.states
    monkeypatch.setattr(
        StackedTrainer,
        "states",
        lambda self: [s.having(params={n: p * 1.01 for n, p in s.params.items()}) for s in right(self)],
    )
    with pytest.raises(Nonconforming, match="differs between executors"):
        CHECKS["executors_agree"](shaken_by(KeyedShake()), PROBLEMS["classification"])
