"""Masksembles: a fixed set of overlapping channel masks turns one network into members.

Reference: Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021, arXiv:2012.08334.
"""

from typing import Literal

from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Masksembles


def masksembles(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    scale: float = 2.0,
    repetition: bool = False,
    kernel: Literal["auto", "loop", "grouped", "matmul"] = "auto",
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Members that are fixed, overlapping subsets of one network's channels.

    Cost: the parameters of about one network; prediction runs all `members` subsets.
    """
    return joint("masksembles", Masksembles, **locals())
