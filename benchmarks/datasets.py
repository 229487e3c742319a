"""Real data for the benchmarks: read from the folder that the environment variable CHORAL_DATA names.

The folder holds `load.py` and its data files; see benchmarks/README.md.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from sklearn import datasets

UCI = ("yacht", "energy", "boston", "concrete", "wine", "power")
WITH_SKLEARN = {
    "diabetes": datasets.load_diabetes,
    "breast_cancer": datasets.load_breast_cancer,
    "wine_classes": datasets.load_wine,
    "digits": datasets.load_digits,
}
HELD_OUT = 0.2  # of the rows of scikit-learn's sets, which have no splits of their own


def loaders() -> ModuleType:
    """Return the module of loaders in the data folder."""
    folder = os.environ.get("CHORAL_DATA")
    if not folder or not (Path(folder) / "load.py").exists():
        sys.exit("set CHORAL_DATA to the folder that holds load.py and the data files")
    spec = importlib.util.spec_from_file_location("choral_benchmark_data", Path(folder) / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cifar10() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return CIFAR-10 as (x_train, y_train, x_test, y_test), images of bytes with channels first."""
    load = loaders()
    (x, y), (x_test, y_test) = load.cifar10("train"), load.cifar10("test")
    return x.transpose(0, 3, 1, 2), y, x_test.transpose(0, 3, 1, 2), y_test


CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def frames(name: str, split: int) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return training rows, test rows and the name of the target of a table."""
    if name in WITH_SKLEARN:
        whole = WITH_SKLEARN[name](as_frame=True)
        frame = whole.frame.sample(frac=1.0, random_state=split)
        if whole.get("target_names") is not None:  # classes have names
            frame["target"] = [f"class {whole.target_names[i]}" for i in frame["target"]]
        cut = round(HELD_OUT * len(frame))
        return frame[cut:], frame[:cut], "target"
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
