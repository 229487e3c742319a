"""Frozen parameters (requires_grad=False) stay what they are, whatever trains, prunes, resets or converts the network."""

import copy

import pytest
import torch
from torch import nn

from choral import Compute
from choral.base.errors import ConversionError, InputError
from choral.fit import fit
from choral.plan import SGD, AdamW, Collect, Constant, Reset, Start, Train, fork, seq
from choral.recipes import METHODS, make, prune_and_tune
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.structures import (
    BatchEnsemble,
    Gaussian,
    Masksembles,
    Mimo,
    Packed,
    Patched,
    RankOneGaussian,
    SpikeSlab,
    TreeNet,
)

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 3, 8, 8, generator=G), torch.randint(3, (48,), generator=G)
FROZEN = ("0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias")
QUICK = Training(lr=0.05, optimizer=SGD(weight_decay=0.05), batch_size=16)


def build():
    """A network whose first convolution, its BatchNorm and an inner layer were trained elsewhere."""
    torch.manual_seed(7)
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.SiLU(),
        nn.Conv2d(6, 8, 3),
        nn.Flatten(),
        nn.Linear(8, 8),
        nn.SiLU(),
        nn.Linear(8, 8),
        nn.Linear(8, 3),
    )
    for i in (0, 1, 5):
        network[i].requires_grad_(False)
    with torch.no_grad():
        network[1].weight.normal_()
    return network


def frozen_in(params):
    """The parameters of a joint network that stand for frozen ones, by their plain name."""
    found = {}
    for name, value in params.items():
        plain = name.removeprefix("network.").replace("norms.0.", "")
        if plain in FROZEN:
            found[plain] = value
    return found


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("optimizer", [SGD(weight_decay=0.1), AdamW(weight_decay=0.5)])
@pytest.mark.parametrize("start", [Start(), Reset()])
def test_what_is_frozen_neither_learns_nor_decays_under_any_executor(start, optimizer, executor):
    network = build()
    train = Train(epochs=4, schedule=Constant(0.05), optimizer=optimizer, batch_size=16)
    recipe = Recipe(name="r", plan=fork(2, start, train, Collect()))
    ensemble = fit(network, (X, Y), recipe, compute=Compute(executor=executor))
    before = dict(network.named_parameters())
    for state in ensemble.states():
        for name, p in state.params.items():
            assert torch.equal(p, before[name]) == (name in FROZEN), name


def test_both_executors_agree_on_networks_with_frozen_layers_also_when_steps_are_recorded():
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    network = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 3))
    network[2].requires_grad_(False)
    train = Train(epochs=120, schedule=Constant(0.05), batch_size=32)
    recipe = Recipe(name="r", plan=fork(2, Reset(), train, Collect()))
    one, many = (fit(network, (x, Y[:32]), recipe, compute=Compute(executor=e)) for e in ("sequential", "vectorized"))
    for a, b in zip(one.states(), many.states()):
        assert torch.equal(b.params["2.weight"], network[2].weight)
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("unit", ["connection", "neuron"])
def test_pruned_children_keep_the_frozen_layers_of_their_parent(unit, executor):
    network = build()
    recipe = prune_and_tune(members=2, parent_epochs=0, budget=4, unit=unit, training=QUICK)
    ensemble = fit(network, (X, Y), recipe, compute=Compute(executor=executor))
    before = dict(network.named_parameters())
    for state in ensemble.states():
        for name in ("0.weight", "0.bias", "5.bias"):
            assert torch.equal(state.params[name], before[name]), name
        columns = before["5.weight"].t().tolist()  # those of removed neurons may be gone, the others are what they were
        assert all(column in columns for column in state.params["5.weight"].t().tolist())
        assert unit == "neuron" or int((state.params["7.weight"] == 0).sum()) > 0


NAMES = sorted(set(METHODS) - {"packed"})


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_leaves_frozen_layers_as_the_user_gave_them(name, executor, tmp_path):
    network = build()
    if name == "mimo":
        network[0].requires_grad_(True)  # it reads the inputs of all members and is drawn anew
    given = copy.deepcopy(network)
    default = METHODS[name].options["members"].default if "members" in METHODS[name].options else 1
    members = None if default in (1, None) else 2
    recipe = make(name, budget=12, members=members, training=QUICK.clipped(1.0))
    ensemble = fit(network, (X, Y), recipe, compute=Compute(executor=executor))
    before = {n: p for n, p in given.named_parameters() if not p.requires_grad}
    for state in ensemble.states():
        found = frozen_in(state.params)
        for plain, p in before.items():
            value = found[plain]
            value = value[0] if value.dim() > p.dim() else value
            assert torch.equal(value, p), plain


CONVERTED = [
    BatchEnsemble(members=3),
    BatchEnsemble(members=3, own_norms=True),
    Masksembles(members=3),
    TreeNet(members=3, start="3"),
    RankOneGaussian(members=3),
    Gaussian(),
    SpikeSlab(),
    Patched(),
]


@pytest.mark.parametrize("structure", CONVERTED, ids=lambda s: type(s).__name__)
def test_conversions_keep_frozen_layers_frozen_and_the_rest_free(structure):
    network = build()
    joint = structure.convert(network, torch.Generator().manual_seed(0))
    for name, p in joint.named_parameters():
        assert p.requires_grad != (name.removeprefix("network.").split(".")[0] in ("0", "1", "5")), name


def test_structures_that_must_draw_layers_anew_refuse_frozen_ones_by_name():
    generator = torch.Generator()
    with pytest.raises(ConversionError, match=r"0\.weight, .*frozen"):
        Packed(members=2).convert(build(), generator)
    with pytest.raises(ConversionError, match=r"layer '0' is frozen .* MIMO"):
        Mimo(members=2).convert(build(), generator)


def test_a_network_without_anything_to_train_is_refused():
    with pytest.raises(InputError, match="no parameter of the network is to be trained"):
        fit(build().requires_grad_(False), (X, Y), make("single", budget=2))


class Stop(Exception):
    pass


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_resumed_run_keeps_frozen_layers_too(executor, tmp_path):
    train = Train(epochs=6, schedule=Constant(0.05), optimizer=SGD(weight_decay=0.1), batch_size=16)
    recipe = Recipe(name="r", plan=seq(fork(2, Start(), train, Collect())))
    whole = fit(build(), (X, Y), recipe, compute=Compute(executor=executor))

    def stop(event):
        if event["kind"] == "epoch" and event["epoch"] == 3:
            raise Stop

    options = {"run_dir": tmp_path / "run", "compute": Compute(executor=executor, checkpoint_seconds=0)}
    with pytest.raises(Stop):
        fit(build(), (X, Y), recipe, callbacks=stop, **options)
    again = fit(build(), (X, Y), recipe, **options)
    for a, b in zip(whole.states(), again.states()):
        assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)
