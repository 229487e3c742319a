"""Variants: settings of branches, given or drawn."""

import json
import math
from dataclasses import replace

import pytest
import torch

from choral import recipes
from choral.base.errors import InputError, PlanError
from choral.base.values import from_dict
from choral.engine.task import check_runnable
from choral.plan import SGD, AdamW, Collect, LogUniform, OneOf, Reset, Space, Train, Uniform, Variant, fork, problems
from choral.plan.show import lines

SPACE = Space(rate=LogUniform(0.1, 10.0), weight_decay=Uniform(0.0, 0.1), dropout=OneOf((0.0, Uniform(0.2, 0.4))))


def drawn(count, space=SPACE):
    def generator(i):
        return lambda name: torch.Generator().manual_seed(hash((i, name)) % 2**31)

    return [space.draw(generator(i)) for i in range(count)]


def test_draws_are_spread_as_they_say():
    found = drawn(3000)
    rates = torch.tensor([math.log10(v.get("rate")) for v in found])
    assert -1 <= rates.min() < -0.99
    assert 0.99 < rates.max() <= 1
    assert abs(float(rates.mean())) < 0.05
    none = [v.get("dropout") for v in found if v.get("dropout") == 0]
    assert 0.45 < len(none) / len(found) < 0.55
    assert all(v.get("dropout") == 0 or 0.2 <= v.get("dropout") <= 0.4 for v in found)


def test_one_more_setting_changes_no_other():
    more = Space((*SPACE.spans, ("smoothing", Uniform(0.0, 0.2))))
    for a, b in zip(drawn(5), drawn(5, more)):
        assert all(b.get(name) == value for name, value in a.settings)


def test_forks_with_variants_survive_json_and_are_shown():
    for one in (fork(Reset(), Train(epochs=2), Collect(), variants=[{"rate": 1.0}, {"rate": 0.5}]),
                fork(4, Reset(), Train(epochs=2), Collect(), sample=SPACE)):  # fmt: skip
        assert from_dict(json.loads(json.dumps(one.to_dict()))) == one
        assert problems(one) == []
    assert lines(one)[0].startswith("fork into 4: dropout OneOf(options=(0, Uniform(low=0.2, high=0.4))); rate")
    assert "8 epochs" in lines(one)[0]


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ([{"ratee": 1.0}], "variants set 'ratee', which neither SGD nor an operator knows"),
        ([{"betas": 0.9}], "variants set 'betas'"),
    ],
)
def test_settings_that_mean_nothing_are_named_before_training(variants, said):
    found = problems(fork(Reset(), Train(epochs=2), Collect(), variants=variants))
    assert any(said in line for line in found), found


def test_what_was_meant_is_the_end_of_the_sentence():
    recipe = replace(
        recipes.single(budget=2), plan=fork(Reset(), Train(epochs=2), Collect(), variants=[{"ratee": 1.0}])
    )
    with pytest.raises(PlanError, match=r"variants set 'ratee'.*, rate.*\. Did you mean 'rate'\?$"):
        check_runnable(recipe)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dropout": 1.0}, "dropout is 1.0; give a number from 0 to below 1"),
        ({"rate": math.nan}, "nan.*give a tuple, each.*a number"),
    ],
)
def test_values_out_of_range_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        Variant.of(settings)


def test_spans_are_checked():
    with pytest.raises(InputError, match=r"low is 0.0; give a finite number above 0"):
        LogUniform(0.0, 1.0)
    with pytest.raises(InputError, match=r"spans is \(\('rate', 0\.1\),\); give .* a Span"):
        Space(rate=0.1)
    with pytest.raises(InputError, match="nothing to choose"):
        OneOf(())


def test_a_variant_changes_the_numbers_of_an_optimizer_alone():
    variant = Variant.of({"rate": 0.5, "weight_decay": 0.3, "momentum": 0.5})
    assert variant.optimizer(SGD(weight_decay=0.1, clip=2.0)) == SGD(weight_decay=0.3, momentum=0.5, clip=2.0)
    assert variant.optimizer(AdamW()) == AdamW(weight_decay=0.3)
