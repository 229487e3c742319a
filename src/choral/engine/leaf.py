"""Cut a plan into leaves, the units of work of a run: phases that are trained without a fork between them.

A stack of branches is cut at every fork. The part before it is a leaf that the branches of the fork begin from; so is the part behind
it, which goes on from the same state. Every leaf begins from one other leaf, or from nothing, so a run is its leaves one after the
other, and other processes may train them in any order that keeps each behind the one it goes on from.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from choral.plan.phases import Collect, Fork, Phase, Train
from choral.plan.walk import Place, Visitor, collected, walk

WIDEST = 512  # branches stacked at once, at most


@dataclass
class Leaf:
    """What is trained in one go.

    Its path is where its first branch begins; `+3` for three more stacked with it, `@1` behind the first fork in it.
    """

    path: str
    branches: tuple[Place, ...]  # where they begin
    origins: tuple[Place, ...]  # the branches of `after` that each of them goes on from
    after: str | None  # path of the leaf it goes on from
    steps: list[tuple[Phase, Place]] = field(default_factory=list)  # with places from where the branches begin
    members: list[int] = field(default_factory=list)  # numbers of those it collects
    is_parent: bool = False  # whether other leaves go on from it

    @property
    def folder(self) -> str:
        """Where it keeps what it makes, below the run's place, if other processes may train it."""
        return f"leaves/{self.path.replace('/', '.')}"

    @property
    def epochs(self) -> int:
        """Epochs of all its networks."""
        return len(self.branches) * sum(phase.epochs for phase, _ in self.steps if isinstance(phase, Train))


@dataclass
class _Stack:
    """A stack on its way through the plan; `open` is the leaf it is in, None right behind a fork."""

    branches: tuple[Place, ...]
    origins: tuple[Place, ...]
    latest: Leaf | None = None
    open: Leaf | None = None
    parts: int = 0

    @property
    def name(self) -> str:
        more = f"+{len(self.branches) - 1}" if len(self.branches) > 1 else ""
        return f"{self.branches[0]}{more}" + (f"@{self.parts}" if self.parts else "")


def cut(plan: Phase, width: int) -> list[Leaf]:
    """Return the leaves of a plan in the order in which it runs; at most `width` branches of a fork are trained together.

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
            parents.open.is_parent = True
            parents.latest, parents.open = parents.open, None
            parents.origins = parents.branches  # from here on, branches and what is behind the fork begin from them
        whole = [(place, i) for place in parents.branches for i in range(node.branches)]
        origin = dict(zip(parents.branches, parents.origins))
        for start in range(0, len(whole), width):
            some = whole[start : start + width]
            begun = tuple((place + suffix).then("fork", i) for place, i in some)
            yield Place(), _Stack(begun, tuple(origin[place] for place, _ in some), parents.latest)

    root = _Stack((Place(),), (Place(),))
    walk(plan, root, Visitor(start=act, change=act, train=act, collect=act, branches=branches))
    return leaves
