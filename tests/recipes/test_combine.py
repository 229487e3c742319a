"""How members are combined is a word that a recipe is written and read with."""

import pytest

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.plan import Collect, Reset, seq
from choral.recipes.recipe import Recipe

PLAN = seq(Reset(), Collect())


@pytest.mark.parametrize("word", ["probs", "logits", "vote"])
def test_recipes_keep_the_word_when_they_are_written_and_read(word):
    named = Recipe(name="r", plan=PLAN, combine=word)
    assert from_dict(named.to_dict()) == named
    assert named.combine == word


def test_others_are_refused_with_what_is_accepted():
    with pytest.raises(InputError, match=r"combine is 'median'.*'probs'.*'logits'"):
        Recipe(name="r", plan=PLAN, combine="median")
