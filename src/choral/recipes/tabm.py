"""TabM: a perceptron for tables whose members share all weights but small adapters and their output layers.

Reference: Gorishniy, Kotelnikov & Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling", ICLR 2025,
arXiv:2410.24210, section 3; settings of the authors' package.
"""

from typing import Literal

from choral.plan import AdamW
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, total_epochs
from choral.structures import TabM

TRAINING = Training(lr=2e-3, optimizer=AdamW(weight_decay=3e-4, clip=1.0), batch_size=256, schedule="constant")
"""The authors' settings."""


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
    """Members that share weights up to factors and biases of their own, with output layers of their own, for tables.

    In the paper networks are `choral.models.tabular` with three hidden layers of 512 and dropout 0.1 (two behind embeddings), and training
    stops by the ensemble's score: `fit(..., validation=0.2, early_stopping=EarlyStopping(patience=16))`.

    Cost: the parameters of about one network; each batch is run through all `members`.

    >>> tabm(members=4, epochs=60).members
    4

    Args:
        epochs: length of the training run. With a stop, an upper bound.
        members: the paper's k, all trained on every batch.
        start: first factors: random signs, N(0, 1) with one number for each feature, or 'auto': 'normal' behind embedded features.
        own_batches: whether each member reads batches of its own in training.
        kernel: how members are run, see `choral.structures.base.JointStructure`.
        combine: as in `choral.recipes.recipe.Recipe`.
        training: optimizer, learning rate, batch size and schedule; the authors' if nothing is said.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training, TRAINING)
    structure = TabM(members=members, start=start, own_batches=own_batches, kernel=kernel)
    return Recipe(name="tabm", plan=training.whole(epochs), structure=structure, combine=combine)
