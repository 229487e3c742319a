"""Packed-Ensembles PE-(alpha, M, gamma): M narrow members side by side in one network of alpha times the width.

Reference: Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023, arXiv:2210.09184.
"""

from typing import Literal

from choral.plan import SGD, Steps
from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Packed

PAPER = Training(
    schedule=Steps(0.1, milestones=(0.3, 0.6, 0.8), factor=0.2),
    optimizer=SGD(momentum=0.9, weight_decay=5e-4),
    batch_size=128,
)
"""Of ResNet-50 and wide ResNets on CIFAR in Table 4, for 200 epochs."""


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
    """Narrow members side by side in one network, each with its own channels.

    Cost: training and prediction of about width^2 / members networks, in one run.
    """
    return joint("packed", Packed, own=PAPER, **locals())
