"""Recipe: structure, plan, objective, and how members are combined: a whole method as one value.

Importing this module imports every kind of structure, phase and objective, so that any recipe can be read back from a dict.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec

from choral.base.values import Value
from choral.objectives import Objective, Penalty
from choral.plan import Collect, Operator, Phase, Reset, Start, cost, in_folds, problems, seq
from choral.plan.cost import begun, enough
from choral.plan.show import lines, tree
from choral.plan.walk import mapped
from choral.recipes.training import Paper, Training, is_open, settings_of, settled, total_epochs
from choral.structures import Independent, Structure

P = ParamSpec("P")


Combine = Literal["probs", "logits", "vote"]


@dataclass(frozen=True, kw_only=True)
class Recipe(Value):
    """A method: how members share weights, how they are trained, what is minimized.

    Args:
        name: the method's name, as in the registry.
        plan: the phases of training, in order.
        structure: how members share weights and read a batch.
        objective: what one training step minimizes.
        combine: how predictions of classes are averaged, over members and draws: 'probs' averages probabilities (a mixture), 'logits'
            averages logits (a geometric mean); 'vote' counts the most probable classes, and mean probabilities decide ties. Means and
            variances of regression are always averaged.
        enough: whether `fit` chooses the number of epochs by the data (`choral.plan.cost.enough`).
    """

    name: str
    plan: Phase
    structure: Structure = field(default_factory=Independent)
    objective: Objective = field(default_factory=Objective)
    combine: Combine = "probs"
    enough: bool = False

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
        """Members and epochs, with the cost if members are trained separately.

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
        """Return the recipe in which every network holds out one of this many folds; see `fit`."""
        return replace(self, plan=in_folds(self.plan, folds))

    @property
    def is_open(self) -> bool:
        """Whether it leaves training settings to `fit`."""
        return self.enough or is_open(self.plan)

    def settled(self, points: int, parameters: int | None = None, *, batch_size: int | None = None) -> "Recipe":
        """Return the recipe with all training settings; see `choral.recipes.training.settled`."""
        plan = settled(self.plan, points, batch_size=batch_size)
        plan = enough(plan, points) if self.enough else plan
        return replace(self, plan=settled(plan, points, parameters), enough=False)

    def lasting(self, epochs: int) -> "Recipe":
        """Return the recipe scaled to this many epochs in all, or about that many.

        >>> from choral.recipes import deep_ensemble
        >>> deep_ensemble(members=3).lasting(60).length
        '3 members x 20 epochs (3.0x one network)'
        """
        factor = epochs / self.epochs
        plan = mapped(
            self.plan, lambda phase: replace(phase, epochs=phase.epochs and max(1, round(phase.epochs * factor)))
        )
        return replace(self, plan=plan, enough=False)

    def problems(self) -> list[str]:
        """Return all errors in the plan."""
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
        return "\n".join([f"{self.name}: {self.length}", *lines(self.plan)])


def joint(
    name: str,
    structure: Callable[..., Structure],
    *,
    epochs: int | None,
    budget: int | None,
    combine: Combine,
    training: Training | Paper,
    own: Training = Training(),
    pretrained: bool = False,
    after: tuple[Operator, ...] = (),
    penalties: tuple[Penalty, ...] = (),
    **options: Any,
) -> Recipe:
    """Return the recipe of a method that trains one joint network.

    Args:
        name: the method's name.
        structure: how members share the network; made with the `options`.
        epochs, budget, combine, training: as in `choral.recipes`.
        own: the settings of its paper.
        pretrained: start from the weights of the network passed to `fit`.
        after: operators applied to the trained network.
        penalties: penalties of the objective.
        options: arguments of the structure.
    """
    train = settings_of(training, own).phase(total_epochs(epochs, budget))
    return Recipe(
        name=name,
        plan=seq(Start() if pretrained else Reset(), train, *after, Collect()),
        structure=structure(**options),
        objective=Objective(penalties=penalties),
        combine=combine,
    )


def arguments_of(
    other: Callable[P, Recipe], *, but: tuple[str, ...] = ()
) -> Callable[[Callable[..., Recipe]], Callable[P, Recipe]]:
    """Add the arguments and defaults of another method to a function's own, all or all `but` some."""
    signature = inspect.signature(other)
    kept = [p for p in signature.parameters.values() if p.name not in but]

    def decorate(build: Callable[..., Recipe]) -> Callable[P, Recipe]:
        own = [p for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]

        @functools.wraps(build)
        def call(*args: P.args, **given: P.kwargs) -> Recipe:
            return build(*args, **{p.name: p.default for p in kept} | given)

        call.__signature__ = signature.replace(parameters=[*kept, *own])  # type: ignore[attr-defined]
        return call

    return decorate
