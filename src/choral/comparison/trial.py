"""Trial: the rows ensembles are judged by - clean, strange and corrupted ones - made once so that all see the same."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from choral import __version__
from choral.base import batches
from choral.base.batches import Batch
from choral.base.errors import InputError, did_you_mean
from choral.data.frames import names_of
from choral.data.images import from_images, to_images
from choral.data.sources import as_inputs, as_weights

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Trial:
    """Rows that ensembles are judged by.

    Attributes:
        x, y: clean test data.
        ood: inputs from elsewhere, or None.
        ood_name: what they are.
        corrupted: corruption -> inputs at each severity, all of the rows `corrupted_y` labels.
        corrupted_y: labels of corrupted rows.
        severities: the severities.
        weights: what each test row counts (row,), float64; None counts all alike.
        corrupted_weights: the same of corrupted rows.
        corrupted_rows: the numbers of the rows that are corrupted; None if all are.
    """

    x: Any
    y: np.ndarray
    ood: Any = None
    ood_name: str = ""
    corrupted: dict[str, list[np.ndarray]] = field(default_factory=dict)
    corrupted_y: np.ndarray | None = None
    severities: tuple[int, ...] = SEVERITIES
    weights: np.ndarray | None = None
    corrupted_weights: np.ndarray | None = None
    corrupted_rows: np.ndarray | None = None

    @cached_property
    def digest(self) -> str:
        """A short text that changes with the rows, and with the version of choral that judges."""
        state = hashlib.blake2b(repr((__version__, self.ood_name, self.severities, list(self.corrupted))).encode())
        for rows in (
            *_leaves(self.x),
            self.y,
            *_leaves(self.ood),
            self.corrupted_y,
            self.weights,
            *(x for each in self.corrupted.values() for x in each),
        ):
            if rows is not None:
                state.update(f"{rows.shape}{rows.dtype}".encode() + np.ascontiguousarray(rows).tobytes())
        return state.hexdigest()[:24]


def make_trial(
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    ood: Any = None,
    ood_name: str = "a second data set",
    corruptions: Sequence[str] | str = (),
    severities: Sequence[int] = SEVERITIES,
    image_shape: tuple[int, int] | None = None,
    corrupted_rows: int = 500,
    seed: int = 0,
) -> Trial:
    """Return the rows to judge by.

    Args:
        x: test inputs as given to predict.
        y: their labels or targets.
        sample_weight: a weight for each test row, as in `fit`; equal if None.
        ood: inputs of another data set.
        ood_name: what to call them.
        corruptions: names of `choral.corruptions`, or 'all' for the fifteen common ones; images only (bytes, or numbers from 0 to 1).
        severities: from 1 to 5.
        image_shape: height and width of images stored flat.
        corrupted_rows: rows that are corrupted, at most; drawn by the seed.
        seed: of the corruptions.
    """
    if y is None or not np.ndim(y):
        raise InputError(f"y is {y!r}; give the labels or targets of the test inputs, one for each row.")
    x, y, ood = rows_of(x), np.asarray(y), None if ood is None else rows_of(ood)
    if count_rows(x) != len(y) or not len(y):
        raise InputError(f"x has {count_rows(x)} rows and y {len(y)}; give as many of both, and at least one.")
    rows = None if sample_weight is None else as_weights(sample_weight, len(y)).numpy()
    names = _names(corruptions)
    if names and not isinstance(x, np.ndarray):
        raise InputError(f"corruptions are for images in one array, but x is {batches.in_words(x)}; leave them out.")
    if not names:
        return Trial(x, y, ood, ood_name, weights=rows)
    from choral.corruptions import corrupt

    keep = np.sort(np.random.default_rng(seed).permutation(len(x))[:corrupted_rows])
    images = to_images(x[keep], shape=image_shape)
    corrupted = {
        name: [from_images(corrupt(images, name, severity=s, seed=seed), like=x) for s in severities] for name in names
    }
    kept = None if rows is None else rows[keep]
    return Trial(x, y, ood, ood_name, corrupted, y[keep], tuple(severities), rows, kept, keep)


def rows_of(x: Any) -> Any:
    """Return inputs as an array, or as a batch of tensors if there are several."""
    made = as_inputs(x) if isinstance(x, Mapping | tuple | list) or names_of(x) else x
    return np.asarray(made) if isinstance(made, Tensor) or made is x else made


def shuffled(x: Any) -> tuple[Batch, str]:
    """Return several inputs that look like these but do not belong together, and what they are."""
    draw = np.random.default_rng(0)
    mixed = batches.mapped(lambda t: t[draw.permutation(len(t))], x)
    return mixed, "the same inputs, each of them shuffled by itself"


def first_rows(x: Any, count: int) -> Any:
    """Return the first rows of one or several inputs."""
    return x[:count] if isinstance(x, np.ndarray) else batches.part(x, slice(count))


def count_rows(x: Any) -> int:
    """Return how many rows one or several inputs have."""
    if isinstance(x, np.ndarray) and not x.ndim:
        raise InputError(f"x is {x.item()!r}; give test inputs, with a first axis over rows.")
    return len(x) if isinstance(x, np.ndarray) else batches.rows(x)


def _leaves(x: Any) -> list[np.ndarray]:
    """Return the arrays of one or several inputs, their names after them."""
    if x is None or isinstance(x, np.ndarray):
        return [] if x is None else [x]
    return [*(t.numpy() for t in batches.leaves(x)), np.array([name for name, _ in batches.named_leaves(x)])]


def _names(corruptions: Sequence[str] | str) -> tuple[str, ...]:
    if not corruptions:
        return ()
    from choral.corruptions import COMMON, EXTRA

    if isinstance(corruptions, str):
        corruptions = COMMON if corruptions == "all" else tuple(n.strip() for n in corruptions.split(","))
    if not isinstance(corruptions, Sequence):
        raise InputError(f"corruptions is {corruptions!r}; give names of corruptions, or 'all'.")
    for name in corruptions:
        if name not in COMMON + EXTRA:
            known = COMMON + EXTRA
            raise InputError(
                f"there is no corruption '{name}'; known: all, {', '.join(known)}.{did_you_mean(name, known)}"
            )
    return tuple(corruptions)
