"""Checkpoints: where a run stands, so that the same call continues from there.

A plan is walked in a fixed order; a checkpoint says how many leaf phases are done, how many epochs of the running one,
and holds the state of every open stack: the one being worked on and the fork parents above it. Each stack is one
safetensors file, written again only when it changed. The two newest manifests are kept; each lists the checksums of its
files, so a damaged one is noticed and the one before is used.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.base.errors import RunError
from choral.engine.files import (
    Part,
    pack_parts,
    read_checked,
    read_json,
    sha256,
    unpack_tensors,
    write_bytes,
    write_json,
)
from choral.plan.state import State
from choral.plan.variants import Variant
from choral.plan.walk import Place


@dataclass
class Watch:
    """What validation has seen of a branch in its training phase."""

    best: float | None = None  # the best measure so far
    best_epoch: int = 0  # epochs after which it was measured
    state: State | None = None  # of then, if it is to be kept
    stopped: int | None = None  # epochs after which the branch stopped
    mounted: bool = True  # whether it has its place in the stack; a stopped one may, until several can leave together
    held: State | None = None  # in which it was chosen last, or was best, where networks are chosen while they train
    count: int = 0  # how often it is chosen in the present choice
    gained: int = 0  # epochs after which the choice was last made better

    def to_dict(self) -> dict[str, Any]:
        """Return all but the states."""
        return {n: getattr(self, n) for n in ("best", "best_epoch", "stopped", "mounted", "count", "gained")}


@dataclass
class Branch:
    """One network on its way: its place in the plan (up to its last fork), its state, and what validation has seen of it in its present phase."""

    place: Place
    state: State | None = None
    is_new: bool = False
    watch: Watch = field(default_factory=Watch)
    variant: Variant = field(default_factory=Variant)

    @property
    def reached(self) -> State:
        """Its state, where a start came before."""
        assert self.state is not None
        return self.state

    @property
    def goes_on(self) -> bool:
        """Whether it has not stopped in its training phase."""
        return self.watch.stopped is None


@dataclass
class Stack:
    """Branches that are trained together, and the places of those they continue from; `version` is the (position, epoch) of the last change."""

    branches: list[Branch]
    origins: Sequence[Place]
    version: tuple[int, int] = (-1, 0)

    @property
    def name(self) -> str:
        """A file name for this stack, from the places of its branches."""
        text = repr([branch.place.words for branch in self.branches])
        return f"{sha256(text.encode())[:12]}-{self.version[0]}-{self.version[1]}"


@dataclass
class Snapshot:
    """Where a run stands: phases done, epochs of the running one, its ledger and log, and once read back its open branches."""

    position: int
    epoch: int
    failed: dict[Place, str]
    counted: dict[str, float]
    stopped: list[dict[str, Any]]
    log_bytes: int = 0
    whole: list[int] | None = None
    open: dict[Place, Branch] = field(default_factory=dict)


def pack_branches(branches: Sequence[Branch]) -> list[Part]:
    """Return the file of a stack: the states of its branches, then the best and the chosen ones of those that are validated."""
    states = [b.state for b in branches] + [b.watch.state for b in branches] + [b.watch.held for b in branches]
    tensors = {f"{i}/{n}": t for i, s in enumerate(states) if s is not None for n, t in s.flat().items()}
    header = {
        "forms": [None if s is None else s.form for s in states],
        "empty": [s is None for s in states],
        "new": [branch.is_new for branch in branches],
        "watches": [branch.watch.to_dict() for branch in branches],
    }
    return pack_parts(tensors, header)


def unpack_branches(data: bytes, name: str, places: Sequence[Place]) -> list[Branch]:
    """Return the branches of such a file, which stand at these places."""
    tensors, header = unpack_tensors(data, name)
    parts: list[dict[str, Any]] = [{} for _ in header["empty"]]
    for full, tensor in tensors.items():
        branch, rest = full.split("/", 1)
        parts[int(branch)][rest] = tensor
    states = [
        None if empty else State.from_flat(part, form)
        for part, form, empty in zip(parts, header["forms"], header["empty"])
    ]
    best, held = states[len(places) : 2 * len(places)], states[2 * len(places) :]
    watches = [Watch(**about, state=a, held=b) for about, a, b in zip(header["watches"], best, held)]
    return [Branch(*parts) for parts in zip(places, states, header["new"], watches)]


def failed_list(failed: dict[Place, str]) -> list[dict[str, Any]]:
    """Return branches that diverged as JSON types."""
    return [{"place": place.to_list(), "message": message} for place, message in failed.items()]


def failed_from(content: Iterable[dict[str, Any]]) -> dict[Place, str]:
    """Return what `failed_list` wrote."""
    return {Place.from_list(one["place"]): one["message"] for one in content}


@dataclass
class Checkpoints:
    """The checkpoint folder of a run. Only files that this process wrote or read whole are trusted, never one because of its name."""

    folder: Path
    changed: Callable[[], None] | None = None  # called after every change
    messages: list[str] = field(default_factory=list)
    _whole: dict[str, str] = field(default_factory=dict)  # files known to be whole, with their checksums
    _trusted: list[Path] = field(default_factory=list)  # manifests known to be whole, oldest first

    def _manifests(self) -> list[Path]:
        """Return our own manifests, oldest first; other names (copies a sync service made) are nobody's."""
        found = [p for p in self.folder.glob("manifest-*.json") if _MANIFEST.fullmatch(p.name)]
        return sorted(found, key=lambda p: int(p.stem.split("-")[1]))

    def __bool__(self) -> bool:
        return bool(self._manifests())

    def save(self, open_stacks: Sequence[Stack], now: Snapshot) -> None:
        """Write the stacks that changed and a new manifest; forget all but the two newest."""
        entries = []
        for stack in open_stacks:
            file = f"{stack.name}.safetensors"
            if file not in self._whole:
                data = pack_branches(stack.branches)
                self._whole[file] = write_bytes(self.folder / file, data, within=self.folder.parent)
            places = [branch.place.to_list() for branch in stack.branches]
            entries.append({"file": file, "sha256": self._whole[file], "places": places})
        manifests = self._manifests()
        number = int(manifests[-1].stem.split("-")[1]) + 1 if manifests else 0
        content = vars(now) | {"open": entries, "failed": failed_list(now.failed)}
        path = self.folder / f"manifest-{number}.json"
        write_json(path, content, within=self.folder.parent)
        self._trusted = [*self._trusted[-1:], path]
        self._forget(self._trusted)

    def _forget(self, keep: Sequence[Path]) -> None:
        for path in self._manifests():
            if path not in keep:
                path.unlink(missing_ok=True)
        needed = {f["file"] for path in keep for f in _manifest(path).get("open", [])}
        for path in self.folder.iterdir():
            if _STACK.fullmatch(path.name) and path.name not in needed:
                path.unlink(missing_ok=True)
                self._whole.pop(path.name, None)
        if self.changed is not None:
            self.changed()

    def clear(self) -> None:
        """Remove all checkpoints: the run is complete."""
        if self.folder.exists():
            self._forget([])

    def latest(self) -> Snapshot | None:
        """Return the newest checkpoint whose files are all whole; says what was damaged."""
        for path in reversed(self._manifests()):
            content = _manifest(path)
            if not content:
                self.messages.append(f"checkpoint {path.name} is damaged; going back to the one before")
                continue
            branches: list[Branch] = []
            for entry in content["open"]:
                data = read_checked(self.folder / entry["file"], entry["sha256"])
                if data is None:
                    self.messages.append(
                        f"checkpoint file {entry['file']} is damaged or missing; going back to the checkpoint before"
                    )
                    break
                self._whole[entry["file"]] = entry["sha256"]
                places = [Place.from_list(place) for place in entry["places"]]
                branches += unpack_branches(data, entry["file"], places)
            else:
                self._trusted = [path]
                read = {"failed": failed_from(content["failed"]), "open": {branch.place: branch for branch in branches}}
                return Snapshot(**content | read)
        if self._manifests():
            self.messages.append("no whole checkpoint is left; starting from the beginning")
        return None


_MANIFEST = re.compile(r"manifest-\d+\.json")
_STACK = re.compile(r"[0-9a-f]{12}-(-?\d+)-\d+\.safetensors")


def _manifest(path: Path) -> dict[str, Any]:
    """Return a manifest's content, or an empty dict if it is damaged."""
    try:
        content = read_json(path) or {}
    except RunError:
        return {}
    return content if all(_STACK.fullmatch(f["file"]) for f in content.get("open", ())) else {}
