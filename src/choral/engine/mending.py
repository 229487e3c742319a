"""Lost or damaged members of a run are trained again, and only they."""

import math
from collections.abc import Iterable, Mapping

from choral.engine.run import Run
from choral.engine.store import Log
from choral.plan.walk import Place


def mend(run: Run, lost: Mapping[int, str], *, until: float = math.inf, failed: Iterable[Place] = ()) -> None:
    """Train lost or damaged members again, to the same bytes: walk to them from the start, past every whole branch.

    Branches that are stacked are trained in the same stack. What the run has counted and logged stays as it is.

    Args:
        run: the run; it has not begun to walk.
        lost: numbers of the members, each with what became of it (`MemberStore.lost`).
        until: only members collected before this position of the walk; the others come anyway.
        failed: places of branches that diverged, whose members are not expected.
    """
    if not lost:
        return
    twin = run.twin(Log())
    twin.skip_to = math.inf  # once without doing anything, for the positions
    twin.walk()
    places = {number: place for place, number in run.member_of.items()}

    def expected(number: int) -> bool:
        place = places[number]
        gone = any(lost_at.holds(place) for lost_at in failed)
        return twin.collected_at[number] < until and not gone

    wanted = {number: places[number] for number in lost if expected(number)}
    for number in wanted:
        message = f"member {number} is lost ({lost[number]}); training it again from the start of its branch"
        run.log.event(kind="warning", message=message)
    if wanted:
        twin = run.twin(Log())
        twin.wanted = wanted
        twin.walk()
