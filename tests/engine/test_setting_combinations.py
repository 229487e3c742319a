"""Settings that meet: clipping and masks, decay and structures, counts of steps and stacks, parts and what does not count."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import choral
from choral.base.errors import InputError
from choral.objectives import Categorical
from choral.plan import (
    SGD,
    Adam,
    AdamW,
    Collect,
    Constant,
    EarlyStopping,
    Muon,
    Prune,
    RandomMasks,
    Reset,
    Train,
    fork,
    seq,
)
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training, optimizer_of
from choral.structures import BatchEnsemble, Gaussian, Packed

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 6, generator=G)
Y = (X[:, 0] + torch.randn(60, generator=G) > 0).long()


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def vectors(ensemble: Any) -> list[Tensor]:
    return [torch.cat([t.flatten() for t in state.params.values()]) for state in ensemble.states()]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_removed_weights_do_not_count_for_the_norm_that_is_clipped(executor: Any) -> None:
    def recipe(epochs: int) -> Recipe:
        step = Train(epochs=epochs, batch_size=60, schedule=Constant(1.0), optimizer=SGD(momentum=0.0, clip=0.01))
        masks = Prune(masks=RandomMasks(sparsity=0.9), keep_classifier=False, keep_first=False)
        return Recipe(name="sparse", plan=fork(2, Reset(), masks, step, Collect()))

    before, after = (
        vectors(choral.fit(build, (30 * X, Y), recipe(n), compute=choral.Compute(executor=executor), seed=0))
        for n in (0, 1)
    )
    for start, end in zip(before, after, strict=True):
        torch.testing.assert_close((end - start).norm(), torch.tensor(0.01), rtol=1e-3, atol=0)


def test_a_second_pruning_leaves_what_the_first_removed_at_zero() -> None:
    train = Train(epochs=2, batch_size=20, schedule=Constant(0.1))

    def prune() -> Prune:
        return Prune(masks=RandomMasks(sparsity=0.5), keep_first=False)

    twice = Recipe(name="twice", plan=seq(Reset(), prune(), train, prune(), train, Collect()))
    (state,) = choral.fit(build, (X, Y), twice, seed=0).states()
    for name in ("0.weight", "2.weight"):
        assert 0.6 < float((state.params[name] == 0).float().mean()) < 0.9


@pytest.mark.parametrize(("structure", "spared"), [(Gaussian(), "_rho"), (BatchEnsemble(members=2), ".r")])
def test_optimizers_of_torch_do_not_decay_what_must_not(structure: Any, spared: str) -> None:
    network = structure.convert(build(), torch.Generator().manual_seed(0))
    params = dict(network.named_parameters())
    optimizer = optimizer_of(torch.optim.AdamW)
    (made,) = optimizer.make(optimizer.groups(params, undecayed=structure.undecayed))
    names = {id(p): n for n, p in params.items()}
    decays = {names[id(p)]: group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert {d for n, d in decays.items() if n.endswith(spared)} == {0.0}
    if isinstance(structure, BatchEnsemble):
        assert decays["network.0.weight"] == 0.01


def test_biases_of_members_side_by_side_are_vectors() -> None:
    def moved(decay: float) -> dict[str, Tensor]:
        optimizer = SGD(momentum=0.0, weight_decay=decay, decay_vectors=False)
        training = Training(lr=0.1, optimizer=optimizer, batch_size=60, schedule="constant")
        recipe = make("packed", members=2, budget=1, training=training)
        (state,) = choral.fit(build, (X, Y), recipe, seed=0).states()
        return state.params

    plain, decayed = moved(0.0), moved(0.5)
    for name, value in plain.items():
        assert torch.equal(value, decayed[name]) == name.endswith("bias"), name


def test_muon_is_refused_where_members_make_up_a_matrix() -> None:
    for method in ("packed", "batch_ensemble", "tabm"):
        with pytest.raises(InputError, match="Muon orthogonalizes whole matrices"):
            choral.fit(build, (X, Y), make(method, members=2, budget=1, training=Training(optimizer=Muon())))
    choral.fit(build, (X, Y), make("deep_ensemble", members=2, budget=2, training=Training(optimizer=Muon())))


def test_members_that_stopped_at_other_steps_are_not_stacked_as_if_they_had_not() -> None:
    training = Training(lr=0.02, optimizer=Adam(), batch_size=16, schedule="constant")
    plan = fork(4, Reset(), training.phase(12), training.phase(2, memory="carried"), Collect())
    recipe, found = Recipe(name="carried", plan=plan), []
    for executor in ("sequential", "vectorized"):
        stop = EarlyStopping(patience=1)
        ensemble = choral.fit(
            build,
            (X, Y),
            recipe,
            compute=choral.Compute(executor=executor),
            validation=0.3,
            early_stopping=replace(stop, restore_best=False),
            seed=1,
        )
        assert len({one["epoch"] for one in ensemble.info["stopped"]}) > 1
        found.append(vectors(ensemble))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_batches_in_parts_take_labels_that_do_not_count() -> None:
    y = torch.where(torch.arange(60) % 5 == 0, -1, Y)
    recipe = make("single", budget=2, training=Training(lr=0.05, batch_size=20, optimizer=AdamW()))
    whole, parts = (
        vectors(
            choral.fit(build, (X, y), recipe, likelihood=Categorical(ignore=-1), compute=choral.Compute(accumulate=n))
        )
        for n in (1, 2)
    )
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-4, atol=1e-5)


def test_packed_convolutions_with_instance_norms_agree_with_members_alone() -> None:
    images = torch.randn(24, 3, 6, 6, generator=G)

    def convolutions() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)
        )

    recipe = make("packed", members=2, budget=1, training=Training(lr=0.1, optimizer="sgd", batch_size=12))
    ensemble = choral.fit(convolutions, (images, Y[:24]), recipe, seed=0)
    together: Any = ensemble._predictive(images)
    for i in range(2):
        torch.testing.assert_close(ensemble.member(i).eval()(images), together.logits[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("structure", [BatchEnsemble(members=2, own_norms=True), Packed(members=2)])
def test_statistics_of_members_side_by_side_are_estimated_again(structure: Any) -> None:
    x = 5 + 3 * X

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    recipe = replace(
        make("swa", budget=8, training=Training(optimizer="sgd", lr=0.3, batch_size=20)), structure=structure
    )
    ensemble = choral.fit(normed, (x, Y), recipe, seed=0)
    for i in range(2):
        member: Any = ensemble.member(i).eval()
        hidden = member[0](x)
        torch.testing.assert_close(member[1].running_mean, hidden.mean(0), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(member[1].running_var, hidden.var(0), rtol=1e-3, atol=1e-3)


def test_attributes_of_a_network_are_its_own_matter() -> None:
    class Norm(nn.BatchNorm1d):
        settings = "mine"

    class Named(nn.Sequential):
        stacked = True

    def named() -> nn.Module:
        return Named(nn.Linear(6, 16), Norm(16), nn.ReLU(), nn.Linear(16, 2))

    (member,) = choral.fit(
        named, (X, Y), make("swa", budget=8, training=Training(optimizer="sgd", lr=0.3, batch_size=20))
    ).states()
    hidden = X @ member.params["0.weight"].T + member.params["0.bias"]
    torch.testing.assert_close(member.buffers["1.running_mean"], hidden.mean(0), rtol=1e-3, atol=1e-3)
