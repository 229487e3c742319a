"""Where a leaf rests: its checkpoints and its events, written by one attempt at a time or by several that do not know of each other.

Every attempt writes under a name of its own. A new one looks at the checkpoints of all before it and goes on from the one that came
furthest; those that its own has passed are removed.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from choral.base.errors import RunError
from choral.cluster.leaves import Leaf
from choral.cluster.manifest import is_own
from choral.cluster.objects import Objects, get_json, get_whole, put_json, sha256
from choral.engine.checkpoint import (
    FAILED,
    Snapshot,
    Stack,
    failed_list,
    pack_branches,
    read_snapshot,
    unpack_branches,
)
from choral.engine.schema import expect

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
