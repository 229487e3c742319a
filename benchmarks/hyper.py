"""Hyper-ensembles against deep ensembles at equal operations: NLL on digits and on a part of CIFAR-10, three seeds.

    python benchmarks/hyper.py [--only digits cifar10] [--seeds 3]

Both train as many networks for as many epochs with the same settings, on the same rows, and hold the same fifth of them out: the deep ensemble
keeps each network's best epoch, the hyper-ensemble also draws rates and decays and chooses. CIFAR-10 is read from the folder that
`CHORAL_DATA` names. Writes benchmarks/results/hyper.json.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import choral
from choral import models
from choral.plan import LogUniform, OneOf, Space, Uniform
from choral.recipes import deep_ensemble, hyper_ensemble
from choral.recipes.training import Training
from choral.tables.problems import load_problem
from machine import measured, write

Set = tuple[Callable[[], nn.Module], tuple[Any, Any], tuple[Any, Any], int, int, Training]
WIDER = Space(
    rate=LogUniform(0.3, 3.0),
    weight_decay=LogUniform(1e-5, 1e-2),
    smoothing=Uniform(0.0, 0.1),
    dropout=OneOf((0.0, Uniform(0.0, 0.5))),
)


def digits() -> Set:
    """Return the digits that come with scikit-learn."""
    p = load_problem("digits")
    train, test = (p.x_train, p.y_train), (p.x_test, p.y_test)
    training = Training(optimizer="sgd", lr=0.1, batch_size=64)
    return lambda: models.mlp(64, 10, hidden=(64, 64), dropout=0.1), train, test, 8, 8 * 25, training


def cifar10() -> Set:
    """Return the first images of CIFAR-10."""
    sys.path.insert(0, os.environ["CHORAL_DATA"])
    import load  # type: ignore[import-not-found, unused-ignore]  # the folder's own

    found = []
    for split, rows in (("train", 5000), ("test", 2000)):
        x, y = load.cifar10(split)
        x = torch.as_tensor(x[:rows])
        x = x.movedim(-1, 1) if x.shape[-1] == 3 else x
        found.append((x.float() / 255 if x.dtype == torch.uint8 else x.float(), torch.as_tensor(y[:rows]).long()))
    return lambda: models.lenet("S"), found[0], found[1], 4, 4 * 12, Training(optimizer="sgd", lr=0.05, batch_size=64)


def main() -> None:
    """Compare on every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["digits", "cifar10"], choices=["digits", "cifar10"])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for row in measured("hyper").get("rows", []) if row["set"] not in arguments.only]
    for name in arguments.only:
        build, train, test, members, epochs, training = {"digits": digits, "cifar10": cifar10}[name]()
        about: dict[str, Any] = {"members": members, "epochs": epochs, "training": training}
        methods = {"deep_ensemble": deep_ensemble(**about), "hyper_ensemble": hyper_ensemble(**about)}
        if name == "digits":
            methods["hyper_ensemble, dropout and smoothing too"] = hyper_ensemble(space=WIDER, **about)
        for method, recipe in methods.items():
            found = []
            for seed in range(arguments.seeds):
                ensemble = choral.fit(build, train, recipe, seed=seed, validation=0.2, progress=False)
                scores = ensemble.evaluate(*test)
                found.append({"nll": scores["nll"], "accuracy": scores["accuracy"], "members": ensemble.members})
            nll = statistics.mean(f["nll"] for f in found)
            print(f"{name}, {method}: NLL {nll:.4f} {[round(f['nll'], 4) for f in found]}", flush=True)
            rows.append({"set": name, "method": method, "nll": nll, "seeds": found})
        write("hyper", {"rows": rows})


if __name__ == "__main__":
    main()
