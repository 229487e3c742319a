"""Recipe = structure + plan + objective, and how members are combined: a whole method as one value.

Importing it imports every kind of structure, phase and objective, so that any recipe can be read back from a dict.

How members, and draws of a member, become one prediction of classes.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from choral.base.errors import InputError, did_you_mean
from choral.base.values import Value
from choral.objectives import Objective
from choral.plan import Phase, cost, in_folds, problems
from choral.plan.cost import begun, enough
from choral.plan.show import lines, tree
from choral.recipes.training import is_open, settled
from choral.structures import Independent, Structure


@dataclass(frozen=True, kw_only=True)
class Combination(Value):
    """What is averaged over members; regression averages means and variances with every one. `word` is its short name."""

    word: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class MeanProbs(Combination):
    """Probabilities are averaged: a mixture."""

    word: ClassVar[str] = "probs"


@dataclass(frozen=True, kw_only=True)
class MeanLogits(Combination):
    """Logits are averaged first: a geometric mean."""

    word: ClassVar[str] = "logits"


_Word = Literal["probs", "logits"]
Combine = Combination | _Word
_BY_WORD: dict[str, Combination] = {one.word: one for one in (MeanProbs(), MeanLogits())}


def combination(given: Combine, where: str) -> Combination:
    """Return the combination a user gave by value or by name.

    >>> combination("logits", "packed")
    MeanLogits()
    """
    if isinstance(given, Combination):
        return given
    if given not in _BY_WORD:
        near = did_you_mean(str(given), get_args(_Word))
        raise InputError(f"{where}: combine is {given!r}; give 'probs' or 'logits'.{near}")
    return _BY_WORD[given]


__all__ = ["Combine", "MeanLogits", "MeanProbs", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe(Value):
    """A method: how members share weights, what happens to them, what is minimized.

    Args:
        name: the method's name, as in the registry.
        plan: what happens to the weights.
        structure: how members share weights and read a batch.
        objective: what one training step minimizes.
        combine: how members, and draws of a member, become one prediction of classes: `MeanProbs()` or 'probs' averages
            their probabilities, `MeanLogits()` or 'logits' their logits. Regression averages means and variances with both.
        enough: whether `fit` gives the training phases as many epochs as the data need (`choral.plan.cost.enough`).
    """

    name: str
    plan: Phase
    structure: Structure = field(default_factory=Independent)
    objective: Objective = field(default_factory=Objective)
    combine: Combine = field(default_factory=MeanProbs)
    enough: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "combine", combination(self.combine, self.name))

    @property
    def combination(self) -> Combination:
        """How members become one prediction."""
        return combination(self.combine, self.name)

    @property
    def epochs(self) -> int:
        """Total epochs of training."""
        return cost(self.plan).epochs

    @property
    def members(self) -> int:
        """Members of the finished ensemble."""
        return cost(self.plan).networks * self.structure.members

    @property
    def length(self) -> str:
        """How many members are trained for how many epochs, and what that costs where each member has a training of its own.

        >>> from choral.recipes import deep_ensemble, snapshot
        >>> deep_ensemble(members=5, epochs=60).length, snapshot(members=5, epochs=60).length
        ('5 members x 60 epochs (5.0x one network)', '5 members, 60 epochs (1.0x one network)')
        """
        networks, epochs = begun(self.plan), self.epochs
        members = f"{self.members} member{'' if self.members == 1 else 's'}"
        if self.enough:
            return f"{members}, epochs chosen for the data"
        if self.structure.members > 1:
            return f"{members}, {epochs} epochs of the joint network"
        each = f" x {epochs // networks}" if networks > 1 and epochs % networks == 0 else f", {epochs}"
        return f"{members}{each} epochs ({networks:.1f}x one network)"

    def in_folds(self, folds: int) -> "Recipe":
        """Return the recipe by which every network holds out one of so many parts of the training points; see `fit`."""
        return replace(self, plan=in_folds(self.plan, folds))

    @property
    def is_open(self) -> bool:
        """Whether it leaves training settings to `fit`."""
        return self.enough or is_open(self.plan)

    def settled(self, points: int, parameters: int | None = None, *, batch_size: int | None = None) -> "Recipe":
        """Return the recipe with the training settings that it leaves open; see `choral.recipes.training.settled`."""
        plan = settled(self.plan, points, batch_size=batch_size)
        plan = enough(plan, points) if self.enough else plan
        return replace(self, plan=settled(plan, points, parameters), enough=False)

    def problems(self) -> list[str]:
        """Return everything that is wrong with the plan."""
        return problems(self.plan, penalty_slots=self.objective.slots)

    def describe(self) -> dict[str, Any]:
        """Return name, epochs, members, draws and the plan's tree as plain dicts."""
        return {
            "name": self.name,
            "epochs": self.epochs,
            "members": self.members,
            "draws": self.structure.draws,
            "combine": self.combination.word,
            "structure": self.structure.to_dict(),
            "objective": self.objective.to_dict(),
            "tree": tree(self.plan),
        }

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.length}", *lines(self.plan)])
