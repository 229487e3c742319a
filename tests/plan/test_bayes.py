import copy
import itertools

import pytest
import torch
from scipy import stats
from torch import nn

from choral import models
from choral.base.errors import InputError, PlanError
from choral.compaction import Fold, shrink
from choral.data.sources import TensorSource
from choral.engine.epochs import BranchContext
from choral.engine.flops import Flops
from choral.engine.task import make_task
from choral.layers.bayesian.sampling import SampledLayer, at_means
from choral.objectives.kl import gate_keep, std_of
from choral.objectives.likelihoods import Categorical, FixedGaussian
from choral.plan import (
    CompactGates,
    DrawAnchor,
    DrawTargetShift,
    FreezeGates,
    Perturb,
    ResetStds,
    State,
    StepAnchor,
    StepTargetShift,
    walk,
)
from choral.plan.bayes import HMC, IID, Autoregressive, GaussianWalk, GuidedWalk, take_over, variational_form
from choral.recipes import sebays_freeze


class Place:
    """The context of one place in a plan, as far as these operators need it."""

    def __init__(self, seed=0, likelihood=None, target_shape=(500, 2)):
        self.seed, self.likelihood, self.target_shape = seed, likelihood or FixedGaussian(precision=25.0), target_shape

    def generator(self, purpose):
        return torch.Generator().manual_seed(self.seed * 7 + len(purpose))


PARAMS = {"a": torch.zeros(30, 20), "b": torch.zeros(400)}
WALKS = [GuidedWalk(step_std=0.1), GaussianWalk(step_std=0.1), Autoregressive(), HMC(step_std=0.1), IID()]


@pytest.mark.parametrize("walk", WALKS)
def test_anchors_start_in_the_prior_and_walk_as_their_walk_says_also_from_a_checkpoint(walk):
    settings = {"walk": walk, "prior_std": 0.4}
    draw, step = DrawAnchor(**settings), StepAnchor(**settings)
    assert draw.gives == step.needs
    state = draw.apply(State(PARAMS, {}), Place(1))
    assert set(draw.gives) == set(state.slots)
    values = torch.cat([v.flatten() for v in state.slots["anchor"].values()])
    assert stats.kstest(values.numpy(), stats.norm(scale=0.4).cdf).pvalue > 1e-3
    stored = State.from_flat(state.flat())
    moved, again = step.apply(state, Place(2)), step.apply(stored, Place(2))
    expected, memory = walk.step(
        state.slots["anchor"], state.slots.get("direction", {}), 0.4, Place(2).generator("anchor")
    )
    for name in PARAMS:
        assert torch.equal(moved.slots["anchor"][name], expected[name])
        assert torch.equal(again.slots["anchor"][name], expected[name])
        assert not torch.equal(moved.slots["anchor"][name], state.slots["anchor"][name])
        if walk.directed:
            assert torch.equal(moved.slots["direction"][name], memory[name])


@pytest.mark.parametrize("walk", WALKS)
def test_target_noise_has_the_likelihood_s_size_all_along_the_walk_and_moves_as_far_as_the_anchor_relative_to_it(walk):
    settings = {"walk": walk, "prior_std": 0.4}
    state = DrawTargetShift(**settings).apply(State({"t": torch.zeros(500, 2)}, {}), Place(1))
    state = DrawAnchor(**settings).apply(state, Place(1))
    assert state.slots["target_shift"]["targets"].shape == (500, 2)
    for i in range(60):
        shift = state.slots["target_shift"]["targets"]
        assert stats.kstest(shift.flatten().numpy(), stats.norm(scale=0.2).cdf).pvalue > 1e-5
        before, state = state, StepTargetShift(**settings).apply(state, Place(2 + i))
        state = StepAnchor(**settings).apply(state, Place(2 + i))
    noise = state.slots["target_shift"]["targets"] - before.slots["target_shift"]["targets"]
    anchor = state.slots["anchor"]["t"] - before.slots["anchor"]["t"]
    assert float(noise.std()) / 0.2 == pytest.approx(float(anchor.std()) / 0.4, rel=0.15)


