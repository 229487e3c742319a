"""Train one leaf: resume from its newest checkpoint, write its members, then the manifest that names them.

Training a finished leaf again does nothing. Two processes that train the same leaf write the same bytes. A leaf is identified by a key:
the plan and the leaf's path. A manifest or checkpoint with another key belongs to another run. Readers trust only files that a manifest
names with their SHA-256.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from choral.base.errors import ChoralError, RunError
from choral.base.values import from_dict
from choral.cluster.storage import Storage
from choral.engine.checkpoint import (
    Branch,
    Checkpoints,
    MemberStore,
    Stack,
    Watch,
    failed_from,
    failed_list,
    file_name,
    pack_branches,
    unpack_branches,
)
from choral.engine.compute import using
from choral.engine.events import Callback, Log
from choral.engine.files import digest_of, read_checked, read_json, sha256, write_bytes, write_json
from choral.engine.folder import check_same, environment, run_of
from choral.engine.identity import identity_of
from choral.engine.job import Call, Job
from choral.engine.run import Leaf, Run, cut
from choral.plan.walk import Place
from choral.recipes.recipe import Recipe


@dataclass(frozen=True)
class Manifest:
    """The results of a trained leaf."""

    members: dict[str, str]  # files of its members, each with its SHA-256
    state: str | None  # SHA-256 of the file that other leaves continue from
    failed: dict[Place, str]  # branches that diverged, each with a message
    counted: dict[str, float]  # this and the next as in a run's ledger
    stopped: list[dict[str, Any]]
    environment: dict[str, Any]  # what decides the last bits of sums, where it was trained

    @property
    def digest(self) -> str:
        """One SHA-256 for all its members."""
        return digest_of(self.members)


@dataclass(frozen=True)
class Field:
    """What the leaves of a run have in common."""

    storage: Storage
    run_dir: Any  # the place of the storage, as other processes understand it
    plan: dict[str, Any]
    call: Call  # the arguments of the run, for another process to understand
    job: Job  # what is trained, understood in this process
    waiting: Sequence[Leaf] = ()  # leaves that are to be trained, in plan order
    hear: Callable[[str, dict[str, Any]], None] = lambda path, event: None  # is told every event with the leaf's path

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """All leaves by their paths."""
        return {leaf.path: leaf for leaf in leaves_of(self.plan, self.job.recipe)}

    @property
    def store(self) -> MemberStore:
        """The members of the run in its folder."""
        return MemberStore(self.storage.folder / "members", run=run_of(self.plan))


def leaves_of(plan: dict[str, Any], recipe: Recipe | None = None) -> list[Leaf]:
    """Return the leaves of a run from its plan.json; the user's functions can be called only in the recipe as given in Python."""
    recipe = recipe or from_dict(plan["identity"]["recipe"])
    assert isinstance(recipe, Recipe)
    return cut(recipe.plan, plan["leaves"]["stack"])


def key_of(plan: dict[str, Any], leaf: Leaf) -> str:
    """Return the key of a leaf."""
    settled = {name: plan.get(name) for name in ("identity", "environment", "executor", "leaves")}
    return digest_of({**settled, "leaf": leaf.path})[:32]


def member_name(number: int) -> str:
    """Return the name of a member's file, relative to the run's folder."""
    return f"members/{file_name(number)}"


def read_manifest(storage: Storage, plan: dict[str, Any], leaf: Leaf) -> Manifest | None:
    """Return the manifest of a leaf; None if it is missing, damaged or of another run."""
    name = f"{leaf.folder}/manifest.json"
    storage.pull(name)
    try:
        content = read_json(storage.folder / name)
        if content is None or content.pop("key", None) != key_of(plan, leaf):
            return None
    except RunError:
        return None
    if not content["members"].keys() <= {member_name(number) for number in leaf.members}:
        return None  # names that lead elsewhere
    return Manifest(**content | {"failed": failed_from(content["failed"])})


def whole_manifest(storage: Storage, plan: dict[str, Any], leaf: Leaf) -> tuple[Manifest | None, str]:
    """Return the manifest of a leaf if all files it names exist, else None; and what is missing."""
    manifest = read_manifest(storage, plan, leaf)
    if manifest is None:
        return None, ""
    named = manifest.members | ({} if manifest.state is None else {_state(leaf): manifest.state})
    lost = [name for name, digest in named.items() if read_whole(storage, name, digest) is None]
    return (None, f"{storage.where}/{lost[0]} is missing or damaged") if lost else (manifest, "")


