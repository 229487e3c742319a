"""Branches of one stack that differ in their settings are what each would be alone."""

import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import InputError
from choral.plan import (
    SGD,
    Adam,
    AdamW,
    Collect,
    Cosine,
    LogUniform,
    Muon,
    OneOf,
    Reset,
    Resize,
    Space,
    Train,
    Uniform,
    fork,
)
from choral.plan.optimizers import Member, Stepper
from choral.recipes.recipe import Recipe
from choral.testing.checks import resumes_exactly
from choral.testing.problems import Trial

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 5, generator=G), torch.randint(0, 3, (40,), generator=G)
SETTINGS = [
    {"rate": 1.0, "weight_decay": 0.0, "dropout": 0.0, "smoothing": 0.0},
    {"rate": 0.3, "weight_decay": 0.2, "dropout": 0.4, "smoothing": 0.1},
    {"rate": 2.0, "weight_decay": 0.01, "dropout": 0.1, "smoothing": 0.3},
]
OPTIMIZERS = {
    "sgd": (SGD(momentum=0.9, nesterov=True, clip=1.0), 0.05, "momentum"),
    "adam": (Adam(), 0.01, None),
    "adamw": (AdamW(clip=1.0, decay_vectors=False), 0.01, None),
    "muon": (Muon(), 0.01, "momentum"),
}


def net():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def recipe(optimizer, rate, variants, epochs=5):
    train = Train(epochs=epochs, schedule=Cosine(rate), optimizer=optimizer, batch_size=16)
    return Recipe(name="r", plan=fork(Reset(), train, Collect(), variants=variants))


