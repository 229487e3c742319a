"""Prune and Tune: prune one trained parent into diverse children, then tune each briefly.

Reference: Whitaker & Whitley, "Prune and Tune Ensembles: Low-Cost Ensemble Learning With Sparse Independent
Subnetworks", AAAI 2022, arXiv:2202.11782.
"""

from dataclasses import replace
from typing import Literal

from choral.base.errors import InputError, warn
from choral.plan.operators import Bag, Boost, Recalibrate, Rewind
from choral.plan.phases import Collect, Phase, Reset, Start, fork, repeat, seq
from choral.plan.schedules import Constant, OneCycle, Schedule
from choral.plan.sparse import AntiRandom, Compact, Masks, Partition, Prune, RandomMasks
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, too_few, total_epochs


def prune_and_tune(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 6,
    parent_epochs: int | None = None,
    pruning: Literal["anti_random", "random", "partition"] = "anti_random",
    sparsity: float | None = None,
    unit: Literal["connection", "neuron", "layer"] = "connection",
    scope: Literal["layer", "global"] = "layer",
    tuning: Literal["one_cycle", "constant"] = "one_cycle",
    tuning_lr: float | None = None,
    bagging: float | None = None,
    boosting: bool = False,
    recalibrate: bool = False,
    keep_classifier: bool = True,
    keep_first: bool | None = None,
    combine: Combine = "probs",
    training: Training | Paper = Training(schedule="linear_drop"),
) -> Recipe:
    """One trained parent, pruned into complementary children, each tuned for a few epochs.

    Cost: the training of one network; prediction of `members` sparse networks.

    Args:
        epochs: epochs of the whole run. Children share 30 % of it (at least one epoch each), the parent gets the rest:
            140 + 6 x 10 of 200, 8 + 8 x 1 of 16.
        members: number of children.
        parent_epochs: epochs of the parent; 0 starts from the trained network passed to fit.
        pruning: complementary pairs, independent draws, or disjoint parts that cover the parent.
        sparsity: share of weights removed; 0.5, or 1 - 1/members for a partition.
        unit: 'connection'; 'neuron' (also filters), for which members are stored and run as smaller networks; or 'layer', whole layers
            that the network can do without (the bodies of residual blocks).
        tuning: 'one_cycle' (rate / 100, up to the rate over a tenth, down to a millionth) or 'constant' (the parent's last rate).
        tuning_lr: the peak of 'one_cycle', or the rate of 'constant'; by default the parent's peak or last rate.
        bagging: share of the training rows each child sees; all of them if None.
        boosting: tune the children one after the other, each on rows drawn with replacement, more often those that the parent and
            the children before it found hard (`choral.plan.Boost`).
        recalibrate: estimate BatchNorm statistics again after pruning.
        keep_first: keep the first layer whole; by default for rows of numbers, not for images.
        training: its schedule is the parent's.

    Operations: (140 + 60 x 0.5) / 200 = 0.85 of one network in the paper; with the classifier kept, 0.8501 on LeNet-S.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training, Training(schedule="linear_drop"))
    child, parent = _epochs(epochs, members, parent_epochs)
    cut = Prune(
        masks=_masks(pruning, sparsity, members),
        unit=unit,
        scope=scope,
        keep_classifier=keep_classifier,
        keep_first=keep_first,
    )
    body: list[Phase] = [cut]
    body += [Compact()] if unit == "neuron" else []
    body += [Recalibrate()] if recalibrate else []
    body += [Bag(fraction=bagging)] if bagging is not None else []
    start = [Start()] if parent == 0 else [Reset(), training.phase(parent)]
    tuned = training if tuning_lr is None else replace(training, lr=tuning_lr, schedule="constant", end=0.0)
    body += [tuned.phase(child, _schedule(tuning, tuned), least_steps=FEW_STEPS), Collect()]
    plan = seq(*start, repeat(members, Boost(), Rewind(), *body) if boosting else fork(members, *body))
    return Recipe(name="prune_and_tune", plan=plan, combine=combine)


def _epochs(epochs: int, members: int, parent_epochs: int | None) -> tuple[int, int]:
    child = max(1, round(0.3 * epochs / members) if parent_epochs is None else (epochs - parent_epochs) // members)
    parent = epochs - members * child if parent_epochs is None else parent_epochs
    if parent < 0 or (parent == 0 and parent_epochs is None) or parent + members * child > epochs:
        least = members + max(parent_epochs or 1, 1)
        raise too_few(epochs, f"a parent and {members} children of at least 1 epoch each", least)
    return child, parent


def _masks(pruning: str, sparsity: float | None, members: int) -> Masks:
    exact = {"anti_random": 0.5, "partition": 1 - 1 / members}.get(pruning)
    if exact is not None and sparsity is not None and abs(sparsity - exact) > 1e-9:
        raise InputError(f"sparsity is {sparsity}, but {members} '{pruning}' masks need {exact:g}; leave it out.")
    if pruning == "anti_random" and members % 2:
        warn(f"members is {members}: the last has no complementary partner; give an even one.")
    if pruning == "random":
        return RandomMasks(sparsity=0.5 if sparsity is None else sparsity)
    return AntiRandom() if pruning == "anti_random" else Partition(parts=members)


def _schedule(tuning: str, training: Training) -> Schedule:
    rate, last = training.peak, training.full().at(1.0)
    if tuning == "constant" and last <= 0:
        raise InputError(
            f"tuning='constant' continues at the parent's last rate, which is 0 with schedule='{training.schedule}'; give another."
        )
    return OneCycle(rate, start=rate / 100, end=rate * 1e-6) if tuning == "one_cycle" else Constant(last)
