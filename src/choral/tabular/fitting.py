"""fit_table: what `choral fit FILE` does, in Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from choral.base.border import guarded
from choral.base.errors import InputError
from choral.base.fitting import typed
from choral.data.balance import balanced
from choral.data.problems import Columns, Problem, load_problem, weights_in
from choral.data.sheets import as_frame, is_frame, read_table
from choral.data.targets import Kind
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble
from choral.scale.remote import is_far
from choral.tabular.preparing import METHOD, prepared


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
    validation: Any = None,
    patience: int | None = None,
    folds: int | None = None,
    weights: Any = None,
    class_weights: str | Mapping[str, float] | None = None,
    task: Kind | None = None,
    likelihood: str | None = None,
    drop: Sequence[str] = (),
    ids: Sequence[str] = (),
    orders: Mapping[str, Sequence[str]] | None = None,
    group: str | None = None,
    time: str | None = None,
    model: str | None = None,
    rate: float | None = None,
    optimiser: str | None = None,
    batch_size: int | None = None,
    schedule: str | None = None,
    seed: int = 0,
    run_dir: str | Path | None = None,
    time_limit: float | None = None,
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
    >>> prediction.columns()["prediction"], tuple(prediction.probs.shape)
    (['no', 'yes'], (2, 2))

    Args:
        data: a pandas data frame; or the path of a table, or what else `choral fit` takes.
        target: the column to predict.
        method: the name of a method (`choral.recipes.METHODS`), or 'auto', which chooses by held-out rows; None is 'auto' for 32 rows
            or more where neither members, epochs nor model are given, nor several processes, a cluster or a URL, else deep_ensemble.
        members: where the method has a choice.
        epochs: length of each member's training, by the number of rows if None; an upper bound if rows are held out.
        budget: total in epochs of one network instead.
        validation: part of the rows that no member is trained on, or a data frame (or the path of one) with such rows; 0 for none. If
            None, each of 8 members holds out an eighth ('auto'), or all of them a fifth, of 100 rows or more.
        patience: epochs without a better score on these after which a member stops.
        folds: cross-validation instead of validation: every member holds out one of so many parts of the rows, as in `choral.fit`; equal
            values of `group` together. Scores and intervals are then honest for all rows: `ensemble.info["out_of_fold"]`.
        weights: what each row counts: a column, which is then no input, or a number for each row.
        class_weights: 'balanced', or what rows of each class count in training, by its name (others 1); they also count so where they
            watch. Probabilities are then of classes as common as that.
        task: 'classification' or 'regression'; decided by the target if None.
        likelihood: what the outputs mean, by name; decided by the target if None.
        drop: columns that are no inputs.
        ids: columns that are no inputs but shown beside predictions.
        orders: values from first to last, by column.
        group: a column whose equal values are held out together; no input.
        time: a column of dates or numbers; the last rows watch.
        model: the network's name; by the data if None.
        rate, optimiser, batch_size, schedule: of training; by the data if None.
        seed: root of every random draw.
        run_dir: folder of the run; the same call resumes.
        time_limit: seconds of wall time, reading and choosing included, after which training ends with what is there.
        options: further ones of `choral.fit`: device, precision, executor, keep, listener, progress, overwrite, threads, ...
    """
    limit = None if time_limit is None else Limit.of(time_limit, perf_counter())
    columns = Columns(
        target=target,
        drop=tuple(drop),
        ids=tuple(ids),
        orders={name: tuple(steps) for name, steps in (orders or {}).items()},
        group=group,
        time=time,
    )
    problem = load_problem(data, task=task, holdout=None, columns=columns, likelihood=likelihood, weights=weights)
    each: dict[str, float] = {}
    if class_weights is not None:
        problem, each = balanced(problem, class_weights)
    apart = options.get("data_parallel") or options.get("extend") or options.get("cluster") is not None
    ready = prepared(
        problem,
        method=METHOD if method is None and (apart or is_far(run_dir)) else method,
        epochs=epochs,
        budget=budget,
        members=members,
        model=model,
        validation=_watching(validation, problem, weights if isinstance(weights, str) else None, each),
        patience=patience,
        folds=folds,
        rate=rate,
        optimiser=optimiser,
        batch_size=batch_size,
        schedule=schedule,
    )
    return ready.run(run_dir=run_dir, seed=seed, time_limit=limit, **options)


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
