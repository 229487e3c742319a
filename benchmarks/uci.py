"""UCI regression as in two papers, on the 20 standard splits, all splits of a set trained as one stack; run by paper.py.

`packed`: Packed-Ensembles (2, 3, 1) against a deep ensemble of 3, one hidden layer of 200, mean and variance outputs (Laurent et
al., 2023, Table 11). They follow the protocol of Lakshminarayanan et al. (40 epochs, batch 100, Adam, a rate from a
grid), so the rate is chosen here for every split by itself, on a fifth of its training rows.

`patched`: EMP, ECMP, dropout and an explicit ensemble, one hidden layer of 50 (Chang et al., 2019, Tables 12 and 13):
their fixed settings. What they do not say is fixed here: the loss is the mean squared error of the standardized target (the
output precision 0.1 is in the target's own units and enters the log density), decay is Adam's, components of a norm start 10 %
apart, and power and protein get a tenth of the epochs.

Inputs and target are standardized by the training rows of each split; errors are in the target's own units. Runs resume.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from choral import Compute, models
from choral.base import draws, rng
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.layers.keyed import keyed
from choral.objectives.likelihoods import FixedGaussian, LearnedGaussian, Likelihood
from choral.plan import Adam, Fork, Operator, Seq, fork
from choral.plan.phases import Context
from choral.plan.state import State
from choral.recipes import make, mc_dropout
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from datasets import loaders

RATES = (0.001, 0.003, 0.01, 0.03)
PRECISION = 0.1  # of the output, in the target's own units
LARGE = ("power", "protein")  # these get a tenth of the epochs in `patched`
LABELS = {
    "packed": "Packed-Ensembles",
    "deep_ensemble": "Deep Ensembles",
    "ecmp": "ECMP",
    "emp": "EMP",
    "dropout": "Dropout",
    "explicit_ensemble": "Ensemble",
}
"""Lines of the tables."""


@dataclass(frozen=True, kw_only=True)
class TakePart(Operator):
    """Restrict training to one of several equally long parts of the rows; `networks` branches in a row share a part."""

    rows: int
    networks: int = 1

    @property
    def gives(self) -> tuple[str, ...]:
        """The slot 'subset' with the part's rows."""
        return ("subset",)

    def apply(self, state: State | None, context: Context) -> State:
        """Return the state with the rows of its part."""
        assert state is not None
        first = context.branch // self.networks * self.rows
        return state.with_slots(subset={"indices": torch.arange(first, first + self.rows)})


class Splits(NamedTuple):
    """All splits of a data set, each standardized by its own training rows.

    x, y: training rows, one split after the other; x_test (split, row, feature), y_test (split, row) in its own units;
    mean, std: of the training targets (split, 1).
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    mean: Tensor
    std: Tensor

    @property
    def count(self) -> int:
        """Number of splits."""
        return len(self.x_test)


def splits_of(name: str, *, held_out: float = 0.0) -> Splits:
    """Return the standard splits; with `held_out`, the last part of each split's training rows replaces its test rows."""
    x, y, kinds = loaders().uci(name)
    parts: list[list[np.ndarray]] = []
    for train, test in kinds["std"]:
        if held_out:
            kept = round((1 - held_out) * len(train))
            train, test = train[:kept], train[kept:]
        center, scale = x[train].mean(0), x[train].std(0)
        scale[scale == 0] = 1.0
        mean, std = y[train].mean(keepdims=True), y[train].std(keepdims=True)
        parts.append(
            [(x[train] - center) / scale, (y[train] - mean) / std, (x[test] - center) / scale, y[test], mean, std]
        )
    columns = [torch.as_tensor(np.stack(column), dtype=torch.float32) for column in zip(*parts)]
    return Splits(columns[0].flatten(0, 1), columns[1].flatten().unsqueeze(1), *columns[2:])


