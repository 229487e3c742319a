"""What a fit of a small table costs, and how well it predicts: the estimators and `fit_table`, with nothing set.

    OMP_NUM_THREADS=1 python benchmarks/small_tables.py LABEL [wine breast_cancer diabetes made]
    CHORAL_DATA=... OMP_NUM_THREADS=1 python benchmarks/small_tables.py LABEL --inner [made diabetes yacht energy ...]

Two classification and two regression tables below 1,000 rows, three random splits each, a quarter of the rows for testing: processor seconds of the
fit in one thread, and NLL, accuracy or RMSE on the test rows (regression: NLL in the target's own units). `made` is drawn here: six numbers, two categories,
noise that depends on the row. Results of one version of choral are kept under LABEL, beside
those of others; the file is written after every table. Constants of the search are chosen by `--inner`: another draw of `made`, and training rows of
other tables (split 0, at most 800), a quarter of which is the test.
"""

import sys
import time
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.model_selection import train_test_split

import choral
from choral.sklearn import EnsembleClassifier, EnsembleRegressor
from datasets import frames
from machine import measured, write

SPLITS = 3


def made(seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Return 800 rows of numbers and two categories, and a target with a step, a curve, an interaction and noise."""
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(800, 6))
    town, grade = draw.choice(["Ulm", "Bonn", "Kiel", "Hof"], 800), draw.choice(["low", "middle", "high"], 800)
    effect = pd.Series(town).map({"Ulm": 1.0, "Bonn": 0.0, "Kiel": -1.0, "Hof": 0.5}).to_numpy()
    steep = pd.Series(grade).map({"low": 0.5, "middle": 1.0, "high": 2.0}).to_numpy()
    signal = effect + steep * numbers[:, 0] + np.sin(2 * numbers[:, 1]) + (numbers[:, 2] > 0.5) * numbers[:, 3]
    noise = (0.2 + 0.3 * np.abs(numbers[:, 4])) * draw.normal(size=800)
    frame = pd.DataFrame(numbers, columns=list("abcdef")).assign(town=town, grade=grade)
    return frame, pd.Series(10 + 3 * (signal + noise), name="y")


def _loaded(load: Any) -> tuple[pd.DataFrame, pd.Series]:
    found = load(as_frame=True)
    target = found.target.map(lambda i: str(found.target_names[i])) if "target_names" in found else found.target
    return found.data, target.rename("y")


TABLES: dict[str, tuple[str, Any]] = {
    "wine": ("classification", lambda: _loaded(load_wine)),
    "breast_cancer": ("classification", lambda: _loaded(load_breast_cancer)),
    "diabetes": ("regression", lambda: _loaded(load_diabetes)),
    "made": ("regression", made),
}


def run(task: str, frame: pd.DataFrame, y: pd.Series, split: int, face: str) -> dict[str, float]:
    """Return seconds and scores of one fit.

    Args:
        task: what the target is.
        frame, y: the table.
        split: seed of the split and of the fit.
        face: 'estimator' or 'fit_table'.
    """
    parts = train_test_split(
        frame, y, test_size=0.25, random_state=split, stratify=y if task == "classification" else None
    )
    x, x_test, y, y_test = parts
    cpu, wall = time.process_time(), time.perf_counter()
    if face == "estimator":
        kind = EnsembleClassifier if task == "classification" else EnsembleRegressor
        ensemble = kind(random_state=split).fit(x, y).ensemble_
    else:
        ensemble = choral.fit_table(x.assign(y=y), "y", task=task, seed=split, progress=False)
    spent = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    scores = ensemble.evaluate(x_test.assign(y=y_test)) if face == "fit_table" else _scores(ensemble, x_test, y_test)
    names = ("nll", "accuracy") if task == "classification" else ("nll", "rmse")
    size = {"members": ensemble.members, "parameters": ensemble.info["parameters"]}
    return spent | {name: float(scores[name]) for name in names} | size


def _scores(ensemble: Any, x: pd.DataFrame, y: pd.Series) -> dict[str, float]:
    """Return the scores of an estimator's ensemble, whose table knows the columns of X but no target of that name."""
    table = ensemble.table
    classes = list(table.classes) if table.classes else None
    target = y.map(classes.index).to_numpy() if classes else y.to_numpy(dtype=np.float32)[:, None]
    return dict(ensemble.evaluate(table.inputs(x), target))


INNER = ("made", "diabetes", "yacht", "energy", "boston", "concrete", "california", "diamonds", "power")
ROWS = 800  # of an inner table, at most


def inner(name: str) -> tuple[pd.DataFrame, pd.Series]:
    """Return rows of a table to choose constants by: `made` is drawn again, others are training rows of their split 0."""
    if name == "made":
        return made(seed=1)
    train, _, target = frames(name, 0)
    train = train.sample(min(ROWS, len(train)), random_state=0)
    return train.drop(columns=target), train[target].rename("y")


def main(label: str, names: list[str], *, choosing: bool = False) -> None:
    """Measure some tables and write what was found."""
    torch.set_num_threads(1)
    file = "small_tables_inner" if choosing else "small_tables"
    for name in names:
        task, load = ("regression", partial(inner, name)) if choosing else TABLES[name]
        frame, y = load()
        for face in ("fit_table",) if choosing else ("estimator", "fit_table"):
            rows = [run(task, frame, y, split, face) for split in range(SPLITS)]
            means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
            kept = {key: value for key, value in measured(file).items() if key != "machine"}
            kept.setdefault(label, {})[f"{name}, {face}"] = {"mean": means, "each": rows}
            write(file, kept)
            print(label, name, face, {key: round(value, 4) for key, value in means.items()}, flush=True)


if __name__ == "__main__":
    choosing = "--inner" in sys.argv
    label, *names = (word for word in sys.argv[1:] if word != "--inner")
    main(label, names or list(INNER if choosing else TABLES), choosing=choosing)
