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
    "ChoralError": "choral.errors",
    "Collect": "choral.plan",
    "Comparison": "choral.compare",
    "Ensemble": "choral.predict",
    "Objective": "choral.objectives.combine",
    "Prediction": "choral.prediction",
    "Recipe": "choral.recipe",
    "Reset": "choral.plan",
    "SGD": "choral.plan",
    "Start": "choral.plan",
    "Train": "choral.plan",
    "Training": "choral.training",
    "compare": "choral.compare",
    "every": "choral.plan",
    "fit": "choral.fit",
    "fork": "choral.plan",
    "load": "choral.fit",
    "repeat": "choral.plan",
    "seq": "choral.plan",
    "show": "choral.showing",
}
_MODULES = (
    "compaction",
    "corruptions",
    "data",
    "layers",
    "masks",
    "metrics",
    "models",
    "plan",
    "posthoc",
    "recipes",
    "structures",
)

__all__ = [  # defined by __getattr__
    "SGD",
    "Adam",
    "AdamW",
    "ChoralError",
    "Collect",
    "Comparison",
    "Ensemble",
    "Objective",
    "Prediction",
    "Recipe",
    "Reset",
    "Start",
    "Train",
    "Training",
    "compare",
    "every",
    "fit",
    "fork",
    "load",
    "repeat",
    "seq",
    "show",
]  # fmt: skip

if TYPE_CHECKING:
    from choral.compare import Comparison, compare
    from choral.errors import ChoralError
    from choral.fit import fit, load
    from choral.objectives.combine import Objective
    from choral.plan import SGD, Adam, AdamW, Collect, Reset, Start, Train, every, fork, repeat, seq
    from choral.predict import Ensemble
    from choral.prediction import Prediction
    from choral.recipe import Recipe
    from choral.showing import show
    from choral.training import Training


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
