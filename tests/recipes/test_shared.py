"""Methods whose members share a network, started from trained weights."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from choral import Compute
from choral.base.errors import InputError, PlanError
from choral.fit import fit
from choral.plan import Collect, seq
from choral.recipes import make
from choral.testing.problems import CALM, PROBLEMS


def trained():
    """A network away from any start, norms and their statistics included."""
    network = nn.Sequential(
        nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for t in (*network.parameters(), *network.buffers()):
            if t.is_floating_point():
                t.copy_(torch.rand(t.shape, generator=generator) - 0.3)
        network[1].running_var.add_(1.0)
    return network.eval()


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, 5, generator=generator), torch.randint(0, 3, (24,), generator=generator)


def started(name, network, **options):
    """The ensemble a method makes of a trained network, before any training."""
    return fit(network, data(), make(name, budget=0, pretrained=True, **options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("batch_ensemble", {"spread": 0.0, "members": 3}),
        ("masksembles", {"scale": 1.0, "members": 3}),
        ("treenet", {"members": 1}),
        ("emp", {"components": 1, "draws": 2}),
        ("ecmp", {"components": 1, "draws": 2}),
        ("mc_dropout", {"rate": 0.0, "draws": 2}),
        ("drop_connect", {"rate": 0.0, "draws": 2}),
    ],
)
def test_without_diversity_every_member_is_the_given_network(name, options):
    network = trained()
    x = data()[0]
    outputs = started(name, network, **options).outputs(x)
    torch.testing.assert_close(outputs, network(x).detach().expand_as(outputs), atol=1e-6, rtol=1e-5)


def test_rank_one_members_scale_the_given_weights():
    network = trained()
    ensemble = started("batch_ensemble", network, members=3)
    params = next(ensemble.states()).params
    for i in range(3):
        weight = ensemble.member(i).get_parameter("3.weight")
        wanted = torch.outer(params["network.3.r"][i], params["network.3.s"][i]) * network[3].weight
        torch.testing.assert_close(weight, wanted)


def test_masked_members_use_the_given_weights_on_their_channels():
    network = trained()
    ensemble = started("masksembles", network, members=3)
    masks = next(ensemble.states()).buffers["network.3.mask"]
    assert masks.bool().logical_not().any(1).all()
    for i in range(3):
        member = ensemble.member(i)
        torch.testing.assert_close(member.get_parameter("3.weight"), network[3].weight * masks[i].unsqueeze(1))


def test_branches_share_the_given_trunk_and_the_first_keeps_its_branch():
    network = trained()
    x = data()[0]
    ensemble = started("treenet", network, members=3)
    torch.testing.assert_close(ensemble.outputs(x)[0], network(x))
    features = network[:5](x)
    for i in range(3):
        head = ensemble.member(i).get_submodule("5")
        torch.testing.assert_close(ensemble.outputs(x)[i], head(features), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["emp", "ecmp"])
def test_components_start_near_the_given_weights(name):
    network = trained()
    params = next(started(name, network, draws=2).states()).params
    for layer in ("1", "5"):
        given = network.get_submodule(layer).get_parameter("weight")
        patches = params[f"{layer}.patches.weight"]
        assert torch.equal(patches[0], given)
        distance = (patches[1:] - given).square().mean().sqrt() / given.square().mean().sqrt()
        assert distance.item() == pytest.approx(0.1, rel=0.35)
    assert torch.equal(params["0.weight"], network[0].weight)


def test_a_factory_has_no_weights_to_start_from():
    with pytest.raises(PlanError, match="hand over the trained"):
        fit(trained, data(), make("batch_ensemble", budget=0, pretrained=True))


def test_training_goes_on_from_the_given_weights():
    network = trained()
    recipe = make("masksembles", budget=1, members=2, scale=1.0, pretrained=True)
    ensemble = fit(network, data(), recipe)
    with pytest.warns(UserWarning, match="'masksembles' draws its weights anew"):
        fresh = fit(network, data(), make("masksembles", budget=1, members=2, scale=1.0))
    given = network[3].weight
    near, far = ((e.member(0).get_parameter("3.weight") - given).norm() / given.norm() for e in (ensemble, fresh))
    assert near < 0.3 < 0.6 < far


def test_rank_one_members_that_would_stay_the_same_are_refused():
    with pytest.raises(InputError, match=r"spread is 0.*members never differ"):
        make("batch_ensemble", budget=5, spread=0.0)
    assert make("batch_ensemble", budget=5, spread=0.0, members=1).members == 1
    assert make("batch_ensemble", budget=5, spread=0.0, start="signs").members == 4


def test_packed_members_of_small_perceptrons_have_its_full_width():
    generator = torch.Generator().manual_seed(0)

    def widths(network, **options):
        return {w.name: w.member for w in make("packed", **options).structure.convert(network, generator).widths}

    small = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    assert widths(small) == {"0": (8, 64), "2": (64, 3)}
    assert widths(small, width=2.0) == {"0": (8, 32), "2": (32, 3)}
    large = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 3))
    assert widths(large)["0"] == (8, 256)
    images = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(72, 3))
    assert widths(images)["0"] == (3, 4)


@pytest.mark.parametrize("kernel", ["auto", "loop"])
def test_packed_members_of_equal_starts_stay_equal(kernel):
    """No biases before BatchNorm: their gradient is rounding, which Adam makes steps of."""

    def rows():
        return nn.Sequential(nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))

    def images():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
        )

    for build, problem in ((rows, "classification"), (images, "images")):
        x, y = PROBLEMS[problem].data()

        def seen(build=build, x=x):
            network = build()
            network(x[:2].float())  # sizes of lazy layers
            return network

        for equal in (True, False):
            recipe = make("packed", budget=3, members=3, width=2.0, equal_starts=equal, kernel=kernel, training=CALM)
            prediction = fit(seen, (x, y), recipe)._predictive(x)
            apart = float((prediction.member_probs - prediction.member_probs[:1]).abs().max())
            assert (apart < 1e-6) if equal else (apart > 1e-2)
            information = float(prediction.mutual_information.max())
            assert (information < 1e-5) if equal else (information > 1e-4)


def test_packed_members_may_read_batches_of_their_own():
    """With equal starts and no dropout batches alone make them differ; both executors read the same ones."""

    def build():
        return nn.Sequential(nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))

    x, y = PROBLEMS["classification"].data()
    found = {}
    for executor in ("sequential", "vectorized"):
        recipe = make("packed", budget=3, members=3, own_batches=True, equal_starts=True, training=CALM)
        ensemble = fit(build, (x, y), recipe, compute=Compute(executor=executor))
        found[executor] = ensemble._predictive(x).member_probs
        assert (found[executor] - found[executor][:1]).abs().max() > 1e-3
    torch.testing.assert_close(found["sequential"], found["vectorized"], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["emp", "ecmp"])
def test_biases_of_patched_networks_have_a_precision_of_their_own(name):
    (penalty,) = make(name, precision=2.0, bias_precision=3.0).objective.penalties
    params = {"a.weight": torch.ones(4), "a.bias": torch.ones(2), "n.patches.bias": torch.ones(5, 1)}
    assert float(penalty(params, {}, 0.0)) == pytest.approx(0.5 * (2.0 * 4 + 3.0 * 2 + 3.0))
    with pytest.raises(InputError, match="give both"):
        make(name, bias_precision=3.0)


def snapshots(recipe, *phases):
    """The states after some phases of a recipe, of a network without dropout."""
    plan = seq(*(one for phase in phases for one in (phase, Collect())))
    compute = Compute(executor="sequential")
    return list(fit(trained, data(), replace(recipe, plan=plan), progress=False, compute=compute, seed=0).states())


@pytest.mark.filterwarnings("ignore")
def test_alternations_of_emp_move_shared_weights_and_components_in_turn():
    recipe = make("emp", budget=8, alternations=2, learned=True, training=CALM)
    reset, *turns = recipe.plan.phases[:5]
    assert sum(turn.epochs for turn in turns) == 8
    states = snapshots(recipe, reset, *turns)
    for number, (before, after) in enumerate(itertools.pairwise(states)):
        for name, value in after.params.items():
            component = "patches." in name or name.endswith("mixing")
            assert torch.equal(value, before.params[name]) == (component == (number % 2 == 0)), name


@pytest.mark.filterwarnings("ignore")
def test_members_of_late_phase_are_one_network_until_they_get_factors_of_their_own():
    recipe = make("late_phase", budget=6, members=3, start=0.5, spread=0.2, training=CALM)
    reset, early, spread, late = recipe.plan.phases[:4]
    assert (early.epochs, late.epochs) == (3, 3)
    _, trained, drawn, done = snapshots(recipe, reset, early, spread, late)
    own = [
        name for name, value in trained.params.items() if name.endswith((".r", ".s", ".bias")) and value.shape[0] == 3
    ]
    assert any(name.endswith(".bias") for name in own)
    factors = [name for name in own if not name.endswith(".bias")]
    for name in own:
        assert torch.allclose(trained.params[name], trained.params[name][:1].expand_as(trained.params[name]), atol=1e-6)
    assert all((trained.params[name] == 1).all() for name in factors)
    moved = torch.cat([(drawn.params[name] - 1).flatten() for name in factors])
    assert moved.std().item() == pytest.approx(0.2, rel=0.3)
    assert all(torch.equal(v, drawn.params[n]) for n, v in trained.params.items() if n not in factors)
    assert all(not torch.equal(done.params[n], drawn.params[n]) for n in drawn.params)
