"""choral: turn one PyTorch network into a calibrated ensemble for about the price of training it once.

Names are loaded when they are first used, so that importing the package, and the command line's help, stay quick.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Adam": "choral.plan",
    "AdamW": "choral.plan",
    "ChoralError": "choral.base.errors",
    "Collect": "choral.plan",
    "Columns": "choral.tables.problems",
    "Comparison": "choral.judging.standings",
    "Compute": "choral.engine.compute",
    "EarlyStopping": "choral.plan",
    "Ensemble": "choral.ensemble.ensemble",
    "Measure": "choral.plan",
    "Objective": "choral.objectives.combine",
    "Prediction": "choral.predictions",
    "Ray": "choral.scale.clusters",
    "Recipe": "choral.recipes.recipe",
    "Reset": "choral.plan",
    "SGD": "choral.plan",
    "Start": "choral.plan",
    "Store": "choral.scale.remote",
    "Train": "choral.plan",
    "Training": "choral.recipes.training",
    "compare": "choral.judging.compare",
    "converted": "choral.ensemble.converted",
    "ensemble_of": "choral.ensemble.given",
    "every": "choral.plan",
    "fit": "choral.fit",
    "fit_table": "choral.tables.fit",
    "fork": "choral.plan",
    "leaves": "choral.scale.entry",
    "load": "choral.fit",
    "prepare": "choral.scale.entry",
    "repeat": "choral.plan",
    "run_leaf": "choral.scale.entry",
    "seq": "choral.plan",
    "show": "choral.preview",
}
_MODULES = (
    "callbacks",
    "compaction",
    "corruptions",
    "data",
    "layers",
    "masks",
    "metrics",
    "models",
    "objectives",
    "plan",
    "posthoc",
    "predictions",
    "recipes",
    "sklearn",
    "structures",
)

__all__ = [  # defined by __getattr__
    "SGD",
    "Adam",
    "AdamW",
    "ChoralError",
    "Collect",
    "Columns",
    "Comparison",
    "Compute",
    "EarlyStopping",
    "Ensemble",
    "Measure",
    "Objective",
    "Prediction",
    "Ray",
    "Recipe",
    "Reset",
    "Start",
    "Store",
    "Train",
    "Training",
    "compare",
    "converted",
    "ensemble_of",
    "every",
    "fit",
    "fit_table",
    "fork",
    "leaves",
    "load",
    "prepare",
    "repeat",
    "run_leaf",
    "seq",
    "show",
]  # fmt: skip

if TYPE_CHECKING:
    from choral.base.errors import ChoralError
    from choral.engine.compute import Compute
    from choral.ensemble.converted import converted
    from choral.ensemble.ensemble import Ensemble
    from choral.ensemble.given import ensemble_of
    from choral.fit import fit, load
    from choral.judging.compare import compare
    from choral.judging.standings import Comparison
    from choral.objectives.combine import Objective
    from choral.plan import (
        SGD,
        Adam,
        AdamW,
        Collect,
        EarlyStopping,
        Measure,
        Reset,
        Start,
        Train,
        every,
        fork,
        repeat,
        seq,
    )
    from choral.predictions import Prediction
    from choral.preview import show
    from choral.recipes.recipe import Recipe
    from choral.recipes.training import Training
    from choral.scale.clusters import Ray
    from choral.scale.entry import leaves, prepare, run_leaf
    from choral.scale.remote import Store
    from choral.tables.fit import fit_table
    from choral.tables.problems import Columns


class _Package(ModuleType):
    """Keeps `choral.fit` and `choral.compare` the functions: loading the modules of those names would replace them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    if name in _MODULES:
        return import_module(f"choral.{name}")
    raise AttributeError(f"module 'choral' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
