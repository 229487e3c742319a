"""The errors choral raises: one base, a few precise kinds, each also a built-in kind of error.

A message says where, what was received, what is accepted and what to do, in one sentence or two.
"""

import difflib
import sys
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])


def warn(message: str) -> None:
    """Warn at the line of the user's code that called choral."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class ChoralError(Exception):
    """Base of every error that choral raises on purpose; its message is one line, whatever was quoted in it."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InputError(ChoralError, ValueError):
    """A value the caller gave is not one choral can use."""


class NotFiniteError(InputError):
    """Numbers that are to be measured are NaN or infinite."""


def needed(module: str, extra: str) -> Any:
    """Return an optional module; InputError names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"this needs {error.name or module}; install it: pip install 'choral[{extra}]'.") from error


class PlanError(ChoralError, ValueError):
    """A recipe or plan cannot work; the message lists every problem found."""


class ConversionError(ChoralError, TypeError):
    """A network, or a layer in it, cannot take the requested structure."""


class RunError(ChoralError, RuntimeError):
    """A run folder, checkpoint or saved file cannot be used as asked."""


class DivergedError(ChoralError, RuntimeError):
    """Training of some branches gave a loss that is not a number."""


_TRAINING = "training settings belong to the recipe: choral.recipes.deep_ensemble(training=choral.Training({}))"
_RECIPE = "it belongs to the recipe: choral.recipes.deep_ensemble({})"
_COMPUTE = "it is a field of compute: compute=choral.Compute({})"
HINTS = (
    {n: _TRAINING.format("lr=0.01") for n in ("lr", "learning_rate", "rate", "learning_rate_init")}
    | {"optimizer": _TRAINING.format("optimizer='adam'"), "optim": _TRAINING.format("optimizer='adam'")}
    | {"batch_size": _TRAINING.format("batch_size=32"), "schedule": _TRAINING.format("schedule='cosine'")}
    | {"scheduler": _TRAINING.format("schedule='cosine'"), "weight_decay": _TRAINING.format("optimizer=choral.AdamW()")}
    | {n: _RECIPE.format("members=5") for n in ("members", "n_estimators", "num_estimators", "n_members")}
    | {n: _RECIPE.format("epochs=60") for n in ("epochs", "n_epochs", "num_epochs", "max_epochs", "max_iter")}
    | {n: _COMPUTE.format(f"{n}=...") for n in ("precision", "executor", "threads", "accumulate", "data_parallel")}
    | {n: _COMPUTE.format(f"{n}=...") for n in ("cluster", "time_limit", "checkpoint_seconds")}
    | {n: _COMPUTE.format("threads=2") for n in ("n_jobs", "num_threads")}
    | {
        "verbose": "progress=True or False says whether a progress bar is drawn",
        "overwrite": "on_existing says what is done with a run in run_dir",
        "resume": "the same call with the same run_dir resumes a run",
        "extend": "on_existing='extend' adds members to a run in run_dir",
        "x_val": "validation=(x, y) gives held-out rows",
        "random_state": "the seed is seed=0",
        "loss": "a loss of your own is given as likelihood=choral.objectives.Loss(function)",
        "patience": "it is a field of early_stopping: early_stopping=choral.EarlyStopping(patience=16)",
        "groups": "groups go with cv: cv=(5, groups)",
        "standardize": "it is a field of likelihoods: likelihood=choral.objectives.LearnedGaussian(standardize=False)",
    }
)
"""What to write instead of arguments that people try."""


def unknown_argument(function: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about an argument that a function does not take: what to write instead, or what it takes.

    >>> unknown_argument("fit", "sead", ["data", "seed"])
    "fit has no argument 'sead'; it takes data, seed. Did you mean 'seed'?"
    >>> unknown_argument("fit", "verbose", ["data", "progress"])
    "fit has no argument 'verbose'; progress=True or False says whether a progress bar is drawn."
    """
    names = list(known)
    hint = HINTS.get(name, "")
    if hint == HINTS["epochs"] and "budget" in names:
        hint = "budget=60 is the total of each method, in epochs of one network"
    if function == "Training" and "Training(" in hint:
        hint = f"write {hint[hint.index('choral.Training(') : -1]}"
    instead = hint + "." if hint else f"it takes {', '.join(names)}.{did_you_mean(name, names)}"
    return f"{function} has no argument {name!r}; {instead}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean X?' for the nearest known name, or an empty string.

    >>> did_you_mean("snapshott", ["single", "snapshot"])
    " Did you mean 'snapshot'?"
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""