def settings(extra):
    return [s | ({extra: 0.5 + 0.2 * i} if extra else {}) for i, s in enumerate(SETTINGS)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_stack_of_different_branches_is_what_they_are_one_by_one(name):
    optimizer, rate, extra = OPTIMIZERS[name]
    whole = recipe(optimizer, rate, settings(extra))
    alone, stacked = (
        choral.fit(net, (X, Y), whole, compute=choral.Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    for a, b in zip(alone.states(), stacked.states()):
        for n in a.params:
            torch.testing.assert_close(a.params[n], b.params[n], atol=1e-5, rtol=1e-4)
    same = choral.fit(
        net, (X, Y), recipe(optimizer, rate, [settings(extra)[0]] * 3), compute=choral.Compute(executor="sequential")
    )
    for i, (a, b) in enumerate(zip(alone.states(), same.states())):
        equal = all(torch.equal(a.params[n], b.params[n]) for n in a.params)
        assert equal == (i == 0)  # settings are what makes the others differ


def test_a_branch_alone_is_plain_training_with_its_settings():
    """Rate, decay and momentum against torch's own loop on the same batches."""
    heard = []
    variant = {"rate": 0.5, "weight_decay": 0.1, "momentum": 0.3, "smoothing": 0.2}
    build = lambda: nn.Linear(5, 3)  # noqa: E731
    train = Train(epochs=8, schedule=Cosine(0.4), optimizer=SGD(), batch_size=40)
    plan = fork(Reset(), train, Collect(), variants=[variant])
    choral.fit(build, (X, Y), Recipe(name="r", plan=plan), callbacks=heard.append)
    start = choral.fit(
        build, (X, Y), Recipe(name="r", plan=fork(Reset(), Train(epochs=0), Collect(), variants=[variant]))
    )
    network = build()
    network.load_state_dict(next(iter(start.states())).params)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.3, weight_decay=0.1)
    expected = []
    for step in range(8):
        optimizer.param_groups[0]["lr"] = 0.5 * Cosine(0.4).rate(step, 8)
        loss = nn.functional.cross_entropy(network(X), Y, label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    found = [e["losses"][0] for e in heard if e["kind"] == "epoch"]
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-5


def test_rates_of_dropout_are_those_of_the_variant():
    """A network whose output is its dropout layer: the share of zeros is the rate."""
    seen = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.drop = nn.Parameter(torch.ones(3)), nn.Dropout(0.9)

        def forward(self, x):
            dropped = self.drop(torch.ones(len(x), 200))
            seen.append(float((dropped == 0).float().mean()) if self.training else None)
            return self.w.expand(len(x), 3) * dropped.mean()

    plan = fork(Reset(), Train(epochs=1, batch_size=40), Collect(), variants=[{"dropout": 0.25}])
    choral.fit(Watching, (X, Y), Recipe(name="r", plan=plan), compute=choral.Compute(executor="sequential"))
    assert any(share is not None and abs(share - 0.25) < 0.02 for share in seen)


def test_drawn_settings_follow_from_the_place_and_more_branches_change_none():
    space = Space(rate=LogUniform(0.1, 3.0), dropout=OneOf((0.0, Uniform(0.1, 0.5))))
    few, many = (
        choral.fit(
            net,
            (X, Y),
            Recipe(name="r", plan=fork(n, Reset(), Train(epochs=2, batch_size=16), Collect(), sample=space)),
            compute=choral.Compute(executor="sequential"),
        )
        for n in (2, 3)
    )
    for a, b in zip(few.states(), many.states()):
        assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_stopped_and_resumed_it_is_the_same_to_the_byte(name):
    optimizer, rate, extra = OPTIMIZERS[name]
    resumes_exactly(recipe(optimizer, rate, settings(extra), epochs=2), Trial(net, lambda: (X, Y)))


def test_members_that_stop_leave_and_the_others_go_on_as_alone():
    rates = [{"rate": r} for r in (30.0, 1.0, 0.3, 20.0)]
    whole = recipe(SGD(), 0.05, rates, epochs=25)
    options = {"validation": 0.3, "early_stopping": choral.EarlyStopping(patience=2)}
    alone, stacked = (
        choral.fit(net, (X, Y), whole, compute=choral.Compute(executor=e), **options)
        for e in ("sequential", "vectorized")
    )
    assert stacked.info["stopped"]
    for a, b in zip(alone.states(), stacked.states()):
        for n in a.params:
            torch.testing.assert_close(a.params[n], b.params[n], atol=1e-4, rtol=1e-3)


def test_dropout_without_dropout_layers_is_said_and_smoothing_without_classes_refused():
    plain, heard = (lambda: nn.Linear(5, 3)), []
    choral.fit(plain, (X, Y), recipe(SGD(), 0.05, [{"dropout": 0.1}] * 2, epochs=1), callbacks=heard.append)
    assert any("the network has no dropout layer" in e["message"] for e in heard if e["kind"] == "warning")
    with pytest.raises(InputError, match="smoothing is a share of class labels"):
        choral.fit(lambda: nn.Linear(5, 1), (X, X[:, 0]), recipe(SGD(), 0.05, [{"smoothing": 0.1}] * 2))


def chain():
    return models.tabular(5, 3, hidden=(8, 8, 8), embedding="none", skippable=True)


@pytest.mark.parametrize("optimizer", [AdamW(), Muon()])
def test_depth_and_width_are_those_of_a_smaller_network(optimizer):
    """A branch cut to depth 2 and width 5 trains as the network of that size with the same weights."""
    cut = {"depth": 2.0, "width": 5.0}
    train = Train(epochs=4, schedule=Cosine(0.01), optimizer=optimizer, batch_size=40)

    def fitted(phase):
        plan = fork(Reset(), Resize(), phase, Collect(), variants=[cut])
        return next(iter(choral.fit(chain, (X, Y), Recipe(name="r", plan=plan)).states())).params

    start, end = fitted(Train(epochs=0)), fitted(train)
    small = models.tabular(5, 3, hidden=(5, 5), embedding="none")
    names = {"linear1": "linear1", "hidden2.layer.linear1": "linear2", "output": "output"}

    def part(params):
        found = {}
        for ours, theirs in names.items():
            for kind, p in ((k, params[f"{ours}.{k}"]) for k in ("weight", "bias")):
                shape = small.get_parameter(f"{theirs}.{kind}").shape
                found[f"{theirs}.{kind}"] = p[tuple(slice(n) for n in shape)]
        return found

    small.load_state_dict(part(start))
    stepper = Stepper(dict(small.named_parameters()), [Member(optimizer)])
    for step in range(4):
        small.zero_grad()
        nn.functional.cross_entropy(small(X), Y).backward()
        stepper.step(Cosine(0.01).rate(step, 4))
    if isinstance(optimizer, AdamW):
        for name, p in part(end).items():
            torch.testing.assert_close(p, small.get_parameter(name).detach(), atol=1e-5, rtol=1e-4)
    assert end["linear1.weight"][5:].abs().max() == 0


def test_networks_of_different_depths_stack():
    variants = [{"depth": float(d)} for d in (1, 2, 3)]
    plan = fork(Reset(), Resize(), Train(epochs=3, batch_size=16), Collect(), variants=variants)
    alone, stacked = (
        choral.fit(chain, (X, Y), Recipe(name="r", plan=plan), compute=choral.Compute(executor=e))
        for e in ("sequential", "vectorized")
    )
    torch.testing.assert_close(alone.outputs(X), stacked.outputs(X), atol=1e-4, rtol=1e-3)
    depths = [sum(bool(b) for n, b in s.buffers.items() if n.endswith("used")) + 1 for s in alone.states()]
    assert depths == [1, 2, 3]
    shallow = next(iter(alone.states())).params
    x = torch.relu(X @ shallow["linear1.weight"].T + shallow["linear1.bias"])
    torch.testing.assert_close(
        alone.outputs(X)[0], x @ shallow["output.weight"].T + shallow["output.bias"], atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_members_with_momentum_and_without_stack(first):
    """What one remembers and another does not, in two phases of which the second goes on with the first one's memory."""
    variants = [{"momentum": m, "weight_decay": d} for m, d in ((first, 0.0), (0.9 - first, 0.1), (0.5, 0.0))]
    step = Train(epochs=2, schedule=Cosine(0.05), optimizer=SGD(), batch_size=16)
    kept = Train(epochs=2, schedule=Cosine(0.05), optimizer=SGD(), batch_size=16, memory="carried")
    value = Recipe(name="r", plan=fork(Reset(), step, kept, Collect(), variants=variants))
    alone, stacked = (
        choral.fit(net, (X, Y), value, compute=choral.Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    for a, b in zip(alone.states(), stacked.states(), strict=True):
        for n in a.params:
            torch.testing.assert_close(a.params[n], b.params[n], atol=1e-5, rtol=1e-4)
