"""What `choral fit FILE --target T` gives with no other flag, beside one plain network and an unwatched ensemble of the same command.

    CHORAL_DATA=... python benchmarks/tables.py [--splits 3] [--sets yacht,energy] [--most 20000]

Six UCI sets on their standard splits and four real tables on theirs; the command sees the training rows alone (of which it keeps 1 % to report on), the
test rows are judged afterwards. The table is written to benchmarks/results/tables.json after every set.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import choral
from datasets import loaders
from machine import write

UCI = ("yacht", "energy", "boston", "concrete", "wine", "power")
WAYS = {
    "default": [],
    "single, 60 epochs": ["--method", "single", "--validation", "0"],
    "deep_ensemble, 4 x 15 epochs": ["--method", "deep_ensemble", "--validation", "0"],
}


def frames(name: str, split: int) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return training rows, test rows and the name of the target."""
    load = loaders()
    if name in UCI:
        x, y, x_test, y_test = load.uci_split(name, "std", split)
        columns = [f"x{i}" for i in range(x.shape[1])] + ["y"]
        train, test = (
            pd.DataFrame(np.column_stack([a, np.reshape(b, (len(a), -1))[:, 0]]), columns=columns)
            for a, b in ((x, y), (x_test, y_test))
        )
        return train, test, "y"
    frame = pd.read_csv(load.table_path(name))
    train_rows, validation_rows, test_rows = load.table_split(name, split)
    return frame.iloc[np.concatenate([train_rows, validation_rows])], frame.iloc[test_rows], load.TABLES[name]


def measured(name: str, split: int, most: int) -> list[dict[str, Any]]:
    """Return the scores on the test rows of each way to train."""
    train, test, target = frames(name, split)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "train.csv"
        train[:most].to_csv(path, index=False)
        for label, options in WAYS.items():
            run = Path(place) / label.split(",")[0]
            command = ["fit", str(path), "--target", target, "--out", str(run), "--holdout", "0.01", "--json", *options]
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", "choral", *command], check=True, capture_output=True)
            seconds = time.perf_counter() - started
            ensemble = choral.load(run)
            assert ensemble.table is not None
            x, y = ensemble.table.inputs(test), ensemble.table.targets(test)
            scores = ensemble.evaluate(x, torch.as_tensor(y))
            kept = {k: float(v) for k, v in scores.items() if isinstance(v, int | float)}
            rows.append(
                {"set": name, "split": split, "label": label, "seconds": seconds, "members": ensemble.members} | kept
            )
            shown = {k: round(kept[k], 4) for k in ("rmse", "accuracy", "nll") if k in kept}
            print(f"{name} {split} {label}: {shown} {seconds:.0f} s", flush=True)
    return rows


def main() -> None:
    """Run the sets that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--sets", default=",".join((*UCI, "telco_churn", "adult", "california", "diamonds")))
    parser.add_argument("--most", type=int, default=20_000, help="training rows, at most")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in arguments.sets.split(","):
        for split in range(arguments.splits):
            rows += measured(name, split, arguments.most)
        write("tables", {"rows": rows, "most": arguments.most})


if __name__ == "__main__":
    main()
