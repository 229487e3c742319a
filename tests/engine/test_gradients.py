"""Members that share weights: each parameter gets the gradient of the mean loss of the members that use it."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from choral import Compute, models
from choral.data.sources import source_of
from choral.engine.task import make_task
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer
from choral.fit import fit
from choral.layers.keyed import keyed
from choral.objectives import L2, Objective
from choral.plan import SGD, Adam, Collect, Constant, Reset, Train, fork, seq
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.structures import (
    BatchEnsemble,
    Independent,
    Masksembles,
    Mimo,
    Packed,
    RankOneGaussian,
    Structure,
    TabM,
    TreeNet,
)
from choral.tables.problems import load_problem

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 3, 8, 8, generator=G), torch.randint(3, (32,), generator=G)
FACTORS = ("r", "s", "input_mean", "output_mean")


def convolving(norm=True):
    """Three channels, stride, BatchNorm; smooth, so that rounding stays rounding."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.SiLU(),
        nn.Linear(16, 3),
        nn.Identity(),
    )


@dataclass(frozen=True, kw_only=True)
class Coinciding(Structure):
    """A structure whose members are all the plain network, for good: factors at one without deviation, and frozen."""

    inner: Structure

    @property
    def members(self):
        return self.inner.members

    @property
    def undecayed(self):
        return self.inner.undecayed

    def convert(self, network, generator):
        joint = self.inner.convert(network, generator)
        for name, p in joint.named_parameters():
            kind = name.split(".")[-1]
            if kind in FACTORS or kind.endswith("_rho"):
                p.requires_grad_(False).fill_(1.0 if kind in FACTORS else -1e3)
        return joint

    def feed(self, x, y):
        return self.inner.feed(x, y)

    def unfold(self, outputs):
        return self.inner.unfold(outputs)

    def shared(self, network):
        return self.inner.shared(network)

    def member(self, network, index):
        return self.inner.member(network, index)


SAME = {
    "batch_ensemble": (BatchEnsemble(members=4), True),
    "masksembles": (Masksembles(members=4, scale=1.0), False),  # each member normalizes its part of the batch
    "masksembles, whole batches": (Masksembles(members=4, scale=1.0, repetition=True), True),
    "treenet": (TreeNet(members=4, start="7"), True),  # the branches begin behind the last weight
    "rank_one_gaussian": (RankOneGaussian(members=4), True),
}
OPTIMIZERS = {"sgd": (SGD(momentum=0.9, weight_decay=1e-3), 0.1), "adam": (Adam(weight_decay=1e-3), 0.003)}


def losses(structure, build, optimizer, executor, objective):
    value, rate = OPTIMIZERS[optimizer]
    train = Train(epochs=50, schedule=Constant(rate), optimizer=value, batch_size=32)
    heard = []
    recipe = Recipe(name="r", structure=structure, objective=objective, plan=fork(2, Reset(), train, Collect()))
    fit(
        build,
        (X, Y),
        recipe,
        compute=Compute(executor=executor),
        callbacks=lambda e: heard.append(e) if e["kind"] == "epoch" else None,
    )
    return torch.tensor([loss for e in heard for loss in e["losses"]])


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", SAME)
def test_members_that_coincide_train_as_the_plain_network(name, optimizer, executor):
    structure, norm = SAME[name]
    joint = Coinciding(inner=structure)
    plain, shared = (
        losses(s, lambda: convolving(norm), optimizer, executor, Objective()) for s in (Independent(), joint)
    )
    assert len(plain) == 100
    assert plain[40] < 0.9 * plain[0]
    assert (plain - shared).abs().max() < 1e-5


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_penalty_of_shared_weights_is_added_once(executor):
    structure = Masksembles(members=4, scale=1.0)
    objective = Objective(penalties=(L2(precision=0.5),))
    plain, shared = (
        losses(s, lambda: convolving(False), "sgd", executor, objective) for s in (Independent(), structure)
    )
    assert (plain - shared).abs().max() < 1e-5


EACH = {
    "packed": Packed(members=2),
    "batch_ensemble": BatchEnsemble(members=3),
    "own norms": BatchEnsemble(members=3, own_norms=True),
    "masksembles": Masksembles(members=4, scale=2.0),
    "treenet": TreeNet(members=3, start="4"),
    "rank_one_gaussian": RankOneGaussian(members=3),
    "mimo": Mimo(members=2),
}


def expected_gradients(structure, task, state, key):
    """The gradient each member's loss gives alone, averaged where a parameter is every member's; and the penalty's."""
    network = task.blueprint.load(state).train()
    shared, params = structure.shared(network), dict(network.named_parameters())
    with keyed(key, 0):
        inputs, targets = structure.feed(X, Y)
        outputs = structure.unfold(network(inputs))
    total = {n: 2.0 * p.detach() / len(X) for n, p in params.items()}
    for i in range(structure.members):
        loss = nn.functional.cross_entropy(outputs[i], targets[i])
        grads = torch.autograd.grad(loss, list(params.values()), retain_graph=True, allow_unused=True)
        for n, g in zip(params, grads):
            if g is not None:
                total[n] += g / structure.members if n in shared else g
    return total


