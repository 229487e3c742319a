"""Recorded steps: the same training, faster; never recorded where something random or changing is inside."""

import pytest
import torch
from torch.func import grad_and_value, vmap

from choral import Compute, models
from choral.engine import trainers
from choral.fit import fit
from choral.objectives import Anchored, Objective
from choral.plan import Adam, Collect, Constant, Reset, Train, fork, repeat
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=G)
Y = X[:, :1].sin()
RECIPE = Recipe(
    name="r",
    plan=fork(
        3, Reset(), Train(epochs=20, batch_size=16, schedule=Constant(0.01), optimizer=Adam(clip=1.0)), Collect()
    ),
)


def watched(monkeypatch):
    calls = []
    original = trainers.record
    monkeypatch.setattr(trainers, "record", lambda f, e: calls.append(1) or original(f, e))
    return calls


def test_recorded_steps_train_the_members_of_the_sequential_executor(monkeypatch):
    calls = watched(monkeypatch)

    def build():
        return models.mlp(4, 1, hidden=(8, 6))

    one, many = (fit(build, (X, Y), RECIPE, compute=Compute(executor=e)) for e in ("sequential", "vectorized"))
    assert len(calls) == 2  # whole batches and the last, smaller one
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)


def test_recorded_steps_read_slots_and_points(monkeypatch):
    calls = watched(monkeypatch)
    training = Training(lr=0.01, optimizer=Adam(), batch_size=16)
    recipe = make("anchored", budget=60, members=3, training=training)
    assert any(isinstance(p, Anchored) for p in recipe.objective.penalties)
    one, many = (
        fit(lambda: models.mlp(4, 1), (X, Y), recipe, compute=Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    assert calls
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)


def test_networks_with_draws_or_statistics_are_mapped_afresh(monkeypatch):
    calls = watched(monkeypatch)
    fit(lambda: models.mlp(4, 1, dropout=0.2), (X, Y), RECIPE, compute=Compute(executor="vectorized"))
    assert len(calls) == 1  # tried, found to draw, given up
    fit(lambda: models.mlp(4, 1, norm="batch"), (X, Y), RECIPE, compute=Compute(executor="vectorized"))
    assert len(calls) == 1
    assert Objective().penalties == ()


class Residual(torch.nn.Module):
    """Writes over its own tensors and joins two ways; `begin` says what it adds up from."""

    def __init__(self, begin=torch.zeros_like):
        super().__init__()
        self.begin = begin
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6, bias=False)
        self.norm, self.out = torch.nn.LayerNorm(6), torch.nn.Linear(6, 2)

    def forward(self, x):
        hidden = self.first(x)
        total = self.begin(hidden)
        total += hidden
        hidden = torch.relu_(hidden)
        total += self.second(hidden) * 1.0
        return self.out(self.norm(total)) + x.sum(1, keepdim=True) ** 1.0


def test_a_network_that_writes_over_its_tensors_trains_the_same(monkeypatch):
    calls = watched(monkeypatch)
    data = (X, torch.cat([Y, -Y], 1))
    one, many = (fit(Residual, data, RECIPE, compute=Compute(executor=e)) for e in ("sequential", "vectorized"))
    assert calls
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)


def test_a_step_is_recorded_once_for_all_phases_of_a_run(monkeypatch):
    calls = watched(monkeypatch)
    phase = Train(epochs=20, batch_size=15, schedule=Constant(0.01), optimizer=Adam())
    recipe = Recipe(name="r", plan=fork(2, Reset(), repeat(3, phase, Collect())))
    one, many = (
        fit(lambda: models.mlp(4, 1), (X, Y), recipe, compute=Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    assert len(calls) == 1
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)


def test_the_choice_of_an_executor_measures_recorded_steps(monkeypatch):
    calls = watched(monkeypatch)
    phase = Train(epochs=20, batch_size=15, schedule=Constant(0.01), optimizer=Adam())
    fit(lambda: models.mlp(4, 1), (X, Y), Recipe(name="r", plan=fork(2, Reset(), phase, Collect())))
    assert len(calls) == 1  # when measured; the run itself takes the same record


class Warming(torch.nn.Linear):
    """Multiplies by a number that grows from step to step."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 500)


@pytest.mark.filterwarnings("ignore:the attribute 'calls'")
def test_a_number_that_a_network_changes_is_no_constant_of_a_record(monkeypatch):
    recorded = fit(lambda: Warming(4, 1), (X, Y), RECIPE, compute=Compute(executor="vectorized"))
    monkeypatch.setattr(trainers, "_RECORDED_FROM", 10**9)
    mapped = fit(lambda: Warming(4, 1), (X, Y), RECIPE, compute=Compute(executor="vectorized"))
    for a, b in zip(recorded.states(), mapped.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=2e-3) for n in a.params)


class Normed(torch.nn.Module):
    """Has constants of the number of rows, and of networks, in its forward code and in torch's rules for mapping it."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 24), torch.nn.InstanceNorm1d(3), torch.nn.Linear(24, 1)

    def forward(self, x):
        hidden = self.norm(self.first(x).unflatten(1, (3, 8))).flatten(1)
        return self.last(hidden + torch.ones(len(x), 1) / len(x))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [55, 90, 91])
def test_a_last_batch_of_any_size_has_a_record_of_its_own(rows, monkeypatch):
    calls = watched(monkeypatch)
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    training = Training(lr=0.01, optimizer=Adam(), batch_size=16)
    recipe = make("deep_ensemble", budget=120, members=3, training=training)
    one, many = (
        fit(Normed, (x, x[:, :1].sin()), recipe, compute=Compute(executor=e)) for e in ("sequential", "vectorized")
    )
    assert calls
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)


def test_a_record_gives_the_gradients_of_narrow_and_wide_layers():
    """Products of a column and a row, with fewer columns than rows, and with more."""

    def loss(first, second, x, y):
        return ((x @ first.T).tanh() @ second.T - y).square().sum()

    step = vmap(grad_and_value(loss, argnums=(0, 1)))

    def flat(*tensors):
        (first, second), value = step(*tensors)
        return [first, second, value]

    for width, units, outputs in ((2, 9, 1), (9, 2, 3), (1, 5, 5)):
        shapes = (units, width), (outputs, units), (7, width), (7, outputs)
        given = [torch.randn(3, *shape, generator=G) for shape in shapes]
        for found, expected in zip(trainers.record(flat, given)(*given), flat(*given), strict=True):
            torch.testing.assert_close(found, expected)
