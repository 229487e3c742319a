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
    """
    return joint("packed", Packed, **locals())