def over_splits(recipe: Recipe, splits: Splits) -> Recipe:
    """Return the recipe for every split at once: its networks are branches of one fork, each with its split's rows."""
    plan = recipe.plan
    networks = plan.branches if isinstance(plan, Fork) else 1
    body = plan.body if isinstance(plan, Fork) else plan
    assert isinstance(body, Seq)
    reset, *rest = body.phases
    part = TakePart(rows=len(splits.x) // splits.count, networks=networks)
    return replace(recipe, plan=fork(splits.count * networks, reset, part, *rest))


def passes(ensemble: Ensemble, splits: Splits, count: int) -> Iterator[Tensor]:
    """Yield the outputs of all passes over the test rows, some at a time, every network on its own split.

    Shapes: (split, member * pass, row, output).
    """
    structure, network, states = ensemble.recipe.structure, ensemble._network(), list(ensemble.states())
    params = {n: torch.stack([s.params[n] for s in states]) for n in states[0].params}
    buffers = {n: torch.stack([s.buffers[n] for s in states]) for n in states[0].buffers}
    x = splits.x_test.repeat_interleave(len(states) // splits.count, 0)

    def run(p: Any, b: Any, words: Tensor, rows: Tensor) -> Tensor:
        with keyed(words):
            return structure.unfold(functional_call(network, (p, b), (structure.feed(rows, None)[0],)))

    mapped = vmap(vmap(run, in_dims=(None, None, 0, None)))
    together = max(1, 50_000 // (x.shape[0] * x.shape[1]))
    for first in range(0, count, together):
        chosen = range(first, min(first + together, count))
        keys = [rng.key(0, "uci", i, draw) for i in range(len(states)) for draw in chosen]
        with torch.no_grad():  # each pass has a draw of its own, so BatchNorm's running statistics serve all of them
            outputs = mapped(params, buffers, draws.words(*keys).view(len(states), -1, 2), x)
        yield outputs.unflatten(0, (splits.count, -1)).flatten(1, 3)


def matched(ensemble: Ensemble, splits: Splits) -> dict[str, list[float]]:
    """Return RMSE, MAE and NLL of every split under the Gaussian with the mixture's mean and variance, in own units."""
    assert isinstance(ensemble.likelihood, LearnedGaussian)
    (outputs,) = passes(ensemble, splits, 1)
    moments = ensemble.likelihood.moments(outputs.flatten(0, 1))
    means, variances = (m.squeeze(-1).double().unflatten(0, outputs.shape[:2]) for m in moments)
    mean = means.mean(1)
    variance = (variances + means.square()).mean(1) - mean.square()
    mean, variance = mean * splits.std + splits.mean, variance * splits.std**2
    squares = (mean - splits.y_test).square()
    nll = 0.5 * (squares / variance + variance.log() + math.log(2 * math.pi))
    return {
        "rmse": squares.mean(1).sqrt().tolist(),
        "mae": squares.sqrt().mean(1).tolist(),
        "nll": nll.mean(1).tolist(),
    }


def averaged(ensemble: Ensemble, splits: Splits, count: int) -> dict[str, list[float]]:
    """Return RMSE of the mean and NLL of the mixture of all passes with the fixed output precision, in own units."""
    total, seen = torch.zeros(()), 0
    log_density = torch.full((), -math.inf)
    for outputs in passes(ensemble, splits, count):
        values = outputs.squeeze(-1).double() * splits.std.unsqueeze(1) + splits.mean.unsqueeze(1)
        each = 0.5 * (math.log(PRECISION / (2 * math.pi)) - PRECISION * (values - splits.y_test.unsqueeze(1)).square())
        total = total + values.sum(1)
        log_density = torch.logaddexp(log_density, each.logsumexp(1))
        seen += values.shape[1]
    squares = (total / seen - splits.y_test).square()
    return {"rmse": squares.mean(1).sqrt().tolist(), "nll": (math.log(seen) - log_density).mean(1).tolist()}


def train(
    folder: Path, build: Callable[[], nn.Module], recipe: Recipe, splits: Splits, likelihood: Likelihood
) -> Ensemble:
    """Return the networks of all splits, trained stacked."""
    return fit(
        build,
        (splits.x, splits.y),
        over_splits(recipe, splits),
        run_dir=folder,
        likelihood=likelihood,
        compute=Compute(executor="vectorized", checkpoint_seconds=30),
    )


def packed(name: str, runs: Path, *, epochs: int = 40) -> dict[str, dict[str, Any]]:
    """Return packed (2, 3, 1) and a deep ensemble of 3 on one data set, by method."""
    splits, halves = splits_of(name), splits_of(name, held_out=0.2)

    def build() -> nn.Module:
        return models.mlp(splits.x.shape[1], 2, hidden=(400 if name == "protein" else 200,))

    rows = {}
    for method, options, times in [("packed", {"width": 2.0}, 1), ("deep_ensemble", {}, 3)]:
        held, final, seconds = [], [], 0.0
        for rate in RATES:
            training = Training(lr=rate, optimizer=Adam(), batch_size=100, schedule="constant")
            recipe = make(method, budget=epochs * times, members=3, training=training, **options)
            place = runs / "uci" / f"{name}-{method}-{rate}-{epochs}"
            trial = train(place / "trial", build, recipe, halves, LearnedGaussian())
            ensemble = train(place / "final", build, recipe, splits, LearnedGaussian())
            held.append(matched(trial, halves)["nll"])
            final.append(matched(ensemble, splits))
            seconds += trial.info["seconds"] + ensemble.info["seconds"]
        chosen = np.argmin(np.asarray(held), 0).tolist()
        scores = {m: [final[c][m][split] for split, c in enumerate(chosen)] for m in ("rmse", "mae", "nll")}
        rows[LABELS[method]] = scores | {
            "method": method,
            "parameters": ensemble._parameters // splits.count,
            "rates": [RATES[c] for c in chosen],
            "seconds": seconds,
        }
    return rows


def small(inputs: int, between: Callable[[int], list[nn.Module]], hidden: int = 50) -> nn.Module:
    """Return the network of the patching paper: one hidden layer, some layer after the input and after it."""
    layers = (nn.Linear(inputs, hidden), nn.ReLU(), *between(hidden), nn.Linear(hidden, 1))
    return nn.Sequential(*between(inputs), *layers)


def norm(width: int) -> list[nn.Module]:
    """Return batch normalization with scales that start at 0.2."""
    layer = nn.BatchNorm1d(width)
    nn.init.constant_(layer.weight, 0.2)
    return [layer]


def patched(name: str, runs: Path, *, epochs: int = 4000, draws: int = 10_000) -> dict[str, dict[str, Any]]:
    """Return EMP, ECMP, dropout and the explicit ensemble on one data set, by method."""
    splits = splits_of(name)
    inputs, epochs = splits.x.shape[1], max(1, epochs // (10 if name in LARGE else 1))
    hidden = 100 if name == "protein" else 50
    training = Training(lr=0.001, optimizer=Adam(weight_decay=0.01), batch_size=100, schedule="constant")
    common: dict[str, Any] = {"epochs": epochs, "training": training}
    methods: dict[str, tuple[Callable[[], nn.Module], Recipe]] = {
        "ecmp": (lambda: small(inputs, norm, hidden), make("ecmp", output=False, statistics="shared", **common)),
        "emp": (lambda: small(inputs, norm, hidden), make("emp", output=False, statistics="shared", **common)),
        "dropout": (
            lambda: small(inputs, lambda _: [nn.Dropout(0.005)], hidden),
            mc_dropout(rate=None, **common),
        ),
        "explicit_ensemble": (
            lambda: small(inputs, lambda _: [], hidden),
            make("deep_ensemble", budget=5 * epochs, members=5, training=training),
        ),
    }
    rows = {}
    for method, (build, recipe) in methods.items():
        folder = runs / "uci" / f"{name}-{method}-{epochs}"
        ensemble = train(folder, build, recipe, splits, FixedGaussian(precision=2.0))  # the squared error itself
        count = draws if recipe.structure.draws > 1 else 1
        rows[LABELS[method]] = averaged(ensemble, splits, count) | {
            "method": recipe.name,
            "draws": count,
            "epochs": epochs,
            "parameters": ensemble._parameters // splits.count,
            "seconds": ensemble.info["seconds"],
        }
    return rows
