"""All leaves of a run: where each stands, training them, and the run put together from what their manifests name."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from choral.base.errors import ChoralError, RunError
from choral.cluster.leaf import Field, empty_run, train_leaf
from choral.cluster.leaves import Leaf, leaves_of
from choral.cluster.manifest import Manifest, key_of, read_manifest, whole_manifest
from choral.cluster.objects import Objects, get_whole
from choral.engine.events import Callback
from choral.engine.files import unpack_tensors, write_bytes
from choral.engine.folder import run_of
from choral.engine.resume import kept_costs, write_costs
from choral.engine.store import Log, MemberStore, state_from

Hears = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Plot:
    """The leaves of one run that are to be trained.

    Attributes:
        field: what they have in common.
        call: the arguments of the run, for another process to understand; run_dir: where it is, as the user said it.
        waiting: those that are not trained, in plan order.
        hear: is told every event, with the leaf's path.
    """

    field: Field
    call: Any
    run_dir: Any
    waiting: list[Leaf]
    hear: Hears


class Workers(Protocol):
    """Whoever trains leaves."""

    def train(self, plots: Sequence[Plot]) -> dict[str, str]:
        """Train the leaves of runs, each after the one it goes on from; return those that could not be, with the reason."""
        ...


class Here:
    """This process: one leaf after the other."""

    def train(self, plots: Sequence[Plot]) -> dict[str, str]:
        """Train them in plan order; what goes on from one that could not be trained is left."""
        failed: dict[str, str] = {}
        for plot in plots:
            own: dict[str, str] = {}
            for leaf in plot.waiting:
                own |= {leaf.path: ""} if leaf.after in own else self._tried(plot, leaf)
            failed |= {f"{plot.run_dir} {path}": why for path, why in own.items()}
        return failed

    def _tried(self, plot: Plot, leaf: Leaf) -> dict[str, str]:
        try:
            train_leaf(plot.field, leaf.path, lambda event: plot.hear(leaf.path, event))
        except ChoralError as error:
            return {leaf.path: str(error)}
        return {}


def states(objects: Objects, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return where every leaf stands.

    'done': a manifest says so ('diverged' if it lost branches); 'begun': there is a checkpoint; 'ready': it can be trained; 'waiting':
    the leaf it goes on from is not done.
    """
    leaves = leaves_of(plan)
    found = {leaf.path: read_manifest(objects, key_of(plan, leaf), leaf) for leaf in leaves}
    rows = []
    for leaf in leaves:
        manifest = found[leaf.path]
        if manifest is not None:
            state = "diverged" if manifest.failed else "done"
        elif leaf.after is not None and found[leaf.after] is None:
            state = "waiting"
        else:
            state = "begun" if objects.names(f"{leaf.folder}/checkpoints") else "ready"
        about = {"members": list(leaf.members), "after": leaf.after, "epochs": leaf.epochs}
        rows.append({"path": leaf.path, "state": state, "networks": len(leaf.branches), **about})
    return rows


class Chorus:
    """One listener for the events of all leaves: what they have counted is added up."""

    def __init__(self, listener: Callback | None):
        self.listener = listener
        self.counted: dict[str, dict[str, float]] = {}

    def count(self, path: str, counted: dict[str, float]) -> None:
        """Note what a leaf has counted so far."""
        self.counted[path] = counted

    def hear(self, path: str, event: dict[str, Any]) -> None:
        """Pass an event on, with the counts of all leaves."""
        if "counted" in event:
            self.count(path, event["counted"])
            event = event | {"counted": total(self.counted.values())}
        if self.listener is not None:
            self.listener(event)


@contextmanager
def logged(folder: Path, listener: Callback | None) -> Iterator[Callback]:
    """Yield a listener that writes events to log.jsonl while they come; `conclude` puts them in plan order."""
    log = Log(folder / "log.jsonl", listener)
    try:
        log.rewind(0)
        yield lambda event: log.event(**event)
    finally:
        log.close()


