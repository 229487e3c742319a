"""What an ensemble makes of each column: permutation importance and partial dependence, with the spread of its members.

Importance is how much worse a score gets when the cells of one column are exchanged between rows, all numbers that the column became
together. Dependence is the mean prediction when every row has the same value there. Both are taken for the whole ensemble and for every
member alone: where members do not agree, the data does not tell.

References: Breiman, "Random Forests", 2001, Section 10; Friedman, "Greedy function approximation", 2001, Section 8.2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from choral.base import batches
from choral.base.batches import Batch
from choral.base.directions import grows
from choral.base.errors import InputError, did_you_mean
from choral.data.sources import as_inputs
from choral.ensemble.ensemble import Ensemble
from choral.predictions import Predictive, means_of
from choral.tables.columns import Column

_OUTPUTS = 10  # curves of one column, at most


@dataclass(frozen=True)
class Part:
    """Inputs that belong together, by a name: a column of a table, of an array, or one of several inputs.

    Attributes:
        name: what it is called.
        places: columns of the array; None for a whole input.
        input: which of several inputs.
        column: how a table's column became numbers.
    """

    name: str
    places: tuple[int, ...] | None
    input: int = 0
    column: Column | None = None

    def of(self, x: Batch) -> Tensor:
        """Return its numbers (row, ...)."""
        leaf = batches.leaves(x)[self.input]
        return leaf if self.places is None else leaf[:, list(self.places)]

    def put(self, x: Batch, numbers: Tensor) -> Batch:
        """Return inputs with other numbers there."""
        leaves = batches.leaves(x)
        if self.places is not None:
            changed = leaves[self.input].clone()
            changed[:, list(self.places)] = numbers
            numbers = changed
        return batches.filled(x, [numbers if i == self.input else leaf for i, leaf in enumerate(leaves)])


def parts_of(ensemble: Ensemble, x: Any, groups: Mapping[str, Sequence[Any]] | None = None) -> list[Part]:
    """Return what is changed together: a table's columns, the columns of one array, or each of several inputs.

    Args:
        ensemble: whose table says which numbers are one column.
        x: inputs as given to predict.
        groups: names of columns (places in an array) that are changed together, by a name for them; the others are left alone.
    """
    leaves = list(batches.named_leaves(as_inputs(ensemble._arranged(x))))
    table = ensemble.table
    if table is not None and table.columns:
        ends = np.cumsum([c.width for c in table.columns]).tolist()
        alone = [
            Part(c.name, tuple(range(end - c.width, end)), column=c) for c, end in zip(table.columns, ends) if c.width
        ]
    elif len(leaves) > 1:
        alone = [Part(name, None, i) for i, (name, _) in enumerate(leaves)]
    elif leaves[0][1].dim() == 2:
        count = leaves[0][1].shape[1]
        names = (ensemble._interface.columns or {}).get("x", ())
        alone = [Part(names[i] if len(names) == count else f"x{i}", (i,)) for i in range(count)]
    else:
        raise InputError(
            f"x has shape {tuple(leaves[0][1].shape)}, whose columns have no meaning of their own; importance is for tables, arrays (row, "
            "column) and several inputs by name."
        )
    return alone if groups is None else [_joined(name, held, alone) for name, held in groups.items()]


def _joined(name: str, held: Sequence[Any], alone: Sequence[Part]) -> Part:
    known = {p.name: p for p in alone} | {p.places[0]: p for p in alone if p.places is not None and p.column is None}
    for one in held:
        if one not in known:
            names = [p.name for p in alone]
            raise InputError(
                f"groups[{name!r}] names {one!r}; known: {', '.join(names[:20])}.{did_you_mean(str(one), names)}"
            )
    parts = [known[one] for one in held]
    if not parts or any(p.places is None for p in parts):
        raise InputError(f"groups[{name!r}] is {list(held)}; name at least one column of a table or of one array.")
    return Part(name, tuple(sorted({place for p in parts for place in p.places or ()})))


def permutation_importance(
    ensemble: Ensemble,
    x: Any,
    y: Any = None,
    *,
    groups: Mapping[str, Sequence[Any]] | None = None,
    measures: Sequence[str] = (),
    repeats: int = 5,
    rows: int = 2000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return how much worse the scores get without what each column says, the most important first.

    A dict for each column: `column`, and by measure `worse` (the mean over exchanges; for accuracy how much it falls), `error` (its
    standard error over exchanges) and `members` (the same mean for each member alone). Columns that say the same, exchanged one by
    one, look less important than they are together: `groups`.

    Args:
        ensemble: the ensemble.
        x: labeled inputs as given to predict, best ones that were not trained on.
        y: their targets; of a table's data frame its own target column if None.
        groups: as in `parts_of`.
        measures: of `row_scores` of the prediction, such as 'nll', 'mse' or 'rmse'; those of the task if empty, the one that decides
            the order first.
        repeats: times that each column is exchanged.
        rows: that are used, at most, drawn by the seed.
        seed: of rows and exchanges; an exchange is the same for all columns.
    """
    if repeats < 1 or rows < 2:
        raise InputError(f"repeats is {repeats} and rows {rows}; give at least 1 and 2.")
    parts = parts_of(ensemble, x, groups)
    x, y = _some(ensemble._arranged(x), ensemble._arranged_targets(x, y), rows, seed)
    plain = ensemble._predictive(x)
    targets = plain.targets(y)
    names = tuple(measures) or _usual(plain, targets)
    before = _measured(plain, targets, names)
    orders = [torch.from_numpy(np.random.default_rng([seed, i]).permutation(len(y))) for i in range(repeats)]
    found = []
    for part in parts:
        own = part.of(x)
        changed = [ensemble._predictive(part.put(x, own[order])) for order in orders]
        # axes: repeat, the whole and each member, measure
        worse = torch.stack([_measured(p, targets, names) - before for p in changed])
        worse = worse * torch.tensor([-1.0 if grows(n) else 1.0 for n in names])
        found.append({"column": part.name} | _row(worse.double(), names))
    return sorted(found, key=lambda r: -r["worse"][names[0]])


