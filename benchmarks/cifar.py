"""CIFAR-10 at small, equal budgets: suites of methods on one network, several seeds, resumable. Papers' tables: paper.py.

    CHORAL_DATA=... python benchmarks/cifar.py baselines --runs /some/folder [--seeds 3] [--threads 2]

Every run has its own run folder, so the same command goes on where it stopped; the table is written to
benchmarks/results/cifar_SUITE.json after every finished run. Rows that this file holds are not run again unless asked for (`--again`), so
that a suite can be finished on several days and machines.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from choral import Compute, models
from choral.comparison.evaluation import evaluate, row_of
from choral.data import HorizontalFlip, Normalize, PadCrop
from choral.fit import fit
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.bnn import VARIATIONAL
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from datasets import CIFAR10_MEAN, CIFAR10_STD, cifar10
from machine import measured, write

ADAM = Training(lr=0.001, optimizer=Adam(), batch_size=128, schedule="constant")
Suite = tuple[Callable[[], torch.nn.Module], dict[str, Callable[[], Recipe]]]
POINTS = {"sebays_clip": 15_000, "shared": 25_000}
"""Suites that train on the first images only (their order is random)."""
AUGMENTED = ("sebays_clip",)
"""Suites that crop and flip."""


def suites() -> dict[str, Suite]:
    """Return every suite: its network and its recipes by label."""
    baselines: dict[str, Callable[[], Recipe]] = {
        "single": lambda: make("single", budget=16, training=ADAM),
        "deep_ensemble 8x2": lambda: make("deep_ensemble", budget=16, members=8, training=ADAM),
        "snapshot 4x4": lambda: make("snapshot", budget=16, members=4, training=ADAM),
    }
    return {
        "baselines": (lambda: models.lenet("S"), baselines),
        "shared": (lambda: models.lenet("M"), shared_weights(6)),
        "sebays_clip": (lambda: models.resnet_cifar(20, width=8), gates_clipped(16)),
    }


def shared_weights(epochs: int) -> dict[str, Callable[[], Recipe]]:
    """Return methods whose members share a network, and the two baselines, for the same number of epochs.

    Some of them do more in an epoch than the plain network (BatchEnsemble reads every image once for each member): the table
    has the operations of the whole training. LeNet has no norms, so EMP and ECMP patch its output layer alone.
    """

    def trained(name: str, **options: Any) -> Callable[[], Recipe]:
        return lambda: make(name, budget=epochs, training=ADAM, **options)

    return {
        "single": trained("single"),
        "deep_ensemble 3x2": trained("deep_ensemble", members=3),
        "packed": trained("packed", members=4, width=2.0),
        "batch_ensemble": trained("batch_ensemble", members=4),
        "mimo": trained("mimo", members=3),
        "masksembles": trained("masksembles", members=4),
        "mc_dropout": trained("mc_dropout"),
        "emp": trained("emp"),
        "ecmp": trained("ecmp"),
    }


def sequential_bayesian(epochs: int) -> dict[str, Callable[[], Recipe]]:
    """Return the methods of the SeBayS paper at one budget: a third explores, then three members.

    One pass at prediction and redrawn deviations, as its authors have them. Two settings follow from the budget, which has few
    of the paper's steps: batches of 32 instead of 128, and gates that start at 0.8 instead of 0.99. The KL moves a gate by
    gamma (1 - gamma), so that one nobody needs takes 108 units of its time from 0.99 to one half, and 6.5 from 0.8. What remains of
    the network after short explorations decided on 0.8, not its accuracy.
    """
    variational = replace(VARIATIONAL, batch_size=32)
    common: dict[str, Any] = {"epochs": epochs, "draws": 1, "training": variational}
    gates, later = common | {"gamma": 0.8}, {"members": 3, "reset": "redraw"}
    return {
        "single": lambda: make(
            "single", budget=epochs, training=Training(lr=0.1, optimizer="sgd", schedule="steps", batch_size=32)
        ),
        "bnn": lambda: make("bnn", **common),
        "bnn_sequential": lambda: make("bnn_sequential", **common, **later),
        "ssbnn": lambda: make("ssbnn", **gates),
        "sebays_freeze": lambda: make("sebays_freeze", **gates, **later),
        "sebays_no_freeze": lambda: make("sebays_no_freeze", **gates, **later),
    }


def gates_clipped(epochs: int) -> dict[str, Callable[[], Recipe]]:
    """Return the gated methods with the gradients of gates clipped together with all others, and apart, beside their rivals.

    Settings are those of `sequential_bayesian`, with both starts of the gates. The last row of rivals has the epochs that one
    member of a sequential ensemble has seen: the exploration and one exploitation.
    """
    rows = sequential_bayesian(epochs)
    rows = {label: rows[label] for label in ("single", "bnn", "bnn_sequential")}
    exploit = (epochs - epochs // 3) // 3
    once = epochs - 2 * exploit
    common: dict[str, Any] = {"draws": 1, "training": replace(VARIATIONAL, batch_size=32)}
    rows[f"bnn {once} epochs"] = lambda: make("bnn", budget=once, **common)
    for gamma in (0.99, 0.8):
        for clip in ("joint", "apart"):
            for name in ("ssbnn", "sebays_freeze", "sebays_no_freeze"):
                options = {"epochs": epochs, "gamma": gamma, "clip_gates": clip, **common}
                later = {} if name == "ssbnn" else {"members": 3, "reset": "redraw"}
                rows[f"{name} {gamma} {clip}"] = lambda n=name, o=options | later: make(n, **o)
    return rows


def pruning(folder: Path) -> dict[str, Any]:
    """Return what the log says of nodes that left: the shares that remain and the seconds, epoch by epoch."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    epochs = [e for e in events if e["kind"] == "epoch" and "remaining" in e]
    if not epochs:
        return {}
    curves = {f"{name}_by_epoch": [e["remaining"][0][name] for e in epochs] for name in ("parameters", "flops")}
    last = {f"{name}_remaining": curve[-1] for name, curve in zip(("parameters", "flops"), curves.values())}
    return last | curves | {"seconds_by_epoch": [e["seconds"] for e in epochs]}


