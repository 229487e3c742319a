"""SeBayS: explore once, then repeatedly converge, keep a member and perturb it; also for a dense Bayesian network.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1;
schedules in appendix G, several branches as its future work proposes.
"""

import itertools
from collections.abc import Callable
from typing import Any, Literal

from choral.base.errors import InputError
from choral.base.values import Count
from choral.objectives.kl import GATE, FrozenKL
from choral.plan.bayes import CompactGates, FreezeGates, Perturb, ResetStds
from choral.plan.operators import Recalibrate
from choral.plan.phases import Collect, Operator, Reset, fork, repeat, seq
from choral.plan.schedules import Constant, Cosine, Linear, Schedule, Steps
from choral.recipes.bnn import VARIATIONAL, gaussian, settings
from choral.recipes.recipe import Combine, Recipe, arguments_of
from choral.recipes.ssbnn import GateClipping, PredictedGates, spike_slab
from choral.recipes.training import FEW_STEPS, Paper, Training, too_few, total_epochs

Exploitation = Literal["stepwise", "cosine", "linear_fge", "linear_1"]
Narrowing = Literal["small", "redraw", "keep"]
EXPLORE, EXPLOIT = 150, 100
"""Epochs of the exploration and of every exploitation in the paper."""


def sebays_freeze(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    explore_epochs: Count | None = None,
    exploit_epochs: Count | None = None,
    members: int = 3,
    branches: int = 1,
    freeze: Literal["draw", "threshold"] = "draw",
    schedule: Exploitation = "stepwise",
    factor: float = 3.0,
    reset: Narrowing = "redraw",
    memory: Literal["fresh", "carried"] = "fresh",
    recalibrate: bool = False,
    draws: int = 5,
    prior_std: float = 0.2,
    inclusion: float = 1e-4,
    gamma: float = 0.99,
    temperature: float = 0.5,
    rho: float = -6.0,
    clip_gates: GateClipping = "joint",
    frozen_kl: FrozenKL = "certain",
    rho_rate: float = 1.0,
    gate_rate: float = 1.0,
    kl_weight: float = 1.0,
    anneal: float = 0.0,
    combine: Combine = "probs",
    training: Training | Paper = VARIATIONAL,
) -> Recipe:
    """SeBayS with sparsity fixed after exploration: closed nodes are removed, which makes the later phases cheaper.

    Cost: less than twice the training of one network; prediction takes `members` times `draws` passes of sparse networks.

    Args:
        epochs: epochs of the whole run. If only this is given, a third explores, and the members share the rest.
        explore_epochs, exploit_epochs: epochs of the exploration and of every exploitation; 150 and 100 without a total, so that 3, 5
            and 10 members take 450, 650 and 1,150 epochs.
        members: networks kept, of all branches together.
        branches: perturbed copies of the explored network, each with its own sequence of phases.
        freeze: how gates are fixed: 'draw' from their probabilities (the authors' code) or 'threshold' at one half.
        schedule: learning rate of an exploitation, relative to that of exploration: 'stepwise' (a tenth, then a hundredth), 'cosine' or
            'linear_1' (a tenth down to a hundredth), 'linear_fge' (all the way down, then triangles).
        factor: standard deviations by which means are moved after a member is kept (rho in the paper).
        reset: the standard deviations after that: 'redraw' is softplus(N(rho, 0.05^2)), about 0.0025 for the default (the authors' code);
            'small' is 1e-6 (the paper's text), too small for the next perturbation to have an effect; 'keep' leaves them.
        memory: the optimizer state: 'fresh' in every exploitation, or 'carried' from phase to phase (the authors' code).
        recalibrate: estimate BatchNorm statistics again after removing nodes and after every perturbation.
        draws: passes averaged at prediction for each member (1 or 5 in the paper).
        prior_std, inclusion, gamma, temperature, rho, clip_gates, rho_rate, gate_rate, kl_weight: as in `ssbnn`.
        frozen_kl: weight of the KL of a kept node: 1 ('certain'), or its inclusion probability ('gamma', the authors' code).
        anneal: share of the exploration over which the weight of the KL rises from 0.
        training: its learning rate is that of exploration; gradients are clipped at norm 1 by default.

    Differs from the paper: closed nodes are removed from the network. The constants that BatchNorm emits for them are kept, in the bias of
    the next layer or by one closed node of each layer, so that outputs do not change.
    """
    options = locals()
    settled = (FreezeGates(rule=options.pop("freeze"), kl=frozen_kl), CompactGates())
    return _sequential("sebays_freeze", spike_slab, settled=settled, **options)


@arguments_of(sebays_freeze, but=("freeze", "frozen_kl"))
def sebays_no_freeze(*, gates: PredictedGates = "median", **options: Any) -> Recipe:
    """SeBayS whose gates continue to be trained, so that members also differ in their sparsity.

    Args are those of `sebays_freeze`, without `freeze` and `frozen_kl`.

    Cost: about twice the training of one network; prediction takes `members` times `draws` passes.

    Args:
        gates: as in `ssbnn`.
    """
    closing = () if gates == "drawn" else (Recalibrate(),)
    return _sequential("sebays_no_freeze", spike_slab, closing=closing, gates=gates, **options)