def _row(worse: Tensor, names: Sequence[str]) -> dict[str, Any]:
    mean = worse.mean(0)
    error = worse[:, 0].std(0) / len(worse) ** 0.5 if len(worse) > 1 else torch.zeros(len(names))
    return {
        "worse": dict(zip(names, mean[0].tolist())),
        "error": dict(zip(names, error.tolist())),
        "members": dict(zip(names, mean[1:].T.tolist())),
    }


def _usual(prediction: Predictive, targets: Tensor) -> tuple[str, ...]:
    """Return the score of the task and the other measures that are followed and are means over points."""
    known = means_of(prediction.row_scores(targets))
    return tuple(dict.fromkeys([prediction.score, *(n for n in prediction.brief(targets) if n in known)]))


def _measured(prediction: Predictive, targets: Tensor, names: Sequence[str]) -> Tensor:
    """Return measures of the ensemble and of every member alone (1 + member, measure)."""
    alone = [prediction.of_rows(rows) for rows in prediction.rows_by_member()]
    found = []
    for one in (prediction, *alone):
        rows = one.row_scores(targets)
        known = means_of(rows) | {n: float(v.mean()) for n, v in rows.items()}
        odd = [n for n in names if n not in known]
        if odd:
            raise InputError(f"measures holds {odd[0]!r}; for {prediction.task} give some of {', '.join(known)}.")
        found.append([known[n] for n in names])
    return torch.tensor(found, dtype=torch.float64)


def partial_dependence(
    ensemble: Ensemble, x: Any, column: str, *, points: int = 20, rows: int = 500, seed: int = 0
) -> dict[str, Any]:
    """Return the mean prediction over some rows when all of them have one value of a column, for several values.

    Keys: `column`; `values`, in words; `at`, as numbers, where the values lie on a line (dates: days since 1970), else None; `outputs`,
    the names of what is predicted; `mean` (value, output) of the ensemble and `members` (member, value, output). Numbers are taken at quantiles, words by
    how often they occur, both as they occur in x.

    Args:
        ensemble: the ensemble.
        x: inputs as given to predict.
        column: its name; `x0`, `x1`, ... of an array.
        points: values, at most.
        rows: that are used, at most, drawn by the seed.
        seed: of the rows.
    """
    known = {p.name: p for p in parts_of(ensemble, x)}
    if column not in known or known[column].places is None:
        names = [n for n, p in known.items() if p.places is not None]
        raise InputError(f"there is no column '{column}'; known: {', '.join(names[:20])}.{did_you_mean(column, names)}")
    if points < 1 or rows < 1:
        raise InputError(f"points is {points} and rows {rows}; give at least 1 of each.")
    part, made = known[column], as_inputs(ensemble._arranged(x))
    grid = list(_grid(part, part.of(made).double().numpy(), points))
    few, _ = _some(made, np.zeros(batches.rows(made)), rows, seed)
    curves, alone = [], []
    for _, _, code in grid:
        like = part.of(few)
        prediction = ensemble._predictive(part.put(few, torch.as_tensor(code, dtype=like.dtype).expand_as(like)))
        curves.append(prediction.mean.double().flatten(1).mean(0)[:_OUTPUTS])
        alone.append(prediction.by_member(prediction.member_values).double().flatten(2).mean(1)[:, :_OUTPUTS])
    on_line = all(place is not None for _, place, _ in grid)
    outputs = (ensemble.table.classes if ensemble.table is not None else ()) or tuple(map(str, range(len(curves[0]))))
    return {
        "column": column,
        "values": [word for word, _, _ in grid],
        "at": [place for _, place, _ in grid] if on_line else None,
        "outputs": list(outputs[: len(curves[0])]),
        "mean": torch.stack(curves).tolist(),
        "members": torch.stack(alone, 1).tolist(),
    }


def _grid(part: Part, codes: np.ndarray, points: int) -> Iterator[tuple[str, float | None, np.ndarray]]:
    """Yield values that occur: in words, as a place on a line if there is one, and as the numbers they became."""
    column = part.column
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
    often = np.argsort(-counts, kind="stable")[:points]
    for i in sorted(often, reverse=True):  # the order of a category's values
        yield column.said(different[i]), None, different[i]


def _some(x: Any, y: Any, most: int, seed: int) -> tuple[Batch, Any]:
    """Return at most so many rows, in their order."""
    made, targets = as_inputs(x), np.asarray(y)
    count = batches.rows(made)
    if y is None or len(targets) != count:
        held = "none" if y is None else f"{len(targets)}"
        raise InputError(f"x has {count} rows and y {held}; give as many of both.")
    if count <= most:
        return made, targets
    kept = np.sort(np.random.default_rng(seed).permutation(count)[:most])
    return batches.part(made, torch.from_numpy(kept)), targets[kept]


def importance(ensemble: Ensemble, x: Any, y: Any = None, *, shown: int = 6, seed: int = 0) -> dict[str, Any]:
    """Return what an evaluation keeps: `columns` as `permutation_importance` has them, by `measure`, and `dependence` on the first of them."""
    columns = permutation_importance(ensemble, x, y, seed=seed)
    parts = {p.name: p for p in parts_of(ensemble, x)}
    curves = [r["column"] for r in columns if parts[r["column"]].places is not None][:shown]
    return {
        "measure": next(iter(columns[0]["worse"])),
        "columns": columns,
        "dependence": [partial_dependence(ensemble, x, name, seed=seed) for name in curves],
    }
