"""Prolong a run: one that its time limit ended goes on with a larger limit, or none, from where the clock had stopped it.

A limit is no part of a run's identity: it decides how far members come, not what their steps are. When the time is up, the run keeps a
checkpoint of that moment, before it winds up; going on from there gives the members of a run that was never stopped.
"""

from pathlib import Path
from typing import Any

from choral.engine.files import write_json
from choral.engine.folder import MADE_AGAIN, read_costs, run_of
from choral.engine.store import MemberStore


def prolonged(folder: Path, stored: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """Return the plan of a run folder with another time limit; what an ended run had wound up with is taken back.

    Args:
        folder: the claimed run folder.
        stored: its plan.
        limit: seconds that all parts of the run may take together; None for no limit. A smaller one than that which ended the run
            leaves it as it is.
    """
    before = stored.get("time_limit")
    if limit == before:
        return stored
    costs = read_costs(folder)
    if costs.get("ended") == "time_limit":
        if limit is not None and before is not None and limit < before:
            return stored
        (folder / "results.json").unlink(missing_ok=True)  # first: from here on the run is one that was interrupted
        store = MemberStore(folder / "members", run=run_of(stored))
        for number in costs.get("cut", ()):
            store.path(number).unlink(missing_ok=True)
        for name in MADE_AGAIN:
            (folder / name).unlink(missing_ok=True)
    plan = {name: value for name, value in stored.items() if name != "time_limit"}
    plan |= {} if limit is None else {"time_limit": limit}
    write_json(folder / "plan.json", plan, within=folder)
    return plan
