"""The plan all sequential Bayesian ensembles share: explore once, then settle, keep a member and move on, again and again.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1;
schedules in appendix G, several branches as its future work proposes.
"""

from typing import Literal

from choral.errors import InputError, did_you_mean
from choral.plan import (
    Collect,
    Constant,
    Cosine,
    Linear,
    Operator,
    Perturb,
    Phase,
    Recalibrate,
    Reset,
    ResetStds,
    Schedule,
    Steps,
    Triangles,
    fork,
    repeat,
    seq,
)
from choral.training import Training
from choral.variational import GATE

Exploitation = Literal["stepwise", "cosine", "linear_fge", "linear_1"]
Narrowing = Literal["small", "redraw", "keep"]
GateClipping = Literal["apart", "joint"]
SCHEDULES = ("stepwise", "cosine", "linear_fge", "linear_1")


def schedules(name: str, rate: float) -> tuple[Schedule, Schedule]:
    """Return the schedules of the first and of every later exploitation; `rate` is that of the exploration."""
    if name not in SCHEDULES:
        raise InputError(f"schedule is {name!r}; give one of {', '.join(SCHEDULES)}.{did_you_mean(name, SCHEDULES)}")
    high, low = rate / 10, rate / 100
    if name == "linear_fge":
        return Linear(((0.0, rate), (0.5, high), (1.0, low))), Triangles(low, high)
    each: dict[str, Schedule] = {
        "stepwise": Steps(high, milestones=(0.5,)),
        "cosine": Cosine(high, low),
        "linear_1": Linear(((0.0, high), (1.0, low))),
    }
    return each[name], each[name]


def gates_clipped(training: Training, how: str) -> Training:
    """Return settings with gradients clipped at norm 1 unless they say otherwise, those of gates apart or jointly."""
    if how not in ("apart", "joint"):
        raise InputError(f"clip_gates is {how!r}; give 'apart' or 'joint'.{did_you_mean(how, ('apart', 'joint'))}")
    training = training.clipped(1.0)
    return training.clipped_apart(f"*{GATE}") if how == "apart" else training


def sequential_phases(
    settled: tuple[Operator, ...],
    *,
    epochs: int,
    members: int,
    branches: int,
    schedule: str,
    factor: float,
    reset: Narrowing,
    rho: float,
    recalibrate: bool,
    training: Training,
    closing: tuple[Operator, ...] = (),
) -> Phase:
    """Return the plan of a sequential Bayesian ensemble.

    Explore for a third of the budget at the full rate; `settled` ends the exploration; then, in each branch, exploit, keep a
    member (after what `closing` does), perturb the means, make the posteriors narrow, and again. Several branches each begin
    with a perturbation.
    """
    if members < 1 or branches < 1 or members % branches:
        raise InputError(
            f"members is {members} and branches is {branches}; give a multiple of the branches, 1 or more."
        )
    exploit = (epochs - epochs // 3) // members
    if exploit < 1:
        raise InputError(
            f"epochs is {epochs}, too few for {members} members of at least 1 epoch each after a third of exploration; "
            f"give at least {members + members // 2 + 1} epochs or fewer members."
        )
    training = training.clipped(1.0)
    first, later = (training.phase(exploit, s) for s in schedules(schedule, training.rate))
    explore = training.phase(epochs - members * exploit, Constant(training.rate))
    fit_norms = [Recalibrate()] if recalibrate else []
    narrow = [] if reset == "keep" else [ResetStds(how=reset, rho=rho)]
    move = [Perturb(factor=factor), *narrow, *fit_norms]
    kept = (first, *closing, Collect(), repeat(members // branches - 1, *move, later, *closing, Collect()))
    ending = [*settled, *(fit_norms if settled else [])]
    return seq(Reset(), explore, *ending, *(kept if branches == 1 else (fork(branches, *move, *kept),)))
