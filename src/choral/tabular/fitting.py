"""fit_table: what `choral fit FILE` does, in Python."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from choral.base.arguments import guarded, typed
from choral.base.errors import InputError
from choral.cluster.objects import is_far
from choral.data.balance import balanced
from choral.data.problems import Columns, Problem, load_problem, weights_in
from choral.data.sheets import as_frame, is_frame, read_table
from choral.data.targets import Kind
from choral.engine.compute import Compute
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble
from choral.fit import check_options
from choral.recipes.training import Training
from choral.tabular.preparing import METHOD, prepared

_OPEN = Training()


@guarded
@typed
def fit_table(
    data: Any,
    target: str | None = None,
    *,
    method: str | None = None,
    members: int | None = None,
    epochs: int | None = None,
    budget: int | None = None,
    model: str | None = None,
    training: Training | None = None,
    columns: Columns | None = None,
    task: Kind | None = None,
    validation: Any = None,
    cv: int | None = None,
    sample_weight: Any = None,
    class_weight: str | Mapping[str, float] | None = None,
    **options: Any,
) -> Ensemble:
    """Return an ensemble of a table, trained as `choral fit` does: columns are read, and what is not said is the usual.

    Every row is trained on or watches the training; nothing is held out for testing. The ensemble predicts data frames:
    `ensemble.predict(frame)`, and `ensemble.evaluate(frame)` where the frame has the target too.

    >>> import pandas as pd
    >>> frame = pd.DataFrame(
    ...     {"rooms": ["3", "4", "?", "2"] * 10, "town": ["Ulm", "Bonn"] * 20, "sold": ["yes", "no"] * 20}
    ... )
    >>> ensemble = fit_table(frame, "sold", members=2, epochs=8, progress=False)
    >>> prediction = ensemble.predict(pd.DataFrame({"rooms": ["3", None], "town": ["Bonn", "Ulm"]}))
    >>> prediction.to_frame()["prediction"].tolist(), tuple(prediction.probs.shape)
    (['no', 'yes'], (2, 2))

    Args:
        data: a pandas data frame; or the path of a table, or what else `choral fit` takes.
        target: the column to predict.
        method: the name of a method (`choral.recipes.METHODS`), or 'auto', which chooses by held-out rows; None is 'auto' for 32 rows
            or more where neither members, epochs nor model are given, nor several processes, a cluster or a URL, else deep_ensemble.
        members: where the method has a choice.
        epochs: length of each member's training, by the number of rows if None; an upper bound if rows are held out.
        budget: total in epochs of one network instead.
        model: the network's name; by the data if None.
        training: optimizer, learning rate, batch size and schedule; what it leaves out is chosen by the data.
        columns: columns that are no inputs, identify a row, are ordered, or say which rows are held out together or last.
        task: 'classification' or 'regression'; decided by the target if None.
        validation: part of the rows that no member is trained on, or a data frame (or the path of one) with such rows; 0 for none. If
            None, each of 8 members holds out an eighth ('auto'), or all of them a fifth, of 100 rows or more.
        cv: cross-validation instead of validation: every member holds out one of so many folds of the rows, as in `choral.fit`; equal
            values of `Columns.group` together. Scores and intervals are then honest for all rows: `ensemble.info["out_of_fold"]`.
        sample_weight: a weight for each row: a column, which is then no input, or a number for each row.
        class_weight: 'balanced', or a weight for the rows of each class by its name (others 1), in training and validation.
            Probabilities are then of classes as common as that.
        options: further ones of `choral.fit`: likelihood (by name), early_stopping, run_dir, on_existing, seed, callbacks, progress,
            device, compute.

    Returns:
        The trained ensemble.
    """
    check_options("fit_table", list(inspect.signature(fit_table).parameters)[:-1], options)
    compute = options.get("compute") or Compute()
    if compute.time_limit is not None:  # reading and choosing count
        options["compute"] = replace(compute, time_limit=Limit.of(compute.time_limit, perf_counter()))
    problem = load_problem(
        data,
        target=target,
        task=task,
        holdout=None,
        columns=columns,
        likelihood=options.pop("likelihood", None),
        weights=sample_weight,
    )
    each: dict[str, float] = {}
    if class_weight is not None:
        problem, each = balanced(problem, class_weight)
    extends = options.get("on_existing") == "extend"
    apart = compute.data_parallel or extends or compute.cluster is not None or is_far(options.get("run_dir"))
    settings = {} if training is None else {f.name: getattr(training, f.name) for f in fields(training)}
    ready = prepared(
        problem,
        method=METHOD if method is None and apart else method,
        epochs=epochs,
        budget=budget,
        members=members,
        model=model,
        validation=_watching(validation, problem, sample_weight if isinstance(sample_weight, str) else None, each),
        early_stopping=options.pop("early_stopping", None),
        folds=cv,
        **{name: value for name, value in settings.items() if value != getattr(_OPEN, name)},
    )
    return ready.run(**options)


def _watching(validation: Any, problem: Problem, column: str | None, each: Mapping[str, float]) -> Any:
    """Return rows that watch as `fit` takes them: a share as it is, a table's as inputs, targets and what they count.

    Args:
        validation: as `fit_table` takes it.
        problem: gives how columns are read.
        column: of weights, if one has them.
        each: what rows of each class count, empty if all the same.
    """
    if validation is None or (isinstance(validation, int | float) and not isinstance(validation, bool)):
        return validation
    if problem.table is None or not problem.table.columns:
        raise InputError("validation is a table, but the data is not; give a part of the rows, such as 0.2.")
    where = "validation" if is_frame(validation) else str(validation)
    if not is_frame(validation) and not isinstance(validation, str | Path):
        raise InputError(
            f"validation is {type(validation).__name__}; give a part of the rows, such as 0.2, or a data frame with the target."
        )
    frame = as_frame(validation, where) if is_frame(validation) else read_table(Path(validation))
    x, y = problem.table.inputs(frame, path=where), problem.table.targets(frame, path=where)
    weights = None if column is None else weights_in(frame, column, where)
    if each:
        own = np.array(list(each.values()))[np.asarray(y).astype(np.int64).reshape(-1)]  # in the order of the classes
        weights = own if weights is None else weights * own
    return (x, y) if weights is None else (x, y, weights)
