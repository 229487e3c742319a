"""What every registered method must do; a new line in the registry brings all of these checks."""

import inspect
import json
import subprocess
import sys

import pytest
import torch
from tests.conformance.problem import CALM, OPTIMISERS, PROBLEMS

import choral
from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.fit import fit, load
from choral.recipes import METHODS, make

EPOCHS = 12
NAMES = sorted(METHODS)


def several(name, training=CALM, **options):
    """A method's recipe with four members where it has a choice, in a small budget."""
    default = METHODS[name].options["members"].default if "members" in METHODS[name].options else 1
    chooses = default is not inspect.Parameter.empty and default not in (1, None)
    return make(name, epochs=EPOCHS, training=training, members=4 if chooses else None, **options)


def members_of(ensemble):
    return [state.params for state in ensemble.states()]


def equal(a, b):
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x) for x, y in zip(a, b)
    )


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
    assert 0 < make(name, epochs=epochs).epochs <= epochs


@pytest.mark.parametrize("name", NAMES)
def test_it_combines_its_members_as_it_is_told(name, tmp_path):
    build, data = PROBLEMS["classification"]
    x, y = data()
    predictions = {}
    for combine in ("probs", "logits"):
        recipe = several(name, combine=combine)
        assert from_dict(recipe.to_dict()).combine == recipe.describe()["combine"] == combine
        fit(build, (x, y), recipe, executor="sequential").save(tmp_path / combine)
        predictions[combine] = load(tmp_path / combine, build).predict(x[:9])
    averaged, pooled = predictions["probs"], predictions["logits"]
    assert torch.equal(averaged.logits, pooled.logits)
    torch.testing.assert_close(averaged.probs, averaged.logits.softmax(-1).mean(0))
    torch.testing.assert_close(pooled.probs, averaged.logits.mean(0).softmax(-1))
    if len(averaged.logits) > 1:
        assert not torch.allclose(averaged.probs, pooled.probs, atol=1e-7, rtol=0)
    with pytest.raises(InputError, match=rf"{name}: combine is 'votes'; give 'probs' or 'logits'"):
        make(name, combine="votes")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_members_other_seed_other_members_and_cost_as_declared(name, problem, tmp_path):
    build, data = PROBLEMS[problem]
    recipe = several(name)
    first = fit(build, data(), recipe, seed=3, executor="sequential")
    again = fit(build, data(), recipe, seed=3, executor="sequential")
    other = fit(build, data(), recipe, seed=4, executor="sequential")
    assert equal(members_of(first), members_of(again))
    for a, b in zip(members_of(first), members_of(other)):
        assert not any(torch.equal(a[n], b[n]) for n in a if a[n].numel() > 2 and a[n].min() < a[n].max())
    assert first.info["counted"]["epochs"] == recipe.epochs
    assert first.members == recipe.members
    outputs = first.outputs(data()[0])
    assert outputs.shape[0] == recipe.members * recipe.structure.draws
    assert torch.isfinite(outputs).all()


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_both_executors_give_the_same_members(name, problem):
    build, data = PROBLEMS[problem]
    recipe = several(name)
    one = fit(build, data(), recipe, executor="sequential")
    many = fit(build, data(), recipe, executor="vectorised")
    for a, b in zip(one.states(), many.states()):
        for n in a.params:
            assert torch.allclose(a.params[n], b.params[n], atol=2e-4, rtol=2e-3), n
        for n in a.buffers:
            assert torch.allclose(a.buffers[n].float(), b.buffers[n].float(), atol=2e-4, rtol=2e-3), n


class Stop(Exception):
    pass


def interrupted(after):
    seen = 0

    def hear(event):
        nonlocal seen
        seen += 1
        if seen >= after:
            raise Stop

    return hear


