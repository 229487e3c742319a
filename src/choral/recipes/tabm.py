"""TabM and TabM-mini: MLPs for tables whose members share all weights but adapters and output layers.

Reference: Gorishniy, Kotelnikov & Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling", ICLR 2025,
arXiv:2410.24210, section 3; settings of the authors' package.
"""

from typing import Any, Literal

from choral.plan import AdamW
from choral.recipes.recipe import Combine, Recipe, arguments_of, joint
from choral.recipes.training import Paper, Training
from choral.structures import TabM

TRAINING = Training(lr=2e-3, optimizer=AdamW(weight_decay=3e-4, clip=1.0), batch_size=256, schedule="constant")
"""The authors' settings, the default."""


def tabm(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 32,
    start: Literal["auto", "signs", "normal"] = "auto",
    own_batches: bool = False,
    kernel: Literal["auto", "loop", "grouped", "matmul"] = "auto",
    combine: Combine = "probs",
    training: Training | Paper = TRAINING,
) -> Recipe:
    """Members that share weights up to their own factors and biases, with their own output layers, for tables.

    The paper uses `choral.models.tabular` with three hidden layers of 512 and dropout 0.1 (two behind embeddings), and stops by the
    ensemble's score: `fit(..., validation=0.2, early_stopping=EarlyStopping(patience=16))`.

    Cost: the parameters of about one network; each batch is run through all `members`.
    """
    return joint("tabm", TabM, own=TRAINING, **locals())


@arguments_of(tabm)
def tabm_mini(**options: Any) -> Recipe:
    """Members that differ in factors of the inputs and in output layers, and share all other weights, for tables.

    Args are those of `tabm`.

    Cost: the parameters of one network; each batch is run through all `members`.
    """
    return joint("tabm_mini", TabM, own=TRAINING, adapters="first", **options)
