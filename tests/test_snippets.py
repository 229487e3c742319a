"""Every ensemble whose scores a page shows is better than one network in NLL, over three seeds."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from tests.test_readme import DOCS, GIVEN, ROOT, agree, blocks

import choral
from choral.sklearn import EnsembleRegressor

SEEDS = (0, 1, 2)
CHEAP = "docs/tutorials/t01_table.py"
"""The page that the quick suite tries."""


def code(page: str) -> str:
    return (ROOT / page).read_text() if page.endswith(".py") else "\n".join(blocks(page, "python"))


TUTORIALS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/tutorials").glob("t*.py"))
SCORED = [
    p for p in ("README.md", *DOCS, *TUTORIALS) if re.search(r"\.evaluate\(|compare\(|save_pretrained\(", code(p))
]


class Run:
    """A page run with another seed, with one network in the place of every ensemble if `alone`.

    `nll` holds the score of each evaluation, `several` whether it was one of several members or draws, `tables` the comparisons,
    `printed` what was printed.
    """

    def __init__(self, page: str, seed: int, folder: Path, *, alone: bool = False) -> None:
        self.seed, self.alone = seed, alone
        self.nll: list[float] = []
        self.several: list[bool] = []
        self.tables: list[choral.Comparison] = []
        self._plain = {f: getattr(choral, f) for f in ("fit", "prepare", "run_leaf", "fit_table", "compare")}
        self._evaluate, self._estimate = choral.Ensemble.evaluate, EnsembleRegressor.fit
        manual_seed, said = torch.manual_seed, io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.chdir(folder)
            for name in self._plain:
                patch.setattr(choral, name, getattr(self, name))
            patch.setattr(torch, "manual_seed", lambda _: manual_seed(seed))
            patch.setattr(choral.Ensemble, "evaluate", lambda *args, **options: self.evaluate(*args, **options))
            patch.setattr(EnsembleRegressor, "fit", lambda *args, **options: self.estimate(*args, **options))
            for name in set(choral.recipes.METHODS) - {"single"} if alone else ():
                patch.setattr(choral.recipes, name, one_network)
            manual_seed(seed)
            exec("\n".join([GIVEN, code(page)]), {"__name__": "pasted"})
            plt.close("all")
        self.printed = said.getvalue()

    def fit(self, build: Any, data: Any, recipe: Any, **options: Any) -> choral.Ensemble:
        if self.alone and recipe is None:
            return choral.ensemble_of([build], data=data)
        if self.alone and isinstance(recipe, str):
            recipe = "single"
        elif self.alone and recipe.name != "single":  # a plan that the page made
            recipe = choral.recipes.single(epochs=recipe.epochs)
        return self._plain["fit"](build, data, recipe, **options | {"seed": self.seed})

    def prepare(self, *args: Any, **options: Any) -> Any:
        return self._plain["prepare"](*args, **options | {"seed": self.seed})

    def run_leaf(self, *args: Any, **options: Any) -> Any:
        return self._plain["run_leaf"](*args, **options | {"seed": self.seed})

    def fit_table(self, *args: Any, **options: Any) -> choral.Ensemble:
        one = {"method": "single", "members": None} if self.alone else {}
        return self._plain["fit_table"](*args, **options | {"seed": self.seed} | one)

    def compare(self, build: Any, data: Any, methods: Any, **options: Any) -> choral.Comparison:
        if self.alone or self.seed:  # all seeds are in the first run
            return self._plain["compare"](build, data, ["single"], **options | {"seed": 0})
        self.tables.append(self._plain["compare"](build, data, methods, **options | {"seed": SEEDS}))
        return self.tables[-1]

    def evaluate(self, *args: Any, **options: Any) -> dict[str, Any]:
        scores = self._evaluate(*args, **options)
        self.nll.append(scores["nll"])
        found: choral.Ensemble = args[0]
        self.several.append(found.members * found.recipe.structure.draws > 1)
        return scores

    def estimate(self, model: Any, *args: Any, **options: Any) -> Any:
        one = {"method": "single", "n_estimators": None} if self.alone else {}
        return self._estimate(model.set_params(random_state=self.seed, **one), *args, **options)


def one_network(epochs: int | None = None, training: Any = None, **options: Any) -> choral.Recipe | None:
    """Return one network trained as each member is; None where it is trained already."""
    if options.get("pretrained") or options.get("parent_epochs") == 0:
        return None
    return choral.recipes.single(epochs=epochs, **({"training": training} if training else {}))


@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.full] * (p != CHEAP)) for p in SCORED])
def test_what_a_page_scores_is_better_than_one_network(page, tmp_path):
    mpl.use("agg")
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for alone in runs:
        for seed in SEEDS:
            folder = tmp_path / f"{alone}{seed}"
            folder.mkdir()
            runs[alone].append(Run(page, seed, folder, alone=alone))
    ensemble, one = (np.mean([run.nll for run in runs[alone]], axis=0) for alone in (False, True))
    shown = (ensemble != one) & np.array(runs[False][0].several, dtype=bool)  # a page may score the one network too
    assert (ensemble < one)[shown].all()
    for table in runs[False][0].tables:
        nll = {row["method"]: row["nll"] for row in table.rows}
        assert min(nll, key=nll.__getitem__) != "single"
    assert shown.any() or runs[False][0].tables
    if blocks(page, "text"):
        agree(runs[False][0].printed, "".join(blocks(page, "text")))
