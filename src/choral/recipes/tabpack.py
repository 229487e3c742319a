"""TabPack: many MLPs for tables with different hyper-parameters in one stack, selected during training.

Reference: "TabPack", ICML 2026, arXiv:2607.05380 (64 MLPs of width 384, depth 1 to 3, Muon for matrices, a greedy ensemble of at most 32).
"""

from choral.plan import Collect, LogUniform, Muon, OneOf, Reset, Resize, Select, Space, Uniform, fork
from choral.plan.phases import numbers_of
from choral.recipes.hyper_ensemble import SPACE as HYPER
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, shares, total_epochs

SPACE = Space(
    depth=OneOf((1.0, 2.0, 3.0)),
    dropout=OneOf((0.0, Uniform(0.0, 0.5))),
    rate=LogUniform(0.1, 5.0),
    weight_decay=LogUniform(1e-3, 1.0),
    matrix_rate=LogUniform(1.0, 100.0),
)
"""Rates are times 0.001: 0.0001 to 0.005 for vectors; matrices of a network are 1 to 100 times as fast."""
OTHERS = Space((*HYPER.spans, *(pair for pair in SPACE.spans if pair[0] in ("depth", "dropout"))))
"""For other optimizers than Muon, whose rates and decays mean something else."""
TRAINING = Training(lr=1e-3, optimizer=Muon(), batch_size=256, schedule="constant")
MEMBERS, LEAST = 64, 4  # networks, and epochs of each


def tabpack(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None = None,
    space: Space | None = None,
    picks: int = 32,
    patience: int = 32,
    combine: Combine = "probs",
    training: Training | Paper = TRAINING,
) -> Recipe:
    """MLPs with different depths, rates, decays and dropout in one stack, selected during training, for tables.

    Networks are `choral.models.tabular(..., hidden=(384,) * 3, dropout=0.1, skippable=True)`; each stops separately with
    `fit(..., validation=0.2, early_stopping=EarlyStopping(patience=16))`. Other networks keep their depth, and their dropout if they have none.

    Cost: training, memory and prediction of `members` networks, stacked.

    Args:
        members: networks trained; by default 64, or as many as can have 4 epochs each of a budget.
        space: the distribution of settings; by default `SPACE`, or `OTHERS` for another optimizer than Muon.

    Differs from the paper: embeddings are the same in all members; the rate of matrices is drawn as a multiple of that of vectors.
    """
    if members is None:
        members = MEMBERS if budget is None else min(MEMBERS, max(budget // LEAST, 1))
    epochs = total_epochs(epochs, budget, trainings=members, usual=100)
    training = settings_of(training, TRAINING)
    each = training.phase(shares(epochs, members)[-1][1], select=Select(picks=picks, patience=patience))
    own = space or (SPACE if "matrix_rate" in numbers_of(training.optimizer) else OTHERS)
    plan = fork(members, Reset(), Resize(), each, Collect(), sample=own)
    return Recipe(name="tabpack", plan=plan, combine=combine)
