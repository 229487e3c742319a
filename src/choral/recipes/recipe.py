"""Recipe = structure + plan + objective: a whole method as one value.

Importing it imports every kind of structure, phase and objective, so that any recipe can be read back from a dict.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from choral.base.errors import InputError, did_you_mean
from choral.base.values import Value
from choral.objectives import Objective
from choral.plan import Phase, cost, problems
from choral.plan.show import lines, tree
from choral.structures import Independent, Structure

Combine = Literal["probs", "logits"]
COMBINATIONS: tuple[str, ...] = get_args(Combine)


@dataclass(frozen=True, kw_only=True)
class Recipe(Value):
    """A method: how members share weights, what happens to them, what is minimised.

    Args:
        name: the method's name, as in the registry.
        plan: what happens to the weights.
        structure: how members share weights and read a batch.
        objective: what one training step minimises.
        combine: how members, and draws of a member, become one prediction of classes: 'probs' averages their
            probabilities, 'logits' their logits. Regression averages means and variances either way.
    """

    name: str
    plan: Phase
    structure: Structure = field(default_factory=Independent)
    objective: Objective = field(default_factory=Objective)
    combine: Combine = "probs"

    def __post_init__(self) -> None:
        if self.combine not in COMBINATIONS:
            near = did_you_mean(str(self.combine), COMBINATIONS)
            raise InputError(f"{self.name}: combine is {self.combine!r}; give 'probs' or 'logits'.{near}")

    @property
    def epochs(self) -> int:
        """Total epochs of training."""
        return cost(self.plan).epochs

    @property
    def members(self) -> int:
        """Members of the finished ensemble."""
        return cost(self.plan).networks * self.structure.members

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
            "combine": self.combine,
            "structure": self.structure.to_dict(),
            "objective": self.objective.to_dict(),
            "tree": tree(self.plan),
        }

    def __str__(self) -> str:
        head = f"{self.name}: {self.members} member(s), {self.epochs} epochs, {type(self.structure).__name__}"
        return "\n".join([head, *lines(self.plan)])
