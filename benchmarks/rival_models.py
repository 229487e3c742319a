"""One rival on one split of one table: run by `rivals.py` inside the rival's own environment, which has neither choral nor the others.

    python rival_models.py RIVAL FOLDER

The folder holds fit.csv, validation.csv, test.csv and about.json (the target's name, the task, the number of classes, columns of numbers and of categories). Predictions
of the validation and test rows, in units of the target or as probabilities, go to predictions.npz, versions and settings to said.json.
"""

import importlib.metadata
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROUNDS, WAIT = 2000, 50  # of boosting, at most, and without gain on the validation rows
WIDTH, SMALL, BATCH, SMALL_BATCH = 192, 5000, 256, 32  # of TabM
LONGEST = (
    300  # seconds of the processor that TabM may train; the best epoch until then is taken, and the settings say so
)
Found = tuple[np.ndarray, np.ndarray, dict[str, Any]]


class Rows:
    """The three parts of a split, columns of categories typed alike in all."""

    def __init__(self, folder: Path):
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text())
        self.numbers, self.categories = self.about["numbers"], self.about["categories"]
        self.classes = self.about["classes"]
        frames = {
            name: pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values={c: [""] for c in self.numbers})
            for name in ("fit", "validation", "test")
        }
        for column in self.categories:
            known = sorted(set(frames["fit"][column].astype(str)))
            for frame in frames.values():
                frame[column] = pd.Categorical(frame[column].astype(str), categories=known)
        self.y = {name: frame["target"].to_numpy() for name, frame in frames.items()}
        self.x = {name: frame[self.numbers + self.categories] for name, frame in frames.items()}

    def without_gaps(self) -> dict[str, pd.DataFrame]:
        """Return the inputs with the median of the training rows, and a mark, for numbers that are not there; unseen categories are a value of their own."""
        found = {}
        middle = self.x["fit"][self.numbers].median()
        holed = [c for c in self.numbers if self.x["fit"][c].isna().any()]
        for name, frame in self.x.items():
            marks = {f"{c} is missing": frame[c].isna().astype(float) for c in holed}
            words = {c: frame[c].cat.add_categories("<other>").fillna("<other>") for c in self.categories}
            found[name] = frame.fillna(middle).assign(**marks, **words)
        return found


def lightgbm(rows: Rows) -> Found:
    """LightGBM as it comes, rounds decided by the validation rows."""
    import lightgbm

    kind = lightgbm.LGBMClassifier if rows.classes else lightgbm.LGBMRegressor
    settings = {"n_estimators": ROUNDS, "n_jobs": 1, "verbose": -1, "random_state": 0}
    watch = [lightgbm.early_stopping(WAIT, verbose=False)]
    model = kind(**settings)
    model.fit(rows.x["fit"], rows.y["fit"], eval_set=[(rows.x["validation"], rows.y["validation"])], callbacks=watch)
    return *_said(model, rows, rows.x), settings | {"early_stopping": WAIT}


def xgboost(rows: Rows) -> Found:
    """XGBoost as it comes, rounds decided by the validation rows."""
    import xgboost

    kind = xgboost.XGBClassifier if rows.classes else xgboost.XGBRegressor
    settings = {"n_estimators": ROUNDS, "early_stopping_rounds": WAIT, "n_jobs": 1, "enable_categorical": True}
    model = kind(random_state=0, **settings)
    watched = [(rows.x["validation"], rows.y["validation"])]
    model.fit(rows.x["fit"], rows.y["fit"], eval_set=watched, verbose=False)
    return *_said(model, rows, rows.x), settings


def hist_gradient_boosting(rows: Rows) -> Found:
    """scikit-learn's boosting as it comes, rounds decided by the validation rows."""
    from sklearn import ensemble

    name = "HistGradientBoosting" + ("Classifier" if rows.classes else "Regressor")
    settings = {"max_iter": ROUNDS, "early_stopping": True, "n_iter_no_change": WAIT}
    model = getattr(ensemble, name)(random_state=0, **settings)
    model.fit(rows.x["fit"], rows.y["fit"], X_val=rows.x["validation"], y_val=rows.y["validation"])
    return *_said(model, rows, rows.x), settings


def realmlp(rows: Rows) -> Found:
    """RealMLP with its tuned defaults, best epoch by the validation rows."""
    import torch
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

    torch.set_num_threads(1)
    x = rows.without_gaps()
    settings = {"device": "cpu", "n_threads": 1, "random_state": 0}
    model = (RealMLP_TD_Classifier if rows.classes else RealMLP_TD_Regressor)(verbosity=0, **settings)
    model.fit(x["fit"], rows.y["fit"], x["validation"], rows.y["validation"])
    return *_said(model, rows, x), settings


