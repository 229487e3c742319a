"""How members are combined is a value; its names are taken too."""

import pytest

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.plan import Collect, Reset, seq
from choral.recipes.recipe import MajorityVote, MeanLogits, MeanProbs, Recipe

PLAN = seq(Reset(), Collect())


def test_names_and_values_give_the_same_recipe_and_files_with_names_are_read():
    for word, value in (("probs", MeanProbs()), ("logits", MeanLogits()), ("vote", MajorityVote())):
        named = Recipe(name="r", plan=PLAN, combine=word)
        assert named == Recipe(name="r", plan=PLAN, combine=value)
        assert from_dict(named.to_dict()) == named == from_dict(named.to_dict() | {"combine": word})
    assert Recipe(name="r", plan=PLAN).combine == MeanProbs()


def test_others_are_refused_with_what_is_accepted():
    with pytest.raises(InputError, match="r: combine is 'median'"):
        Recipe(name="r", plan=PLAN, combine="median")
