"""Early stopping: what it saves when half of a stack stops, and whether stopped ensembles predict as well as the best fixed budget.

    CHORAL_DATA=... python benchmarks/early_stop.py [speed] [boston yacht energy concrete]

`speed`: 16 perceptrons trained as one stack for 60 epochs, in one process: to the end without validation, to the end with it, and
with half of them stopped after 5 epochs (their measure is told never to improve). Ratios of the fastest of three runs each, in processor time of one thread.

The others: deep ensembles of 4 perceptrons with mean and variance outputs on 5 of the standard splits of four sets. Fixed budgets train on
all rows for 20, 60 or 200 epochs; the stopped ones hold a tenth out, train at most 400 epochs, stop by the score of the ensemble after 20 epochs, or 600 steps, without a better
one (as `choral fit`), and keep the states that were best there. The score is the NLL of the test rows in the target's own units; the best budget is chosen on the test rows, which the
stopped ensembles never see. Standard errors are those of the difference over splits, and of the best budget's own score.
The results file is written after every set.
"""

import json
import math
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from choral import Compute, models
from choral.data.sources import TensorSource
from choral.fit import fit
from choral.plan import Adam, EarlyStopping, Measure
from choral.predictions import Predictive
from choral.recipes import make
from choral.recipes.training import Training
from datasets import loaders
from machine import RESULTS, write

SETS = ("boston", "yacht", "energy", "concrete")
SPLITS = 5
MEMBERS = 4
BUDGETS = (20, 60, 200)
MOST = 400  # epochs of a stopped member, at most
SHARE, BATCH = 0.1, 32
UCI = Training(lr=0.003, optimizer=Adam(), batch_size=BATCH, schedule="constant")
STACK, EPOCHS, STOPPED_AFTER = 16, 60, 4


class HalfImproves:
    """A measure for a stack that is asked in order: every second network gets better at each call, the others never."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, prediction: Predictive, y: Tensor) -> float:
        if len(y) <= 8:  # the trial before training
            return 0.0
        self.calls += 1
        told = self.calls <= STACK * (STOPPED_AFTER + 1) and self.calls % 2
        return 0.0 if told else -float(self.calls)


def speed() -> dict[str, Any]:
    """Return seconds of training one stack, and ratios."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2500, 8, generator=generator)
    y = x[:, :1].sin() + 0.1 * torch.randn(2500, 1, generator=generator)
    training = Training(lr=0.001, optimizer=Adam(), batch_size=100, schedule="constant")
    recipe = make("deep_ensemble", budget=STACK * EPOCHS, members=STACK, training=training)

    def build() -> torch.nn.Module:
        return models.mlp(8, 1, hidden=(128, 128))

    def run(**settings: Any) -> float:
        started = time.process_time()
        found = fit(
            build,
            TensorSource(x, y),
            recipe,
            compute=Compute(executor="vectorized", threads=1),
            progress=False,
            **settings,
        )
        if "stop" in settings:
            assert len(found.info["stopped"]) == STACK // 2
        return time.process_time() - started

    seconds: dict[str, list[float]] = {"plain": [], "validated": [], "half_stopped": []}
    for _ in range(3):
        seconds["plain"].append(run())
        seconds["validated"].append(
            run(validation=0.2, early_stopping=EarlyStopping(patience=None, restore_best=False))
        )
        measure = Measure.of(HalfImproves())
        stop = EarlyStopping(patience=STOPPED_AFTER, monitor=measure)
        seconds["half_stopped"].append(run(validation=0.2, early_stopping=replace(stop, restore_best=False)))
    best = {name: min(each) for name, each in seconds.items()}
    return {
        "seconds": seconds,
        "stopping_faster_than_validated": best["validated"] / best["half_stopped"],
        "validation_slower_than_none": best["validated"]
        / (best["plain"] * 0.8),  # it trains on four fifths of the rows
    }


def uci(name: str) -> dict[str, Any]:
    """Return the NLL of fixed budgets and of stopped ensembles on one set."""
    load = loaders()
    rows: dict[str, list[float]] = {str(b): [] for b in BUDGETS} | {"stopped": []}
    epochs: list[float] = []
    for split in range(SPLITS):
        x, y, x_test, y_test = (torch.as_tensor(v).float() for v in load.uci_split(name, "std", split))
        shift, scale = x.mean(0), x.std(0).clamp_min(1e-6)
        data = ((x - shift) / scale, y, (x_test - shift) / scale, y_test)
        for budget in BUDGETS:
            rows[str(budget)].append(_nll(*data, budget, split)[0])
        steps = math.ceil(len(x) * (1 - SHARE) / BATCH)
        stop = EarlyStopping(patience=max(20, math.ceil(600 / steps)), by="ensemble")
        score, taken = _nll(*data, MOST, split, validation=SHARE, early_stopping=stop)
        rows["stopped"].append(score)
        epochs.append(taken / MEMBERS)
    found = _judged(rows) | {"epochs": statistics.mean(epochs)}
    print(name, {k: v for k, v in found.items() if k != "each"})  # progress of a long script
    return found


def _nll(
    x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, epochs: int, seed: int, **settings: Any
) -> tuple[float, float]:
    recipe = make("deep_ensemble", budget=MEMBERS * epochs, members=MEMBERS, training=UCI)
    ensemble = fit(
        lambda: models.mlp(x.shape[1], 2, hidden=(50,)),
        (x, y),
        recipe,
        seed=seed,
        compute=Compute(executor="vectorized", threads=1),
        progress=False,
        **settings,
    )
    return ensemble.evaluate(x_test, y_test)["nll"], ensemble.info["counted"]["epochs"]


def _judged(rows: dict[str, list[float]]) -> dict[str, Any]:
    means = {name: statistics.mean(each) for name, each in rows.items()}
    best = min((str(b) for b in BUDGETS), key=means.__getitem__)
    differences = [a - b for a, b in zip(rows["stopped"], rows[best])]
    behind, root = statistics.mean(differences), len(differences) ** 0.5
    paired, own = statistics.stdev(differences) / root, statistics.stdev(rows[best]) / root
    return {
        "nll": means,
        "each": rows,
        "best_budget": int(best),
        "stopped_minus_best": behind,
        "standard_error": {"of_difference": paired, "of_best": own},
        "no_worse": {"by_difference": behind <= paired, "by_best": behind <= own},
    }


def main(wanted: list[str]) -> None:
    """Measure what is asked for, and keep what the results file holds of the rest."""
    path = RESULTS / "early_stop.json"
    for name in wanted:
        found = speed() if name == "speed" else uci(name)
        held = json.loads(path.read_text()) if path.exists() else {}
        write("early_stop", {n: v for n, v in held.items() if n != "machine"} | {name: found})


if __name__ == "__main__":
    main(sys.argv[1:] or ["speed", *SETS])
