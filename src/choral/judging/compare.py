"""compare: several methods on the same network and data at equal budget, in one table."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from choral import __version__
from choral.base.errors import InputError, RunError
from choral.base.types import Build
from choral.data.images import holds_images, strange
from choral.data.inputs import Transform
from choral.data.problems import Problem
from choral.engine.events import Listener
from choral.engine.files import read_json, write_json
from choral.engine.folder import folder_name
from choral.fit import fit
from choral.judging.judge import MAP_ROWS, corruption_errors, judged, measure, row_of, sketch
from choral.judging.maps import pca, tsne
from choral.judging.trial import Trial, make_trial
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

__all__ = ["Comparison", "compare", "measure", "recipes_for", "trial_of"]


@dataclass(frozen=True)
class Comparison:
    """Rows of measures, one for each method, the settings they share, and what a report shows beyond them.

    Attributes:
        rows: one flat dict for each method.
        settings: data, budget, seed and training.
        details: evaluation (by method, see `choral.judging.judge.judge`), map (members in function space),
            corruption_errors.
    """

    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> list[str]:
        """The scores of a small table, as the task names them."""
        found = (e["shown"] for e in self.details.get("evaluation", {}).values() if "shown" in e)
        return list(next(found, [n for n in ("accuracy", "rmse", "nll") if n in self.rows[0]]))

    def to_dict(self) -> dict[str, Any]:
        """Return rows and settings as plain types."""
        return {"rows": self.rows, "settings": self.settings}

    def __str__(self) -> str:
        names = ["method", "members", "epochs", *self.shown, "parameters", "train_seconds"]
        cells = [names] + [[_cell(row.get(n)) for n in names] for row in self.rows]
        widths = [max(len(r[i]) for r in cells) for i in range(len(names))]
        return "\n".join(
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))) for r in cells
        )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def recipes_for(
    methods: Sequence[str | Recipe], *, epochs: int, members: int | None, training: Training
) -> list[Recipe]:
    """Return recipes at the same budget; names take the shared settings, recipes stay as they are.

    `members` is given to the methods for which more than one member makes sense.
    """
    found = []
    for method in methods:
        if isinstance(method, Recipe):
            found.append(method)
            continue
        options: dict[str, Any] = {"epochs": epochs, "training": training}
        default = METHODS[method].options.get("members") if method in METHODS else None
        if members is not None and default is not None and default.default != 1:
            options["members"] = members
        try:
            found.append(make(method, **options))
        except InputError as error:
            raise InputError(f"{method}: {error}") from error
    if not found:
        raise InputError("methods is empty; name at least one method.")
    return found


def compare(
    build: Build | nn.Module,
    data: Problem | tuple[Any, Any, Any, Any],
    methods: Sequence[str | Recipe],
    *,
    epochs: int = 60,
    members: int | None = None,
    training: Training = Training(),
    run_dir: str | Path | None = None,
    seed: int = 0,
    inputs: tuple[Transform, ...] = (),
    listener: Callable[[str], Listener] | None = None,
    ood: Any = None,
    corruptions: Sequence[str] | str = "all",
    **options: Any,
) -> Comparison:
    """Fit several methods with the same budget and return one table.

    Args:
        build: the network, as for `fit`.
        data: (x_train, y_train, x_test, y_test) or a problem.
        methods: names or recipes.
        epochs: total budget of each method.
        members: members where a method has a choice; its own default if None.
        training: optimiser, rate, batch size and schedule shared by all.
        run_dir: a folder for all runs: each resumes by itself; `comparison.json` holds the table.
        seed: root seed of every method.
        inputs: transforms of input batches.
        listener: gives the event listener of a method by name.
        ood: inputs of another data set; made from the test inputs (`choral.data.images.strange`) if None.
        corruptions: names of corruptions, 'all' or none; images only.
        options: passed on to `fit`.
    """
    recipes = recipes_for(methods, epochs=epochs, members=members, training=training)
    if not isinstance(data, Problem):
        x_train, y_train, x_test, y_test = (np.asarray(d) for d in data)
        data = Problem("arrays", x_train, y_train, x_test, y_test)
    problem = data
    trial = trial_of(problem, ood=ood, corruptions=corruptions)
    rows, evaluations, sketches = [], {}, {}
    for number, recipe in enumerate(recipes):
        twin = sum(r.name == recipe.name for r in recipes[:number])
        name = recipe.name + (f"_{twin + 1}" if twin else "")
        folder = None if run_dir is None else Path(run_dir) / folder_name(name)
        ensemble = fit(
            build,
            (problem.x_train, problem.y_train),
            recipe,
            run_dir=folder,
            seed=seed,
            inputs=inputs,
            table=problem.table,
            listener=None if listener is None else listener(name),
            progress=None if listener is None else False,
            **options,
        )
        evaluations[name] = judged(folder, ensemble, trial)
        sketches[name] = sketch(ensemble.predict(problem.x_test[:MAP_ROWS]))
        rows.append(row_of(ensemble, evaluations[name]) | {"method": name})
    details: dict[str, Any] = {"evaluation": evaluations, "map": {"pca": pca(sketches), "tsne": tsne(sketches)}}
    errors = corruption_errors(evaluations, baseline="single" if "single" in evaluations else rows[0]["method"])
    if errors is not None:
        details["corruption_errors"] = errors
        rows = [row | errors["methods"][row["method"]] for row in rows]
    settings = {"data": problem.name, "epochs": epochs, "seed": seed, "training": training.to_dict()}
    settings |= {"choral": __version__, "train_rows": len(problem.x_train), "test_rows": len(problem.x_test)}
    comparison = Comparison(rows, settings, details)
    if run_dir is not None:
        _write_changes(Path(run_dir) / "comparison.json", comparison.to_dict() | details)
    return comparison


def _write_changes(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file unless it says all that already: what was made from it is then still good."""
    try:
        held = read_json(path) or {}
    except RunError:  # all that it says is said again
        held = {}
    said = json.loads(json.dumps(content))
    if any(held.get(key) != value for key, value in said.items()):
        write_json(path, content, within=path.parent)


def trial_of(problem: Problem, *, ood: Any = None, corruptions: Sequence[str] | str = "all") -> Trial:
    """Return what all methods are judged by: the test rows, strange ones, and corrupted ones if they are images.

    Args:
        problem: gives the test rows.
        ood: inputs of another data set; made from the test rows if None.
        corruptions: names of corruptions, 'all' (of images; none of others) or none.
    """
    shape = problem.image_shape
    name = "the given second data set"
    if ood is None:
        ood, name = strange(problem.x_test, shape=shape)
    images = problem.task == "classification" and holds_images(problem.x_test, shape=shape)
    if not images and corruptions == "all":
        corruptions = ()
    return make_trial(
        problem.x_test,
        problem.y_test,
        ood=ood,
        ood_name=name,
        corruptions=corruptions,
        image_shape=shape,
        corrupted_rows=200,
    )
