"""SeBayS with frozen sparsity: explore and prune once, then settle, keep a member and perturb it, again and again.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1;
schedules in appendix G, several branches as its future work proposes.
"""

from typing import Literal

from choral.plan import CompactGates, FreezeGates
from choral.recipes.bnn import VARIATIONAL
from choral.recipes.exploration import Exploitation, GateClipping, Narrowing, gated_recipe
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training


def sebays_freeze(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    explore_epochs: int | None = None,
    exploit_epochs: int | None = None,
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
    clip_gates: GateClipping = "apart",
    rho_rate: float = 1.0,
    gate_rate: float = 1.0,
    kl_weight: float = 1.0,
    anneal: float = 0.0,
    combine: Combine = "probs",
    training: Training | Paper = VARIATIONAL,
) -> Recipe:
    """SeBayS with sparsity fixed after exploration: closed nodes are cut out, and settling is cheaper.

    Cost: less than twice the training of one network; prediction takes `members` times `draws` passes of sparse ones.

    >>> sebays_freeze(members=3, epochs=60).members
    3

    Args:
        epochs: length of the training run. Of a total alone a third explores, and the rest is split over the members.
        explore_epochs, exploit_epochs: epochs of the exploration and of every exploitation; 150 and 100 where no total is
            given, so that 3, 5 and 10 members take 450, 650 and 1,150 epochs.
        members: networks kept, of all branches together.
        branches: perturbed copies that go on from the explored network, each with sequential phases of its own.
        freeze: how gates are fixed: 'draw' from their probabilities (the authors' code) or 'threshold' at one half.
        schedule: rate of an exploitation, relative to the exploration's: 'stepwise' (a tenth, then a hundredth), 'cosine'
            or 'linear_1' (a tenth down to a hundredth), 'linear_fge' (all the way down, then triangles).
        factor: standard deviations by which means are moved after a member is kept (rho in the paper).
        reset: what standard deviations become then: 'redraw' is softplus(N(rho, 0.05^2)), about 0.0025 for the default (the
            authors' code); 'small' is 1e-6 (the paper's text), which leaves nothing to perturb by the next time; 'keep'
            leaves them as they are.
        memory: of the optimizer: every exploitation starts it 'fresh', or momentum is 'carried' from phase to phase (the
            authors' code).
        recalibrate: estimate BatchNorm statistics again after cutting and after every perturbation.
        draws: passes averaged at prediction for each member (1 or 5 in the paper).
        prior_std, inclusion, gamma, temperature, rho, clip_gates, rho_rate, gate_rate, kl_weight: as in `ssbnn`.
        anneal: share of the exploration over which the weight of the KL rises to its full size.
        combine: as in `choral.recipes.recipe.Recipe`.
        training: optimizer, learning rate (of the exploration) and batch size; gradients are clipped as in `bnn`.

    Differs from the paper: closed nodes are removed from the network. What BatchNorm emits for them is kept, in the bias
    of the next layer or by one closed node of each layer, so that outputs stay the same.
    """
    options = locals()
    return gated_recipe("sebays_freeze", (FreezeGates(rule=options.pop("freeze")), CompactGates()), **options)