def test_target_noise_needs_a_likelihood_with_one_known_noise():
    with pytest.raises(PlanError, match="needs a Gaussian"):
        DrawTargetShift(walk=IID(), prior_std=1.0).apply(State(PARAMS, {}), Place(likelihood=Categorical()))


def test_impossible_settings_are_refused():
    with pytest.raises(InputError, match="prior_std is 0"):
        DrawAnchor(walk=IID(), prior_std=0)
    with pytest.raises(InputError, match="'small' or 'redraw'"):
        ResetStds(how="large")
    with pytest.raises(InputError, match="'draw' or 'threshold'"):
        FreezeGates(rule="coin")


def test_perturbing_and_resetting_touch_nothing_else_and_leave_the_optimizer_to_the_next_phase():
    params = {"w_mean": torch.randn(50), "w_rho": torch.full((50,), -2.0), "other": torch.randn(3)}
    state = State(params, {"c": torch.ones(1)}, {"s": {"x": torch.ones(2)}}, {"momentum_buffer/w_mean": torch.ones(50)})
    moved = Perturb(factor=2.0).apply(state, Place())
    assert torch.allclose((moved.params["w_mean"] - params["w_mean"]).abs(), 2 * std_of(params["w_rho"]))
    narrow = ResetStds().apply(moved, Place())
    assert torch.allclose(std_of(narrow.params["w_rho"]), torch.tensor(1e-6), rtol=1e-3)
    redrawn = ResetStds(how="redraw").apply(moved, Place())
    assert float(redrawn.params["w_rho"].mean()) == pytest.approx(-6, abs=0.04)
    for later in (moved, narrow, redrawn):
        assert later.memory == state.memory
        assert torch.equal(later.params["other"], params["other"])
        assert later.slots == state.slots
        assert later.buffers == state.buffers


class Grouped(nn.Module):
    """A depthwise convolution, group normalization and a residual sum."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU())
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.wide = nn.Conv2d(8, 12, 1)
        self.back = nn.Conv2d(12, 8, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.stem(x)
        h = self.back(self.wide(self.deep(x).relu()).relu())
        return self.head((self.norm(h) + x).mean((2, 3)))


NETWORKS = {
    "mlp": (lambda: models.mlp(6, 3, hidden=(10, 12)), (6,)),
    "lenet": (lambda: models.lenet("S"), (3, 32, 32)),
    "resnet": (lambda: models.resnet_cifar(8), (3, 32, 32)),
    "silu": (lambda: models.resnet_cifar(8, activation="silu"), (3, 32, 32)),
    "grouped": (Grouped, (1, 8, 8)),
    "norms": (
        lambda: nn.Sequential(
            nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 2)
        ),
        (6,),
    ),
}

CARRIERS = {"resnet": 1, "silu": 1}  # closed nodes that stay in a layer for the constants of all
TIED = {  # layers whose nodes are summed with living ones, or read by a convolution of theirs alone
    "resnet": ("conv1", *(f"layer{i}.0.{n}" for i in (1, 2, 3) for n in ("conv2", "downsample.0"))),
    "grouped": ("stem.0", "back", "deep"),
}


TIED["silu"] = TIED["resnet"]


def explored(build, shape, *, closed=0.5, seed=0):
    """A place and a state whose gates are certain, with about half of them closed, and used statistics."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, *shape, generator=generator)
    source = TensorSource(x, torch.arange(8) % 2)
    task = make_task(build, source, sebays_freeze(budget=12))
    place = BranchContext(task, source, seed, walk.Place().then("seq", 1))
    state = place.fresh()
    params, buffers = dict(state.params), dict(state.buffers)
    for name, value in params.items():
        if name.endswith("gate_logit"):
            gone = torch.rand(value.shape, generator=generator) < closed
            params[name] = torch.where(gone, -50.0, 50.0)
        elif name.endswith("bias_mean"):
            params[name] = 0.3 * torch.randn(value.shape, generator=generator)
    for name, value in buffers.items():
        if name.endswith(("running_mean", "running_var")):
            buffers[name] = value + 0.3 * torch.rand(value.shape, generator=generator)
    return task, source, place, state.having(params=params, buffers=buffers), x


