"""`choral fit FILE --target T` with no setting of its own, beside what people use for tables: boosting (LightGBM, XGBoost, HistGradientBoosting), RealMLP and TabM.

    CHORAL_DATA=... CHORAL_RIVALS=FOLDER python benchmarks/rivals.py [--sets yacht,energy] [--only choral,tabm] [--again choral]
    CHORAL_DATA=... python benchmarks/rivals.py --sets SETS --only choral,choral_single,choral_tabpack

Four real tables on their splits 0 to 2, six UCI sets on their standard splits 0 to 4; every method sees the same rows. One process at a time and one thread for each
method, set and split; each rival in an environment of its own, made in CHORAL_RIVALS when it is first needed. What results/rivals.json holds is not run again.
`choral_single` and `choral_tabpack` are the same command with `--method single` and `--method tabpack --time-limit 300`; there are also four sets of scikit-learn's
(diabetes, breast_cancer, wine_classes, digits), a fifth of whose rows is the test.

Rivals learn on 80 % of the training rows (of tables, the split's own training rows) and stop by the rest. choral keeps 1 % for its own report and parts the others
itself. NLL and coverage of rivals that predict a number: a Gaussian about it with the deviation of the residuals on the validation rows.
Coverage is that of central 90 % intervals; of classes, how often the true one is in the smallest set that holds 90 % of the probability.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datasets import UCI, WITH_SKLEARN, frames
from machine import RESULTS, write

HERE = Path(__file__).parent
SETS = (*UCI[:5], "telco_churn", "power", "california", "adult", "diamonds")  # smallest first
COMMON = ("pandas", "scikit-learn")
PACKAGES = {
    "hist_gradient_boosting": COMMON,
    "lightgbm": (*COMMON, "lightgbm==4.7.0"),
    "xgboost": (*COMMON, "xgboost-cpu==3.2.0"),
    "tabm": (*COMMON, "tabm==0.0.3", "rtdl-num-embeddings==0.0.12", "torch==2.13.0"),
    "realmlp": (*COMMON, "pytabkit==1.7.3", "torch==2.13.0"),
}
NEURAL = ("realmlp", "tabm")
OWN = {
    "choral": (),
    "choral_single": ("--method", "single"),
    "choral_tabpack": ("--method", "tabpack", "--time-limit", "300"),
}
METHODS = ("choral", *PACKAGES)
NAMED = ("choral", "lightgbm", "xgboost-cpu", "scikit-learn", "tabm", "rtdl-num-embeddings", "pytabkit", "torch")
FLOOR = 1e-12  # of a probability


def environment(rival: str) -> Path:
    """Return the interpreter of a rival's environment, made if it is not there."""
    folder = os.environ.get("CHORAL_RIVALS")
    if not folder:
        sys.exit("set CHORAL_RIVALS to a folder for the rivals' environments (2 GB)")
    place = Path(folder) / rival
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pins = str(HERE.parent / "constraints.txt")
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-c", pins, *PACKAGES[rival]], check=True)
        (place / "ready").touch()
    return python


def split_of(name: str, split: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, str]:
    """Return training rows without, and with only, the validation rows, the test rows, and the target's name."""
    train, test, target = frames(name, split)
    if name in UCI:
        order = np.random.Generator(np.random.PCG64(split)).permutation(len(train))
        cut = round(0.8 * len(train))
    else:
        order, cut = np.arange(len(train)), round(0.8 * len(train))  # the table's own: 64 % and 16 % of all rows
    return train.iloc[order[:cut]], train.iloc[order[cut:]], test, target


def prepare(folder: Path, parts: tuple[pd.DataFrame, ...], target: str) -> dict[str, Any]:
    """Write a split as plain numbers and words, for rivals that do not read tables as people write them."""
    whole = pd.concat(parts)
    read = {c: pd.to_numeric(whole[c].replace("?", np.nan).astype(str).str.strip(), errors="coerce") for c in whole}
    numbers = [c for c in whole if c != target and read[c].notna().mean() >= 0.9]
    words = [c for c in whole if c != target and c not in numbers and whole[c].nunique() < 0.99 * len(whole)]
    y, classes = read[target], 0
    if y.isna().any():
        names = sorted(whole[target].unique())
        y, classes = whole[target].map({n: i for i, n in enumerate(names)}), len(names)
    clean = pd.DataFrame({c: read[c] for c in numbers} | {c: whole[c].fillna("?").astype(str) for c in words})
    clean["target"] = y
    at = 0
    for name, part in zip(("fit", "validation", "test"), parts, strict=True):
        clean.iloc[at : at + len(part)].to_csv(folder / f"{name}.csv", index=False)
        at += len(part)
    about = {"target": target, "classes": classes, "numbers": numbers, "categories": words}
    (folder / "about.json").write_text(json.dumps(about))
    return about


