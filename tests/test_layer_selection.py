"""Nothing is done in silence to the wrong layer, or to none: networks whose output layer is not declared last, counts, patterns, defaults."""

import json
import logging
import subprocess
import sys

import pandas as pd
import pytest
import torch
from torch import nn

import choral
from choral import objectives
from choral.base.errors import ConversionError, InputError
from choral.base.interface import Interface
from choral.base.values import from_dict
from choral.data.sources import TensorSource
from choral.engine.flops import Flops
from choral.engine.task import make_task
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=G)
Y = X[:, :3].argmax(1)
QUICK = Training(optimizer="sgd", lr=0.02, batch_size=32)


class Heads(nn.Module):
    """Two heads, of which the first counts."""

    def __init__(self):
        super().__init__()
        self.a, self.classes, self.aside = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return {"classes": self.classes(h), "aside": self.aside(h)}


class OutputFirst(nn.Module):
    """The output layer is declared before all others."""

    def __init__(self):
        super().__init__()
        self.out, self.a, self.b = nn.Linear(16, 3), nn.Linear(6, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x)))))


class FrozenTrunk(Heads):
    """Two heads, the one that is not asked for frozen with all below them."""

    def __init__(self):
        super().__init__()
        for part in (self.a, self.aside):
            part.requires_grad_(False)


NETWORKS = {Heads: {"output": "classes"}, OutputFirst: {}}
METHODS = ("treenet", "emp", "masksembles", "mimo", "prune_and_tune")
OTHERS = [pytest.param(m, marks=pytest.mark.full) for m in ("mc_dropout", "packed", "tabm", "ssbnn")]


@pytest.mark.parametrize("build", NETWORKS)
@pytest.mark.parametrize("method", [*METHODS, *OTHERS])
def test_the_output_layer_is_the_one_that_gives_the_output(method, build, tmp_path):
    options = {"members": 2} if method not in ("emp", "mc_dropout", "ssbnn") else {"draws": 4}
    ensemble = choral.fit(build, (X, Y), make(method, budget=6, training=QUICK, **options), **NETWORKS[build])
    outputs = ensemble.outputs(X)
    assert outputs.std(0).mean() > 1e-4
    assert (outputs.abs().amax(1) > 0).all()  # no logit is masked or dropped
    if ensemble.recipe.structure.draws == 1:
        alone = [ensemble.member(i)(X) for i in range(ensemble.members)]
        logits = torch.stack([one["classes"] if isinstance(one, dict) else one for one in alone])
        torch.testing.assert_close(logits, outputs, rtol=1e-4, atol=1e-5)
    ensemble.save(tmp_path / "saved.choral")
    assert torch.equal(choral.load(tmp_path / "saved.choral", build=build).outputs(X), outputs)


@pytest.mark.parametrize("build", NETWORKS)
def test_pruning_keeps_the_layer_that_gives_the_output(build):
    recipe = make("prune_and_tune", budget=6, members=2, training=QUICK)
    (mask, _) = (state.mask for state in choral.fit(build, (X, Y), recipe, **NETWORKS[build]).states())
    assert set(mask) == ({"a.weight"} if build is Heads else {"b.weight"})  # not the output's, nor one that nobody uses


@pytest.mark.parametrize("method", ["treenet", "emp"])
def test_so_it_is_where_others_are_frozen(method):
    ensemble = choral.fit(FrozenTrunk, (X, Y), make(method, budget=4, training=QUICK), output="classes")
    assert ensemble.outputs(X).std(0).mean() > 1e-4


