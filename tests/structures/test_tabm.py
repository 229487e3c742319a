"""TabM against its authors' package, and what holds for any network."""

from typing import get_args

import pytest
import torch
from tests.networks import generator
from torch import nn

import choral
from choral import models
from choral.base.errors import ConversionError, InputError
from choral.data.sources import source_of
from choral.engine.task import make_task
from choral.layers import quantile_edges
from choral.layers.joint.network import Kernel
from choral.objectives.likelihoods import Loss
from choral.plan import Collect, Reset, fork
from choral.recipes import tabm, tabm_mini
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.structures import TabM

theirs = pytest.importorskip("tabm")
rtdl = pytest.importorskip("rtdl_num_embeddings")
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 5, generator=G), torch.randint(0, 3, (48,), generator=G)
EDGES = quantile_edges(X, bins=6)
K = 4


def plain():
    return models.mlp(5, 3, hidden=(16, 16, 16))


def embedded():
    return models.tabular(5, 3, hidden=(16, 16), edges=EDGES, embedding_width=4)


def package(kind, *, features=False, outputs=3):
    """Their network of the same sizes."""
    embedding = None
    if features:
        edges = [torch.tensor(e) for e in EDGES]
        embedding = rtdl.PiecewiseLinearEmbeddings(edges, 4, activation=False, version="B")
    return theirs.TabM.make(
        n_num_features=5,
        d_out=outputs,
        num_embeddings=embedding,
        k=K,
        arch_type=kind,
        n_blocks=2 if features else 3,
        d_block=16,
        dropout=0.0,
    )