@arguments_of(
    sebays_freeze, but=("freeze", "inclusion", "gamma", "temperature", "clip_gates", "gate_rate", "frozen_kl")
)
def bnn_sequential(**options: Any) -> Recipe:
    """One mean-field Bayesian run that repeatedly converges, is kept as a member and is perturbed; nothing is pruned.

    Args are those of `sebays_freeze` that apply to a dense network.

    Cost: about twice the training of one network; prediction takes `members` times `draws` passes.
    """
    return _sequential("bnn_sequential", gaussian, **options)


def _sequential(
    name: str,
    posterior: Callable[..., dict[str, Any]],
    *,
    settled: tuple[Operator, ...] = (),
    closing: tuple[Operator, ...] = (),
    epochs: int | None,
    budget: int | None,
    explore_epochs: int | None,
    exploit_epochs: int | None,
    members: int,
    branches: int,
    schedule: Exploitation,
    factor: float,
    reset: Narrowing,
    memory: Literal["fresh", "carried"],
    recalibrate: bool,
    combine: Combine,
    training: Training | Paper,
    frozen_kl: FrozenKL = "certain",
    **options: Any,
) -> Recipe:
    """Return a sequential Bayesian ensemble.

    Explore at the full rate; `settled` ends the exploration. Then, in each branch: exploit, apply `closing`, keep a member, perturb the
    means, make the posteriors narrow, and repeat. Several branches each begin with a perturbation. `posterior` gives structure and objective
    for the `options`; other arguments as in `sebays_freeze`.
    """
    if branches < 1 or members % branches:
        raise InputError(f"members is {members} and branches is {branches}; give a multiple of the branches.")
    if epochs is not None or budget is not None:
        epochs = total_epochs(epochs, budget)
    first, each = split(epochs=epochs, explore_epochs=explore_epochs, exploit_epochs=exploit_epochs, members=members)
    chosen = settings(training, **options)
    explore = chosen.phase(first, Constant(chosen.peak))
    after = chosen if frozen_kl == "certain" else chosen.with_rates(gate_logit=0.0).clipped_apart(f"*{GATE}")
    settle, again = (
        after.phase(each, s, memory=memory, annealing=False, least_steps=2 * FEW_STEPS)
        for s in schedules(schedule, chosen.peak)
    )
    fit_norms = [Recalibrate()] if recalibrate else []
    narrow = [] if reset == "keep" else [ResetStds(how=reset, rho=options["rho"])]
    move = [Perturb(factor=factor), *narrow, *fit_norms]
    kept = (settle, *closing, Collect(), repeat(members // branches - 1, *move, again, *closing, Collect()))
    ending = [*settled, *(fit_norms if settled else [])]
    plan = seq(Reset(), explore, *ending, *(kept if branches == 1 else (fork(branches, *move, *kept),)))
    return Recipe(name=name, plan=plan, combine=combine, **posterior(**options))


def schedules(name: str, rate: float) -> tuple[Schedule, Schedule]:
    """Return the schedules of the first and of every later exploitation; `rate` is that of exploration."""
    high, low = rate / 10, rate / 100
    if name == "linear_fge":
        return Linear(((0.0, rate), (0.5, high), (1.0, low))), Linear(((0.0, low), (0.5, high), (1.0, low)))
    each: dict[str, Schedule] = {
        "stepwise": Steps(high, milestones=(0.5,)),
        "cosine": Cosine(high, low),
        "linear_1": Linear(((0.0, high), (1.0, low))),
    }
    return each[name], each[name]


def split(
    *, epochs: int | None, explore_epochs: int | None, exploit_epochs: int | None, members: int
) -> tuple[int, int]:
    """Return the epochs of the exploration and of every exploitation.

    Without a total they are 150 and 100 by default, as in the paper. With a total alone a third explores; epochs that cannot be shared
    evenly are added to exploration.

    >>> split(epochs=None, explore_epochs=None, exploit_epochs=None, members=5)
    (150, 100)
    >>> split(epochs=16, explore_epochs=None, exploit_epochs=None, members=3)
    (7, 3)
    >>> split(epochs=16, explore_epochs=10, exploit_epochs=None, members=3)
    (10, 2)
    """
    if epochs is None:
        return explore_epochs or EXPLORE, exploit_epochs or EXPLOIT
    each = exploit_epochs or (epochs - (explore_epochs or max(1, epochs // 3))) // members
    first = explore_epochs or epochs - members * each
    if each < 1 or first < 1:
        alone = next(total for total in itertools.count(members) if total - max(1, total // 3) >= members)
        least = (explore_epochs or 1) + members * (exploit_epochs or 1) if explore_epochs or exploit_epochs else alone
        raise too_few(epochs, f"an exploration and {members} members of at least 1 epoch each", least)
    if first + members * each != epochs:
        raise InputError(
            f"epochs is {epochs}, but {first} to explore and {members} times {each} to exploit are {first + members * each}; make them agree."
        )
    return first, each
