"""Plans: what happens to the weights, in what order."""

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
from choral.plan.operators import Bag, DrawMoments, Recalibrate, RecalibrateDraws, Reset, Start, UpdateMoments, UseMean
from choral.plan.optimiser import SGD, Adam, AdamW, Optimiser
from choral.plan.own import OwnOptimiser, OwnRate
from choral.plan.phases import (
    Collect,
    Context,
    Every,
    Fork,
    Operator,
    Phase,
    Repeat,
    Seq,
    Starter,
    Train,
    every,
    fork,
    repeat,
    seq,
)
from choral.plan.schedule import Constant, Cosine, CosineRestarts, Linear, OneCycle, Part, Schedule, Steps, Triangles
from choral.plan.sparse import Compact, Prune, Regrow
from choral.plan.state import State

__all__ = [
    "SGD", "Adam", "AdamW", "Bag", "Collect", "Compact", "CompactGates", "Constant", "Context", "Cosine",
    "CosineRestarts", "Cost", "DrawAnchor", "DrawMoments", "DrawTargetShift", "Every", "Fork", "FreezeGates",
    "Linear", "OneCycle", "Operator", "Optimiser", "OwnOptimiser", "OwnRate", "Part", "Perturb", "Phase", "Prune", "Recalibrate", "RecalibrateDraws", "Regrow", "Repeat",
    "Reset", "ResetStds", "Schedule", "Seq", "Start", "Starter", "State", "StepAnchor", "StepTargetShift", "Steps", "Train",
    "Triangles", "UpdateMoments", "UseMean", "batches_in", "cost", "every", "fork", "problems", "repeat",
    "seq",
]  # fmt: skip
