"""Permutation importance and partial dependence of columns, for the ensemble and for each member.

References: Breiman, "Random Forests", 2001, Section 10; Friedman, "Greedy function approximation", 2001, Section 8.2.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.dummy import DummyRegressor
from sklearn.inspection import permutation_importance as permuted

from choral.base import batches
from choral.base.batches import Batch
from choral.base.errors import InputError, did_you_mean
from choral.base.text import grows
from choral.data.sources import as_inputs
from choral.ensemble.ensemble import Ensemble
from choral.predictions import means_of
from choral.tables.columns import Column

_OUTPUTS = 10  # curves of one column, at most


class Part(NamedTuple):
    """The inputs of one column of a table or an array, or one of several inputs: `leaves(x)[input][:, places]`."""

    name: str
    input: int
    places: Any
    column: Column | None = None


def parts_of(ensemble: Ensemble, inputs: Batch) -> list[Part]:
    """Return the units of permutation: the inputs of each column, or each of several inputs."""
    leaves, table = list(batches.named_leaves(inputs)), ensemble.table
    if table is not None and table.columns:
        ends = np.cumsum([c.width for c in table.columns]).tolist()
        return [Part(c.name, 0, slice(end - c.width, end), c) for c, end in zip(table.columns, ends) if c.width]
    if len(leaves) > 1:
        return [Part(name, i, ...) for i, (name, _) in enumerate(leaves)]
    shape = leaves[0][1].shape
    if len(shape) != 2:
        raise InputError(
            f"x has shape {tuple(shape)}, whose columns have no meaning of their own; importance is for tables, arrays (row, column) "
            "and several inputs by name."
        )
    names = (ensemble._interface.columns or {}).get("x", ())
    names = names if len(names) == shape[1] else tuple(f"x{i}" for i in range(shape[1]))
    return [Part(name, 0, slice(i, i + 1)) for i, name in enumerate(names)]


def permutation_importance(
    ensemble: Ensemble, x: Any, y: Any = None, *, repeats: int = 5, rows: int = 2000, seed: int = 0
) -> list[dict[str, Any]]:
    """Return how much worse scores get when each column is permuted (`sklearn.inspection`), the most important column first.

    Each dict has `column` and, by score, `worse` (the mean over permutations), `error` (its standard error) and `members` (the mean for
    each member alone).

    Args:
        x: labeled inputs as given to predict, preferably not training rows.
        y: their targets; by default the target column of a data frame.
        repeats: permutations of each column.
        rows: largest number of rows, drawn by the seed.
        seed: seed of rows and permutations; all columns share the permutations.
    """
    x, targets = ensemble._with_targets(x, y)
    inputs = as_inputs(ensemble._arranged(x))
    parts = parts_of(ensemble, inputs)
    if len(targets) != batches.rows(inputs):
        raise InputError(f"x has {batches.rows(inputs)} rows and y {len(targets)}; give as many of both.")
    kept = _some(len(targets), rows, seed)
    given, y = batches.part(inputs, torch.from_numpy(kept)), np.asarray(targets)[kept]

    def score(_: Any, taken: np.ndarray, y: Any) -> dict[str, float]:
        """Return scores, larger ones better, with each part (column of `taken`) taken from the rows of these numbers."""
        leaves = [leaf.clone() for leaf in batches.leaves(given)]
        for part, numbers in zip(parts, taken.T):
            leaves[part.input][:, part.places] = batches.leaves(given)[part.input][numbers][:, part.places]
        prediction = ensemble._predictive(batches.filled(given, leaves))
        targets = prediction.targets(y)
        alone = [prediction.of_rows(rows) for rows in prediction.rows_by_member()]
        found = [means_of(one.row_scores(targets)) for one in (prediction, *alone)]
        names = dict.fromkeys([prediction.score, *(n for n in prediction.brief(targets) if n in found[0])])
        return {f"{n} {i}": each[n] * (1 if grows(n) else -1) for n in names for i, each in enumerate(found)}

    numbers = np.repeat(np.arange(len(kept))[:, None], len(parts), axis=1)
    told = permuted(  # the scores are not the estimator's
        DummyRegressor(), numbers, y, scoring=score, n_repeats=repeats, random_state=seed
    )
    worse: dict[str, list[np.ndarray]] = {}  # by measure, (column, repeat) of the ensemble and of each member
    for name, held in told.items():
        worse.setdefault(name.rpartition(" ")[0], []).append(held.importances)
    found = [
        {
            "column": part.name,
            "worse": {n: float(each[0][i].mean()) for n, each in worse.items()},
            "error": {n: float(each[0][i].std(ddof=repeats > 1) / repeats**0.5) for n, each in worse.items()},
            "members": {n: [float(one[i].mean()) for one in each[1:]] for n, each in worse.items()},
        }
        for i, part in enumerate(parts)
    ]
    return sorted(found, key=lambda row: -row["worse"][next(iter(worse))])


def partial_dependence(
    ensemble: Ensemble, x: Any, column: str, *, points: int = 20, rows: int = 500, seed: int = 0
) -> dict[str, Any]:
    """Return the partial dependence of predictions on a column: the mean over rows when all have the same value of it.

    Keys: `column`; `values` as text; `at`, the values as numbers if they are ordered (dates: days since 1970), else None; `outputs`,
    the names of the outputs; `mean` (value, output) of the ensemble; `members` (member, value, output); `noise` (value,), the mean
    aleatoric standard deviation of the first target, empty for classes.

    Args:
        x: inputs as given to predict.
        column: the name of the column; `x0`, `x1`, ... for an array.
        points: largest number of values: quantiles of numbers, the most frequent categories.
        rows: largest number of rows, drawn by the seed.
        seed: seed of that draw.
    """
    made = as_inputs(ensemble._arranged(x))
    known = {p.name: p for p in parts_of(ensemble, made) if p.places is not ...}
    if column not in known:
        shown = ", ".join([*known][:20])
        raise InputError(f"there is no column '{column}'; known: {shown}.{did_you_mean(column, known)}")
    part = known[column]
    grid = list(_grid(part.column, batches.leaves(made)[0][:, part.places].double().numpy(), points))
    few = batches.part(made, torch.from_numpy(_some(batches.rows(made), rows, seed)))
    curves, alone, noise = [], [], []
    for _, _, code in grid:
        (leaf,) = (leaf.clone() for leaf in batches.leaves(few))
        leaf[:, part.places] = torch.as_tensor(code, dtype=leaf.dtype)
        prediction = ensemble._predictive(batches.filled(few, [leaf]))
        curves.append(prediction.mean.double().flatten(1).mean(0)[:_OUTPUTS])
        alone.append(prediction.by_member(prediction.member_values).double().flatten(2).mean(1)[:, :_OUTPUTS])
        noise += [float(prediction.aleatoric.double().sqrt().flatten(1).mean(0)[0])] if prediction.like_targets else []
    outputs = (ensemble.table.classes if ensemble.table is not None else ()) or tuple(map(str, range(len(curves[0]))))
    return {
        "column": column,
        "values": [word for word, _, _ in grid],
        "at": [place for _, place, _ in grid] if all(place is not None for _, place, _ in grid) else None,
        "outputs": list(outputs[: len(curves[0])]),
        "mean": torch.stack(curves).tolist(),
        "members": torch.stack(alone, 1).tolist(),
        "noise": noise,
    }


def _grid(column: Column | None, codes: np.ndarray, points: int) -> Iterator[tuple[str, float | None, np.ndarray]]:
    """Yield values of a column: as text, as a number if values are ordered, and as inputs of the network."""
    places = codes[:, 0] if column is None else column.places(codes)
    if places is not None and np.isfinite(places).any():
        held = np.flatnonzero(np.isfinite(places))
        order = held[np.argsort(places[held], kind="stable")]
        if len(np.unique(places[order])) > points:
            order = order[np.linspace(0, len(order) - 1, points).round().astype(int)]
        for i in order[np.unique(places[order], return_index=True)[1]]:
            yield f"{places[i]:.6g}" if column is None else column.said(codes[i]), float(places[i]), codes[i]
        return
    assert column is not None
    different, counts = np.unique(codes, axis=0, return_counts=True)
    for i in sorted(np.argsort(-counts, kind="stable")[:points], reverse=True):  # the order of a category's values
        yield column.said(different[i]), None, different[i]


def _some(count: int, most: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def importance(ensemble: Ensemble, x: Any, y: Any = None, *, shown: int = 6, seed: int = 0) -> dict[str, Any]:
    """Return what an evaluation stores: `columns` of `permutation_importance`, its `measure`, and `dependence` on the first columns."""
    columns = permutation_importance(ensemble, x, y, seed=seed)
    inputs = as_inputs(ensemble._arranged(x))
    curves = {p.name for p in parts_of(ensemble, inputs) if p.places is not ...}
    first = [r["column"] for r in columns if r["column"] in curves][:shown]
    return {
        "measure": next(iter(columns[0]["worse"])),
        "columns": columns,
        "dependence": [partial_dependence(ensemble, x, name, seed=seed) for name in first],
    }