def timed(command: list[str]) -> dict[str, float]:
    """Run a command with one thread; return its seconds, by the clock and of the processor."""
    started, before = time.perf_counter(), os.times()
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | single)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    after = os.times()
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.perf_counter() - started, "processor_seconds": worked}


def rival_row(rival: str, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a rival on the test rows of a prepared split."""
    spent = timed([str(environment(rival)), str(HERE / "rival_models.py"), rival, str(folder)])
    said, told = np.load(folder / "predictions.npz"), json.loads((folder / "said.json").read_text())
    y = {name: pd.read_csv(folder / f"{name}.csv")["target"].to_numpy() for name in ("validation", "test")}
    if about["classes"]:
        scores = class_scores(said["test"], y["test"])
    else:
        spread = float(np.std(y["validation"] - said["validation"]))
        scores = number_scores(said["test"], y["test"], spread)
    versions = {n: told["versions"][n] for n in NAMED if n in told["versions"]}
    return spent | scores | {"settings": told["settings"], "versions": versions}


def class_scores(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return accuracy, NLL and coverage of probabilities (row, class).

    >>> found = class_scores(np.array([[0.95, 0.05], [0.6, 0.4]]), np.array([1, 1]))
    >>> found["accuracy"], found["coverage_90"]
    (0.0, 0.5)
    """
    own = probs[np.arange(len(y)), y.astype(int)]
    before = np.where(probs > own[:, None], probs, 0).sum(1)  # of classes that are surer than the true one
    found = {"accuracy": probs.argmax(1) == y, "nll": -np.log(np.maximum(own, FLOOR)), "coverage_90": before < 0.9}
    return {name: float(values.mean()) for name, values in found.items()}


def number_scores(mean: np.ndarray, y: np.ndarray, spread: float) -> dict[str, float]:
    """Return RMSE, NLL and coverage of a Gaussian about each prediction.

    >>> number_scores(np.array([0.0, 0.0]), np.array([0.0, 3.0]), 1.0)["coverage_90"]
    0.5
    """
    z = (y - mean) / spread
    nll = 0.5 * z**2 + np.log(spread) + 0.5 * np.log(2 * np.pi)
    found = {"rmse": np.sqrt(np.mean((y - mean) ** 2)), "nll": nll.mean(), "coverage_90": (np.abs(z) < 1.6449).mean()}
    return {name: float(value) for name, value in found.items()}


def own_row(method: str, folder: Path, train: pd.DataFrame, test: pd.DataFrame, target: str) -> dict[str, Any]:
    """Return the scores of the command, or of the command with a method named, on the test rows."""
    import choral

    train.to_csv(folder / "train.csv", index=False)
    options = ["--target", target, "--out", str(folder / "run"), "--holdout", "0.01", "--json", *OWN[method]]
    spent = timed([sys.executable, "-m", "choral", "fit", str(folder / "train.csv"), *options])
    ensemble = choral.load(folder / "run" / "ensemble.choral")
    assert ensemble.table is not None
    x, y = ensemble.table.inputs(test), ensemble.table.targets(test)
    prediction: Any = ensemble._predictive(x)
    if ensemble.task == "classification":
        scores = class_scores(prediction.probs.double().numpy(), y)
    else:
        measured = prediction.scores(prediction.targets(y))
        scores = {name: float(measured[name]) for name in ("rmse", "nll", "coverage_90")}
    about = {"method": ensemble.recipe.name, "members": ensemble.members, "epochs": ensemble.info["counted"]["epochs"]}
    return spent | scores | {"settings": about, "versions": {"choral": choral.__version__}}


def measured(method: str, name: str, split: int) -> dict[str, Any]:
    """Return one row of the results."""
    fit, validation, test, target = split_of(name, split)
    row = {"set": name, "split": split, "method": method, "rows": len(fit) + len(validation), "test_rows": len(test)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            if method in OWN:
                return row | own_row(method, folder, pd.concat([fit, validation]), test, target)
            about = prepare(folder, (fit, validation, test), target)
            return row | rival_row(method, folder, about)
        except RuntimeError as error:
            return row | {"failed": str(error)}


def summary(rows: list[dict[str, Any]], wanted: tuple[str, ...] = METHODS) -> dict[str, Any]:
    """Return by set: means and standard errors of each method, and choral against the best of the neural rivals and of boosting, on splits that all have."""
    found: dict[str, Any] = {}
    for name in (*SETS, *WITH_SKLEARN):
        ours = [r for r in rows if r["set"] == name and r["method"] in wanted and "nll" in r]
        if not ours:
            continue
        methods = {m: {r["split"]: r for r in ours if r["method"] == m} for m in wanted}
        methods = {m: held for m, held in methods.items() if held}
        common = sorted(set.intersection(*(set(held) for held in methods.values())))
        point = "accuracy" if "accuracy" in ours[0] else "rmse"
        measures = (point, "nll", "coverage_90", "seconds", "processor_seconds")
        found[name] = {"splits": common, "point": point, "missing": [m for m in PACKAGES if m not in methods]}
        found[name]["methods"] = {
            m: {k: _mean([held[s][k] for s in common]) for k in measures} for m, held in methods.items()
        }
        if "choral" in methods and common:
            pairs = {"neural": [m for m in NEURAL if m in methods]}
            pairs["boosting"] = [m for m in PACKAGES if m in methods and m not in NEURAL]
            for kind, names in pairs.items():
                found[name][kind] = {k: _against(methods, names, k, common) for k in (point, "nll")} if names else None
    return found


def summaries(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of all methods, that of the default beside one network, and that of tabpack beside others, each on the splits it has."""
    packed = ("choral", "choral_tabpack", *NEURAL, "lightgbm")
    return {
        "summary": summary(rows),
        "single": summary(rows, ("choral", "choral_single")),
        "tabpack": summary(rows, packed),
    }


def _mean(values: list[float]) -> list[float]:
    spread = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
    return [round(float(np.mean(values)), 5), round(spread, 5)]


def _against(methods: dict[str, Any], names: list[str], measure: str, splits: list[int]) -> dict[str, Any]:
    """Return the best of some methods, by how much choral is ahead of it, the standard error of that, and whether choral is first or within it."""
    sign = 1 if measure == "accuracy" else -1
    score = {m: np.array([sign * methods[m][s][measure] for s in splits]) for m in (*names, "choral")}
    best = max(names, key=lambda m: score[m].mean())
    ahead, error = _mean(list(score["choral"] - score[best]))
    own = _mean(list(score[best]))[1]
    return {"best": best, "ahead_by": ahead, "error_of_that": error, "first": ahead > 0, "level": ahead > -own}


def markdown(found: dict[str, Any], methods: tuple[str, ...] = METHODS) -> str:
    """Return the summary as a table: point score / NLL of every method, the best of each bold, with coverage and seconds of the processor."""
    lines = ["| set | splits | " + " | ".join(methods) + " |", "|" + "---|" * (len(methods) + 2)]
    for name, row in found.items():
        held, point = row["methods"], row["point"]
        if not row["splits"]:
            continue
        sign = 1 if point == "accuracy" else -1
        best = {k: max(held, key=lambda m: s * held[m][k][0]) for k, s in ((point, sign), ("nll", -1))}
        cells = []
        for m in methods:
            if m not in held:
                cells.append("")
                continue
            parts = [f"**{held[m][k][0]:.3g}**" if best[k] == m else f"{held[m][k][0]:.3g}" for k in best]
            more = f" ({held[m]['coverage_90'][0]:.0%}, {held[m]['processor_seconds'][0]:.0f} s)"
            cells.append(" / ".join(parts) + more)
        lines.append(f"| {name} ({point}) | {len(row['splits'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for and not yet in the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--only", default=",".join(METHODS))
    parser.add_argument("--again", default="", help="methods to run again though results are there")
    parser.add_argument("--splits", type=int, default=5, help="at most; real tables have 3")
    parser.add_argument("--table", nargs="*", help="print the results of some methods as a table, and run nothing")
    parser.add_argument("--note", default="not said", help="what else the machine did, for the seconds")
    arguments = parser.parse_args()
    path = RESULTS / "rivals.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    if arguments.table is not None:
        columns = tuple(arguments.table) or METHODS
        print(markdown(summary(rows, columns), columns))
        return
    rows = [
        r for r in rows if r["method"] not in arguments.again.split(",") or r["set"] not in arguments.sets.split(",")
    ]
    methods = arguments.only.split(",")
    for split in range(arguments.splits):  # every set has something early
        for name in (n for n in arguments.sets.split(",") if split < (5 if n in UCI else 3)):
            for method in methods:
                if any((r["set"], r["split"], r["method"]) == (name, split, method) for r in rows):
                    continue
                row = measured(method, name, split) | {"machine": arguments.note}
                rows.append(row)
                write("rivals", {"rows": rows} | summaries(rows))
                shown = {k: round(row[k], 4) for k in ("rmse", "accuracy", "nll", "coverage_90", "seconds") if k in row}
                print(name, split, method, shown, row.get("failed", ""), flush=True)


if __name__ == "__main__":
    main()
