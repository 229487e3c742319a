"""Train one leaf, with its checkpoints and its log.

Train one leaf: find its newest checkpoint, go on from it, write its members, then the manifest that names them.

Doing so again does nothing. Two processes at the same leaf write the same bytes, and the first manifest stays.

Where a leaf rests: its checkpoints and its events, written by one attempt at a time or by several that do not know of each other.

Every attempt writes under a name of its own. A new one looks at the checkpoints of all before it and goes on from the one that came
furthest; those that its own has passed are removed.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from choral.base.errors import ChoralError, RunError
from choral.cluster.leaves import Leaf
from choral.cluster.manifest import (
    Manifest,
    commit,
    is_own,
    key_of,
    member_name,
    read_manifest,
    states_of,
    whole_manifest,
)
from choral.cluster.objects import Objects, get_json, get_whole, put_json, put_same, sha256
from choral.engine.checkpoint import (
    FAILED,
    Branch,
    Snapshot,
    Stack,
    failed_list,
    pack_branches,
    read_snapshot,
    unpack_branches,
)
from choral.engine.events import Callback
from choral.engine.executor import choose_kernel
from choral.engine.files import expect
from choral.engine.folder import run_of
from choral.engine.identity import identity_of
from choral.engine.job import Job
from choral.engine.preparation import check_same, environment
from choral.engine.run import Run
from choral.engine.store import Log, MemberStore
from choral.engine.threads import using
from choral.plan.walk import Place

_PAUSE = 5.0  # seconds between two writings of a log, where an object cannot grow
_CONTENT = {
    "key": str,
    "position": int,
    "epoch": int,
    "file": str,
    "sha256": str,
    "members": {str: str},
    "failed": FAILED,
    "counted": {str: float},
    "stopped": [dict],
    "log": {"name": str, "sha256": str, "bytes": int},
}


def new_attempt() -> str:
    """Return a name that no other attempt has."""
    return os.urandom(6).hex()


class Journal:
    """The events of one attempt, as lines of JSON.

    Args:
        objects: where they go.
        name: of the object.
        listener: is told every event too.
    """

    def __init__(self, objects: Objects, name: str, listener: Callable[[dict[str, Any]], None] | None = None):
        self.objects, self.name, self.listener = objects, name, listener
        self.text = bytearray()
        self._written = self._heard = 0
        self._wrote_at = time.monotonic()

    def hear(self, event: dict[str, Any]) -> None:
        """Write an event."""
        if self.listener is not None:
            self.listener(event)
        self.text += (json.dumps({"time": round(time.time(), 3), **event}) + "\n").encode()
        if self.objects.grows or time.monotonic() - self._wrote_at > _PAUSE:
            self.write()

    def begin(self, text: bytes) -> None:
        """Begin with the events of an attempt before."""
        self.text[:] = text

    def write(self) -> dict[str, Any]:
        """Write what was heard since; return the object's name, its SHA-256 and its length."""
        if self._written < len(self.text):
            if self.objects.grows:
                self.objects.append(self.name, bytes(self.text[self._written :]))
            else:
                self.objects.put(self.name, bytes(self.text))
            self._written, self._wrote_at = len(self.text), time.monotonic()
        return {"name": self.name, "sha256": sha256(bytes(self.text)), "bytes": len(self.text)}