@pytest.mark.parametrize("name", NETWORKS)
def test_compacted_networks_give_the_outputs_they_had_with_fewer_operations(name):
    task, source, place, state, x = explored(*NETWORKS[name])
    frozen = FreezeGates(rule="draw").apply(state, place)
    kept = gate_keep(state.params, state.buffers)
    assert all(torch.equal(kept[n], v) for n, v in gate_keep(frozen.params, frozen.buffers).items())
    small = CompactGates().apply(frozen, place)
    assert small.form is not None
    with torch.no_grad(), at_means():
        before = copy.deepcopy(place.network(frozen))(x)
        network = copy.deepcopy(place.network(small))
        after = network(x)
        alone = task.structure.member(network, 0)(x)  # a plain network again
    assert before.abs().max() > 1e-3
    assert torch.allclose(before, after, atol=1e-5)
    assert torch.allclose(alone, after, atol=1e-6)
    left = gate_keep(small.params, small.buffers)
    assert all(int((~v).sum()) <= CARRIERS.get(name, 0) for n, v in left.items() if n not in TIED.get(name, ()))
    flops = Flops(task, source)
    assert flops.train(small) < 0.75 * flops.train(frozen)
    assert sum(p.numel() for p in small.params.values()) < 0.75 * sum(p.numel() for p in frozen.params.values())
    # the same form rebuilds the network from a fresh one, and its layers state their new sizes
    rebuilt = shrink(task.blueprint.joint(0, "other"), small.form)
    rebuilt.load_state_dict(small.params | small.buffers)
    for module in itertools.chain(rebuilt.modules(), network.modules()):
        if isinstance(module, SampledLayer):
            outputs, inputs = (
                getattr(module, f"{end}_{'features' if module.weight.dim() == 2 else 'channels'}")
                for end in ("out", "in")
            )
            assert module.weight_mean.shape[:2] == (outputs, inputs // getattr(module, "groups", 1))
    with torch.no_grad(), at_means():
        assert torch.allclose(rebuilt.eval()(x), after, atol=1e-6)


def test_posteriors_that_take_constants_over_are_those_of_the_sum():
    """Means add up with the constants and variances with their squares, in a column and in a bias; also by draws."""
    generator = torch.Generator().manual_seed(0)
    mean, rho = torch.randn(4, 3, 2, 2, generator=generator), torch.randn(4, 3, 2, 2, generator=generator)
    params = {"w_mean": mean, "w_rho": rho, "b_mean": torch.ones(4), "b_rho": torch.zeros(4)}
    constants, channels = torch.tensor([0.5, -0.25]), torch.tensor([1, 2])
    column = take_over(params, [Fold("w", None, channels, constants, carrier=0)])
    draws = mean + std_of(rho) * torch.randn(20_000, 4, 3, 2, 2, generator=generator)
    summed = draws[:, :, 0] + 0.5 * draws[:, :, 1] - 0.25 * draws[:, :, 2]
    torch.testing.assert_close(column["w_mean"][:, 0], summed.mean(0), atol=0.05, rtol=0)
    torch.testing.assert_close(std_of(column["w_rho"][:, 0]), summed.std(0), atol=0.0, rtol=0.03)
    assert torch.equal(column["w_mean"][:, 1:], mean[:, 1:])
    assert torch.equal(column["b_rho"], params["b_rho"])
    bias = take_over(params, [Fold("w", "b", channels, constants)])
    noise = 1 + std_of(torch.zeros(())) * torch.randn(20_000, 4, generator=generator)
    summed = noise + (draws[:, :, 1:] * constants.view(2, 1, 1)).sum((2, 3, 4))
    torch.testing.assert_close(bias["b_mean"], summed.mean(0), atol=0.06, rtol=0)
    torch.testing.assert_close(std_of(bias["b_rho"]), summed.std(0), atol=0.0, rtol=0.03)
    assert torch.equal(bias["w_mean"], mean)


def test_what_remains_after_cutting_is_what_was_open_before():
    task, source, place, state, _ = explored(*NETWORKS["mlp"])
    frozen = FreezeGates().apply(state, place)
    small = CompactGates().apply(frozen, place)
    flops = Flops(task, source)
    rows = {n: (int(v.sum()), len(v)) for n, v in gate_keep(frozen.params, frozen.buffers).items()}
    (a, _), (b, _) = rows["linear1"], rows["linear2"]
    shares = [flops.remaining(s, task.structure.remaining(s.params, s.buffers)) for s in (state, small)]
    # forward and both gradients, without that of the inputs of the first layer
    whole = 2 * (6 * 10) + 3 * (10 * 12 + 12 * 3)
    assert shares[0]["flops"] == pytest.approx((2 * 6 * a + 3 * (10 * b + 12 * 3)) / whole)
    assert shares[1]["flops"] == pytest.approx((2 * 6 * a + 3 * (a * b + b * 3)) / whole)
    assert shares[1]["parameters"] == pytest.approx(
        sum(p.numel() for p in small.params.values()) / sum(p.numel() for p in frozen.params.values())
    )


def test_gates_that_are_all_open_leave_the_network_as_it_is_and_all_closed_ones_leave_one_node():
    _, _, place, state, x = explored(*NETWORKS["mlp"], closed=0.0)
    frozen = FreezeGates().apply(state, place)
    assert CompactGates().apply(frozen, place) is frozen
    _, _, place, state, x = explored(*NETWORKS["mlp"], closed=1.0)
    small = CompactGates().apply(FreezeGates().apply(state, place), place)
    assert small.params["linear1.weight_mean"].shape == (1, 6)
    with torch.no_grad(), at_means():
        assert torch.isfinite(place.network(small)(x)).all()
    with pytest.raises(PlanError, match="compacted already"):
        CompactGates().apply(small, place)


def test_slots_are_cut_with_the_parameters_they_belong_to():
    _, _, place, state, _ = explored(*NETWORKS["mlp"])
    memory = {f"exp_avg/{n}": torch.ones_like(p) for n, p in state.params.items()}
    memory |= {f"step/{n}": torch.tensor(3.0) for n in state.params}
    state = FreezeGates().apply(state.having(memory=memory), place).with_slots(twin=state.params)
    small = CompactGates().apply(state, place)
    assert all(small.slots["twin"][n].shape == p.shape for n, p in small.params.items())
    assert small.memory.keys() == memory.keys()
    for name, p in small.params.items():
        moved = 0.0 if name.endswith("gate_logit") else 1.0  # a gate that is fixed has no momentum left
        assert torch.equal(small.memory[f"exp_avg/{name}"], torch.full_like(p, moved))
        assert small.memory[f"step/{name}"] == 3


def test_forms_are_translated_by_name_and_only_to_names_that_exist():
    plain = {
        "axes": {"a.weight": {"0": [1]}, "n.running_mean": {"0": [1]}, "b.norm.weight": {"0": [0]}},
        "attributes": {},
    }
    names = ["a.weight_mean", "a.weight_rho", "a.gate_logit", "n.norm.running_mean", "b.norm.weight", "c.weight_mean"]
    assert variational_form(plain, names)["axes"] == {
        "a.weight_mean": {"0": [1]},
        "a.weight_rho": {"0": [1]},
        "a.gate_logit": {"0": [1]},
        "n.norm.running_mean": {"0": [1]},
        "b.norm.weight": {"0": [0]},
    }
