"""Plans: what happens to the weights, in what order."""

from choral.plan.check import check, problems
from choral.plan.cost import Cost, batches_in, cost
from choral.plan.operators import Bag, DrawMoments, Recalibrate, Reset, Start, UpdateMoments, UseMean
from choral.plan.optimiser import SGD, Adam, AdamW, Optimiser
from choral.plan.phases import (
    Collect,
    Context,
    Every,
    Fork,
    Operator,
    Phase,
    Repeat,
    Seq,
    Train,
    every,
    fork,
    repeat,
    seq,
)
from choral.plan.schedule import Constant, Cosine, CosineRestarts, Linear, OneCycle, Schedule, Steps, Triangles
from choral.plan.sparse import Compact, Prune, Regrow
from choral.plan.state import State

__all__ = [
    "SGD", "Adam", "AdamW", "Bag", "Collect", "Compact", "Constant", "Context", "Cosine", "CosineRestarts", "Cost", "DrawMoments",
    "Every", "Fork", "Linear", "OneCycle", "Operator", "Optimiser", "Phase", "Prune", "Recalibrate", "Regrow", "Repeat", "Reset",
    "Schedule", "Seq", "Start", "State", "Steps", "Train", "Triangles", "UpdateMoments", "UseMean", "batches_in",
    "check", "cost", "every", "fork", "problems", "repeat", "seq",
]  # fmt: skip
