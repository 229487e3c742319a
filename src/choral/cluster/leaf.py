"""Train one leaf: find its newest checkpoint, go on from it, write its members, then the manifest that names them.

Doing so again does nothing. Two processes at the same leaf write the same bytes, and the first manifest stays.
"""

from dataclasses import dataclass, replace
from typing import Any

from choral.base.errors import ChoralError, RunError
from choral.cluster.leaves import Leaf
from choral.cluster.manifest import (
    Manifest,
    commit,
    key_of,
    member_name,
    read_manifest,
    states_of,
    whole_manifest,
)
from choral.cluster.objects import Objects, put_same, sha256
from choral.cluster.resting import Journal, LeafCheckpoints, new_attempt
from choral.engine.checkpoint import Branch, Stack, pack_branches
from choral.engine.events import Callback
from choral.engine.executor import choose_kernel
from choral.engine.folder import run_of
from choral.engine.identity import identity_of
from choral.engine.job import Job
from choral.engine.preparation import check_same, environment
from choral.engine.run import Run
from choral.engine.store import Log, MemberStore
from choral.engine.threads import using
from choral.plan.walk import Place


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