def read_whole(storage: Storage, name: str, digest: str) -> bytes | None:
    """Return the bytes of a file if they have the SHA-256 in the manifest, else None."""
    storage.pull(name)
    return read_checked(storage.folder / name, digest)


def _state(leaf: Leaf) -> str:
    return f"{leaf.folder}/state.safetensors"


def admitted(call: Call, storage: Storage, run_dir: Any, plan: dict[str, Any]) -> Field:
    """Return what the leaves of a run have in common; RunError unless the call and the version of torch are those of the plan."""
    job = call.job()
    check_same(storage.where, plan["identity"], identity_of(job))
    begun, now = plan["environment"], environment(plan["environment"]["threads"]) | job.task.parts.environment
    if begun != now:
        raise RunError(
            f"{storage.where} was started with {begun}, but this machine has {now}: members would not be bit-identical; install the same "
            "versions on every machine."
        )
    return Field(storage, run_dir, plan, call, job)


def train_leaf(field: Field, path: str, listener: Callback | None = None) -> Manifest:
    """Train a leaf, unless it is trained, and return its manifest. Errors name the leaf."""
    leaf = field.leaves[path]
    held, _ = whole_manifest(field.storage, field.plan, leaf)
    if held is not None:
        return held
    try:
        with using(field.plan["environment"]["threads"]):
            return _trained(field, leaf, listener)
    except ChoralError as error:
        raise type(error)(f"leaf '{path}': {error}") from error


def _trained(field: Field, leaf: Leaf, listener: Callback | None) -> Manifest:
    storage, store, plan = field.storage, field.store, field.plan
    log_name, held = f"{leaf.folder}/log.jsonl", f"{leaf.folder}/{key_of(plan, leaf)}/"
    beside = (log_name, *map(member_name, leaf.members))
    storage.pull(held, *beside)

    def push() -> None:  # what a checkpoint counts on goes first
        storage.push(*beside)
        storage.push(held)

    checkpoints = Checkpoints(storage.folder / held, changed=push)
    origins, failed = _origins(field, leaf)
    folder = storage.folder / leaf.folder
    folder.mkdir(parents=True, exist_ok=True)
    with closing(Log(storage.folder / log_name, listener)) as log:
        run = Run(
            job=field.job,
            leaves=[leaf],
            apart=plan["executor"] == "sequential",
            store=store,
            checkpoints=checkpoints,
            log=log,
            open={} if leaf.after is None else {leaf.after: Stack(origins, leaf.origins)},
        )
        run.ledger.failed = dict(failed)
        run.begin()
        if run.snapshot is not None:
            run.mend(store.lost(max(leaf.members, default=-1) + 1))
        run.train()
    state = None
    if leaf.is_parent:
        parts = pack_branches([replace(branch, watch=Watch()) for branch in run.open[leaf.path].branches])
        state = write_bytes(storage.folder / _state(leaf), parts, within=storage.folder)
    ledger, where = run.ledger, environment(plan["environment"]["threads"])
    made = Manifest(_members(store, leaf), state, ledger.failed, ledger.counted, ledger.stopped, where)
    storage.push(*made.members, _state(leaf), log_name)
    content = {**vars(made), "key": key_of(plan, leaf), "failed": failed_list(made.failed)}
    write_json(folder / "manifest.json", content, within=storage.folder)
    storage.push(f"{leaf.folder}/manifest.json")
    checkpoints.clear()
    return made


def _members(store: MemberStore, leaf: Leaf) -> dict[str, str]:
    missing = store.missing(max(leaf.members, default=-1) + 1)
    there = [number for number in leaf.members if number not in missing]
    return {member_name(number): sha256(store.path(number).read_bytes()) for number in there}


def _origins(field: Field, leaf: Leaf) -> tuple[list[Branch], dict[Place, str]]:
    """Return the branches that those of a leaf continue from, and those that diverged before it."""
    if leaf.after is None:
        return [], {}
    before = field.leaves[leaf.after]
    manifest = read_manifest(field.storage, field.plan, before)
    if manifest is None:
        raise RunError(f"it continues from leaf '{leaf.after}', which is not trained yet; run that one first.")
    data = read_whole(field.storage, _state(before), manifest.state or "")
    if data is None:
        raise RunError(f"{field.storage.where}/{_state(before)} is missing or damaged; run leaf '{leaf.after}' again.")
    return unpack_branches(data, _state(before))[0], manifest.failed
