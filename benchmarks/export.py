"""Exported graphs beside `predict`: every method on four networks, a regression and a table, in onnxruntime and as .pt2, and the time of one row.

    pip install 'choral[onnx]'
    python benchmarks/export.py [--networks mlp lenet transformer resnet20 regression table] [--methods packed ...] [--again]

Each ensemble (two members or three draws where the method has a choice, trained for a moment, with weights of members and a temperature or scaled
conformal intervals) is exported with its members in both formats and asked for 1, 5 and 64 other rows. `largest` is the largest difference of any
output from what `predict` calls so, relative to 1 + the output's largest value. Sets are compared with those of `predict` under a rule without a
random share. Refusals are kept in words. The table has every kind of column and cells without a value; its graph reads raw numbers, one for each
cell. Rows that the file has are measured again with `--again` alone; `--speed` measures the times alone. Writes benchmarks/results/export.json.
"""

import argparse
import inspect
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import torch
from torch import nn

import choral
from choral import Training, models
from choral.calibration import fit_conformal_sets
from choral.recipes import METHODS, make
from machine import measured, write

QUICK = Training(lr=0.01, optimizer="sgd", batch_size=32)
X, OTHER = (torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
Y = torch.arange(64) % 3
NOISY = (Y + (torch.arange(64) % 4 == 0)) % 3  # labels that no temperature makes certain


class Encoder(nn.Module):
    """A small transformer encoder over the rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 3)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.body(self.first(x.mean(1))).mean(1))
        return found


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


def noisy_line() -> nn.Module:
    """Return a network with a mean and a variance."""
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


NETWORKS = {
    "mlp": mlp,
    "lenet": lambda: models.lenet("5", classes=3, side=16),
    "transformer": Encoder,
    "resnet20": lambda: models.resnet_cifar(20, classes=3, width=4),
}


KINDS = [*NETWORKS, "regression", "table"]


def table(seed: int = 0) -> pd.DataFrame:
    """Return rows with numbers, dates, times, words, rare words, flags, an order, and cells without a value."""
    draw = np.random.default_rng(seed)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 10**8, 64), unit="s")
    frame = pd.DataFrame(
        {
            "size": 1e6 + draw.normal(0, 3, 64),
            "rent": [f"${value:,.2f}" for value in draw.uniform(500, 5000, 64)],
            "sold": when,
            "built": when.strftime("%Y-%m-%d"),
            "town": draw.choice(["Ulm", "Bonn", "Kiel"], 64),
            "street": [*draw.choice([f"street {i}" for i in range(5)], 59), *"abcde"],
            "garden": draw.choice(["yes", "no"], 64),
            "state": pd.Categorical(draw.choice(["poor", "fair", "good"], 64), ["poor", "fair", "good"], ordered=True),
        }
    )
    for number, name in enumerate(frame.columns):
        frame[name] = frame[name].where(np.arange(64) % 9 != number)
    return frame.assign(kind=[f"class {y}" for y in NOISY.tolist()])


def few(method: str) -> Any:
    """Return a short recipe of a method."""
    choice = METHODS[method].options.get("members")
    several = choice is not None and choice.default not in (1, None, inspect.Parameter.empty)
    drawn = {"draws": 3} if make(method).structure.draws > 1 else {}
    return make(method, budget=12, training=QUICK, members=2 if several else None, **drawn)


def runner(path: Path) -> Any:
    """Return a function that gives the outputs of a file by name."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]  # of a table x is one matrix too
    return lambda x: dict(zip(names, map(torch.from_numpy, session.run(None, {"x": x.numpy()}))))


def public(prediction: Any) -> dict[str, torch.Tensor]:
    """Return what a graph gives, by its names, from the public attributes of a prediction."""
    if prediction.task == "classification":
        names = {"probs": "probs", "entropy": "entropy", "epistemic": "mutual_information"}
        names |= {"aleatoric": "expected_entropy", "mutual_information": "mutual_information"}
        found = {name: getattr(prediction, own) for name, own in names.items()} | {"set": prediction.sets()}
    else:
        found = {name: getattr(prediction, name) for name in ("mean", "std")}
        found |= {name: getattr(prediction, f"{name}_std").square() for name in ("epistemic", "aleatoric")}
        found |= dict(zip(("lower", "upper"), prediction.conformal_interval()))
    return found | {"members": prediction.members.movedim(0, 1)}


def compare(ensemble: Any, path: Path, x: Any) -> dict[str, Any]:
    """Export an ensemble; return how far the graph is from predict at 1, 5 and 64 rows."""
    begun = time.perf_counter()
    ensemble.export(path, x[:8], with_members=True)
    seconds, run = time.perf_counter() - begun, runner(path)
    largest, sets = 0.0, True
    for count in (1, 5, 64):
        rows = x[:count]
        found = run(rows if ensemble.table is None else torch.from_numpy(ensemble.table.read(rows)))
        right = public(ensemble.predict(rows))
        assert found.keys() == right.keys()
        if "set" in right:
            sets &= bool(torch.equal(found.pop("set"), right.pop("set")))
        for name, value in right.items():
            assert found[name].shape == value.shape, name
            scale = 1 + float(value.abs().max())
            largest = max(largest, float((found[name].double() - value.double()).abs().max()) / scale)
    return {
        "largest": largest,
        "sets_equal": sets,
        "mb": round(path.stat().st_size / 1e6, 2),
        "seconds": round(seconds, 1),
    }


def corrected(ensemble: Any, x: Any, y: Any) -> Any:
    """Return an ensemble with weights of members, a temperature and sets without a random share, or scaled intervals."""
    several = {"stacking": True} if ensemble.predict(x[:1]).members.shape[0] > 1 else {}
    if ensemble.task == "regression":
        return ensemble.calibrated(x, y, level=0.8, conformal="scaled", **several)
    warm = ensemble.calibrated(x, y, temperature="ensemble", **several)
    labels = y if ensemble.table is None else torch.as_tensor(NOISY)
    return warm.with_posthoc(
        *warm.posthoc, fit_conformal_sets(warm.predict(x).probs, labels, level=0.8, randomized=False)
    )


def row(method: str, network: str) -> dict[str, Any]:
    """Return the comparison of both formats, or why there is none."""
    try:
        if network == "table":
            x, y = table().drop(columns="kind"), table()["kind"]
            ensemble = choral.fit_table(table(), "kind", method=method, budget=12, training=QUICK)
        elif network == "regression":
            x, y = X, 2000 * X.mean((1, 2, 3)) + 10 * Y
            ensemble = choral.fit(noisy_line, (x, y), few(method), validation=None, progress=False)
        else:
            x, y = X, NOISY
            ensemble = choral.fit(NETWORKS[network], (X, Y), few(method), validation=None, progress=False)
    except choral.ChoralError as error:
        return {"fit": str(error)}
    ensemble = corrected(ensemble, x, y)
    found = {}
    for suffix in (".onnx", ".pt2"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows = table(1).drop(columns="kind") if network == "table" else OTHER
                found[suffix] = compare(ensemble, Path(folder) / f"model{suffix}", rows)
            except choral.ChoralError as error:
                found[suffix] = {"refused": str(error)}
    return found


def seconds_of(call: Any) -> float:
    """Return the median time of a call."""
    for _ in range(20):
        call()
    times = []
    for _ in range(300):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return median(times)


def speeds() -> dict[str, Any]:
    """Return times of one row: predict, the graph in onnxruntime, and one network in torch and in onnxruntime."""
    x, y = torch.randn(256, 20), torch.arange(256) % 3
    one, build = x[:1].clone(), lambda: models.mlp(20, 3, hidden=(64, 64))
    recipes = {
        "packed": make("packed", members=4, budget=12, training=QUICK),
        "batch_ensemble_32": make("batch_ensemble", members=32, budget=12, training=QUICK),
        "deep_ensemble_20": make("deep_ensemble", members=20, budget=240, training=QUICK),
        "single": make("single", budget=12, training=QUICK),
    }
    found: dict[str, Any] = {}
    for name, recipe in recipes.items():
        ensemble = choral.fit(build, (x, y), recipe, validation=None, progress=False)
        with tempfile.TemporaryDirectory() as folder:
            ensemble.export(Path(folder) / "model.onnx", x[:8])
            session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", providers=["CPUExecutionProvider"])
        found[name] = {
            "predict_us": 1e6 * seconds_of(lambda e=ensemble: e.predict(one).probs),
            "onnxruntime_us": 1e6 * seconds_of(lambda s=session: s.run(None, {"x": one.numpy()})),
        }
    plain = build().eval()
    with torch.no_grad():
        found["one network, torch"] = {"forward_us": 1e6 * seconds_of(lambda: plain(one).softmax(-1))}
    for name in recipes:
        own = found[name]
        own["predict_over_onnxruntime"] = own["predict_us"] / own["onnxruntime_us"]
        own["onnxruntime_over_single_onnxruntime"] = own["onnxruntime_us"] / found["single"]["onnxruntime_us"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--speed", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    held = measured("export")
    rows = held.get("rows", {})
    if asked.speed:
        write("export", {"rows": rows, "one_row": speeds()} | summary(rows))
        return
    for network in asked.networks:
        for method in asked.methods:
            own = rows.setdefault(network, {})
            if asked.again or method not in own:
                own[method] = row(method, network)
                print(network, method, own[method], flush=True)
                write("export", {"rows": rows, "one_row": held.get("one_row", {})} | summary(rows))


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return for each network and format how many methods agree, the largest difference, and what is refused."""
    found: dict[str, Any] = {}
    for network, own in rows.items():
        for suffix in (".onnx", ".pt2"):
            made = {m: r[suffix] for m, r in own.items() if "largest" in r.get(suffix, {})}
            found[f"{network} {suffix}"] = {
                "methods": len(made),
                "largest": max((r["largest"] for r in made.values()), default=None),
                "sets_differ": [m for m, r in made.items() if not r["sets_equal"]],
                "refused": {m: r[suffix]["refused"] for m, r in own.items() if "refused" in r.get(suffix, {})},
                "not_fitted": [m for m, r in own.items() if "fit" in r],
            }
    return {"summary": found}


if __name__ == "__main__":
    main()