def total(counts: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums of counts.

    >>> total([{"epochs": 2}, {"epochs": 3, "steps": 1}])
    {'epochs': 5, 'steps': 1}
    """
    found: dict[str, float] = {}
    for one in counts:
        for name, amount in one.items():
            found[name] = found.get(name, 0) + amount
    return found


def plot_of(field: Field, call: Any, run_dir: Any, listener: Callback | None) -> Plot:
    """Return the leaves of a run that are not trained yet; one of which something is lost is not."""
    chorus, waiting = Chorus(listener), list[Leaf]()
    for leaf in field.leaves.values():
        manifest, damage = whole_manifest(field.objects, key_of(field.plan, leaf), leaf)
        if damage:
            chorus.hear(leaf.path, {"kind": "warning", "message": f"{damage}; leaf '{leaf.path}' is trained again"})
        if manifest is None:
            waiting.append(leaf)
        else:
            chorus.count(leaf.path, manifest.counted)
    return Plot(field, call, run_dir, waiting, chorus.hear)


def train_all(plots: Sequence[Plot], workers: Workers) -> None:
    """Train all that is waiting; RunError names the leaves that could not be."""
    waiting = [plot for plot in plots if plot.waiting]
    failed = workers.train(waiting) if waiting else {}
    if failed:
        _refuse(plots, failed)


def manifests_of(field: Field) -> dict[str, Manifest]:
    """Return the manifests of all leaves; RunError if one is missing."""
    return {path: _manifest(field, leaf) for path, leaf in field.leaves.items()}


def _manifest(field: Field, leaf: Leaf) -> Manifest:
    found = read_manifest(field.objects, key_of(field.plan, leaf), leaf)
    if found is None:
        raise RunError(
            f"{field.objects.where}: the manifest of leaf '{leaf.path}' is gone; run the same command again."
        )
    return found


def _refuse(plots: Sequence[Plot], failed: dict[str, str]) -> None:
    """Raise RunError for leaves that could not be trained; the first is told whole."""
    reasons = [why for why in failed.values() if why]
    count, where = sum(len(plot.field.leaves) for plot in plots), ", ".join(plot.field.objects.where for plot in plots)
    more = f" (and {len(failed) - 1} more of {count} leaves)" if len(failed) > 1 else ""
    raise RunError(
        f"{reasons[0].rstrip('.')}{more}. All that is trained is kept in {where}; the same command goes on from there."
    )


def conclude(
    field: Field, folder: Path, manifests: dict[str, Manifest], *, started: float
) -> tuple[MemberStore, dict[str, Any]]:
    """Put a run together: its members, its log in plan order, and what it cost.

    Args:
        field: what the leaves have in common.
        folder: where the files of the run are written; the run folder itself if it is a local one.
        manifests: of all leaves, in plan order.
        started: when the call began, by time.perf_counter.
    """
    run = empty_run(field, _members(field, folder, manifests))
    for manifest in manifests.values():
        run.ledger.failed |= manifest.failed
        run.ledger.stopped += manifest.stopped
    _write_log(field, folder, manifests)
    run.refuse_lost()
    run.counted = total(m.counted for m in manifests.values())
    costs = kept_costs(folder, Log()) or write_costs(run, folder, started=started)
    return run.store, costs


def _members(field: Field, folder: Path, manifests: dict[str, Manifest]) -> MemberStore:
    """Return the store of all members: their files, or the members themselves if they are far away."""
    run = run_of(field.plan)
    if not field.objects.is_far:
        return MemberStore(folder / "members", run=run)
    store = MemberStore(run=run)
    for manifest in manifests.values():
        for name, digest in manifest.members.items():
            data = get_whole(field.objects, name, digest)
            if data is None:
                raise RunError(f"{field.objects.where}/{name} is missing or damaged; run the same command again.")
            tensors, header = unpack_tensors(data, name)
            store.put(header["number"], state_from(tensors, header.get("form"), name))
    return store


def _write_log(field: Field, folder: Path, manifests: dict[str, Manifest]) -> None:
    """Write log.jsonl: the events of all leaves in plan order, each with what was counted up to it."""
    lines: list[str] = []
    before: dict[str, float] = {}
    for path, manifest in manifests.items():
        data = get_whole(field.objects, manifest.log["name"], manifest.log["sha256"]) or b""
        for line in data.decode().splitlines():
            event = json.loads(line)
            if "counted" in event:
                event["counted"] = total([before, event["counted"]])
            lines.append(json.dumps(event | {"leaf": path}))
        before = total([before, manifest.counted])
    text = "".join(f"{line}\n" for line in lines).encode()
    path_of = folder / "log.jsonl"
    if not path_of.exists() or path_of.read_bytes() != text:
        write_bytes(path_of, text, within=folder)
