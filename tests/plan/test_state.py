"""Slots: what the engine does with one is declared by the value that brings it."""

from dataclasses import dataclass

import pytest
import torch

from choral import Compute
from choral.base.errors import InputError
from choral.fit import fit
from choral.plan import Collect, Operator, Prune, Reset, Role, State, fork, slot
from choral.recipes.recipe import Recipe
from choral.testing.problems import CALM, PROBLEMS

BUILD, DATA = PROBLEMS["regression"]
OWN = slot("left_half", Role.MASK)


@dataclass(frozen=True, kw_only=True)
class HideLeftHalf(Operator):
    """Holds the left half of every matrix at zero, in a slot of its own name."""

    @property
    def gives(self):
        """A mask by another name."""
        return (OWN,)

    def apply(self, state, context):
        """Return the state with the mask; training must make it true."""
        mask = {n: torch.ones_like(p, dtype=torch.bool) for n, p in state.params.items() if p.dim() == 2}
        for kept in mask.values():
            kept[:, : kept.shape[1] // 2] = False
        return state.with_slots(**{OWN: mask})


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_slot_of_any_name_with_the_role_of_a_mask_holds_weights_at_zero(executor):
    plan = fork(2, Reset(), HideLeftHalf(), CALM.phase(2), Collect())
    for state in fit(BUILD, DATA(), Recipe(name="own", plan=plan), compute=Compute(executor=executor)).states():
        halves = [p[:, : p.shape[1] // 2] for p in state.params.values() if p.dim() == 2]
        assert halves
        assert all(not half.any() for half in halves)
        assert state.stored == sum(p.numel() for p in state.params.values()) - sum(half.numel() for half in halves)


def test_a_slot_has_one_role():
    assert slot("mask", Role.MASK) == "mask"
    with pytest.raises(InputError, match=r"'mask' has the role MASK.*SUBSET"):
        slot("mask", Role.SUBSET)


def test_a_state_without_slots_plays_no_role():
    state = State({"w": torch.ones(3)}, {})
    assert (state.mask, state.subset, state.shift, state.stored) == ({}, None, None, 3)


def test_masks_are_values():
    with pytest.raises(InputError, match="Prune: masks is 'random'"):
        Prune(masks="random")
    with pytest.raises(InputError, match="Prune: unit is 'nodes'"):
        Prune(unit="nodes")
