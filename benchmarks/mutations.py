"""Damage saved ensembles and run folders in hundreds of ways and see what becomes of their predictions.

python benchmarks/mutations.py [--files 500] [--folders 300] [--name mutations]

Every mutation must give the same prediction, bit for bit, or one of choral's own errors. A finished run's folder is tried
twice: loaded as it is, and fitted again by the call that made it, which trains lost members again. Every other folder is
that of a run stopped on the way, with its checkpoints, which is fitted to its end.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import choral
from choral.base.errors import ChoralError
from choral.fit import train
from choral.plan import SGD, Adam
from choral.recipes import make
from choral.recipes.training import Training
from choral.tables.columns import NumberColumn, Scale
from choral.tables.table import Table
from machine import write

G = torch.Generator().manual_seed(0)
IMAGES, LABELS = torch.randn(32, 3, 6, 6, generator=G), torch.randint(0, 3, (32,), generator=G)
ROWS, TARGETS = torch.randn(40, 4, generator=G), torch.randn(40, generator=G)
TABLE = Table(
    target="price",
    columns=tuple(NumberColumn(name=f"c{i}", scale=Scale(mean=0.5 * i, std=1.0 + i)) for i in range(4)),
)


def convnet() -> nn.Module:
    """Return a network with three input channels, a stride and BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)
    )


def perceptron() -> nn.Module:
    """Return a network of the zoo, which a file can name."""
    return choral.models.mlp(4, 2, hidden=(12, 12))


def classifier() -> nn.Module:
    """Return a small classifier whose nodes can be closed."""
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def kinds() -> dict[str, dict[str, Any]]:
    """Return the ensembles: how each is fitted, and what is fitted to it afterwards."""
    sgd, adam = Training(optimizer=SGD(), lr=0.05, batch_size=16), Training(optimizer=Adam(), lr=0.01)
    images = {"data": (IMAGES, LABELS), "x": IMAGES}
    frozen = make("sebays_freeze", budget=6, members=2, gamma=0.6, training=adam)
    return {
        "convnet": {"build": convnet, **images, "recipe": make("deep_ensemble", budget=3, members=3, training=sgd)},
        "pruned": {"build": convnet, **images, "recipe": make("prune_and_tune", budget=8, members=4, training=sgd)},
        "compacted": {"build": classifier, **images, "recipe": frozen},
        "classes": {
            "build": classifier,
            **images,
            "recipe": make("snapshot", budget=3, members=3, training=sgd),
            "corrections": {"temperature": "ensemble", "stacking": True, "level": 0.8},
        },
        "table": {
            "build": perceptron,
            "data": (ROWS, TARGETS),
            "x": ROWS,
            "recipe": make("deep_ensemble", budget=3, members=3, training=adam),
            "table": TABLE,
            "corrections": {"stacking": True, "level": 0.8},
        },
    }


def fitted(kind: dict[str, Any], folder: Path, *, checkpoint_seconds: float = 5.0, **options: Any) -> Any:
    """Return the ensemble, from its run folder if that is whole."""
    compute = choral.Compute(executor="sequential", checkpoint_seconds=checkpoint_seconds)
    given = {"run_dir": folder, "compute": compute, "table": kind.get("table"), **options}
    return train(kind["build"], kind["data"], kind["recipe"], **given)


class Stopped(Exception):
    """A run was stopped on its way."""


def stopped(kind: dict[str, Any], folder: Path) -> None:
    """Leave a run after two thirds of its epochs, with a checkpoint after each of them."""

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "epoch" and 3 * event["counted"]["epochs"] > 2 * kind["recipe"].epochs:
            raise Stopped

    with contextlib.suppress(Stopped):
        fitted(kind, folder, checkpoint_seconds=0.0, callbacks=listen)


def predicted(ensemble: Any, x: Tensor) -> list[Tensor]:
    """Return everything a prediction says."""
    p = ensemble._predictive(x)
    return [p.probs, p.logits] if hasattr(p, "probs") else [p.mean, p.variance, p.member_means]


def mutate(data: bytes, chance: np.random.Generator) -> tuple[str, bytes]:
    """Return what was done to some bytes, and the result."""
    place = int(chance.integers(max(len(data), 1)))
    if chance.random() < 0.5:  # half of them in the header, which is short
        place = min(place, int(chance.integers(1, 2000)))
    which = str(chance.choice(["flip", "cut", "insert", "zeros", "swap"]))
    if which == "flip" and data:
        return which, data[:place] + bytes([data[place] ^ (1 << int(chance.integers(8)))]) + data[place + 1 :]
    if which == "cut":
        return which, data[:place]
    if which == "zeros":
        length = int(chance.integers(1, 64))
        return which, data[:place] + bytes(len(data[place : place + length])) + data[place + length :]
    if which == "swap":
        return which, data[:place] + data[place + 4 : place + 8] + data[place : place + 4] + data[place + 8 :]
    return "insert", data[:place] + chance.bytes(int(chance.integers(1, 9))) + data[place:]


