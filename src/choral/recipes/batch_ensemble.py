"""BatchEnsemble: members share every weight matrix up to a rank-one factor of their own.

Reference: Wen, Tran & Ba, "BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning", ICLR 2020,
arXiv:2002.06715, Equation 1.
"""

from typing import Literal

from choral.base.errors import InputError
from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training, total_epochs
from choral.structures import BatchEnsemble


def batch_ensemble(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    start: Literal["normal", "signs"] = "normal",
    spread: float = 0.5,
    own_norms: bool = False,
    kernel: Literal["auto", "loop", "grouped", "matmul"] = "auto",
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Members that share all weights up to rank-one factors of their own, trained in one run.

    Cost: the parameters of one network; each batch is run through all `members`.

    Args:
        training: weight decay does not apply to the factors.
    """
    if total_epochs(epochs, budget) and members > 1 and start == "normal" and spread == 0:
        raise InputError(
            "batch_ensemble: spread is 0, so members never differ; give a spread above 0, or start='signs'."
        )
    return joint("batch_ensemble", BatchEnsemble, **locals())
