"""A network that diverged is named and never becomes a member, nor the parent of one; everything else is kept."""

import pytest
import torch
from torch import nn

from choral import Compute
from choral.base.errors import DivergedError
from choral.engine.blueprint import Blueprint
from choral.engine.events import unfinite
from choral.fit import fit
from choral.plan import SGD, Collect, Constant, Reset, Train, UpdateMoments, UseMean, every, fork, seq
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.structures import Independent

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 3, 6, 6, generator=G), torch.randint(2, (32,), generator=G)


def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


class Uneven(nn.Module):
    """Half of the networks built are so steep that their first update ends in infinity, behind a finite loss."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(108, 2)
        self.register_buffer("steep", torch.tensor(1e30 if torch.rand(()) < 0.5 else 1.0))

    def forward(self, x):
        y = self.line(x.flatten(1))
        return y + 1e8 * self.steep * (y - y.detach())


def last_step(epochs=1):
    """Training of one step an epoch: its only loss is computed before its update."""
    return Train(epochs=epochs, schedule=Constant(1e6), optimizer=SGD(momentum=0.0), batch_size=32)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_weights_that_became_infinite_in_the_last_update_are_not_collected(executor, tmp_path):
    recipe = Recipe(name="r", plan=fork(6, Reset(), last_step(), Collect()))
    with pytest.raises(
        DivergedError, match=r"the weights diverged: line\.\w+ holds \w+ at f\d/2.*of 6 members were kept"
    ) as caught:
        fit(Uneven, (X, Y), recipe, run_dir=tmp_path / "run", compute=Compute(executor=executor))
    kept = len(list((tmp_path / "run" / "members").glob("*.safetensors")))
    assert 0 < kept < 6
    assert str(caught.value).count("the weights diverged") == 6 - kept


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_no_operator_makes_something_of_a_network_that_diverged(executor):
    moments = Train(
        epochs=1,
        schedule=Constant(1e6),
        optimizer=SGD(momentum=0.0),
        batch_size=32,
        every=(every(1, UpdateMoments(), unit="epochs"),),
    )
    recipe = Recipe(name="r", plan=fork(6, Reset(), moments, UseMean(), Collect()))
    with pytest.raises(DivergedError, match=r"the weights diverged: line\.\w+ holds \w+ at f\d/1/every0/1"):
        fit(Uneven, (X, Y), recipe, compute=Compute(executor=executor))


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("epochs", [1, 3])  # seen by its weights, and by its loss
def test_the_children_of_a_parent_that_diverged_are_lost_with_it(epochs, executor, tmp_path):
    wild = Train(epochs=epochs, schedule=Constant(1e38), optimizer=SGD(), batch_size=32)
    tame = Train(epochs=1, schedule=Constant(0.1), batch_size=32)
    recipe = Recipe(name="r", plan=seq(Reset(), wild, fork(3, tame, Collect())))
    with pytest.raises(DivergedError, match="0 of 3 members were kept"):
        fit(build, (X, Y), recipe, run_dir=tmp_path / "run", compute=Compute(executor=executor))
    assert not list((tmp_path / "run" / "members").glob("*.safetensors"))


RATES = (1e3, 1e10, 1e20, 1e38)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", ["single", "snapshot", "deep_ensemble", "swa", "batch_ensemble", "bnn"])
def test_at_extreme_rates_every_member_is_finite_or_there_is_an_error(name, rate):
    training = Training(lr=rate, optimizer=SGD(momentum=0.9), batch_size=16, schedule="constant")
    try:
        ensemble = fit(build, (X, Y), make(name, budget=10, training=training))
    except DivergedError:
        return
    for state in ensemble.states():
        for full, tensor in (state.params | state.buffers).items():
            assert torch.isfinite(tensor.float()).all(), full


def test_buffers_that_are_infinite_by_design_are_left_in_peace():
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 2)
            self.register_buffer("mask", torch.tensor([[0.0, -float("inf")], [0.0, 0.0]]))
            self.register_buffer("mean", torch.zeros(2))

    blueprint = Blueprint(Causal, Independent(), device=torch.device("cpu"), images=False)
    state = blueprint.fresh(0, "a")
    assert unfinite(state, blueprint) == ""
    broken = state.having(buffers=state.buffers | {"mean": torch.tensor([0.0, float("nan")])})
    assert unfinite(broken, blueprint) == "the buffer mean holds NaN"
