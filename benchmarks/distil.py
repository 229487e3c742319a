"""One network distilled from an ensemble, beside the ensemble and one network trained on the labels: LeNet-S on CIFAR-10.

    CHORAL_DATA=... python benchmarks/distil.py [--seeds 3] [--images 10000] [--unlabeled 20000] [--epochs 16] [--runs FOLDER]

The ensemble and the single network are trained on labels of the first images. One network is distilled on the same images for as many
epochs, another one on further images too, whose labels nobody reads. `nearer` says whether test NLL and ECE of each lie nearer to the ensemble's than
to the single network's; `kl` is the mean divergence of the test probabilities from the ensemble's, `rank_correlation` that of mutual information.
Epochs and the weight of the Dirichlet were chosen on the first 5,000 test images; scores are of the others.
Writes benchmarks/results/distil.json after every seed, and goes on with the seeds that are not in it; about 4 minutes of one core each.
"""

import argparse
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import choral
from choral import Ensemble, Training, models
from choral.data import Normalize
from choral.plan import Adam
from datasets import CIFAR10_MEAN, CIFAR10_STD, cifar10
from machine import measured, write

TRAINING = Training(lr=0.001, optimizer=Adam(), batch_size=128, schedule="constant")
MEMBERS = 5
LOOKED_AT = 5_000


def row(ensemble: Ensemble, teacher: Ensemble, x: Any, y: Any) -> dict[str, float]:
    """Return test scores, and how far the predictions are from the teacher's."""
    found, right = ensemble.predict(x), teacher.predict(x)
    scores, pair = found.scores(y), (found.mutual_information, right.mutual_information)
    ratio = right.probs.clamp_min(1e-9).log() - found.probs.clamp_min(1e-9).log()
    ranks = torch.stack([values.argsort().argsort().double() for values in pair])
    return {name: scores[name] for name in ("accuracy", "nll", "ece")} | {
        "kl": float((right.probs * ratio).sum(-1).mean()),
        "mutual_information": float(pair[0].mean()),
        "rank_correlation": float(torch.corrcoef(ranks)[0, 1]) if bool(pair[0].any()) else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("seeds", 3), ("images", 10_000), ("unlabeled", 20_000), ("epochs", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--runs", type=Path, default=None, help="Folder for run folders, from which it goes on.")
    asked = parser.parse_args()
    x, y, x_test, y_test = cifar10()
    x_test, y_test = x_test[LOOKED_AT:], y_test[LOOKED_AT:]
    labeled, whole = (x[: asked.images], y[: asked.images]), x[: asked.images + asked.unlabeled]
    transforms = (Normalize(mean=CIFAR10_MEAN, std=CIFAR10_STD),)
    one = choral.recipes.single(epochs=asked.epochs, training=TRAINING)
    several = choral.recipes.deep_ensemble(members=MEMBERS, epochs=asked.epochs, training=TRAINING)
    held = measured("distil")
    found: dict[str, list[dict[str, float]]] = held.get("seeds", {})
    for seed in range(len(found.get("single", [])), asked.seeds):
        options: dict[str, Any] = {"transforms": transforms, "validation": None, "progress": False}

        def run(name: str, seed: int = seed) -> Path | None:
            return None if asked.runs is None else asked.runs / f"{name}-{seed}"

        teacher = choral.fit(models.lenet, labeled, several, seed=seed, run_dir=run("ensemble"), **options)
        alone = choral.fit(models.lenet, labeled, one, seed=1000 + seed, run_dir=run("single"), **options)
        made = {"ensemble": teacher, "single": alone}
        for name, images in (("distilled", labeled[0]), ("distilled_unlabeled", whole)):
            how: dict[str, Any] = {"seed": 2000 + seed, "run_dir": run(name), "progress": False}
            made[name] = choral.distil(teacher, models.lenet, images, one, **how)
        for name, ensemble in made.items():
            found.setdefault(name, []).append(row(ensemble, teacher, x_test, y_test))
            print(seed, name, {n: round(v, 4) for n, v in found[name][-1].items()}, flush=True)
        means = {name: {n: mean(r[n] for r in rows) for n in rows[0]} for name, rows in found.items()}
        nearer = {
            name: {
                score: abs(means[name][score] - means["ensemble"][score])
                < abs(means[name][score] - means["single"][score])
                for score in ("nll", "ece")
            }
            for name in means
            if name.startswith("distilled")
        }
        content = {
            "settings": {n: v for n, v in vars(asked).items() if n != "runs"} | {"members": MEMBERS},
            "seeds": found,
            "means": means,
            "nearer": nearer,
        }
        write("distil", content | {"cpu_seconds": round(time.process_time()) + held.get("cpu_seconds", 0)})


if __name__ == "__main__":
    main()
