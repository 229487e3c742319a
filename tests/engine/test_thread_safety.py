"""Predicting and fitting from several threads at once gives, to the last bit, what it gives alone."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from choral import Compute
from choral.engine.compute import Executor
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.plan import SGD, EarlyStopping
from choral.recipes import make
from choral.recipes.training import Training

X = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 3
TRAINING = Training(lr=0.05, optimizer=SGD(momentum=0.9), batch_size=16)


def pictures(dropout: float = 0.2) -> nn.Module:
    """Three channels in, stride, BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Dropout(dropout),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


class Attentive(nn.Module):
    """Attention with dropout, whose draws torch makes where a function mode does not look."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x[:, 0]).mean(1))


class Recurrent(nn.Module):
    """An LSTM whose dropout torch draws inside its own kernel, from its global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 6, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x[:, 0])[0][:, -1])


METHODS: dict[str, dict[str, Any]] = {
    "deep_ensemble": {"members": 3},
    "packed": {"members": 2},
    "batch_ensemble": {"members": 2},
    "emp": {"draws": 4},
    "mc_dropout": {"draws": 4},
    "bnn": {"draws": 4},
    "sebays_freeze": {"members": 2, "draws": 2},
    "prune_and_tune": {"members": 2, "unit": "neuron"},
    "treenet": {"members": 2, "start": "3"},
}


def trained(name: str, build=pictures, *, seed: int = 0, executor: Executor = "sequential") -> Ensemble:
    recipe = make(name, budget=6, training=TRAINING, **METHODS[name])
    return fit(build, (X, Y), recipe, seed=seed, compute=Compute(executor=executor))


def at_once(calls: list) -> list:
    """Run the calls in two threads that start together."""
    ready = Barrier(2)

    def some(part: list) -> list:
        ready.wait()
        return [call() for call in part]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(some, (calls[::2], calls[1::2]))
    return [result for pair in zip(one, other) for result in pair]


@pytest.mark.parametrize("name", METHODS)
def test_two_threads_predict_what_one_predicts(name: str) -> None:
    ensemble = trained(name)
    inputs = [X[:5], X[5:17], -X[:5], X[17:18]]
    alone = [ensemble.outputs(x) for x in inputs]
    found = at_once([partial(ensemble.outputs, inputs[i % 4]) for i in range(48)])
    assert all(torch.equal(f, alone[i % 4]) for i, f in enumerate(found))


@pytest.mark.parametrize("name", METHODS)
def test_the_first_prediction_may_come_from_two_threads(name: str) -> None:
    one, other = at_once([partial(ensemble.outputs, X[:5]) for ensemble in [trained(name)] * 2])
    assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build", "executor"),
    [(name, pictures, "sequential") for name in ("deep_ensemble", "mc_dropout", "bnn", "emp")]
    + [("deep_ensemble", pictures, "vectorized"), ("prune_and_tune", pictures, "vectorized")]
    + [("deep_ensemble", Attentive, "sequential"), ("emp", Attentive, "sequential")]
    + [("deep_ensemble", Recurrent, "sequential")],
)
def test_two_threads_fit_what_one_fits(name: str, build, executor: Executor) -> None:
    alone = [list(trained(name, build, seed=s, executor=executor).states()) for s in (0, 1)]
    torch.manual_seed(5)
    found = at_once([partial(trained, name, build, seed=s, executor=executor) for s in (0, 1)])
    for states, ensemble in zip(alone, found):
        for one, other in zip(states, ensemble.states()):
            assert all(torch.equal(one.params[n], other.params[n]) for n in one.params)


def test_a_fit_leaves_the_draws_of_the_program_around_it_alone() -> None:
    """Also those of another thread while it runs."""
    torch.manual_seed(3)
    wanted = [torch.rand(3) for _ in range(200)]
    torch.manual_seed(3)
    _, found = at_once([partial(trained, "mc_dropout"), lambda: [torch.rand(3) for _ in range(200)]])
    assert all(torch.equal(a, b) for a, b in zip(wanted, found))
    assert torch.equal(torch.rand(3), (torch.manual_seed(3), [torch.rand(3) for _ in range(201)])[1][-1])


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("by", ["member", "ensemble"])
def test_two_threads_fit_with_validation_what_one_fits(executor: Executor, by: Any, tmp_path) -> None:
    stop = EarlyStopping(patience=2, by=by)

    def fitted(seed: int, folder=None) -> Ensemble:
        recipe = make("deep_ensemble", budget=24, members=3, training=TRAINING)
        options: dict[str, Any] = {
            "compute": Compute(executor=executor),
            "validation": 0.25,
            "early_stopping": stop,
            "run_dir": folder,
        }
        return fit(pictures, (X, Y), recipe, seed=seed, **options)

    alone = [fitted(seed) for seed in (0, 1)]
    found = at_once([partial(fitted, seed, tmp_path / str(seed)) for seed in (0, 1)])
    for one, other in zip(alone, found):
        assert one.info["stopped"] == other.info["stopped"] != []
        for a, b in zip(one.states(), other.states()):
            assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)
            assert all(torch.equal(a.buffers[n], b.buffers[n]) for n in a.buffers)