@pytest.mark.parametrize("kind", [PlainTrainer, StackedTrainer])
@pytest.mark.parametrize("name", EACH)
def test_shared_weights_get_the_mean_over_members_and_owned_ones_what_they_would_get_alone(name, kind):
    structure = EACH[name]
    phase = Train(epochs=1, optimizer=SGD(momentum=0.0), batch_size=32)
    recipe = Recipe(
        name="r", structure=structure, objective=Objective(penalties=(L2(precision=2.0),)), plan=seq(Reset(), phase)
    )
    task = make_task(convolving, source_of((X, Y)), recipe)
    keys = [11] if kind is PlainTrainer else [11, 12]
    states = [task.blueprint.fresh(0, "here") for _ in keys]
    expected = [expected_gradients(structure, task, s, k) for s, k in zip(states, keys)]
    trainer = kind(task, phase, [len(X)] * len(keys))
    trainer.mount(states, keys)
    x, y = (X, Y) if kind is PlainTrainer else (torch.stack([X] * 2), torch.stack([Y] * 2))
    trainer.step(x, y, Pace(0, 0.0, 0.5))
    for before, after, wanted in zip(states, trainer.states(), expected):
        for n, p in before.params.items():
            assert torch.allclose((p - after.params[n]) / 0.5, wanted[n].contiguous(), atol=2e-6, rtol=1e-4), n


def test_the_recorded_step_weighs_gradients_as_the_mapped_one():
    x, y = torch.randn(32, 6, generator=G), torch.randint(3, (32,), generator=G)
    train = Train(epochs=120, schedule=Constant(0.05), batch_size=32)
    recipe = Recipe(name="r", structure=BatchEnsemble(members=3), plan=fork(2, Reset(), train, Collect()))
    one, many = (
        fit(lambda: models.mlp(6, 3, hidden=(8,)), (x, y), recipe, compute=Compute(executor=e))
        for e in ("sequential", "vectorized")
    )
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4, rtol=1e-3) for n in a.params)


def test_losses_of_joint_networks_are_shown_as_means_over_members():
    for structure in (Independent(), Packed(members=4, width=4.0), Masksembles(members=4), Mimo(members=2)):
        heard = []
        train = Train(epochs=1, schedule=Constant(1e-9), batch_size=32)
        recipe = Recipe(name="r", structure=structure, plan=seq(Reset(), train, Collect()))
        fit(convolving, (X, Y), recipe, callbacks=heard.append)
        (loss,) = next(e["losses"] for e in heard if e["kind"] == "epoch")
        assert 0.9 < loss < 1.6  # about log 3, for one member and for four


@pytest.mark.full
def test_shared_networks_learn_digits_at_the_rate_of_a_single_one():
    problem = load_problem("digits")
    training, accuracy = Training(lr=0.1, optimizer=SGD(momentum=0.9), batch_size=128), {}
    for name in ("single", "masksembles", "batch_ensemble"):
        recipe = make(name, budget=100, training=training)
        ensemble = fit(
            lambda: models.mlp(64, 10, hidden=(64,) * 4),
            (problem.x_train, problem.y_train),
            recipe,
            compute=Compute(executor="sequential"),
        )
        found = ensemble.predict(problem.x_test).probs.argmax(-1)
        accuracy[name] = float((found == torch.as_tensor(problem.y_test)).float().mean())
    assert accuracy["single"] > 0.95
    assert all(value > accuracy["single"] - 0.02 for value in accuracy.values()), accuracy


def test_a_structure_that_averages_gives_every_parameter_the_gradient_of_the_mean_loss():
    structure = TabM(members=3)
    phase = Train(epochs=1, optimizer=SGD(momentum=0.0), batch_size=32)
    recipe = Recipe(name="r", structure=structure, plan=seq(Reset(), phase))
    task = make_task(convolving, source_of((X, Y)), recipe)
    state = task.blueprint.fresh(0, "here")
    network = task.blueprint.load(state).train()
    loss = nn.functional.cross_entropy(network(X).flatten(0, 1), Y.repeat(3))
    expected = dict(
        zip(state.params, torch.autograd.grad(loss, [dict(network.named_parameters())[n] for n in state.params]))
    )
    trainer = PlainTrainer(task, phase, [len(X)])
    trainer.mount([state], [11])
    trainer.step(X, Y, Pace(0, 0.0, 0.5))
    for n, p in trainer.states()[0].params.items():
        assert torch.allclose((state.params[n] - p) / 0.5, expected[n].contiguous(), atol=2e-6, rtol=1e-4), n
