"""Real data for the benchmarks: read from the folder that the environment variable CHORAL_DATA names.

The folder holds official files as they unpack (see `official.py`), or a `load.py` with functions of the same names and its own
files, or both; see benchmarks/README.md.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

import official
from sklearn import datasets

UCI = ("yacht", "energy", "boston", "concrete", "wine", "power")
WITH_SKLEARN = {
    "diabetes": datasets.load_diabetes,
    "breast_cancer": datasets.load_breast_cancer,
    "wine_classes": datasets.load_wine,
    "digits": datasets.load_digits,
}
HELD_OUT = 0.2  # of the rows of scikit-learn's sets, which have no splits of their own


class Loaders:
    """The functions that read a data folder: those of `official.py` where its files are there, else those of its load.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = _module(folder / "load.py") if (folder / "load.py").exists() else None

    def __getattr__(self, name: str) -> Any:
        """Return a function that reads from the folder, or another value of its load.py."""
        reader = official.READERS.get(name)
        if self.own is None and reader is None:
            raise AttributeError(name)
        if reader is None or (self.own is not None and not reader.there(self.folder)):
            return getattr(self.own, name)
        return reader.bound(self.folder)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("choral_benchmark_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaders() -> Loaders:
    """Return what reads the data folder."""
    folder = os.environ.get("CHORAL_DATA")
    if not folder or not Path(folder).is_dir():
        sys.exit(f"set CHORAL_DATA to a folder that holds official files ({official.WANTED}), or a load.py")
    return Loaders(Path(folder))


def images(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return 'cifar10' or 'cifar100' as (x_train, y_train, x_test, y_test), images of bytes with channels first.

    The training images are all there are: a folder with a load.py may have a part of CIFAR-100 only.
    """
    read = getattr(loaders(), name)
    first = "train"
    if name == "cifar100" and not official.READERS[name].there(loaders().folder):
        first = "train10k"
    (x, y), (x_test, y_test) = read(first), read("test")
    return x.transpose(0, 3, 1, 2), y, x_test.transpose(0, 3, 1, 2), y_test


def cifar10() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return CIFAR-10 as (x_train, y_train, x_test, y_test), images of bytes with channels first."""
    return images("cifar10")


def words() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train, y_train, x_test, y_test: which of 200 words 1,000 and 500 reviews of IMDB end with, as 0 and 1.

    The words are those after the 50 commonest; rows are taken at equal distances, so that both classes are there.
    """
    parts = []
    for split, rows in (("train", 1000), ("test", 500)):
        ids, y = loaders().imdb(split, 100)
        chosen = np.linspace(0, len(y) - 1, rows).astype(int)
        wanted = np.arange(52, 252)  # 0 and 1 are no words
        parts += [(ids[chosen][:, :, None] == wanted).any(1).astype(np.float32), y[chosen]]
    return parts[0], parts[1], parts[2], parts[3]


CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


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
