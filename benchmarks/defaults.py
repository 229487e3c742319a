"""Default settings against a plain Adam loop: twenty small problems, a user's own network, nothing set but the method.

Each method is trained by `choral.fit(build, data, "method")`, which chooses epochs and all training settings. Beside it
stand one Adam network with the epochs of the method's run (`one`) and a loop of as many Adam networks with the same
epochs in all (`loop`): batches of 32, standardized regression targets, Adam at its default learning rate of 1e-3, at
3e-3, and at the better of the two by NLL on the test rows (`best`). No user has the last one: it favors the loops.

The rule for default settings was chosen with `--part choose`: other seeds of the generators, and parts of the training
rows of the bundled sets.

python benchmarks/defaults.py [--seeds 3] [--part test] [--only digits_mlp ...] [--methods packed ...]
"""

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import choral
from machine import write
from sklearn import datasets

METHODS = ("deep_ensemble", "packed", "snapshot", "prune_and_tune", "batch_ensemble", "mc_dropout")
RATES = {"1e-3": 1e-3, "3e-3": 3e-3}


class LSTM(nn.Module):
    """A recurrent network over (row, time, 1) with a linear head."""

    def __init__(self, outputs: int):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the head of the last state."""
        result: Tensor = self.head(self.lstm(x)[0][:, -1])
        return result


def mlp(inputs: int, outputs: int, *hidden: int, dropout: float = 0.0) -> Callable[[], nn.Module]:
    """Return a factory of perceptrons."""

    def build() -> nn.Module:
        widths, layers = (inputs, *hidden), []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    return build


def cnn(outputs: int, channels: int = 1) -> Callable[[], nn.Module]:
    """Return a factory of small ConvNets with BatchNorm for 8 x 8 images."""
    return lambda: nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, outputs),
    )


@dataclass(frozen=True)
class Set:
    """A problem: a network, and data for a seed; bundled sets have rows of their own for choosing settings."""

    build: Callable[[], nn.Module]
    make: Callable[[int], tuple[Any, Any]]
    train: int
    fixed: bool = False
    classes: bool = False

    def split(self, part: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return training and test rows; `choose` sees other draws, or the training rows of the test split alone."""
        x, y = self.make(seed + (1000 if part == "choose" else 0))
        order = np.random.default_rng(7).permutation(len(x)) if self.fixed else np.arange(len(x))
        x, y = np.asarray(x)[order], np.asarray(y)[order]
        train = self.train
        if self.fixed and part == "choose":
            inner = np.random.default_rng(seed).permutation(train)
            x, y, train = x[:train][inner], y[:train][inner], int(0.75 * train)
        kind = torch.long if self.classes else torch.float32
        x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=kind)
        return x[:train], y[:train], x[train:], y[train:]


def _scaled(loaded: tuple[Any, Any]) -> tuple[Any, Any]:
    x, y = loaded
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-9), y


