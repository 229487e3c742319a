"""What members count that were chosen while they trained: the others are left out, and shares become weights."""

from choral.base.values import Value
from choral.calibration import StackingWeights
from choral.engine.store import MemberStore
from choral.plan.selecting import SHARE
from choral.plan.walk import trainings
from choral.recipes.recipe import Recipe


def chosen(store: MemberStore, count: int, recipe: Recipe) -> tuple[MemberStore, int, tuple[Value, ...]]:
    """Return a store that shows the chosen networks alone, how many, and their weights as a correction.

    Everything stays as it is where the recipe does not choose, or nothing was held out to choose by.

    Args:
        store: all networks of a run.
        count: how many.
        recipe: the method.
    """
    if not any(phase.select for phase in trainings(recipe.plan)):
        return store, count, ()
    held = [store.get(i).slots.get(SHARE) for i in range(count)]
    shares = [0.0 if one is None else float(one["share"]) for one in held]
    numbers = [i for i, share in enumerate(shares) if share > 0]
    if not numbers:
        return store, count, ()
    rows, total = recipe.structure.members * recipe.structure.draws, sum(shares)
    weights = tuple(shares[i] / total / rows for i in numbers for _ in range(rows))
    return store.showing(numbers), len(numbers), (StackingWeights(weights=weights),)
