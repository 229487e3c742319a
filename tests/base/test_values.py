import json

import pytest

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.plan import Cosine, Linear, OneCycle, Reset, Train, UpdateMoments, every, fork, repeat, seq


def test_a_nested_plan_survives_json_and_compares_by_value():
    plan = seq(
        Reset(),
        fork(
            3,
            repeat(
                2, Train(epochs=4, schedule=Linear(((0.0, 0.1), (1.0, 0.0))), every=(every(5, UpdateMoments(rank=2)),))
            ),
        ),
        Train(epochs=1, schedule=OneCycle(0.1), memory="carried"),
    )
    again = from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert hash(again) == hash(plan)
    assert again != seq(Reset(), Train(epochs=1, schedule=Cosine(0.1)))


def test_an_unknown_kind_offers_the_nearest_and_runs_nothing():
    with pytest.raises(InputError, match="Did you mean 'Train'"):
        from_dict({"kind": "Trane"})


def test_an_unknown_field_is_named():
    with pytest.raises(InputError, match="colour"):
        from_dict({"kind": "Reset", "colour": 1})


def test_functions_cannot_be_written_into_a_plan():
    with pytest.raises(InputError, match="name layers by patterns"):
        Linear(((0.0, len),)).to_dict()  # type: ignore[arg-type]  # wrong on purpose
