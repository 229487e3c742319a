"""Coverage of conformal sets and intervals over random splits: digits (APS, RAPS) and a UCI set (three kinds of intervals).

    CHORAL_DATA=... python benchmarks/conformal.py [--seeds 20] [--uci concrete]

Every seed draws its own split (half to train on, a quarter to calibrate, a quarter to test) and trains its own small
ensemble; the promise is about the average over such draws. Beside it: what the ensemble covers without calibration.
"""

import argparse
import statistics
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from choral import models
from choral.calibration import evaluate_intervals, evaluate_sets
from choral.fit import fit
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training
from datasets import loaders
from machine import write

LEVELS = (0.8, 0.9, 0.95)
TRAINING = Training(lr=0.003, optimizer=Adam(), batch_size=32)


def split(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row numbers to train on, to calibrate with and to test on."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[: rows // 2], order[rows // 2 : 3 * rows // 4], order[3 * rows // 4 :]


def digits(seed: int) -> list[dict[str, Any]]:
    """Return one row for each rule and level on one split of the digits."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    train, calibration, test = split(len(x), seed)
    recipe = make("deep_ensemble", budget=24, members=4, training=TRAINING)
    ensemble = fit(lambda: models.mlp(64, 10, hidden=(64, 64)), (x[train], y[train]), recipe, seed=seed)
    labels = torch.as_tensor(y[test])
    rows = []
    for level in LEVELS:
        for rule in ("aps", "raps"):
            for temperature in (None, "ensemble"):
                corrected = ensemble.calibrated(
                    x[calibration], y[calibration], temperature=temperature, level=level, conformal=rule, seed=seed
                )
                found = evaluate_sets(corrected.predict(x[test]).sets(seed=seed), labels)
                name = rule if temperature is None else f"temperature + {rule}"
                rows.append({"data": "digits", "rule": name, "level": level, "seed": seed, **found})
    return rows


def uci(name: str, seed: int) -> list[dict[str, Any]]:
    """Return one row for each rule and level on one split of a UCI set, in units of the training targets' deviation."""
    x, y = loaders().uci(name)[:2]
    train, calibration, test = split(len(x), seed)
    mean, std = x[train].mean(0), x[train].std(0)
    x = ((x - mean) / np.where(std > 0, std, 1)).astype(np.float32)
    y = ((y - y[train].mean()) / y[train].std()).astype(np.float32).reshape(-1, 1)
    recipe = make("deep_ensemble", budget=160, members=4, training=TRAINING)
    ensemble = fit(lambda: models.mlp(x.shape[1], 2, hidden=(50,)), (x[train], y[train]), recipe, seed=seed)
    targets = torch.as_tensor(y[test])
    rows = []
    for level in LEVELS:
        plain = evaluate_intervals(*ensemble._predictive(x[test]).mixture_interval(level), targets)
        rows.append({"data": name, "rule": "not calibrated", "level": level, "seed": seed, **plain})
        for rule in ("residual", "scaled", "quantile"):
            corrected = ensemble.calibrated(x[calibration], y[calibration], level=level, conformal=rule)
            found = evaluate_intervals(*corrected.predict(x[test]).conformal_interval(), targets)
            rows.append({"data": name, "rule": rule, "level": level, "seed": seed, **found})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over seeds, with the distance of the coverage from its level in points."""
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["rule"], row["level"]), []).append(row)
    found = []
    for (data, rule, level), group in groups.items():
        covered = [r["coverage"] for r in group]
        measures = [n for n in group[0] if n not in ("data", "rule", "level", "seed", "coverage")]
        found.append(
            {
                "data": data,
                "rule": rule,
                "level": level,
                "seeds": len(group),
                "coverage": statistics.mean(covered),
                "coverage_deviation": statistics.stdev(covered) if len(group) > 1 else 0.0,
                "points_off": 100 * (statistics.mean(covered) - level),
                "each_seed": [round(c, 4) for c in covered],
            }
            | {n: statistics.mean(r[n] for r in group) for n in measures}
        )
    return found


def main() -> None:
    """Run all seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--uci", default="concrete")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        rows += digits(seed) + uci(arguments.uci, seed)
        print(f"seed {seed} done", flush=True)
    table = summary(rows)
    for row in table:
        size = f"size {row['mean_size']:.3f}" if "mean_size" in row else f"width {row['mean_width']:.3f}"
        print(
            f"{row['data']:>10} {row['rule']:>18} {row['level']:.2f}: coverage {row['coverage']:.4f} "
            f"({row['points_off']:+.2f} points, deviation {row['coverage_deviation']:.4f}) {size}"
        )
    print(write("conformal", {"table": table}))


if __name__ == "__main__":
    main()