class Listed(nn.Module):
    """Layers that forward finds in a list of its own."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 8), nn.Linear(8, 8)]
        for i, layer in enumerate(self.layers):
            self.register_module(f"layer{i}", layer)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


@pytest.mark.parametrize("method", ["bnn", "ssbnn", "rank1_bnn", "mc_dropout"])
def test_converted_layers_that_forward_does_not_find_are_refused(method):
    with pytest.raises(ConversionError, match="layer 'layer0' is converted for"):
        choral.fit(Listed, (X, Y), make(method, budget=4, training=QUICK))


class Unseen(nn.Module):
    """Layers in a list that torch does not see; with their weights registered, or not needed for gradients."""

    def __init__(self, how):
        super().__init__()
        self.layers, self.last, self.how = [nn.Linear(6, 8)], nn.Linear(8, 3), how
        if how == "registered":
            self.register_parameter("w", self.layers[0].weight)

    def forward(self, x):
        with torch.set_grad_enabled(self.how != "teacher" and torch.is_grad_enabled()):
            h = self.layers[0](x)
        return self.last(torch.tanh(h))


@pytest.mark.parametrize("how", ["plain", "registered"])
def test_layers_in_a_plain_list_are_refused(how):
    with pytest.raises(InputError, match="torch does not see them"):
        choral.fit(lambda: Unseen(how), (X, Y), make("deep_ensemble", budget=2, members=2, training=QUICK))
    with pytest.raises(InputError, match="torch does not see them"):
        choral.ensemble_of([Unseen(how), Unseen(how)], data=(X, Y))


def test_a_teacher_that_is_hidden_on_purpose_is_not():
    choral.fit(lambda: Unseen("teacher"), (X, Y), make("single", budget=1, training=QUICK))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.body(x[:, None])[0][:, -1])


def test_layers_without_posteriors_are_named(caplog):
    plain = lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))  # noqa: E731  # a factory
    for build in (Recurrent, plain):
        with caplog.at_level(logging.WARNING, "choral"):
            choral.fit(build, (X, Y), make("bnn", budget=1, training=QUICK))
    assert [r.getMessage() for r in caplog.records] == [
        "bnn leaves the weights of 'body' (GRU) as they are, the same for every member and draw"
    ]


class Attending(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.attention, self.last, self.weights = (
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 3),
            weights,
        )

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=self.weights)[0].mean(1))


def test_attention_counts_the_same_in_one_kernel():
    source = TensorSource(torch.randn(8, 10, 8), torch.arange(8) % 3)
    counts = []
    for weights in (True, False):
        flops = Flops(make_task(lambda w=weights: Attending(w), source, make("single", budget=1)), source)
        counts.append((flops.train(None), flops.predict(None)))
    assert counts[0] == counts[1]
    assert counts[0][1] == 2 * (10 * 4 * 64 + 2 * 10 * 10 * 8 + 24)


def test_a_calibration_that_names_nothing_fits_a_temperature_or_says_what_it_could():
    build = lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))  # noqa: E731  # a factory
    ensemble = choral.fit(build, (X, Y), make("deep_ensemble", budget=8, members=2, training=QUICK))
    same = [e.posthoc for e in (ensemble.calibrated(X, Y), ensemble.calibrated(X, Y, temperature="ensemble"))]
    assert same[0] == same[1] != ()
    with pytest.raises(InputError, match="but there is no level"):
        ensemble.calibrated(X, Y, conformal="aps")
    line = choral.fit(lambda: nn.Linear(6, 1), (X, X[:, 0]), make("single", budget=2, training=QUICK))
    with pytest.raises(InputError, match="regression has no temperature"):
        line.calibrated(X, X[:, 0])


def test_patterns_that_fit_nothing_are_refused():
    build = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))  # noqa: E731  # a factory
    with pytest.raises(InputError, match="nothing matches 'typo'"):
        choral.fit(build, (X, Y), make("emp", budget=2, layers=("typo",), training=QUICK))
    recipe = make("single", budget=2, training=QUICK)
    penalty = objectives.L2(precision=5.0, include=("typo",))
    with pytest.raises(InputError, match=r"L2: include: nothing matches 'typo'.*0\.weight"):
        choral.fit(
            build,
            (X, Y),
            choral.Recipe(name="own", plan=recipe.plan, objective=objectives.Objective(penalties=(penalty,))),
        )


class Words(nn.Module):
    """Nothing that is counted: numbers are looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, x):
        return self.table(x)[:, 0]


def test_networks_without_products_have_a_plan():
    tokens = torch.randint(9, (32, 2), generator=G)
    assert "0.00 x the plain network" in choral.show(make("single", budget=2), Words, (tokens, tokens[:, 0] % 3))


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        return x @ self.w


def test_a_tree_of_bare_parameters_is_refused_in_a_sentence():
    with pytest.raises(ConversionError, match="TreeNet found no layer that gives the output of Bare"):
        choral.fit(Bare, (X, Y), make("treenet", budget=2, members=2, training=QUICK))


@pytest.mark.full
def test_a_schedule_that_a_method_does_not_read_is_refused_at_the_shell(tmp_path):
    pd.DataFrame({"a": range(60), "y": [0.5 * i for i in range(60)]}).to_csv(tmp_path / "t.csv", index=False)
    code = "from choral.cli import main; main()"
    command = [sys.executable, "-c", code, "plan", "snapshot", "t.csv", "--target", "y", "--schedule"]
    found = {s: subprocess.run([*command, s], cwd=tmp_path, capture_output=True, text=True) for s in ("constant",)}
    assert found["constant"].returncode == 2
    assert "snapshot has a schedule of its own" in json.dumps(found["constant"].stderr)


@pytest.mark.parametrize(
    "kernel", ["auto", *(pytest.param(k, marks=pytest.mark.full) for k in ("grouped", "loop", "matmul"))]
)
def test_packed_members_with_group_norm_are_those_alone(kernel):
    images = torch.randn(16, 3, 6, 6, generator=G)

    def build():
        body = (nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(4, 8))
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    recipe = make("packed", budget=2, members=2, kernel=kernel, training=QUICK)
    ensemble = choral.fit(build, (images, torch.arange(16) % 3), recipe)
    alone = torch.stack([ensemble.member(i)(images) for i in range(2)])
    torch.testing.assert_close(alone, ensemble.outputs(images), rtol=1e-4, atol=1e-5)


def test_interfaces_are_read_back():
    assert from_dict(Interface(last="head").to_dict()) == Interface(last="head")
    assert from_dict(Interface().to_dict()) == Interface()
