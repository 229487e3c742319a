"""What every registered method must do; a new line in the registry brings all of these checks."""

import inspect
import json
import subprocess
import sys

import pytest
import torch

import choral
from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.fit import fit, load
from choral.plan import SGD, Adam, AdamW
from choral.recipes import METHODS, make
from choral.recipes.training import Training
from choral.testing.checks import CHECKS, resumes_exactly
from choral.testing.problems import CALM, PROBLEMS

EPOCHS = 12
LEAST = (4, 6, EPOCHS)
NAMES = sorted(METHODS)
OPTIMIZERS = {
    "momentum": Training(lr=0.02, optimizer=SGD(momentum=0.9, weight_decay=1e-3, clip=1.0), batch_size=16),
    "nesterov": CALM,
    "adam": Training(lr=0.01, optimizer=Adam(), batch_size=16),
    "adamw": Training(lr=0.01, optimizer=AdamW(), batch_size=16),
}


def several(name, training=CALM, *, members=2, **options):
    """A method's recipe with a few members where it has a choice, in the least budget that it takes."""
    default = METHODS[name].options["members"].default if "members" in METHODS[name].options else 1
    chooses = default is not inspect.Parameter.empty and default not in (1, None)
    for budget in LEAST:
        try:
            return make(name, budget=budget, training=training, members=members if chooses else None, **options)
        except InputError:
            if budget == EPOCHS:
                raise
    raise AssertionError


@pytest.mark.parametrize("name", NAMES)
def test_its_defaults_make_a_sound_plan_that_survives_json(name):
    recipe = METHODS[name].build()
    assert recipe.problems() == []
    assert recipe.name == name
    assert from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert METHODS[name].summary.endswith(".")
    assert recipe.describe()["members"] == recipe.members >= 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epochs", [200, 60, 24])
def test_it_spends_no_more_than_its_budget(name, epochs):
    assert 0 < make(name, budget=epochs).epochs <= epochs


@pytest.mark.parametrize("name", NAMES)
def test_it_combines_its_members_as_it_is_told(name, tmp_path):
    build, data = PROBLEMS["classification"]
    x, y = data()
    predictions = {}
    for combine in ("probs", "logits"):
        recipe = several(name, combine=combine)
        assert recipe.describe()["combine"] == combine
        assert from_dict(recipe.to_dict()) == recipe
        fit(build, (x, y), recipe, compute=choral.Compute(executor="sequential")).save(tmp_path / combine)
        predictions[combine] = load(tmp_path / combine, build)._predictive(x[:9])
    averaged, pooled = predictions["probs"], predictions["logits"]
    assert torch.equal(averaged.logits, pooled.logits)
    torch.testing.assert_close(averaged.probs, averaged.logits.softmax(-1).mean(0))
    torch.testing.assert_close(pooled.probs, averaged.logits.mean(0).softmax(-1))
    if len(averaged.logits) > 1:
        assert not torch.allclose(averaged.probs, pooled.probs, atol=1e-7, rtol=0)
    with pytest.raises(InputError, match=rf"{name}: combine is 'votes'; give 'probs' or 'logits' or 'vote'"):
        make(name, combine="votes")


ALL, ROWS = tuple(PROBLEMS), ("classification", "regression")
COVERED = {
    "seed_decides": ALL,
    "executors_agree": ALL,
    "saves_exactly": ROWS,
    "members_stand_alone": ALL,
    "rows_stand_alone": ("classification", "images"),
    "leaves_the_network_alone": ("classification",),
}
"""Which checks of the public suite run on which problems here; the rest have tests of their own in this file."""


OF_THOSE = {"saves_exactly": 2, "leaves_the_network_alone": 3}
SHARING = ("seed_decides", "executors_agree", "members_stand_alone", "rows_stand_alone")


def covered():
    """Every method with every check; the quick suite runs each pair on one problem.

    Problems take turns, so that every method meets every problem. Checks that share a fit are on the same problem.
    Files are read back for every second method, and the network that was given is looked at for every third.
    """
    for i, name in enumerate(NAMES):
        for j, (check, problems) in enumerate(COVERED.items()):
            turn = i if check in SHARING else i + 1 + j
            quick = ALL[turn % len(ALL)] if ALL[turn % len(ALL)] in problems else problems[turn % len(problems)]
            for problem in problems:
                left = problem != quick or i % OF_THOSE.get(check, 1)
                yield pytest.param(name, check, problem, marks=pytest.mark.full if left else ())


@pytest.mark.parametrize(("name", "check", "problem"), list(covered()))
def test_it_passes_the_public_suite(name, check, problem, shared_fits):
    CHECKS[check](several(name), PROBLEMS[problem])


def test_no_check_of_the_public_suite_is_left_out():
    assert CHECKS.keys() == COVERED.keys() | {"is_sound", "resumes_exactly"}


def resumed():
    """Every method on rows and on images, where the optimizers take turns; some methods meet all of them."""
    for i, name in enumerate(NAMES):
        yield pytest.param(name, "classification", "nesterov", id=f"{name}-classification")
        for k, optimizer in enumerate(OPTIMIZERS):
            if k == i % len(OPTIMIZERS) or name in ("deep_ensemble", "edst", "packed"):
                yield pytest.param(name, "images", optimizer, id=f"{name}-{optimizer}")


@pytest.mark.parametrize(("name", "problem", "optimizer"), list(resumed()))
def test_a_run_stopped_anywhere_and_resumed_equals_an_unbroken_one_byte_for_byte(name, problem, optimizer):
    resumes_exactly(several(name, OPTIMIZERS[optimizer], members=4), PROBLEMS[problem])


def test_saved_ensembles_predict_the_same_in_another_process(tmp_path):
    build, data = PROBLEMS["regression"]
    x = data()[0][:20]
    expected = {}
    for name in NAMES[1::2]:  # the others are saved by the public suite
        ensemble = fit(build, data(), several(name))
        ensemble.save(tmp_path / f"{name}.choral")
        expected[name] = ensemble.outputs(x)
    torch.save(x, tmp_path / "x.pt")
    code = (
        "import sys, torch, choral, pathlib; torch.set_num_threads(1); folder = pathlib.Path(sys.argv[1]);"
        "x = torch.load(folder / 'x.pt');"
        "torch.save({p.stem: choral.load(p).outputs(x) for p in folder.glob('*.choral')}, folder / 'out.pt')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    found = torch.load(tmp_path / "out.pt")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)


@pytest.mark.filterwarnings("ignore:members is 1. the last has no complementary partner")
@pytest.mark.parametrize("problem", ["classification", "regression"])
@pytest.mark.parametrize("name", [n for n in NAMES if "members" in METHODS[n].options])
def test_one_member_is_one_network(name, problem, tmp_path):
    build, data = PROBLEMS[problem]
    recipe = make(name, budget=EPOCHS, training=CALM, members=1)
    one, stacked = (
        fit(build, data(), recipe, compute=choral.Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    assert one.members == recipe.members == 1
    assert one.info["counted"]["epochs"] == recipe.epochs <= EPOCHS
    x = data()[0][:10]
    outputs = one.outputs(x)
    assert outputs.shape == (recipe.structure.draws, *build()(x).shape)
    assert torch.allclose(outputs, stacked.outputs(x), atol=2e-3)
    one.save(tmp_path / "saved.choral")
    assert torch.equal(choral.load(tmp_path / "saved.choral", build=build).outputs(x), outputs)
    if recipe.structure.draws == 1:
        with torch.no_grad():
            assert torch.allclose(one.member(0)(x), outputs[0], atol=1e-5)
