"""Plans: the phases of training, in order."""

from choral.base.values import offered
from choral.plan.bayes import (
    CompactGates,
    DrawAnchor,
    DrawTargetShift,
    FreezeGates,
    Perturb,
    ResetStds,
    StepAnchor,
    StepTargetShift,
)
from choral.plan.check import problems
from choral.plan.cost import Cost, batches_in, cost
from choral.plan.early_stopping import EarlyStopping, Measure, Select
from choral.plan.operators import (
    Bag,
    Boost,
    DrawMoments,
    Fold,
    Recalibrate,
    RecalibrateDraws,
    Rewind,
    UpdateMoments,
    UseMean,
    folds_of,
    in_folds,
)
from choral.plan.optimizers import SGD, Adam, AdamW, Muon, Optimizer, OwnOptimizer
from choral.plan.phases import (
    Collect,
    Context,
    Every,
    Fork,
    LogUniform,
    OneOf,
    Operator,
    Phase,
    Repeat,
    Reset,
    Seq,
    Space,
    Span,
    Start,
    Starter,
    Train,
    Uniform,
    Variant,
    every,
    fork,
    repeat,
    seq,
)
from choral.plan.schedules import Constant, Cosine, Linear, OneCycle, OwnRate, Part, Schedule, Steps
from choral.plan.sparse import (
    AntiRandom,
    Compact,
    ErdosRenyi,
    Hatch,
    Magnitude,
    Masks,
    Partition,
    Prune,
    RandomMasks,
    Regrow,
    Resize,
)
from choral.plan.state import Role, State, slot

__all__ = [
    "SGD", "Adam", "AdamW", "AntiRandom", "Bag", "Boost", "Collect", "Compact", "CompactGates", "Constant", "Context", "Cosine",
    "Cost", "DrawAnchor", "DrawMoments", "DrawTargetShift", "EarlyStopping", "ErdosRenyi", "Every", "Fold", "Fork", "FreezeGates", "Hatch",
    "Linear", "LogUniform", "Magnitude", "Masks", "Measure", "Muon", "OneCycle", "OneOf", "Operator", "Optimizer", "OwnOptimizer", "OwnRate", "Part", "Partition", "Perturb", "Phase", "Prune", "RandomMasks", "Recalibrate", "RecalibrateDraws", "Regrow", "Repeat",
    "Reset", "ResetStds", "Resize", "Rewind", "Role", "Schedule", "Select", "Seq", "Space", "Span", "Start", "Starter", "State", "StepAnchor", "StepTargetShift", "Steps", "Train",
    "Uniform", "UpdateMoments", "UseMean", "Variant", "batches_in", "cost", "every", "folds_of", "fork", "in_folds", "problems", "repeat",
    "seq", "slot",
]  # fmt: skip

globals().update(offered(__all__, globals()))
