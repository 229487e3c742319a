"""Packed-Ensembles PE-(alpha, M, gamma): M slim members side by side in one network of alpha times the width.

Reference: Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023, arXiv:2210.09184.
"""

from typing import Literal

from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Packed


def packed(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    width: float | None = None,
    subgroups: int = 1,
    minimum_channels: int = 64,
    whole_block_starts: bool = True,
    own_batches: bool = False,
    equal_starts: bool = False,
    kernel: Literal["auto", "loop", "grouped", "matmul"] = "auto",
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Slim members side by side in one network, each seeing only its own channels.

    Cost: training and prediction of about width^2 / members networks, in one run.

    >>> packed(members=4, epochs=60).members
    4

    Args:
        members: M.
        width: alpha, the joint network's width in units of the plain one's. None is the paper's 2, but `members` for small perceptrons
            (layers of at most 256 units), where slim members are behind the plain network.
        subgroups: gamma, groups within a member's own channels.
        minimum_channels: least channels in a group before gamma is lowered.
        whole_block_starts: no subgroups in the first layer of a block (the paper); False is the authors' code for wide ResNets.
        own_batches: whether each member reads batches of its own in training (the paper's ablation, Table 7).
        equal_starts: all members start at the same weights; without dropout they then stay equal (the paper's ablation).
    """
    return joint("packed", Packed, **locals())