def main() -> None:
    """Run a suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=list(suites()))
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs, outside the repository")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="labels that contain this text")
    parser.add_argument("--again", action="store_true", help="forget the rows that the results hold")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    build, recipes = suites()[arguments.suite]
    x, y, x_test, y_test = cifar10()
    points = POINTS.get(arguments.suite)
    x, y = x[:points], y[:points]
    augmented = (PadCrop(pixels=4), HorizontalFlip()) if arguments.suite in AUGMENTED else ()
    inputs = (*augmented, Normalize(mean=CIFAR10_MEAN, std=CIFAR10_STD))
    rows: list[dict[str, Any]] = [] if arguments.again else measured(f"cifar_{arguments.suite}").get("rows", [])
    for seed in range(arguments.seeds):
        for label, recipe in recipes.items():
            if arguments.only not in label or any((r["label"], r["seed"]) == (label, seed) for r in rows):
                continue
            folder = arguments.runs / arguments.suite / f"{label.replace(' ', '_')}-{seed}"
            ensemble = fit(
                build,
                (x, y),
                recipe(),
                run_dir=folder,
                seed=seed,
                transforms=inputs,
                compute=Compute(executor="sequential", checkpoint_seconds=20),
            )
            row = (
                {"label": label, "seed": seed} | row_of(ensemble, evaluate(ensemble, x_test, y_test)) | pruning(folder)
            )
            rows.append(row)
            print(f"{label} seed {seed}: accuracy {row['accuracy']:.4f} nll {row['nll']:.4f} ece {row['ece']:.4f}")
            sys.stdout.flush()
            settings = {n: r().describe() for n, r in recipes.items()}
            write(f"cifar_{arguments.suite}", {"rows": rows, "settings": settings, "points": len(x)})


if __name__ == "__main__":
    main()