class LeafCheckpoints:
    """The checkpoints of a leaf, as its run sees them.

    Args:
        objects: where they go.
        key: of the leaf.
        leaf: the leaf.
        journal: the events of this attempt; a checkpoint keeps those before it.
        attempt: its name.
    """

    def __init__(self, objects: Objects, key: str, leaf: Leaf, journal: Journal, attempt: str):
        self.objects, self.key, self.leaf, self.journal, self.attempt = objects, key, leaf, journal, attempt
        self.folder = f"{leaf.folder}/checkpoints"
        self.messages: list[str] = []
        self.members: dict[str, str] = {}  # written so far, each with its SHA-256
        self._own: list[str] = []
        self._count = 0

    def __bool__(self) -> bool:
        return any(name.endswith(".json") for name in self.objects.names(self.folder))

    def save(self, open_stacks: Sequence[Stack], now: Snapshot) -> None:
        """Write the stack and the events, then the manifest that names them; keep the two newest."""
        (stack,) = open_stacks
        name = f"{self.folder}/{self.attempt}-{self._count}"
        self._count += 1
        data = b"".join(pack_branches(stack.branches))
        self.objects.put(f"{name}.safetensors", data)
        content = {
            "key": self.key,
            "position": now.position,
            "epoch": now.epoch,
            "file": f"{name}.safetensors",
            "sha256": sha256(data),
            "members": dict(self.members),
            "failed": failed_list(now.failed),
            "counted": now.counted,
            "stopped": now.stopped,
            "log": self.journal.write(),
        }
        put_json(self.objects.put, f"{name}.json", content)
        if not self._own:
            self._forget_passed((now.position, now.epoch))
        self._own.append(name)
        for old in self._own[:-2]:
            self._remove(old)
        self._own = self._own[-2:]

    def _remove(self, name: str) -> None:
        self.objects.remove(f"{name}.json")  # the one that names the other
        self.objects.remove(f"{name}.safetensors")

    def _forget_passed(self, reached: tuple[int, int]) -> None:
        """Remove the checkpoints of other attempts that this one has passed."""
        for name, content in self._found():
            if (content["position"], content["epoch"]) < reached and content["file"].count(self.attempt) == 0:
                self._remove(name)

    def _found(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the whole manifests of this leaf, the furthest first, each with its name."""
        found: list[tuple[str, dict[str, Any]]] = []
        for name in self.objects.names(self.folder):
            content: Any = get_json(self.objects, name) if name.endswith(".json") else None
            try:
                if content is None or content.get("key") != self.key:
                    continue
                expect(content, _CONTENT, name)
                if is_own(self.leaf, content["file"]) and is_own(self.leaf, content["log"]["name"]):
                    found.append((name.removesuffix(".json"), content))
            except RunError:
                continue
        return sorted(found, key=lambda one: (one[1]["position"], one[1]["epoch"]), reverse=True)

    def latest(self) -> Snapshot | None:
        """Return the checkpoint that came furthest, of those whose objects are all whole."""
        for name, content in self._found():
            data = get_whole(self.objects, content["file"], content["sha256"])
            lost = [n for n, digest in content["members"].items() if get_whole(self.objects, n, digest) is None]
            if data is None or lost:
                what = content["file"] if data is None else lost[0]
                self.messages.append(
                    f"{what} is damaged or missing; leaf '{self.leaf.path}' goes back to a checkpoint before"
                )
                continue
            log = (self.objects.get(content["log"]["name"]) or b"")[: content["log"]["bytes"]]
            self.journal.begin(log if sha256(log) == content["log"]["sha256"] else b"")
            self.members = dict(content["members"])
            return read_snapshot(content, unpack_branches(data, name, self.leaf.branches), log_bytes=0)
        return None

    def clear(self) -> None:
        """Remove the checkpoints of all attempts, and the events of those that did not finish."""
        for name in self.objects.names(self.folder):
            self.objects.remove(name)
        for name in self.objects.names(self.leaf.folder):
            if name.endswith(".jsonl") and name != self.journal.name:
                self.objects.remove(name)


@dataclass(frozen=True)
class Field:
    """All that the leaves of a run have in common.

    Attributes:
        objects: where everything lies.
        plan: the settled plan.
        job: what is trained, understood in this process.
        leaves: all leaves by their paths.
        seconds: least time between two checkpoints.
    """

    objects: Objects
    plan: dict[str, Any]
    job: Job
    leaves: dict[str, Leaf]
    seconds: float = 5.0


def admit(objects: Objects, plan: dict[str, Any], job: Job, *, seed: int, executor: str) -> None:
    """Check that a job is the one a plan was settled for, on a torch of the same version, and run it by the kernel settled on."""
    identity = identity_of(job.task, job.source, job.recipe, seed=seed, executor=executor, watched=job.watched)
    check_same(objects.where, plan["identity"], identity)
    begun, now = plan["environment"], environment(plan["environment"]["threads"]) | job.task.parts.environment
    if begun != now:
        raise RunError(
            f"{objects.where} was begun with {begun}, and here is {now}: members would not be the same to the last bit; install the same "
            "versions on every machine."
        )
    choose_kernel(job.task, job.source, job.recipe.plan, settled=plan.get("kernel"))


def train_leaf(field: Field, path: str, listener: Callback | None = None) -> Manifest:
    """Train a leaf, or find it trained; return its manifest. Errors name the leaf."""
    leaf = field.leaves[path]
    key = key_of(field.plan, leaf)
    held, damage = whole_manifest(field.objects, key, leaf)
    if held is not None:
        return held
    try:
        if damage:
            field.objects.remove(f"{leaf.folder}/manifest.json")
        with using(field.plan["environment"]["threads"]):
            return _trained(field, leaf, key, listener)
    except ChoralError as error:
        raise type(error)(f"leaf '{path}': {error}") from error


def _trained(field: Field, leaf: Leaf, key: str, listener: Callback | None) -> Manifest:
    objects, attempt = field.objects, new_attempt()
    origins, failed = _origins(field, leaf)
    journal = Journal(objects, f"{leaf.folder}/{attempt}.jsonl", listener)
    checkpoints = LeafCheckpoints(objects, key, leaf, journal, attempt)

    def keep(number: int, data: bytes) -> None:
        name = member_name(number)
        checkpoints.members[name] = put_same(objects, name, data)

    run = _run(field, MemberStore(run=run_of(field.plan), keep=keep), checkpoints, Log(None, journal.hear))
    run.ledger.failed = dict(failed)
    stack = Stack([run.branch(place, origin) for place, origin in zip(leaf.branches, origins)])
    run.begin()
    run.follow(leaf.steps, stack)
    state = None
    if leaf.is_parent:
        data = b"".join(pack_branches([replace(branch, watch=None) for branch in stack.branches]))
        state = {"name": f"{leaf.folder}/{attempt}.safetensors", "sha256": sha256(data)}
        objects.put(state["name"], data)
    log = {name: value for name, value in journal.write().items() if name != "bytes"}
    made = Manifest(
        leaf.path,
        dict(checkpoints.members),
        state,
        log,
        run.ledger.failed,
        run.counted,
        run.ledger.stopped,
        environment(field.plan["environment"]["threads"]),
    )
    found = commit(objects, key, leaf, made)
    if found.log == log:
        checkpoints.clear()
    return found


def _origins(field: Field, leaf: Leaf) -> tuple[list[Branch], dict[Place, str]]:
    """Return the branches that those of a leaf go on from, and those that were lost before it."""
    if leaf.after is None:
        return [Branch(place) for place in leaf.branches], {}
    before = field.leaves[leaf.after]
    manifest = read_manifest(field.objects, key_of(field.plan, before), before)
    if manifest is None:
        raise RunError(f"it goes on from leaf '{leaf.after}', which is not trained yet; run that one first.")
    states = {branch.place: branch for branch in states_of(field.objects, before, manifest)}
    return [states[place] for place in leaf.origins], manifest.failed


def _run(field: Field, store: MemberStore, checkpoints: LeafCheckpoints | None, log: Log) -> Run:
    job = field.job
    return Run(
        job.task,
        job.source,
        job.recipe.plan,
        seed=field.plan["identity"]["seed"],
        width=lambda fork, branches: 1,
        store=store,
        checkpoints=checkpoints,
        log=log,
        seconds=field.seconds,
        validation=job.validation,
        rules=job.rules,
        apart=field.plan["executor"] == "sequential",
    )


def empty_run(field: Field, store: MemberStore) -> Run:
    """Return a run that trains nothing, to count what its members cost."""
    return _run(field, store, None, Log())
