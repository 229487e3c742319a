"""SeBayS: one Bayesian network explores and prunes itself, then settles, is kept and is perturbed, again and again.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1;
schedules in appendix G, several branches as its future work proposes.
"""

from typing import Literal

from choral.errors import InputError, did_you_mean
from choral.objectives.combine import Objective
from choral.objectives.kl import SpikeSlabKL
from choral.plan import (
    Collect,
    CompactGates,
    Constant,
    Cosine,
    FreezeGates,
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
from choral.recipe import Recipe
from choral.recipes.bnn import VARIATIONAL
from choral.structures import SpikeSlab
from choral.training import Training

Exploitation = Literal["stepwise", "cosine", "linear_fge", "linear_1"]
Narrowing = Literal["small", "redraw", "keep"]
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


def sebays_freeze(
    *,
    epochs: int = 450,
    members: int = 3,
    branches: int = 1,
    freeze: Literal["draw", "threshold"] = "draw",
    schedule: Exploitation = "stepwise",
    factor: float = 3.0,
    reset: Narrowing = "small",
    recalibrate: bool = False,
    draws: int = 5,
    prior_std: float = 0.2,
    inclusion: float = 1e-4,
    gamma: float = 0.99,
    temperature: float = 0.5,
    rho: float = -6.0,
    training: Training = VARIATIONAL,
) -> Recipe:
    """SeBayS with sparsity fixed after exploration: closed nodes are cut out, and settling is cheaper.

    Args:
        epochs: total budget: a third explores (150 of 450), the rest is split over the members.
        members: networks kept, of all branches together.
        branches: perturbed copies that go on from the explored network, each with sequential phases of its own.
        freeze: how gates are fixed: 'draw' from their probabilities (the authors' code) or 'threshold' at one half.
        schedule: rate of an exploitation, relative to the exploration's: 'stepwise' (a tenth, then a hundredth), 'cosine'
            or 'linear_1' (a tenth down to a hundredth), 'linear_fge' (all the way down, then triangles).
        factor: standard deviations by which means are moved after a member is kept (rho in the paper).
        reset: what standard deviations become then: 'small' is 1e-6 (the paper), which leaves little to perturb by the next
            time; 'redraw' is softplus(N(rho, 0.05^2)), about 0.0025 for the default (the authors' code); 'keep' leaves
            them as they are.
        recalibrate: estimate BatchNorm statistics again after cutting and after every perturbation.
        draws: passes averaged at prediction for each member (1 or 5 in the paper).
        prior_std, inclusion, gamma, temperature, rho: as in `ssbnn`.
        training: optimiser, rate (of the exploration) and batch size; gradients are clipped as in `bnn`.

    Differs from the paper: closed nodes are removed from the network, with the normalisation behind them.
    """
    plan = sequential_phases(
        (FreezeGates(rule=freeze), CompactGates()),
        epochs=epochs,
        members=members,
        branches=branches,
        schedule=schedule,
        factor=factor,
        reset=reset,
        rho=rho,
        recalibrate=recalibrate,
        training=training,
    )
    structure = SpikeSlab(draws=draws, rho=rho, gamma=gamma, temperature=temperature)
    objective = Objective(penalties=(SpikeSlabKL(prior_std=prior_std, inclusion=inclusion),))
    return Recipe(name="sebays_freeze", plan=plan, structure=structure, objective=objective)


def sebays_no_freeze(
    *,
    epochs: int = 450,
    members: int = 3,
    branches: int = 1,
    schedule: Exploitation = "stepwise",
    factor: float = 3.0,
    reset: Narrowing = "small",
    recalibrate: bool = False,
    draws: int = 5,
    prior_std: float = 0.2,
    inclusion: float = 1e-4,
    gamma: float = 0.99,
    temperature: float = 0.5,
    rho: float = -6.0,
    training: Training = VARIATIONAL,
) -> Recipe:
    """SeBayS whose gates go on learning, so that members differ in their sparsity too.

    Args are those of `sebays_freeze`, without `freeze`; gates at prediction are as in `ssbnn`.
    """
    plan = sequential_phases(
        (),
        epochs=epochs,
        members=members,
        branches=branches,
        schedule=schedule,
        factor=factor,
        reset=reset,
        rho=rho,
        recalibrate=recalibrate,
        training=training,
        closing=(Recalibrate(),),
    )
    structure = SpikeSlab(draws=draws, rho=rho, gamma=gamma, temperature=temperature)
    objective = Objective(penalties=(SpikeSlabKL(prior_std=prior_std, inclusion=inclusion),))
    return Recipe(name="sebays_no_freeze", plan=plan, structure=structure, objective=objective)
