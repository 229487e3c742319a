import inspect
import json
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
import pytest

import choral
from choral import recipes
from choral.base.errors import InputError
from choral.base.values import Count, Limit, Share, Value, from_dict, typed
from choral.objectives import Anchored
from choral.plan import Cosine, Linear, OneCycle, Reset, Train, UpdateMoments, every, fork, repeat, seq
from choral.recipes import Training


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
    with pytest.raises(InputError, match="color"):
        from_dict({"kind": "Reset", "color": 1})


@dataclass(frozen=True)
class Named(Value):
    what: object


def test_functions_cannot_be_written_into_a_plan():
    with pytest.raises(InputError, match="name layers by patterns"):
        Named(len).to_dict()


def test_numbers_of_numpy_become_those_of_python():
    found = recipes.packed(
        members=np.int64(2),
        budget=np.int32(3),
        width=np.float32(2),
        training=Training(optimizer="sgd", batch_size=128, lr=np.float64(0.5)),
    )
    same = recipes.packed(members=2, budget=3, width=2.0, training=Training(optimizer="sgd", batch_size=128, lr=0.5))
    assert found == same
    assert repr(found) == repr(same)
    assert json.dumps(found.to_dict()) == json.dumps(same.to_dict())
    nested = Named((np.int8(1), [np.bool_(True)], {"a": np.float16(0.5)})).to_dict()
    assert json.dumps(nested) == '{"kind": "Named", "what": [1, [true], {"a": 0.5}]}'


def test_a_second_class_of_a_taken_name_is_refused():
    with pytest.raises(InputError, match=r"'SGD' is defined in choral.plan.optimizers already.*another name"):
        dataclass(frozen=True)(type("SGD", (Value,), {}))


def test_a_class_defined_again_where_it_stood_takes_its_own_place():
    """As a notebook does when a cell is run again."""
    for _ in range(2):

        @dataclass(frozen=True)
        class DefinedTwice(Value):
            number: int = 1

    assert from_dict({"kind": "DefinedTwice", "number": 2}) == DefinedTwice(2)


def test_what_a_penalty_reads_is_a_fact_of_its_class():
    with pytest.raises(InputError, match="no argument 'slots'; it takes prior_std, scaled"):
        Anchored(slots=())  # type: ignore[call-arg]  # the mistake that is tried
    assert Anchored(prior_std=0.5).slots == ("anchor",)


@pytest.mark.parametrize("kind", [Training, choral.EarlyStopping, choral.Compute])
def test_help_and_tab_completion_see_the_arguments_of_a_value(kind):
    names = [f.name for f in fields(kind) if f.init]
    assert list(inspect.signature(kind).parameters) == names


@dataclass(frozen=True)
class Limited(Value):
    share: Share = 0.5
    sizes: tuple[Count, ...] = ()
    rate: Annotated[float, Limit(lambda rate: rate > 1, "a rate above 1")] | None = None


@dataclass(frozen=True)
class Narrower(Limited):
    share: Annotated[float, Limit(lambda share: share < 0.5, "less than a half")] = 0.1


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Limited(share=1.5), "Limited: share is 1.5; give a share from 0 to 1"),
        (lambda: Limited(sizes=(3, 0)), r"sizes is \(3, 0\); give a tuple, each a whole number of 1 or more"),
        (lambda: from_dict({"kind": "Limited", "sizes": [2.5]}), "whole number of 1 or more"),
        (lambda: Limited(rate=1.0), "rate is 1.0; give a rate above 1, or None"),
        (lambda: Narrower(share=0.6), "less than a half"),
        (lambda: from_dict({"kind": "Limited", "share": -0.1}), "share is -0.1"),
    ],
)
def test_limits_stand_in_annotations(made, message):
    assert Limited(share=1, sizes=(1, 2), rate=None).rate is None
    with pytest.raises(InputError, match=message):
        made()


def test_arguments_of_functions_have_limits_too_and_none_where_it_is_the_default():
    @typed
    def counted(number: Count, members: int | None = None) -> int:
        return number

    assert counted(2) == counted(2, members=None) == 2
    for arguments in ({"number": 0}, {"number": 1, "members": 0}, {"number": None}):
        with pytest.raises(InputError, match=r"counted: .* 1 or more"):
            counted(**arguments)