def copied(joint, network):
    """Give their network the weights of ours."""
    ours = dict(joint.named_parameters())
    with torch.no_grad():
        if network.num_module is not None:
            weight = ours["network.features.1.1.weight"].view(5, 4, -1)  # (feature, output, raw number and bins)
            network.num_module.linear0.weight.copy_(weight[:, :, 0])
            network.num_module.linear0.bias.copy_(ours["network.features.1.1.bias"].view(5, 4))
            network.num_module.linear.weight.copy_(weight[:, :, 1:].transpose(1, 2))
        for i, block in enumerate(network.backbone.blocks, start=1):
            layer = block[0]
            for name, mine in {"weight": "weight", "bias": "bias", "r": "s", "s": "r"}.items():
                if hasattr(layer, name):
                    getattr(layer, name).copy_(ours[f"network.linear{i}.{mine}"])
        if hasattr(network.backbone, "affine"):
            network.backbone.affine.weight.copy_(ours["network.linear1.s"])
        network.output.weight.copy_(ours["network.output.weight"].mT)
        network.output.bias.copy_(ours["network.output.bias"])
    return network


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize(("kind", "adapters"), [("tabm", "all"), ("tabm-mini", "first")])
def test_outputs_are_those_of_the_package_after_copying_weights(kind, adapters, features):
    joint = TabM(members=K, adapters=adapters).convert(embedded() if features else plain(), generator())
    network = copied(joint, package(kind, features=features))
    sizes = [sum(p.numel() for p in n.parameters()) for n in (joint, network)]
    assert sizes[0] == sizes[1]
    x = 2 * torch.randn(9, 5, generator=G)
    torch.testing.assert_close(joint(x).transpose(0, 1), network(x), atol=1e-6, rtol=1e-6)
    for kernel in get_args(Kernel)[1:]:
        joint.kernel = kernel
        torch.testing.assert_close(joint(x).transpose(0, 1), network(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize(("recipe", "kind"), [(tabm, "tabm"), (tabm_mini, "tabm-mini")])
def test_twenty_steps_are_those_of_the_package(recipe, kind, features, task):
    build = embedded if features else plain
    target = Y if task == "classes" else torch.randn(48, 3, generator=G)
    loss = nn.functional.cross_entropy if task == "classes" else nn.functional.mse_loss
    options = {} if task == "classes" else {"likelihood": Loss(nn.functional.mse_loss)}
    value, heard = recipe(epochs=20, members=K), []
    task_of = make_task(build, source_of((X, target)), value, **options)
    network = package(kind, features=features)
    start = choral.fit(build, (X, target), recipe(epochs=0, members=K), **options)
    joint = task_of.blueprint.load(next(iter(start.states())))
    copied(joint, network)
    choral.fit(
        build,
        (X, target),
        value,
        callbacks=lambda e: heard.append(e) if e["kind"] == "epoch" else None,
        **options,
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=3e-4)
    expected = []
    for _ in range(20):
        outputs = network(X).flatten(0, 1)
        value = loss(outputs, target.repeat_interleave(K, 0))
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        expected.append(value.item())
    found = [e["losses"][0] for e in heard]
    assert expected[-1] < 0.98 * expected[0]
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-5


def first_factors(joint):
    return joint.network.linear1.s.detach()


def test_only_the_first_factors_are_random_signs_and_outputs_are_each_members_own():
    joint = TabM(members=64).convert(plain(), generator())
    assert first_factors(joint).abs().eq(1).all()
    assert abs(float(first_factors(joint).mean())) < 0.25
    for name, p in joint.named_parameters():
        if name.endswith((".r", ".s")) and "linear1.s" not in name:
            assert (p == 1).all()
    heads = joint.network.output.weight.flatten(1)
    assert len(torch.unique(heads, dim=0)) == 64


def test_embedded_features_get_one_normal_number_each():
    joint = TabM(members=200).convert(embedded(), generator())
    factors = first_factors(joint).unflatten(1, (5, 4))
    assert (factors == factors[:, :, :1]).all()
    assert abs(float(factors[:, :, 0].std()) - 1) < 0.06
    assert abs(float(factors[:, :, 0].mean())) < 0.1
    bins = models.tabular(5, 3, hidden=(16,), edges=EDGES)
    factors = first_factors(TabM(members=3).convert(bins, generator()))
    widths = [max(len(e) - 1, 1) for e in EDGES]
    assert all((part == part[:, :1]).all() for part in factors.split(widths, 1))


def test_embeddings_are_computed_once_and_members_together():
    joint = TabM(members=K).convert(embedded(), generator())
    assert joint.kernel == "matmul"
    seen = []
    joint.network.features.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    joint.eval()(X)
    assert seen == [len(X)]


def test_a_layer_that_stands_twice_in_a_chain_runs_twice():
    twice = nn.Tanh()
    network = nn.Sequential(nn.Flatten(), nn.Linear(5, 8), twice, nn.Linear(8, 8), twice, nn.Linear(8, 2))
    structure = TabM(members=3)
    joint = structure.convert(network, generator())
    torch.testing.assert_close(joint(X)[1], structure.member(joint, 1)(X))


def test_frozen_first_and_tied_layers_are_shared():
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    network[0].requires_grad_(False)
    joint = TabM(members=3).convert(network, generator())
    assert isinstance(joint.network[0], nn.Linear)
    assert joint.network[2].s.abs().eq(1).all()
    assert not (joint.network[2].s == 1).all()
    network.requires_grad_(False)
    with pytest.raises(ConversionError, match="leave at least the first or the last layer free"):
        TabM(members=3).convert(network, generator())


def test_wrong_words_are_refused():
    with pytest.raises(InputError, match="start is 'ones'"):
        TabM(start="ones")
    with pytest.raises(InputError, match="adapters is 'none'; give 'all' or 'first'"):
        TabM(adapters="none")


CALM = Training(optimizer="sgd", lr=0.01, batch_size=16)


@pytest.mark.parametrize("weighted", [False, True])
def test_members_with_batches_of_their_own_read_every_point_once_an_epoch(weighted):
    """With a rate of zero, the mean loss over an epoch is that of all points, whatever the order."""
    value = tabm(
        budget=1,
        members=3,
        own_batches=True,
        training=Training(optimizer="sgd", lr=1e-30, batch_size=16, schedule="constant"),
    )
    weights = torch.rand(48, generator=G) + 0.5 if weighted else None
    heard = []
    ensemble = choral.fit(plain, (X, Y), value, sample_weight=weights, callbacks=heard.append)
    (found,) = next(e["losses"] for e in heard if e["kind"] == "epoch")
    logits = ensemble.outputs(X)
    each = torch.stack([nn.functional.cross_entropy(row, Y, reduction="none") for row in logits])
    mean = each.mean() if weights is None else (each * weights / weights.mean()).mean()
    assert abs(found - float(mean)) < 1e-5


def test_own_batches_differ_between_members_under_every_executor():
    structure = TabM(members=3, own_batches=True)
    plan = fork(2, Reset(), CALM.phase(3), Collect())
    recipe = Recipe(name="r", structure=structure, plan=plan)
    one, many = (
        choral.fit(plain, (X, Y), recipe, compute=choral.Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-5) for n in a.params)
    shared = Recipe(name="r", structure=TabM(members=3), plan=plan)
    other = choral.fit(plain, (X, Y), shared, compute=choral.Compute(executor="sequential"))
    assert not torch.allclose(one.outputs(X), other.outputs(X), atol=1e-3)


def test_early_stop_looks_at_the_ensemble():
    heard = []
    ensemble = choral.fit(
        plain,
        (X, Y),
        tabm(budget=60, members=8, training=Training(optimizer="sgd", lr=0.05, batch_size=16)),
        validation=0.3,
        early_stopping=choral.EarlyStopping(patience=3),
        callbacks=heard.append,
    )
    values = [e["validation"][0] for e in heard if e["kind"] == "epoch"]
    assert len(values) < 60
    assert values.index(min(values)) == len(values) - 1 - 3
    assert ensemble.members == 8