def _said(model: Any, rows: Rows, x: dict[str, pd.DataFrame]) -> tuple[np.ndarray, np.ndarray]:
    say = model.predict_proba if rows.classes else model.predict
    validation, test = (np.asarray(say(x[name]), dtype=np.float64) for name in ("validation", "test"))
    return validation, test


def tabm(rows: Rows) -> Found:
    """TabM on piecewise-linear embeddings: its package's settings, but narrower, and small batches for small tables."""
    import torch
    from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
    from tabm import TabM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    numbers, words, sizes = _tensors(rows)
    target, back = _target(rows)
    varied = numbers["fit"].std(0) > 0
    numbers = {name: part[:, varied] for name, part in numbers.items()}
    bins = compute_bins(numbers["fit"], n_bins=min(48, len(numbers["fit"]) // 2))
    embeddings = PiecewiseLinearEmbeddings(bins, d_embedding=16, activation=False, version="B")
    outputs = rows.classes or None
    model = TabM.make(
        n_num_features=len(bins), cat_cardinalities=sizes, d_out=outputs or 1, num_embeddings=embeddings, d_block=WIDTH
    )
    settings = {"lr": 2e-3, "weight_decay": 3e-4, "d_block": WIDTH, "k": 32, "patience": 16, "clip": 1.0}
    settings["batch_size"] = batch = BATCH if len(target) > SMALL else SMALL_BATCH
    step = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=3e-4)

    def forward(name: str, places: Any = slice(None)) -> Any:
        return model(numbers[name][places], words[name][places] if sizes else None)

    def said(name: str) -> np.ndarray:
        model.eval()
        with torch.inference_mode():
            places = torch.arange(len(numbers[name])).split(4096)
            joined = torch.cat([forward(name, p) for p in places])
        return joined.softmax(-1).mean(1).numpy() if outputs else back(joined.mean(1)[:, 0].numpy())

    def loss(out: Any, y: Any) -> Any:
        copies = y.repeat_interleave(out.shape[1])
        if outputs:
            return torch.nn.functional.cross_entropy(out.flatten(0, 1), copies)
        return torch.nn.functional.mse_loss(out.flatten(), copies)

    best, left, kept, epochs = math.inf, 16, ({}, {}), 0
    while left and time.process_time() < LONGEST:
        model.train()
        for places in torch.randperm(len(target)).split(batch):
            step.zero_grad()
            loss(forward("fit", places), target[places]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step.step()
        epochs, left = epochs + 1, left - 1
        score = _error(said("validation"), rows.y["validation"], rows.classes)
        if score < best:
            best, left, kept = score, 16, (said("validation"), said("test"))
    return kept[0], kept[1], settings | {"epochs": epochs, "stopped": "by the clock" if left else "by validation"}


def _tensors(rows: Rows) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    """Return numbers with normal quantiles, as its paper has them, categories as places, and how many there are of each."""
    import torch
    from sklearn.preprocessing import QuantileTransformer

    x = rows.without_gaps()
    columns = [c for c in x["fit"].columns if c not in rows.categories]
    fitted = x["fit"][columns].to_numpy(np.float64)
    quantiles = max(min(len(fitted) // 30, 1000), 10)
    noise = np.random.default_rng(0).normal(0, 1e-5, fitted.shape) * np.maximum(fitted.std(0), 1e-12)
    scale = QuantileTransformer(
        n_quantiles=min(quantiles, len(fitted)), output_distribution="normal", subsample=10**9
    ).fit(fitted + noise)
    numbers = {
        n: torch.tensor(scale.transform(f[columns].to_numpy(np.float64)), dtype=torch.float32) for n, f in x.items()
    }
    places = {n: [f[c].cat.codes.to_numpy(np.int64) for c in rows.categories] for n, f in x.items()}
    words = {n: torch.tensor(np.column_stack(p)) if p else None for n, p in places.items()}
    return numbers, words, [len(x["fit"][c].cat.categories) for c in rows.categories]


def _target(rows: Rows) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    import torch

    y = rows.y["fit"]
    if rows.classes:
        return torch.tensor(y, dtype=torch.int64), lambda v: v
    mean, std = float(np.mean(y)), float(np.std(y))
    return torch.tensor((y - mean) / std, dtype=torch.float32), lambda v: v.astype(np.float64) * std + mean


def _error(said: np.ndarray, y: np.ndarray, classes: int) -> float:
    """Return what TabM is watched by, its point score: errors of classes, or the squared error."""
    return float((said.argmax(1) != y).mean()) if classes else float(np.mean((said - y) ** 2))


MODELS = {f.__name__: f for f in (lightgbm, xgboost, hist_gradient_boosting, realmlp, tabm)}


def main() -> None:
    """Fit one rival and write what it predicts."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    validation, test, settings = MODELS[name](Rows(folder))
    np.savez(folder / "predictions.npz", validation=validation, test=test)
    versions = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    (folder / "said.json").write_text(json.dumps({"settings": settings, "versions": versions}))


if __name__ == "__main__":
    main()
