"""Can an ensemble tell its own data from other data? Five scores, AUROC / AUPR / FPR95, for many methods.

    python benchmarks/ood.py [--seeds 3]

Trains methods on scikit-learn's digits and sets them before two sets of digits-like images made by corruption: the test images
inverted, shuffled in patches or drowned in noise, and the test images under a common corruption at severity 5 (each image
another one). CIFAR-10 against CIFAR-100 is in the tables of paper.py.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from choral.corruptions import COMMON, corrupt
from choral.data.images import from_images, strange, to_images
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.metrics import evaluate_ood, ood_scores
from choral.recipes import make
from choral.tables.defaults import factory, training_for
from choral.tables.problems import load_problem
from machine import write

DIGITS = (
    "single",
    "deep_ensemble",
    "snapshot",
    "swag",
    "mc_dropout",
    "packed",
    "batch_ensemble",
    "anchored",
    "treenet",
)
MEASURES = ("auroc", "aupr_out", "fpr95_out")


def scores(ensemble: Ensemble, x: np.ndarray, *, batch: int = 2000) -> dict[str, torch.Tensor]:
    """Return the five scores of every row, batch by batch."""
    made = [ensemble._predictive(x[start : start + batch]) for start in range(0, len(x), batch)]
    parts = [ood_scores(p.member_probs, member_logits=p.logits) for p in made]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def hardest(x: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the images, each under the next common corruption at severity 5."""
    images = to_images(x, shape=shape)
    made = images.copy()
    for i, name in enumerate(COMMON):
        rows = np.arange(i, len(images), len(COMMON))
        made[rows] = corrupt(images[rows], name, severity=5, seed=i)
    return from_images(made, like=x)


def digits(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each method, seed, second set and score."""
    problem = load_problem("digits")
    assert problem.image_shape is not None
    others = {
        "inverted, shuffled or noisy": strange(problem.x_test, shape=problem.image_shape)[0],
        "common corruptions, severity 5": hardest(problem.x_test, problem.image_shape),
    }
    for seed in range(seeds):
        for method in DIGITS:
            recipe = make(method, budget=48, training=training_for(problem))
            ensemble = fit(factory(problem), (problem.x_train, problem.y_train), recipe, seed=seed)
            own = scores(ensemble, problem.x_test)
            for name, x in others.items():
                for score, found in evaluate_ood(own, scores(ensemble, x)).items():
                    yield {"method": method, "seed": seed, "other": name, "score": score, **found}
            print(f"{method} seed {seed} done", flush=True)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over seeds."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["other"], row["method"], row["score"]), []).append(row)
    names = ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in")
    return [
        {"other": other, "method": method, "score": score, "seeds": len(group)}
        | {n: statistics.mean(r[n] for r in group) for n in names}
        for (other, method, score), group in groups.items()
    ]


def show(table: list[dict[str, Any]]) -> None:
    """Print AUROC of every score, and AUPR and FPR95 of the entropy."""
    for other in dict.fromkeys(r["other"] for r in table):
        part = [r for r in table if r["other"] == other]
        kinds = list(dict.fromkeys(r["score"] for r in part))
        print(f"\n{other}\n{'AUROC':<28}" + "".join(f"{k:>20}" for k in kinds) + f"{'AUPR':>9}{'FPR95':>9} (entropy)")
        for method in dict.fromkeys(r["method"] for r in part):
            cells = {r["score"]: r for r in part if r["method"] == method}
            line = "".join(f"{cells[k]['auroc']:>20.4f}" for k in kinds)
            print(f"{method:<28}{line}{cells['entropy']['aupr_out']:>9.4f}{cells['entropy']['fpr95_out']:>9.4f}")


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    torch.set_num_threads(1)
    table = summary(list(digits(parser.parse_args().seeds)))
    show(table)
    print(write("ood_digits", {"table": table}))


if __name__ == "__main__":
    main()