def resumed():
    """Every method and executor on rows and on images, where the optimisers take turns; some methods meet all of them."""
    for i, name in enumerate(NAMES):
        for j, executor in enumerate(("sequential", "vectorised")):
            yield pytest.param(name, executor, "classification", "nesterov", id=f"{name}-{executor}-classification")
            for k, optimiser in enumerate(OPTIMISERS):
                if k == (i + j) % len(OPTIMISERS) or name in ("deep_ensemble", "edst", "packed"):
                    yield pytest.param(name, executor, "images", optimiser, id=f"{name}-{executor}-{optimiser}")


@pytest.mark.parametrize(("name", "executor", "problem", "optimiser"), list(resumed()))
def test_a_run_stopped_anywhere_and_resumed_equals_an_unbroken_one_byte_for_byte(
    name, executor, problem, optimiser, tmp_path
):
    build, data = PROBLEMS[problem]
    recipe = several(name, OPTIMISERS[optimiser])
    whole = fit(build, data(), recipe, run_dir=tmp_path / "whole", executor=executor)
    after, tries = 2, 0
    while True:
        tries += 1
        assert tries < 200
        try:
            fit(
                build,
                data(),
                recipe,
                run_dir=tmp_path / "broken",
                executor=executor,
                checkpoint_seconds=0,
                listener=interrupted(after),
            )
            break
        except Stop:
            after = after % 5 + 2  # 2, 4, 6, 3, 5 events further each time
    assert tries > 2
    names = sorted(p.name for p in (tmp_path / "whole" / "members").iterdir())
    assert len(names) == whole.networks
    for file in names:
        assert (tmp_path / "broken" / "members" / file).read_bytes() == (
            tmp_path / "whole" / "members" / file
        ).read_bytes()
    logs = [
        [json.loads(line) for line in (tmp_path / d / "log.jsonl").read_text().splitlines()]
        for d in ("whole", "broken")
    ]
    epochs = [[(e["places"], e["epoch"], e["losses"]) for e in log if e["kind"] == "epoch"] for log in logs]
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize("problem", ["classification", "regression"])
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_ensemble_predicts_the_same(name, problem, tmp_path):
    build, data = PROBLEMS[problem]
    ensemble = fit(build, data(), several(name), run_dir=tmp_path / "run")
    ensemble.save(tmp_path / "saved.choral")
    x = data()[0][:20]
    expected = ensemble.outputs(x)
    for path in (tmp_path / "saved.choral", tmp_path / "run"):
        assert torch.equal(choral.load(path, build=build).outputs(x), expected)


def test_saved_ensembles_predict_the_same_in_another_process(tmp_path):
    build, data = PROBLEMS["regression"]
    x = data()[0][:20]
    expected = {}
    for name in NAMES:
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


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_row_i_of_the_ensemble_is_member_i_alone(name, problem):
    build, data = PROBLEMS[problem]
    ensemble = fit(build, data(), several(name))
    if ensemble.recipe.structure.draws > 1:
        pytest.skip("a stochastic member is a distribution, not one network")
    x = data()[0][:10]
    outputs = ensemble.outputs(x)
    for i in range(ensemble.members):
        with torch.no_grad():
            assert torch.allclose(ensemble.member(i)(x), outputs[i], atol=1e-5)


@pytest.mark.filterwarnings("ignore:members is 1. the last has no complementary partner")
@pytest.mark.parametrize("problem", ["classification", "regression"])
@pytest.mark.parametrize("name", [n for n in NAMES if "members" in METHODS[n].options])
def test_one_member_is_one_network(name, problem, tmp_path):
    build, data = PROBLEMS[problem]
    recipe = make(name, epochs=EPOCHS, training=CALM, members=1)
    one, stacked = (fit(build, data(), recipe, executor=e) for e in ("sequential", "vectorised"))
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


@pytest.mark.parametrize("name", NAMES)
def test_the_network_the_user_gave_is_never_changed(name):
    build, data = PROBLEMS["classification"]
    torch.manual_seed(0)
    given = build()
    before = {n: t.clone() for n, t in given.state_dict().items()}
    fit(given, data(), several(name))
    assert all(torch.equal(before[n], t) for n, t in given.state_dict().items())
