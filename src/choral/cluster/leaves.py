"""Cut a plan into leaves: phases that one process trains without a fork between them.

A stack's phases are cut at every fork. The part before it is a leaf that the branches of the fork begin from; so is the part behind
it, which goes on from the same state. Every leaf begins from one other leaf, or from nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from choral.base.values import from_dict
from choral.engine.run import WIDEST
from choral.plan.phases import Collect, Fork, Phase, Train
from choral.plan.walk import Place, Visitor, collected, trainings, walk
from choral.recipes.recipe import Recipe


@dataclass
class Leaf:
    """What one process trains at a time.

    Its path is where its first branch begins; `+3` for three more stacked with it, `@1` behind the first fork in it.
    """

    path: str
    branches: tuple[Place, ...]  # where they begin
    origins: tuple[Place, ...]  # the branches of `after` that each of them goes on from
    after: str | None  # path of the leaf it goes on from
    steps: list[tuple[Phase, Place]] = field(
        default_factory=list
    )  # phases, each with its place from where the branches begin
    members: list[int] = field(default_factory=list)  # numbers of those it collects
    is_parent: bool = False  # whether other leaves go on from it

    @property
    def folder(self) -> str:
        """Where it keeps what it makes, below the run's place."""
        return f"leaves/{self.path.replace('/', '.')}"

    @property
    def epochs(self) -> int:
        """Epochs of all its networks."""
        return len(self.branches) * sum(phase.epochs for phase, _ in self.steps if isinstance(phase, Train))


@dataclass
class _Stack:
    """A stack on its way: where its branches begin, what they go on from, and the leaf it is in, None right behind a fork."""

    branches: tuple[Place, ...]
    origins: tuple[Place, ...]
    latest: Leaf | None = None
    open: Leaf | None = None
    parts: int = 0

    @property
    def name(self) -> str:
        more = f"+{len(self.branches) - 1}" if len(self.branches) > 1 else ""
        return f"{self.branches[0]}{more}" + (f"@{self.parts}" if self.parts else "")


def cut(plan: Phase, stack: int, *, together: bool = False) -> list[Leaf]:
    """Return the leaves of a plan, each behind the one it goes on from.

    At most `stack` branches are trained together, or all of a fork where they stop `together`.

    >>> from choral.recipes import prune_and_tune
    >>> [(leaf.path, leaf.after) for leaf in cut(prune_and_tune(epochs=9, members=2).plan, 1)]
    [('start', None), ('2/f0', 'start'), ('2/f1', 'start')]
    """
    leaves: list[Leaf] = []
    numbers = collected(plan)

    def act(phase: Phase, suffix: Place, stack: _Stack) -> _Stack:
        if stack.open is None:
            after = None if stack.latest is None else stack.latest.path
            stack.open = Leaf(stack.name, stack.branches, stack.origins, after)
            stack.parts += 1
            leaves.append(stack.open)
        stack.open.steps.append((phase, suffix))
        if isinstance(phase, Collect):
            stack.open.members += [numbers[place + suffix] for place in stack.branches]
        return stack

    def branches(node: Fork, suffix: Place, parents: _Stack) -> Iterator[tuple[Place, _Stack]]:
        if parents.open is not None:
            parents.latest, parents.open = parents.open, None
            parents.origins = parents.branches  # from here on, branches and what is behind the fork begin from them
        whole = [(place, i) for place in parents.branches for i in range(node.branches)]
        width = WIDEST if together else max(1, stack)
        for start in range(0, len(whole), width):
            some = whole[start : start + width]
            begun = tuple((place + suffix).then("fork", i) for place, i in some)
            origin = dict(zip(parents.branches, parents.origins))
            yield Place(), _Stack(begun, tuple(origin[place] for place, _ in some), parents.latest)

    root = _Stack((Place(),), (Place(),))
    walk(plan, root, Visitor(start=act, change=act, train=act, collect=act, branches=branches))
    parents = {leaf.after for leaf in leaves}
    for leaf in leaves:
        leaf.is_parent = leaf.path in parents
    return leaves


def leaves_of(plan: dict[str, Any], recipe: Recipe | None = None) -> list[Leaf]:
    """Return the leaves of a run from its plan.json; functions of the user's can be called only in the recipe as it was given in Python."""
    identity = plan["identity"]
    recipe = recipe or from_dict(identity["recipe"])
    assert isinstance(recipe, Recipe)
    stop = identity.get("stop") or {}
    selects = "held out" in identity and any(phase.select for phase in trainings(recipe.plan))
    return cut(recipe.plan, plan["leaves"]["stack"], together=stop.get("by") == "ensemble" or selects)
