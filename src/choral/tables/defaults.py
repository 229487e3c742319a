"""Default networks and training for a problem, when the user has none of their own, and the constants of the search.

The settings for tables were chosen on parts of the training rows of six UCI sets and four real tables, never on test rows.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from choral import models
from choral.base import rng
from choral.base.errors import InputError, did_you_mean
from choral.data.problems import Problem
from choral.layers.features import quantile_edges
from choral.plan import AdamW, EarlyStopping
from choral.recipes.training import DEFAULT, Training, optimizer_of

AUTO, METHOD = "auto", "deep_ensemble"  # the search, and what is done where nothing can be chosen
BINS, MORE_BINS = 48, 96
LARGE = 5000  # rows above which a table is large
SMALL = 1000  # rows below which classifiers are narrow, learn faster and stop sooner: as good, at a fifth of the cost
MANY = 16  # networks above which training them side by side costs too much with an embedding of each column
LEAST_ROWS = 100  # fewer leave too little to hold out of all members
LEAST_IN_TURN = 32  # fewer leave too little to hold out of each member in turn
EPOCHS, ASKED = 600, 300  # of each member at most, of the default method and of one that was asked for
SHARE, MEMBERS, FOLDS = 0.2, 8, 8  # validation rows of all members, or one fold of each
PATIENCE, WAIT = 20, 600  # epochs, and steps, without a better score that a member has at least
LOOK = 20  # steps between validations of small tables
SOON, GAIN = 160, 0.002  # of quick training: steps to wait, and the gain that counts (nats)

# of the search
CLEAN = 0.33  # RMSE in deviations of a small table's target, below which wide networks and long training are worth their time
LATE: dict[str, Any] = {"quick": False, "wait": 1300}  # how these stop
QUICK = 10.0  # times the learning rate, for straight lines: few weights, which start far from where they end
LEAST_EPOCHS, LONGER = 4, 1.5  # epochs of other candidates: so many, or times the first one's (its limit where clean)
LONG = 6e11  # operations, a quarter of a minute of one core, above which light candidates alone follow the first
RESERVE, LEAST_RESERVE = 0.15, 1.0  # of a time limit, and in seconds: what choosing, writing and scoring have
ROUNDS = 16  # times that all candidates are trained, at most, where a time limit leaves time for more than one
PICKS = 32  # of the greedy selection
MIXTURES = (1.0, 0.75, 0.5, 0.25)  # shares of the selection; the rest is the first candidate
LEAST_SHARE = 0.05  # of the weight, below which a whole candidate is not worth its cost
FEW_UNITS = 8  # candidates or members, of which every bag may choose from all
LINES: dict[str, Any] = {"embedding": "none", "edges": (), "hidden": ()}
BLOCK: dict[str, Any] = {"residual": True, "hidden": (256,)}
WAVES: dict[str, Any] = {"embedding": "periodic", "edges": (), "embedding_width": 16}

_TABULAR = ("tabular", "tabular_narrow", "tabular_embedded")
SIZES: dict[str, Callable[[Problem], nn.Module]] = {
    "tabular": lambda p: _tabular(p, BINS),
    "tabular_narrow": lambda p: _tabular(p, BINS, hidden=(64, 64)),
    "tabular_embedded": lambda p: _tabular(p, MORE_BINS, embedding_width=16, embed_all=False, dropout=0.1),
    "mlp": lambda p: models.mlp(p.x_train[0].size, p.outputs, hidden=(64, 64)),
    "mlp_wide": lambda p: models.mlp(p.x_train[0].size, p.outputs, hidden=(200,)),
    "lenet_s": lambda p: _images(p, lambda c, s: models.lenet("S", classes=p.outputs, channels=c, side=s)),
    "lenet_m": lambda p: _images(p, lambda c, s: models.lenet("M", classes=p.outputs, channels=c, side=s)),
    "lenet_l": lambda p: _images(p, lambda c, s: models.lenet("L", classes=p.outputs, channels=c, side=s)),
    "resnet20": lambda p: _images(p, lambda c, s: models.resnet_cifar(20, classes=p.outputs, channels=c)),
}


def _row(problem: Problem, axes: int, what: str) -> tuple[int, ...]:
    shape = problem.x_train.shape
    if len(shape) != axes:
        raise InputError(f"this network reads {what}, but x has shape {shape}; use --model mlp.")
    return shape[1:]


def _images(problem: Problem, build: Callable[[int, int], nn.Module]) -> nn.Module:
    return build(*_row(problem, 4, "images (row, channel, height, width)")[:2])


def _tabular(problem: Problem, bins: int, **changes: Any) -> nn.Module:
    (inputs,) = _row(problem, 2, "rows of numbers")
    return models.tabular(inputs, problem.outputs, edges=quantile_edges(problem.x_train, bins=bins), **changes)


def is_quick(problem: Problem, *, searched: bool = False) -> bool:
    """Return whether training begins with narrow networks that learn fast and stop soon: on small tables, of classes or in a search.

    Regression with little noise continues improving for long (NLL of yacht 1.69 so, 0.22 with time; of concrete 2.94 and 2.76,
    on held-out parts of training rows): a search tells by the narrow networks whether wide ones are worth their time.
    """
    return len(problem.x_train) < SMALL and (searched or problem.task == "classification")


def is_table(problem: Problem, least: int = LEAST_ROWS) -> bool:
    """Return whether a problem is rows of numbers, enough of them to hold some out while training."""
    return problem.x_train.ndim == 2 and problem.image_shape is None and len(problem.x_train) >= least


def default_model(
    problem: Problem, *, validated: bool = False, least: int = LEAST_ROWS, networks: int = 1, quick: bool | None = None
) -> str:
    """Return the network for a problem: 'lenet_s' for images of at least 28 pixels, else an MLP.

    Bins of numbers serve tables of `least` rows best where training is `validated`; large tables get bins that each column embeds on its own,
    and dropout (RMSE is 4 % smaller on power and california), unless many `networks` are trained side by side.
    """
    shape = problem.x_train.shape
    if len(shape) == 4 and shape[2] >= 28:
        return "lenet_s"
    if not validated or not is_table(problem, least):
        return "mlp"
    if is_quick(problem) if quick is None else quick:
        return "tabular_narrow"
    return "tabular_embedded" if len(problem.x_train) > LARGE and networks <= MANY else "tabular"


def factory(problem: Problem, model: str | None = None) -> Callable[[], nn.Module]:
    """Return a network factory for a problem, checked once."""
    name = model or default_model(problem)
    if name not in SIZES:
        raise InputError(f"there is no model '{name}'; known: {', '.join(SIZES)}.{did_you_mean(name, SIZES)}")
    with rng.seeded(0, "look"):  # the weights are not used, but the caller's generator would be
        spec = models.spec_of(SIZES[name](problem))
    assert spec is not None  # all of them are of the zoo
    return lambda: models.rebuild(spec)


def training_for(
    problem: Problem,
    *,
    model: str | None = None,
    lr: float | None = None,
    optimizer: Any = None,
    batch_size: int | None = None,
    schedule: str | None = None,
    quick: bool | None = None,
) -> Training:
    """Return training settings, unless said otherwise: AdamW at a constant rate for tables whose training is watched, else the
    settings that `fit` chooses; `quick` as in `is_quick`.
    """
    quick = is_quick(problem) if quick is None else quick
    name, large = optimizer or "adamw", len(problem.x_train) > LARGE
    if model not in _TABULAR:
        chosen = DEFAULT if optimizer is None else optimizer_of(name)
        return Training(lr=lr, optimizer=chosen, batch_size=batch_size, schedule=schedule or "cosine")  # type: ignore[arg-type]  # checked by Training
    chosen = AdamW(weight_decay=3e-4) if name == "adamw" else optimizer_of(name)
    rates = {"SGD": 0.05, "Adam": 0.003, "AdamW": 0.004 if quick else 0.002 if large else 0.001}
    return Training(
        lr=rates.get(type(chosen).__name__) if lr is None else lr,
        optimizer=chosen,
        batch_size=batch_size or (256 if large else 32),
        schedule=schedule or "constant",  # type: ignore[arg-type]  # checked by Training
    )


def stopping(
    problem: Problem, batch_size: int | None = None, *, quick: bool | None = None, wait: int = WAIT
) -> EarlyStopping:
    """Return when members of a table's ensemble stop, each by itself: after 20 epochs, or 600 steps (`wait`), without a better score;
    in quick training after 160. To stop all by their joint score cost NLL on ten inner test parts of ten (five regression tables).
    """
    rows, quick = len(problem.x_train), is_quick(problem) if quick is None else quick
    steps = max(-(-rows // (batch_size or 32)), 1)
    patience = max(PATIENCE, -(-(SOON if quick else wait) // steps))
    if rows >= SMALL:
        return EarlyStopping(patience=patience)
    return EarlyStopping(patience=patience, min_delta=GAIN if quick else 0.0, every=max(1, LOOK // steps))


def epochs_of(problem: Problem, training: Training, *, model: str, most: int) -> int | None:
    """Return the epochs of each member of a table's ensemble, which stops early: at most 60,000 steps; None leaves them to the recipe."""
    if model not in _TABULAR:
        return None
    steps = -(-round(len(problem.x_train) * (1 - SHARE)) // (training.batch_size or 32))
    return max(30, min(most, 60_000 // max(steps, 1)))
