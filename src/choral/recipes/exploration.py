"""The plan all sequential Bayesian ensembles share: explore once, then settle, keep a member and move on, again and again.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1;
schedules in appendix G, several branches as its future work proposes.
"""

import itertools
from typing import Any, Literal

from choral.base.errors import InputError
from choral.objectives.kl import GATE, SpikeSlabKL
from choral.objectives.penalties import Objective
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
from choral.recipes.bnn import VARIATIONAL
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, total_epochs
from choral.structures import SpikeSlab

Exploitation = Literal["stepwise", "cosine", "linear_fge", "linear_1"]
Narrowing = Literal["small", "redraw", "keep"]
EXPLORE, EXPLOIT = 150, 100
"""Epochs of the exploration and of every exploitation in the paper."""
GateClipping = Literal["apart", "joint"]


def schedules(name: str, rate: float) -> tuple[Schedule, Schedule]:
    """Return the schedules of the first and of every later exploitation; `rate` is that of the exploration."""
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
    training = training.clipped(1.0)
    return training.clipped_apart(f"*{GATE}") if how == "apart" else training


def split(
    *, epochs: int | None, explore_epochs: int | None, exploit_epochs: int | None, members: int
) -> tuple[int, int]:
    """Return the epochs of the exploration and of every exploitation.

    Given no total, what is not given is 150 and 100, as in the paper. Given a total, what is not given follows from it: of
    a total alone a third explores; what does not divide by the members is explored too.

    >>> split(epochs=None, explore_epochs=None, exploit_epochs=None, members=5)
    (150, 100)
    >>> split(epochs=16, explore_epochs=None, exploit_epochs=None, members=3)
    (7, 3)
    >>> split(epochs=16, explore_epochs=10, exploit_epochs=None, members=3)
    (10, 2)
    """
    for name, given in (("explore_epochs", explore_epochs), ("exploit_epochs", exploit_epochs)):
        if given is not None and given < 1:
            raise InputError(f"{name} is {given}; give 1 or more.")
    if epochs is None:
        return explore_epochs or EXPLORE, exploit_epochs or EXPLOIT
    each = exploit_epochs or (epochs - (explore_epochs or _third(epochs))) // members
    first = explore_epochs or epochs - members * each
    if each < 1 or first < 1:
        alone = next(total for total in itertools.count(members) if total - _third(total) >= members)
        least = (explore_epochs or 1) + members * (exploit_epochs or 1) if explore_epochs or exploit_epochs else alone
        raise InputError(
            f"{epochs} epochs in all are too few for an exploration and {members} members of at least 1 epoch each; give at least "
            f"{least} epochs or fewer members."
        )
    if first + members * each != epochs:
        raise InputError(
            f"epochs is {epochs}, but {first} to explore and {members} times {each} to exploit are {first + members * each}; "
            "leave one of epochs, explore_epochs and exploit_epochs out, or make them agree."
        )
    return first, each


def _third(epochs: int) -> int:
    return max(1, epochs // 3)


def sequential_phases(
    settled: tuple[Operator, ...],
    *,
    epochs: int | None,
    budget: int | None,
    explore_epochs: int | None,
    exploit_epochs: int | None,
    members: int,
    branches: int,
    schedule: str,
    factor: float,
    reset: Narrowing,
    rho: float,
    memory: Literal["fresh", "carried"],
    recalibrate: bool,
    training: Training,
    closing: tuple[Operator, ...] = (),
    **others: Any,
) -> Phase:
    """Return the plan of a sequential Bayesian ensemble.

    Explore at the full rate; `settled` ends the exploration; then, in each branch, exploit, keep a member (after what
    `closing` does), perturb the means, make the posteriors narrow, and again. Several branches each begin with a
    perturbation. A KL that is annealed rises while exploring and has its full weight afterwards. Arguments are those of
    `sebays_freeze`, of which the `others` concern structure and objective alone.
    """
    if members < 1 or branches < 1 or members % branches:
        raise InputError(
            f"members is {members} and branches is {branches}; give a multiple of the branches, 1 or more."
        )
    if epochs is not None or budget is not None:
        epochs = total_epochs(epochs, budget)
    first, each = split(epochs=epochs, explore_epochs=explore_epochs, exploit_epochs=exploit_epochs, members=members)
    training = training.clipped(1.0)
    explore = training.phase(first, Constant(training.peak))
    settle, again = (
        training.phase(each, s, memory=memory, annealing=False, least_steps=2 * FEW_STEPS)
        for s in schedules(schedule, training.peak)
    )
    fit_norms = [Recalibrate()] if recalibrate else []
    narrow = [] if reset == "keep" else [ResetStds(how=reset, rho=rho)]
    move = [Perturb(factor=factor), *narrow, *fit_norms]
    kept = (settle, *closing, Collect(), repeat(members // branches - 1, *move, again, *closing, Collect()))
    ending = [*settled, *(fit_norms if settled else [])]
    return seq(Reset(), explore, *ending, *(kept if branches == 1 else (fork(branches, *move, *kept),)))


def gated_recipe(
    name: str,
    settled: tuple[Operator, ...] = (),
    closing: tuple[Operator, ...] = (),
    *,
    training: Training | Paper,
    clip_gates: str,
    combine: Combine,
    **options: Any,
) -> Recipe:
    """Return a sequential ensemble of spike-and-slab networks; options are those of `sebays_freeze`."""
    rates = {"_rho": options["rho_rate"], "gate_logit": options["gate_rate"]}
    chosen = gates_clipped(settings_of(training, VARIATIONAL), clip_gates).with_rates(**rates)
    plan = sequential_phases(settled, training=chosen, closing=closing, **options)
    structure = SpikeSlab(**{n: options[n] for n in ("draws", "rho", "gamma", "temperature")})
    prior = {n: options[n] for n in ("prior_std", "inclusion", "anneal")}
    kl = SpikeSlabKL(weight=options["kl_weight"], **prior)
    return Recipe(name=name, plan=plan, structure=structure, objective=Objective(penalties=(kl,)), combine=combine)