def _sines(seed: int, classes: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    rate, phase = rng.uniform(0.5, 2.0, 900), rng.uniform(0, 6.28, 900)
    x = np.sin(rate[:, None] * np.arange(16) * 0.5 + phase[:, None]) + 0.3 * rng.normal(size=(900, 16))
    return x[..., None], (rate > 1.25).astype(int) if classes else rate


def _uneven(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (900, 1))
    return x, np.sin(2 * x[:, 0]) + (0.05 + 0.15 * np.abs(x[:, 0])) * rng.normal(size=900)


def _line(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(700, 8))
    return x, x[:, 0] + 0.1 * rng.normal(size=700)


SETS: dict[str, Set] = {
    "line_two_outputs": Set(mlp(8, 2, 16), _line, 200),
    "friedman1": Set(mlp(10, 1, 64, 64), lambda s: datasets.make_friedman1(900, noise=1.0, random_state=s), 450),
    "friedman1_two": Set(mlp(10, 2, 64), lambda s: datasets.make_friedman1(900, noise=1.0, random_state=s), 450),
    "friedman2": Set(mlp(4, 1, 50), lambda s: _scaled(datasets.make_friedman2(900, noise=100.0, random_state=s)), 400),
    "friedman3": Set(
        mlp(4, 1, 50, 50), lambda s: _scaled(datasets.make_friedman3(900, noise=0.1, random_state=s)), 400
    ),
    "diabetes": Set(mlp(10, 1, 32), lambda s: _scaled(datasets.load_diabetes(return_X_y=True)), 330, fixed=True),
    "linear20": Set(mlp(20, 1, 64), lambda s: datasets.make_regression(800, 20, noise=20.0, random_state=s), 300),
    "swiss_roll": Set(
        mlp(3, 1, 64, 64), lambda s: _scaled(datasets.make_swiss_roll(1200, noise=0.3, random_state=s)), 600
    ),
    "uneven_noise": Set(mlp(1, 2, 64, 64), _uneven, 500),
    "sine_rate_lstm": Set(lambda: LSTM(1), lambda s: _sines(s, False), 500),
    "digits_mlp": Set(
        mlp(64, 10, 64),
        lambda s: (lambda d: (d[0] / 16, d[1]))(datasets.load_digits(return_X_y=True)),
        1300,
        True,
        True,
    ),
    "digits_cnn": Set(
        cnn(10),
        lambda s: (lambda d: (d[0].reshape(-1, 1, 8, 8) / 16, d[1]))(datasets.load_digits(return_X_y=True)),
        1300,
        True,
        True,
    ),
    "iris": Set(mlp(4, 3, 16), lambda s: _scaled(datasets.load_iris(return_X_y=True)), 100, True, True),
    "wine": Set(mlp(13, 3, 32), lambda s: _scaled(datasets.load_wine(return_X_y=True)), 110, True, True),
    "breast_cancer": Set(
        mlp(30, 2, 64, dropout=0.2), lambda s: _scaled(datasets.load_breast_cancer(return_X_y=True)), 350, True, True
    ),
    "moons": Set(mlp(2, 2, 32, 32), lambda s: datasets.make_moons(1000, noise=0.25, random_state=s), 300, classes=True),
    "classes20": Set(
        mlp(20, 3, 64, 64),
        lambda s: datasets.make_classification(1400, 20, n_informative=8, n_classes=3, random_state=s),
        600,
        classes=True,
    ),
    "rings": Set(
        mlp(6, 4, 64),
        lambda s: datasets.make_gaussian_quantiles(n_samples=1400, n_features=6, n_classes=4, random_state=s),
        700,
        classes=True,
    ),
    "hastie": Set(
        mlp(10, 2, 64, 64, dropout=0.1),
        lambda s: (lambda d: (d[0], (d[1] > 0).astype(int)))(datasets.make_hastie_10_2(2000, random_state=s)),
        1000,
        classes=True,
    ),
    "sine_class_lstm": Set(lambda: LSTM(2), lambda s: _sines(s, True), 500, classes=True),
}


def trained(build: Callable[[], nn.Module], x: Tensor, y: Tensor, *, epochs: int, rate: float, seed: int) -> nn.Module:
    """Return a network trained by the loop that everybody writes."""
    torch.manual_seed(seed)
    network = build().train()
    adam = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            if len(rows) < 2:
                continue
            loss = _loss(network(x[rows]), y[rows]).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    return network.eval()


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    if not y.is_floating_point():
        return F.cross_entropy(outputs, y, reduction="none")
    if outputs.shape[1] == 1:
        return (outputs[:, 0] - y).square()
    variance = F.softplus(outputs[:, 1]) + 1e-6
    return 0.5 * ((outputs[:, 0] - y).square() / variance + variance.log())


def loop_nll(
    networks: list[nn.Module], parts: tuple[Tensor, Tensor, Tensor, Tensor], scale: tuple[float, float]
) -> float:
    """Return the NLL of a loop's networks; one noise, of the training residuals, where it is not learned."""
    x, y, x_test, y_test = parts
    with torch.no_grad():
        out = torch.stack([n(x_test) for n in networks])
        if not y.is_floating_point():
            probs = out.softmax(-1).mean(0)
            return float(F.nll_loss(probs.clamp_min(1e-30).log(), y_test))
        mean, std = scale
        if out.shape[-1] == 2:
            means, variances = out[..., 0], F.softplus(out[..., 1]) + 1e-6
        else:
            means = out[..., 0]
            residuals = torch.stack([n(x)[:, 0] for n in networks]) - (y - mean) / std
            variances = residuals.square().mean().clamp_min(1e-12).expand_as(means)
        means, variances = means * std + mean, variances * std**2
        each = -0.5 * ((means - y_test).square() / variances + variances.log() + math.log(2 * math.pi))
        return float(-(each.logsumexp(0) - math.log(len(networks))).mean())


class Loops:
    """The loops of one problem and seed: networks by rate and epochs, trained once and shared."""

    def __init__(self, build: Callable[[], nn.Module], parts: tuple[Tensor, Tensor, Tensor, Tensor], seed: int):
        self.build, self.parts, self.seed = build, parts, seed
        y = parts[1]
        self.scale = (float(y.mean()), float(y.std())) if y.is_floating_point() else (0.0, 1.0)
        self.known: dict[tuple[float, int, int], nn.Module] = {}

    def scores(self, members: int, epochs: int) -> dict[str, float]:
        """Return the NLL at each learning rate, and that of the better one."""
        found = {}
        for label, rate in RATES.items():
            networks = [self._network(rate, epochs, i) for i in range(members)]
            found[label] = loop_nll(networks, self.parts, self.scale)
        return found | {"best": min(found.values())}

    def _network(self, rate: float, epochs: int, number: int) -> nn.Module:
        key = (rate, epochs, number)
        if key not in self.known:
            x, y = self.parts[:2]
            y = (y - self.scale[0]) / self.scale[1] if y.is_floating_point() else y
            self.known[key] = trained(self.build, x, y, epochs=epochs, rate=rate, seed=100 * self.seed + number)
        return self.known[key]


def of_choral(problem: Set, parts: tuple[Tensor, Tensor, Tensor, Tensor], method: str, seed: int) -> dict[str, Any]:
    """Return the scores of one method, and the warnings it gave."""
    x, y, x_test, y_test = parts
    began = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ensemble = choral.fit(problem.build, (x, y), method, seed=seed)
    scores = ensemble.evaluate(x_test, y_test)
    point = scores["rmse"] if "rmse" in scores else 1 - scores["accuracy"]
    return {
        "nll": scores["nll"],
        "point": point,
        "members": ensemble.members,
        "epochs": ensemble.recipe.epochs,
        "seconds": round(time.process_time() - began, 2),
        "warnings": [str(w.message)[:160] for w in said],
    }


def useless(parts: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    """Return the RMSE of the mean, or the error of the majority class."""
    y, y_test = parts[1], parts[3]
    if y.is_floating_point():
        return float((y_test - y.mean()).square().mean().sqrt())
    return float((y_test != y.mode().values).float().mean())


def row(
    name: str, method: str, seed: int, part: str, loops: Loops, parts: Any, known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return one method on one problem and seed, beside the loops; those that are known are not trained again."""
    try:
        ours = of_choral(SETS[name], parts, method, seed)
    except choral.ChoralError as error:  # an LSTM has no layer that BatchEnsemble or dropout could adapt
        return {"set": name, "method": method, "seed": seed, "refused": str(error)}
    members, total = ours["members"], ours["epochs"]
    found = {"set": name, "method": method, "seed": seed, "useless": useless(parts)} | ours
    each = max(1, total // members)
    sizes = {"one": (1, each if method == "deep_ensemble" else total), "loop": (members, each)}
    return found | {label: known[label] if known else loops.scores(*size) for label, size in sizes.items()}


def behind(a: float, b: float) -> bool:
    """Return whether an NLL is worse than another by more than 5 %; near zero, by more than 0.02."""
    return a - b > max(0.05 * abs(b), 0.02)


def main() -> None:
    """Run all problems, print a line for each and method, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", choices=("test", "choose"), default="test")
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--rows", type=Path, help="file of rows that are kept, so that a stopped run goes on")
    parser.add_argument(
        "--loops", type=Path, help="rows of an earlier run, whose loops are the same and not trained again"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = given.rows.read_text().splitlines() if given.rows and given.rows.exists() else []
    rows = [json.loads(line) for line in kept]
    earlier = [json.loads(line) for line in given.loops.read_text().splitlines()] if given.loops else []
    known = {key(r): r for r in earlier if "loop" in r}
    for name in given.only:
        for seed in range(given.seeds):
            missing = [m for m in given.methods if not any(key(r) == (name, m, seed) for r in rows)]
            if not missing:
                continue
            parts = SETS[name].split(given.part, seed)
            loops = Loops(SETS[name].build, parts, seed)
            for method in missing:
                found = row(name, method, seed, given.part, loops, parts, known.get((name, method, seed)))
                found = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))
                rows.append(found)
                print(found, flush=True)
                if given.rows:
                    with given.rows.open("a") as file:
                        file.write(json.dumps(found) + "\n")
    summary = summarized(rows, given.methods)
    for method, line in summary.items():
        print(method, json.dumps(line, indent=1))
    if given.part == "test" and {r["set"] for r in rows} == set(SETS):
        write("defaults", {"seeds": given.seeds, "summary": summary, "rows": rows})


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    """Return what a row was measured on."""
    return row["set"], row["method"], row["seed"]


def summarized(rows: list[dict[str, Any]], methods: list[str]) -> dict[str, Any]:
    """Return, for each method, on how many sets its mean NLL holds against the loops and one network."""
    found = {}
    for method in methods:
        own = [r for r in rows if r["method"] == method]
        sets = sorted({r["set"] for r in own if "refused" not in r})

        def mean(name: str, *path: str) -> float:
            values = [r for r in own if r["set"] == name]  # noqa: B023  # called within this turn of the loop
            for step in path:
                values = [v[step] for v in values]
            return float(np.mean(values))

        line: dict[str, Any] = {"sets": len(sets), "refused": sorted({r["set"] for r in own if "refused" in r})}
        for rate in (*RATES, "best"):
            nll = {n: (mean(n, "nll"), mean(n, "loop", rate), mean(n, "one", rate)) for n in sets}
            line[f"rate {rate}"] = {
                "not behind the loop": sum(not behind(ours, loop) for ours, loop, _ in nll.values()),
                "better than one": sum(ours < one for ours, _, one in nll.values()),
                "behind the loop": [f"{n} {v[0]:.3f} / {v[1]:.3f}" for n, v in nll.items() if behind(v[0], v[1])],
                "behind one": [f"{n} {v[0]:.3f} / {v[2]:.3f}" for n, v in nll.items() if v[0] >= v[2]],
            }
        line["useless"] = sum(mean(n, "point") > mean(n, "useless") for n in sets)
        found[method] = line
    return found


if __name__ == "__main__":
    main()
