"""Anchored ensembles against the published HMC posteriors of IMDB and CIFAR-10: agreement and total variation.

    CHORAL_DATA=... python benchmarks/hmc_fidelity.py imdb --epochs 200 --runs ~/runs [--threads 2] [--only sequential]
    CHORAL_DATA=... python benchmarks/hmc_fidelity.py cifar10 --epochs 20 --runs ~/runs

The networks and priors are those of the reference (CNN-LSTM with 128 units and prior variance 1; ResNet-20 with filter
response normalization, Swish and prior variance 1/5). The paper's smallest budget is 200 epochs. With fewer the same split is
scaled down: half of the budget trains the first member. Runs resume; member predictions are kept in the run folder, and the
results file is written again whenever more members are there, so a stopped run has its numbers too (`--partial`).
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fidelity
from choral import Compute, models
from choral.data import Normalize, Transform, prepare
from choral.engine.blueprint import Blueprint
from choral.engine.store import MemberStore
from choral.fit import fit
from choral.plan import Adam
from choral.plan.bayes import GuidedWalk
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from datasets import CIFAR10_MEAN, CIFAR10_STD, cifar10, loaders
from machine import RESULTS, write

PAPER: dict[str, dict[int, dict[str, tuple[float, float]]]] = {
    "imdb": {
        200: {"anchored": (0.829, 0.180), "sequential_anchored": (0.831, 0.160)},
        1000: {"anchored": (0.892, 0.109), "sequential_anchored": (0.887, 0.110)},
    },
    "cifar10": {
        200: {"anchored": (0.804, 0.225), "sequential_anchored": (0.782, 0.223)},
        1000: {"anchored": (0.849, 0.201), "sequential_anchored": (0.856, 0.176)},
    },
}
"""Agreement and total variation, Table 2 of the paper (medians of 20 runs)."""


@dataclass(frozen=True)
class Problem:
    """Data, network and prior of one reference."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    build: Callable[[], torch.nn.Module]
    prior_std: float
    training: Training
    inputs: tuple[Transform, ...] = ()


def imdb() -> Problem:
    """Reviews of at most 100 tokens."""
    load = loaders()
    (x, y), (x_test, y_test) = load.imdb("train", 100), load.imdb("test", 100)
    training = Training(lr=0.002, optimizer=Adam(), batch_size=128)
    return Problem(x.astype(np.int64), y, x_test.astype(np.int64), y_test, models.cnn_lstm, 1.0, training)


def images() -> Problem:
    """CIFAR-10 without augmentation, as the reference has it; the authors' optimizer settings."""
    x, y, x_test, y_test = cifar10()
    training = Training(lr=0.002145, optimizer=Adam(betas=(0.8547, 0.9997)), batch_size=155)
    inputs = (Normalize(mean=CIFAR10_MEAN, std=CIFAR10_STD),)
    return Problem(x, y, x_test, y_test, models.resnet20_frn, 0.2**0.5, training, inputs)


def recipes(problem: Problem, epochs: int) -> dict[str, Recipe]:
    """Return both methods at the same budget."""
    common: dict[str, Any] = {"epochs": epochs, "prior_std": problem.prior_std, "training": problem.training}
    return {
        "anchored": make("anchored", **common),
        "sequential_anchored": make("sequential_anchored", walk=GuidedWalk(step_std=0.02), **common),
    }


def member_probs(problem: Problem, recipe: Recipe, folder: Path) -> np.ndarray:
    """Return the probabilities of every member that is there, (member, test, class); computed once for each."""
    store = MemberStore(folder / "members")
    kept = folder / "probs"
    kept.mkdir(parents=True, exist_ok=True)
    blueprint = Blueprint(problem.build, recipe.structure, device=torch.device("cpu"), images=problem.x.ndim == 4)
    x_test = torch.as_tensor(problem.x_test)
    found = []
    for number in range(recipe.members):
        path = kept / f"{number:05d}.npy"
        if not path.exists():
            if store.missing(number + 1)[-1:] == [number]:
                continue
            network = blueprint.load(store.get(number)).eval()
            with torch.inference_mode():
                parts = [network(prepare(c, problem.inputs, training=False)).softmax(1) for c in x_test.split(500)]
            np.save(path, torch.cat(parts).numpy())
        found.append(np.load(path))
    return np.stack(found)


def judge(name: str, problem: Problem, label: str, epochs: int, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the fidelity of the members that are there."""
    truth = torch.as_tensor(loaders().hmc_reference(name)).double()
    truth = truth / truth.sum(1, keepdim=True)
    members = torch.as_tensor(member_probs(problem, recipe, folder)).double()
    probs = members.mean(0)
    probs = probs / probs.sum(1, keepdim=True)
    y = torch.as_tensor(problem.y_test)
    paper = PAPER[name].get(epochs, {}).get(label)
    return {
        "method": label,
        "epochs": epochs,
        "members": len(members),
        "complete": len(members) == recipe.members,
        "agreement": fidelity.agreement(probs, truth),
        "tv": fidelity.total_variation(probs, truth),
        "accuracy": float((probs.argmax(1) == y).double().mean()),
        "nll": float(-probs[torch.arange(len(y)), y].clamp(min=1e-12).log().mean()),
        "member_accuracy": float((members.argmax(2) == y).double().mean()),
        "paper_agreement": None if paper is None else paper[0],
        "paper_tv": None if paper is None else paper[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("problem", choices=("imdb", "cifar10"))
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs, outside the repository")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="methods whose name begins with this text")
    parser.add_argument("--points", type=int, default=None, help="training points, for a quick trial")
    parser.add_argument("--partial", action="store_true", help="train nothing, judge the members that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    name, epochs = arguments.problem, arguments.epochs
    problem = imdb() if name == "imdb" else images()
    x, y = problem.x[: arguments.points], problem.y[: arguments.points]
    path = RESULTS / f"hmc_{name}.json"
    rows = {} if not path.exists() else {(r["method"], r["epochs"], r["seed"]): r for r in _read(path)["rows"]}
    for label, recipe in recipes(problem, epochs).items():
        if not label.startswith(arguments.only):
            continue
        folder = arguments.runs / "hmc" / f"{name}-{label}-{epochs}-{arguments.seed}"
        if not arguments.partial:
            fit(
                problem.build,
                (x, y),
                recipe,
                run_dir=folder,
                seed=arguments.seed,
                transforms=problem.inputs,
                compute=Compute(executor="sequential", checkpoint_seconds=60),
            )
        row = judge(name, problem, label, epochs, recipe, folder) | {"seed": arguments.seed, "points": len(x)}
        rows[label, epochs, arguments.seed] = row
        print(row, flush=True)
        write(f"hmc_{name}", {"rows": list(rows.values()), "paper": PAPER[name]})


def _read(path: Path) -> dict[str, Any]:
    import json

    return dict(json.loads(path.read_text()))


if __name__ == "__main__":
    main()