def outcome(act: Callable[[], Any], x: Tensor, expected: list[Tensor]) -> tuple[str, str]:
    """Return 'same', 'refused', 'other' or 'traceback', and the words of the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = predicted(act(), x)
    except ChoralError as error:
        return "refused", str(error)
    except Exception:  # what must not happen is counted
        return "traceback", traceback.format_exc(limit=-1)
    equal = len(found) == len(expected) and all(torch.equal(a, b) for a, b in zip(found, expected))
    return ("same" if equal else "other"), ""


def of_files(count: int, folder: Path) -> list[dict[str, str]]:
    """Return the outcome of mutations of saved files, the kinds in turn."""
    chance, rows, made = np.random.default_rng(1), [], []
    for name, kind in kinds().items():
        ensemble = fitted(kind, folder / name)
        if "corrections" in kind:
            y = LABELS if kind["x"] is IMAGES else TARGETS
            ensemble = ensemble.calibrated(kind["x"], y, **kind["corrections"])
        ensemble.save(folder / f"{name}.choral")
        expected = predicted(choral.load(folder / f"{name}.choral", build=kind["build"]), kind["x"])
        made.append((name, kind, (folder / f"{name}.choral").read_bytes(), expected))
    path = folder / "damaged.choral"
    for number in range(count):
        name, kind, data, expected = made[number % len(made)]
        how, changed = mutate(data, chance)
        path.write_bytes(changed)
        result, words = outcome(lambda kind=kind: choral.load(path, build=kind["build"]), kind["x"], expected)
        if changed == data:
            how = "nothing"
        rows.append({"kind": name, "how": how, "file": "saved", "act": "load", "outcome": result, "words": words})
    return rows


def damage(folder: Path, chance: np.random.Generator) -> tuple[str, str]:
    """Damage one file of a run folder, remove it, or exchange two members; return what was done and to what."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    way = chance.random()
    members = [p for p in files if p.parent.name == "members"]
    if way < 0.08 and len(members) > 1:
        first, second = members[0], members[-1]
        held = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(held)
        return "exchange", "members"
    file = files[int(chance.integers(len(files)))]
    name = "members" if file in members else file.name if file.parent == folder else file.parent.name
    if way < 0.25:
        file.unlink()
        return "remove", name
    how, changed = mutate(file.read_bytes(), chance)
    file.write_bytes(changed)
    return how, name


def of_folders(count: int, folder: Path) -> list[dict[str, str]]:
    """Return the outcome of mutations of run folders: finished ones loaded and fitted again, stopped ones fitted."""
    chance, rows, made = np.random.default_rng(2), [], []
    for name, kind in kinds().items():
        expected = predicted(fitted(kind, folder / "finished" / name), kind["x"])
        stopped(kind, folder / "stopped" / name)
        made.append((name, kind, expected))
    for number in range(count):
        name, kind, expected = made[number // 2 % len(made)]
        state = ("finished", "stopped")[number % 2]
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(folder / state / name, run)
        how, what = damage(run, chance)
        acts = {
            "load finished": lambda kind=kind, run=run: choral.load(run, build=kind["build"]),
            f"fit {state}": lambda kind=kind, run=run: fitted(kind, run),
        }
        for act, call in acts.items():
            if state in act:
                result, said = outcome(call, kind["x"], expected)
                row = {"kind": name, "how": how, "file": what, "act": act, "outcome": result, "words": said}
                rows.append(row)
    return rows


def summary(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return the counts of a list of outcomes."""
    tables = {
        key: {
            value: dict(Counter(r["outcome"] for r in rows if r[key] == value))
            for value in sorted({r[key] for r in rows})
        }
        for key in ("kind", "how", "file", "act")
    }
    bad = [r for r in rows if r["outcome"] in ("other", "traceback")]
    return {"trials": len(rows), "outcomes": dict(Counter(r["outcome"] for r in rows)), "by": tables, "bad": bad[:10]}


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--folders", type=int, default=300)
    parser.add_argument("--name", default="mutations")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        files = summary(of_files(given.files, Path(name) / "files"))
        folders = summary(of_folders(given.folders, Path(name) / "folders"))
    sys.stdout.write(json.dumps({"files": files["outcomes"], "folders": folders["outcomes"]}) + "\n")
    counts = {"mutated_files": given.files, "mutated_folders": given.folders}
    write(given.name, {**counts, "saved_files": files, "run_folders": folders})


if __name__ == "__main__":
    main()
