"""Extend a run: more branches of a fork, or more rounds of a repeat, while the members that are there stay as they are.

Draws follow from the place in the plan, so branch 3 of 4 is branch 3 of 40, and round 2 of 5 round 2 of 8: the members of the
shorter plan are members of the longer one. New branches are trained by themselves; new rounds follow the old ones, which are
walked again to get there. A longer training phase is another one from its first step, since its rate is spread over all of it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from choral.base.errors import RunError
from choral.base.values import from_dict
from choral.engine.checkpoint import Checkpoints
from choral.engine.files import digest_of
from choral.engine.folder import MADE_AGAIN, read_costs, run_of
from choral.engine.identity import differences
from choral.engine.store import MemberStore
from choral.plan.phases import Phase
from choral.plan.walk import Place, Visitor, trainings, walk

_GROWS = ("branches", "times")


def extended(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
    """Take the members of a shorter plan over into a longer one (see `check_longer`); return what the plan notes of it."""
    old = stored["identity"]
    costs = read_costs(folder)
    if "kept" in costs:
        raise RunError(
            f"{folder} was ended by its time limit, so it has no whole plan to extend; "
            "train it whole first, by the same call with a larger time_limit or none."
        )
    late = Checkpoints(folder / "checkpoints").latest()
    if late is not None and late.whole is not None:
        MemberStore(folder / "members", run=run_of(stored)).keep_only(late.whole)  # it ended while it wound up
    _renumber(folder, run_of(stored), digest_of(identity)[:16], old, identity)
    Checkpoints(folder / "checkpoints").clear()
    for name in MADE_AGAIN:
        (folder / name).unlink(missing_ok=True)
    before = stored.get("extended", {}).get("counted", {})
    return {"counted": costs.get("counted", before)}


def check_longer(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError unless a run is a longer version of another, whose members it can take over."""
    why = differences({**old, "recipe": new["recipe"], "totals": new["totals"]}, new)
    why += _obstacles(old["recipe"], new["recipe"], "recipe")
    if why:
        raise RunError(
            f"{folder} cannot be extended: {'; '.join(dict.fromkeys(why[:4]))}. More members of a fork and more rounds of a repeat can be "
            "added; start anything else again: another run_dir (--out), or on_existing='overwrite' (--overwrite)."
        )
    together = (new.get("stop") or {}).get("by") == "ensemble" or any(
        phase.select for phase in trainings(from_dict(new["recipe"]).plan)
    )
    if "stop" in new and together:
        raise RunError(
            f"{folder} cannot be extended: held-out points stopped or chose its members together, so that in a longer run they would be others; "
            "start again: another run_dir (--out), or on_existing='overwrite' (--overwrite)."
        )


def _obstacles(old: Any, new: Any, name: str) -> Iterator[str]:
    """Yield what is not just longer in a recipe."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for part in new:
            yield from _obstacles(old[part], new[part], part)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for a, b in zip(old, new):
            yield from _obstacles(a, b, name)
    elif old != new and not (name in _GROWS and new > old):
        reason = ""
        if name in _GROWS:
            reason = " (fewer)"
        elif name == "epochs":
            reason = " (its rate is spread over the whole phase, so every step would have been another)"
        yield f"{name} was {old}, now {new}{reason}"


def _renumber(folder: Path, was: str, now: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Give members the numbers and the name of the longer run; numbers only grow, so the last comes first."""
    before, after = (_numbers(from_dict(side["recipe"]).plan) for side in (old, new))
    store, target = MemberStore(folder / "members", run=was), MemberStore(folder / "members", run=now)
    lost = store.lost(len(before))
    for place, number in reversed(before.items()):
        if number not in lost:
            state = store.get(number)
            target.put(after[place], state)
            if after[place] != number:
                store.path(number).unlink(missing_ok=True)


def _numbers(plan: Phase) -> dict[Place, int]:
    places: list[Place] = []
    walk(plan, None, Visitor(collect=lambda phase, place, _: places.append(place)))
    return {place: number for number, place in enumerate(places)}
