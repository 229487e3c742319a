"""choral: turn one PyTorch network into a calibrated ensemble for about the cost of training it once.

    import choral

    ensemble = choral.fit(build, (x, y), "snapshot")  # build() returns your network
    prediction = ensemble.predict(x_new)  # probs or mean, entropy or std, epistemic parts
    prediction.to_frame()
    ensemble.save("model.choral")
    choral.load("model.choral", build)

    choral.fit_table("houses.csv", target="price")  # a table instead of a network
    choral.compare(build, (x, y, x_test, y_test), ["single", "packed", "snapshot"], budget=60)

`choral.recipes` contains the methods, `choral.metrics` the scores and `choral.plots` the figures. Names are imported on first use,
so that `import choral` and `choral --help` are fast.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_NAMES = {
    "choral.base.errors": "ChoralError",
    "choral.cluster.ray": "Ray",
    "choral.cluster.run": "leaves prepare run_leaf",
    "choral.comparison.compare": "compare",
    "choral.comparison.comparison": "Comparison",
    "choral.deploy.distil": "distil",
    "choral.deploy.hub": "from_pretrained save_pretrained",
    "choral.engine.compute": "Compute Store",
    "choral.ensemble.ensemble": "Ensemble",
    "choral.ensemble.networks": "converted ensemble_of",
    "choral.fit": "fit load",
    "choral.objectives.penalties": "Objective",
    "choral.plan": "SGD Adam AdamW Collect EarlyStopping Measure Reset Start Train every fork repeat seq",
    "choral.predictions": "Prediction",
    "choral.preview": "show",
    "choral.recipes.recipe": "Recipe",
    "choral.recipes.training": "Training",
    "choral.tables.fit": "fit_table",
    "choral.tables.problems": "Columns",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = (
    "callbacks", "calibration", "compaction", "corruptions", "data", "layers", "masks", "metrics", "models", "objectives",
    "plan", "plots", "predictions", "recipes", "sklearn", "structures",
)  # fmt: skip

__all__ = [  # defined by __getattr__
    "SGD", "Adam", "AdamW", "ChoralError", "Collect", "Columns", "Comparison", "Compute", "EarlyStopping", "Ensemble", "Measure",
    "Objective", "Prediction", "Ray", "Recipe", "Reset", "Start", "Store", "Train", "Training", "compare", "converted",
    "distil", "ensemble_of", "every", "fit", "fit_table", "fork", "from_pretrained", "leaves", "load", "prepare", "repeat", "run_leaf",
    "save_pretrained", "seq", "show",
]  # fmt: skip

if TYPE_CHECKING:
    from choral.base.errors import ChoralError
    from choral.cluster.ray import Ray
    from choral.cluster.run import leaves, prepare, run_leaf
    from choral.comparison.compare import compare
    from choral.comparison.comparison import Comparison
    from choral.deploy.distil import distil
    from choral.deploy.hub import from_pretrained, save_pretrained
    from choral.engine.compute import Compute, Store
    from choral.ensemble.ensemble import Ensemble
    from choral.ensemble.networks import converted, ensemble_of
    from choral.fit import fit, load
    from choral.objectives.penalties import Objective
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
    from choral.tables.fit import fit_table
    from choral.tables.problems import Columns


class _Package(ModuleType):
    """Keep `choral.fit` and `choral.compare` functions: importing the modules of these names would replace them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    if name in _MODULES:
        return import_module(f"choral.{name}")
    from choral.base.errors import no_attribute

    raise AttributeError(no_attribute("choral", name, __dir__()))


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
