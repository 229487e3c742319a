"""The public suite passes what is sound and names what is not."""

from dataclasses import dataclass, replace

import pytest
import torch

from choral.objectives import Objective
from choral.plan import SGD, Collect, Operator, Reset, Train, fork, seq
from choral.plan.schedule import Constant
from choral.recipes.recipe import Recipe
from choral.testing import CHECKS, check_recipe
from choral.testing.checks import Nonconforming
from choral.testing.problems import PROBLEMS

TRAIN = Train(epochs=2, batch_size=16, schedule=Constant(0.02), optimiser=SGD(momentum=0.9))


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


def test_a_sound_recipe_passes_everything():
    check_recipe(shaken_by(KeyedShake()))


def test_an_operator_that_draws_from_the_global_generator_is_named():
    with pytest.raises(Nonconforming, match=r"GlobalShake drew from torch's global generator \(by randn_like\)"):
        check_recipe(shaken_by(GlobalShake()), problems=("classification",))


@pytest.mark.parametrize("check", ["seed_decides", "resumes_exactly"])
def test_an_operator_that_remembers_is_found(check):
    with pytest.raises(Nonconforming, match="other members"):
        CHECKS[check](shaken_by(RememberingShake()), PROBLEMS["classification"])


def test_a_plan_that_cannot_run_fails_with_its_reason():
    recipe = Recipe(name="empty", plan=seq(TRAIN, Collect()))
    with pytest.raises(Nonconforming, match=r"is_sound on regression: Nonconforming: .*no weights yet"):
        check_recipe(recipe, problems=("regression",))


def test_an_objective_is_part_of_what_is_checked():
    recipe = replace(shaken_by(KeyedShake()), objective=Objective())
    CHECKS["is_sound"](recipe, PROBLEMS["images"])
