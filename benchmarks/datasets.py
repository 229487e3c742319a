"""Real data for the benchmarks: read from the folder that the environment variable CHORAL_DATA names.

The folder holds `load.py` and its data files; see benchmarks/README.md.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np


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
