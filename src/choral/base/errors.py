"""The errors choral raises: one base, a few precise kinds, each also a built-in kind of error."""

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    """Base class of all errors that choral raises; the message is one line."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InputError(ChoralError, ValueError):
    """An invalid value given by the caller."""


class NotFiniteError(InputError):
    """Values to be scored are NaN or infinite."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def explained(how: Callable[[Exception], ChoralError]) -> Iterator[None]:
    """Convert errors of user code in the block by `how`; choral's own errors pass."""
    try:
        yield
    except ChoralError:
        raise
    except Exception as error:  # code of the user's may fail in any way
        raise how(error) from error


def needed(module: str, extra: str) -> Any:
    """Return an optional module; InputError names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"this needs {error.name or module}; install it: pip install 'choral[{extra}]'.") from error


class PlanError(ChoralError, ValueError):
    """A recipe or plan that cannot run; the message lists all its errors."""


class ConversionError(ChoralError, TypeError):
    """A network, or a layer in it, that a structure cannot convert."""


class RunError(ChoralError, RuntimeError):
    """A run folder, checkpoint or saved file that cannot be used as requested."""


class DivergedError(ChoralError, RuntimeError):
    """Training of some branches gave a non-finite loss."""


_TRAINING = "training settings belong to the recipe: choral.recipes.deep_ensemble(training=choral.Training({}))"
_RECIPE = "it belongs to the recipe: choral.recipes.deep_ensemble({})"
_COMPUTE = "it is a field of compute: compute=choral.Compute({})"
_STOPPING = "it is a field of early_stopping: early_stopping=choral.EarlyStopping({})"
_WRITE = "write {}"
_ARGUMENTS = {
    ("lr=0.01", _TRAINING): "lr learning_rate rate learning_rate_init",
    ("optimizer='adam'", _TRAINING): "optimizer optim",
    ("optimizer=choral.AdamW(weight_decay=0.01)", _TRAINING): "weight_decay",
    ("optimizer=choral.SGD(momentum=0.9)", _TRAINING): "momentum",
    ("batch_size=32", _TRAINING): "batch_size",
    ("schedule='cosine'", _TRAINING): "schedule scheduler lr_scheduler",
    ("training=choral.Training(lr=0.01)", _RECIPE): "training",
    ("members=5", _RECIPE): "members n_estimators num_estimators n_members num_members n_models",
    ("epochs=60", _RECIPE): "epochs n_epochs num_epochs max_epochs max_iter",
    ("patience=16", _STOPPING): "patience",
    ("threads=2", _COMPUTE): "threads n_jobs num_threads",
    ("device='cuda'", _COMPUTE): "gpu gpus accelerator",
    ("time_limit=60", _COMPUTE): "time_limit timeout",
    ("recipe='packed'", _WRITE): "method methods",
    ("likelihood='categorical' or 'gaussian', where y does not tell", _WRITE): "task",
    (
        "validation=0.2, or validation=(x, y)",
        _WRITE,
    ): "val x_val X_val validation_data validation_split val_split eval_set",
    ("cv=5", _WRITE): "folds n_folds n_splits kfold",
    ("cv=(5, groups)", _WRITE): "groups",
    ("seed=0", _WRITE): "random_state",
    ("seed=(0, 1, 2)", _WRITE): "seeds n_seeds",
    ("progress=True or progress=False", _WRITE): "verbose verbosity",
    ("run_dir='runs/first', or ensemble.save(path) afterwards", _WRITE): "save save_dir save_path output_dir log_dir",
    ("on_existing='overwrite', which removes a run in run_dir", _WRITE): "overwrite",
    ("on_existing='extend'", _WRITE): "extend",
    ("ensemble.evaluate(x, y) for the scores", _WRITE): "metrics metric_fn",
    ("data=DataLoader(..., num_workers=2)", _WRITE): "num_workers",
    ("the same call again with the same run_dir to resume", _WRITE): "resume resume_from",
    ("likelihood='gaussian', or choral.objectives.Loss(function)", _WRITE): "loss loss_fn criterion",
} | {(f"{name}=...", _COMPUTE): name for name in ("precision", "executor", "accumulate", "data_parallel", "cluster")}
HINTS = {name: hint for hint, names in _ARGUMENTS.items() for name in names.split()}
"""What to write instead of arguments that people try, and where."""
CALLS = {
    "fit": "give x and y as a pair: fit(build, (x, y), recipe)",
    "compare": "give all rows as one tuple: compare(build, (x, y, x_test, y_test), methods)",
}
"""How functions are called that people call otherwise."""
ATTRIBUTES = {
    name: hint
    for hint, names in {
        "ensemble.predict(x).probs": "predict_proba proba probabilities",
        "ensemble.predict(x)": "predict forward call",
        "ensemble.evaluate(x, y), or p.scores(y)": "evaluate score scores metrics accuracy",
        "ensemble.calibrated(x, y, level=0.9) with held-out rows": "calibrate conformal conformalize temperature",
        "ensemble.save(path) and choral.load(path, build)": "save load",
        "choral.fit(build, (x, y), recipe), which returns an ensemble": "fit train",
        "ensemble.member(0), the first network": "models networks parameters state_dict eval",
        "ensemble.predict(x, device='cpu')": "to cpu cuda device",
        "dir(choral.recipes)": "methods list_methods",
        "p.to_frame()": "to_pandas to_dataframe df",
        "p.std, or p.entropy of classes": "uncertainty total var variance sigma",
        "p.epistemic_std, or p.mutual_information of classes": "epistemic model_uncertainty",
        "p.aleatoric_std, or p.expected_entropy of classes": "aleatoric data_uncertainty",
        "p.mean, or p.probs of classes; ensemble.outputs(x) has the logits": "predictions logits outputs",
        "choral.fit(..., callbacks=events.append), and choral.plots.training_curves(events)": "history losses log",
        "one of its tensors, or np.asarray(p)": "numpy tolist detach shape argmax",
    }.items()
    for name in names.split()
}
"""What to write instead of attributes that people try."""


def unknown_argument(function: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about an unknown argument: what to write instead, or the known arguments.

    >>> unknown_argument("fit", "sead", ["data", "seed"])
    "fit has no argument 'sead'; it takes data, seed. Did you mean 'seed'?"
    >>> unknown_argument("fit", "verbose", ["data", "progress"])
    "fit has no argument 'verbose'; write progress=True or progress=False."
    """
    names = list(known)
    if name not in HINTS:
        return f"{function} has no argument {name!r}; it takes {', '.join(names)}.{did_you_mean(name, names)}"
    write, where = HINTS[name]
    keyword = write.partition("=")[0]
    if where == _TRAINING and "training" in names:
        where = "write training=choral.Training({})"
    if keyword == "epochs" and "budget" in names and "epochs" not in names:
        write, where = "budget=60, the total of each method in epochs of one network", _WRITE
    return f"{function} has no argument {name!r}; {(_WRITE if keyword in names else where).format(write)}."


def no_attribute(owner: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about a missing attribute: the known attributes, and what to write instead.

    >>> no_attribute("an ensemble", "predict_proba", ["predict", "save"])
    "an ensemble has no 'predict_proba'; it has predict, save. Write ensemble.predict(x).probs."
    """
    names = list(known)
    instead = f" Write {ATTRIBUTES[name]}." if name in ATTRIBUTES else did_you_mean(name, names)
    return f"{owner} has no {name!r}; it has {', '.join(names)}.{instead}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean X?' for the nearest known name, or an empty string.

    >>> did_you_mean("snapshott", ["single", "snapshot"])
    " Did you mean 'snapshot'?"
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
