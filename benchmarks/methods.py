"""Every method against one network at equal operations, over small sets and parts of large ones: wins, ties and losses.

    CHORAL_DATA=... python benchmarks/methods.py [--sets wine,yacht] [--methods packed,snapshot] [--again] [--epochs 60] [--seeds 3] [--most 2000]

Each method has the operations of `--epochs` epochs of the plain perceptron (`choral.compare`), or as many more as one network needs for 1,000
steps. A difference to `single`, paired by seed, counts as won or lost when it is larger than two standard errors and than half a percent. Runs are kept in
`--out`, so the same command goes on where it stopped; benchmarks/results/methods.json is written after every method of every set, smallest sets first, and
what it holds is not run again without `--again`.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from choral import Compute
from choral.comparison.compare import recipes_for, spending_of
from choral.data.problems import Problem
from choral.fit import fit
from choral.plan.cost import batches_in
from choral.recipes import METHODS
from choral.tables.defaults import factory, training_for
from choral.tables.problems import Columns, load_problem
from datasets import loaders
from machine import measured as kept
from machine import write

BUNDLED = ("wine", "diabetes", "breast_cancer", "digits")
UCI = {
    "yacht": "yacht",
    "boston": "boston",
    "energy": "energy",
    "concrete": "concrete",
    "wine_quality": "wine",
    "power": "power",
}
SMALL = ("wine", "yacht", "diabetes", "boston", "breast_cancer", "energy", "concrete", "wine_quality", "digits")
ORDER = (*SMALL, "power", "telco_churn", "california", "adult", "diamonds")
STEPS = 1000  # that single has at least


def problem_of(name: str, most: int, place: Path) -> Problem:
    """Return a set with a quarter of its rows, or its standard test rows, held out."""
    if name in BUNDLED:
        return load_problem(name)
    load = loaders()
    path = place / f"{name}.csv"
    if name in UCI:
        x, y, x_test, y_test = load.uci_split(UCI[name], "std", 0)
        rows = [np.column_stack([a, np.reshape(b, (len(a), -1))[:, 0]]) for a, b in ((x, y), (x_test, y_test))]
        whole = np.concatenate(rows)[:most]
        frame = pd.DataFrame(whole, columns=[*(f"x{i}" for i in range(x.shape[1])), "y"])
        target = "y"
    else:
        train, validation, test = load.table_split(name, 0)
        frame = pd.read_csv(load.table_path(name)).iloc[np.concatenate([train, validation, test])[:most]]
        target = load.TABLES[name]
    frame.to_csv(path, index=False)
    return load_problem(str(path), columns=Columns(target=target))


def measured(problem: Problem, method: str, epochs: int, seeds: int, folder: Path) -> list[dict[str, float]]:
    """Return the scores of a method on the test rows, by seed."""
    training, build = training_for(problem), factory(problem)
    least = math.ceil(STEPS / batches_in(len(problem.x_train), training.batch_size))
    spending = spending_of(build, problem, {})
    (recipe,) = recipes_for([method], budget=max(epochs, least), members=None, training=training, spending=spending)
    found = []
    for seed in range(seeds):
        place = folder / f"{method}-{seed}"
        data = (problem.x_train, problem.y_train)
        ensemble = fit(
            build,
            data,
            recipe,
            run_dir=place,
            seed=seed,
            table=problem.table,
            progress=False,
            compute=Compute(threads=1),
        )
        scores = ensemble.evaluate(problem.x_test, torch.as_tensor(problem.y_test))
        kept = {n: float(scores[n]) for n in ("accuracy", "rmse", "nll") if n in scores}
        found.append(kept | {"members": ensemble.members, "epochs": recipe.epochs})
    return found


def verdict(own: list[float], other: list[float], *, higher: bool) -> dict[str, Any]:
    """Return the mean difference to the other, its standard error, and whether it is a win, a tie or a loss.

    >>> verdict([0.9, 0.8, 0.85], [1.0, 0.9, 0.96], higher=False)["verdict"]
    'win'
    """
    pairs = [(a - b) * (1 if higher else -1) for a, b in zip(own, other)]
    mean, error = statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))
    level = abs(mean) <= max(2 * error, 0.005 * abs(statistics.fmean(other)))
    return {"gain": mean, "error": error, "verdict": "tie" if level else "win" if mean > 0 else "loss"}


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """Return each method's verdicts by set, and how often it won, tied and lost."""
    table: dict[str, Any] = {}
    for held in found.values():
        alone = held.get("single")
        for method, rows in held.items():
            if alone is None or method == "single":
                continue
            point = "accuracy" if "accuracy" in rows[0] else "rmse"
            for score, kind in (("nll", "nll"), (point, "point")):
                one = verdict([r[score] for r in rows], [r[score] for r in alone], higher=score == "accuracy")
                counts = table.setdefault(method, {}).setdefault(kind, {"win": 0, "tie": 0, "loss": 0})
                counts[one["verdict"]] += 1
    return table


def main() -> None:
    """Run what is asked for and was not run before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(ORDER))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--again", action="store_true", help="run also what the results hold")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=2000, help="rows of a large table, at most")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    arguments = parser.parse_args()
    found: dict[str, Any] = kept("methods").get("sets", {})
    for name in arguments.sets.split(","):
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        problem = problem_of(name, arguments.most, folder)
        for method in arguments.methods.split(","):
            if method in found.get(name, {}) and not arguments.again:
                continue
            rows = measured(problem, method, arguments.epochs, arguments.seeds, folder)
            found.setdefault(name, {})[method] = rows
            print(name, method, [{k: round(v, 4) for k, v in row.items()} for row in rows], flush=True)
            about = {"epochs": arguments.epochs, "seeds": arguments.seeds, "most": arguments.most, "sets": found}
            write("methods", about | {"against_single": judged(found)})


if __name__ == "__main__":
    main()
