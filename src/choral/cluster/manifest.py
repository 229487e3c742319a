"""Manifests: what a trained leaf left, each object with its SHA-256. A reader trusts what they name, and nothing else.

A leaf is known by a key: the plan with its data and seed, how it was settled, and the leaf's path. A manifest or checkpoint with another
key belongs to another run.
"""

from dataclasses import dataclass
from typing import Any

from choral.base.errors import RunError
from choral.cluster.leaves import Leaf
from choral.cluster.objects import Objects, get_json, get_whole, put_json
from choral.engine.checkpoint import FAILED, Branch, failed_from, failed_list, unpack_branches
from choral.engine.files import digest_of, expect
from choral.engine.store import file_name
from choral.plan.walk import Place

_CONTENT = {
    "key": str,
    "leaf": str,
    "members": {str: str},
    "state": (None, {"name": str, "sha256": str}),
    "log": {"name": str, "sha256": str},
    "failed": FAILED,
    "counted": {str: float},
    "stopped": [dict],
    "environment": dict,
}


@dataclass(frozen=True)
class Manifest:
    """What a trained leaf left.

    Attributes:
        members: names of its members' files, each with its SHA-256.
        state: the object other leaves go on from, and its SHA-256; None if none do.
        log: the object with its events, and its SHA-256.
        failed: branches that diverged, each with a message.
        counted, stopped: as in a run's ledger.
        environment: what decides the last bits of sums, where it was trained.
    """

    leaf: str
    members: dict[str, str]
    state: dict[str, str] | None
    log: dict[str, str]
    failed: dict[Place, str]
    counted: dict[str, float]
    stopped: list[dict[str, Any]]
    environment: dict[str, Any]

    @property
    def digest(self) -> str:
        """One SHA-256 for all its members."""
        return digest_of(self.members)


def key_of(plan: dict[str, Any], leaf: Leaf) -> str:
    """Return the key of a leaf."""
    settled = {name: plan.get(name) for name in ("identity", "environment", "executor", "kernel", "leaves")}
    return digest_of({**settled, "leaf": leaf.path})[:32]


def member_name(number: int) -> str:
    """Return the name of a member's object.

    >>> member_name(7)
    'members/00007.safetensors'
    """
    return f"members/{file_name(number)}"


def commit(objects: Objects, key: str, leaf: Leaf, manifest: Manifest) -> Manifest:
    """Write a leaf's manifest, unless another process was first; return the one that counts."""
    content = {name: getattr(manifest, name) for name in _CONTENT if name not in ("key", "failed")}
    content |= {"key": key, "failed": failed_list(manifest.failed)}
    name = f"{leaf.folder}/manifest.json"
    held = read_manifest(objects, key, leaf)
    if held is None and objects.get(name) is not None:
        objects.remove(name)  # damaged, or another run's
    put_json(objects.put_first, name, content)
    found = read_manifest(objects, key, leaf)
    if found is None:
        raise RunError(f"{objects.where}/{name} does not hold what was just written; check the place and run it again.")
    return found


def read_manifest(objects: Objects, key: str, leaf: Leaf) -> Manifest | None:
    """Return the manifest of a leaf; None if there is none, or none that is whole and of this run."""
    content: Any = get_json(objects, f"{leaf.folder}/manifest.json")
    try:
        if content is None or content.get("key") != key:
            return None
        expect(content, _CONTENT, leaf.path)
    except RunError:
        return None
    own = [one["name"] for one in (content["state"], content["log"]) if one is not None]
    known = {member_name(number) for number in leaf.members}
    if not content["members"].keys() <= known or not all(is_own(leaf, name) for name in own):
        return None  # names that lead elsewhere
    return Manifest(**{**{n: content[n] for n in _CONTENT if n != "key"}, "failed": failed_from(content["failed"])})


def is_own(leaf: Leaf, name: str) -> bool:
    """Return whether an object's name is one that a leaf gives."""
    return name.startswith(f"{leaf.folder}/") and ".." not in name.split("/")


def whole_manifest(objects: Objects, key: str, leaf: Leaf) -> tuple[Manifest | None, str]:
    """Return the manifest of a leaf if all it names is there, else None; and what is wrong with it, if anything is."""
    manifest = read_manifest(objects, key, leaf)
    if manifest is None:
        return None, ""
    named = manifest.members | ({} if manifest.state is None else {manifest.state["name"]: manifest.state["sha256"]})
    for name, digest in named.items():
        if get_whole(objects, name, digest) is None:
            return None, f"{objects.where}/{name} is missing or damaged"
    return manifest, ""


def states_of(objects: Objects, leaf: Leaf, manifest: Manifest) -> list[Branch]:
    """Return the branches of a trained leaf, as others go on from them; RunError if they are lost."""
    assert manifest.state is not None
    name = manifest.state["name"]
    data = get_whole(objects, name, manifest.state["sha256"])
    if data is None:
        raise RunError(
            f"{objects.where}/{name}, which leaves behind '{leaf.path}' go on from, is missing or damaged; run the leaf "
            f"'{leaf.path}' again."
        )
    return unpack_branches(data, name, leaf.branches)
