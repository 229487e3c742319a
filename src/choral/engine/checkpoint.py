"""Checkpoints, from which the same call resumes, and members, in files or in memory.

A checkpoint is one file: the position of the run, and the states of all open stacks (the running one and the fork parents above it). The two
newest are kept; if one is damaged, the one before is used.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from choral.base.errors import RunError
from choral.engine.files import Part, pack_parts, pack_tensors, unpack_tensors, write_bytes
from choral.masks.bitmask import pack, unpack
from choral.plan.early_stopping import SHARE
from choral.plan.phases import Variant
from choral.plan.sparse import MASK
from choral.plan.state import State
from choral.plan.walk import Place


@dataclass
class Watch:
    """Validation results of a branch in its training phase."""

    best: float | None = None  # the best measure so far
    best_epoch: int = 0  # epochs after which it was measured
    state: State | None = None  # of then, if it is to be kept
    stopped: int | None = None  # epochs after which the branch stopped
    mounted: bool = True  # whether it has its place in the stack; a stopped one may, until several can leave together
    held: State | None = None  # in which it was chosen last, or was best, where networks are chosen while they train
    count: int = 0  # how often it is chosen in the present choice
    gained: int = 0  # epochs after which the choice was last made better


@dataclass
class Branch:
    """One network during a run: its place in the plan (up to its last fork), its state, and its validation results in the current phase."""

    place: Place
    state: State | None = None
    is_new: bool = False
    watch: Watch = field(default_factory=Watch)
    variant: Variant = field(default_factory=Variant)

    @property
    def reached(self) -> State:
        """Its state, if a start came before."""
        assert self.state is not None
        return self.state

    @property
    def goes_on(self) -> bool:
        """Whether it has not stopped in its training phase."""
        return self.watch.stopped is None


@dataclass
class Stack:
    """Branches that are trained together, and the places of those they continue from."""

    branches: list[Branch]
    origins: Sequence[Place]


@dataclass
class Snapshot:
    """The position of a run: phases done, epochs of the running one, its ledger and log, and its open branches once read back."""

    position: int
    epoch: int
    failed: dict[Place, str]
    counted: dict[str, float]
    stopped: list[dict[str, Any]]
    log_bytes: int = 0
    whole: list[int] | None = None
    open: dict[Place, Branch] = field(default_factory=dict)


def pack_branches(branches: Sequence[Branch], **about: Any) -> list[Part]:
    """Return the file of some branches: their states, then the best and the chosen ones of those that are validated, and what else is to be kept."""
    states = [b.state for b in branches] + [b.watch.state for b in branches] + [b.watch.held for b in branches]
    tensors = {f"{i}/{n}": t for i, s in enumerate(states) if s is not None for n, t in s.flat().items()}
    header = {
        "places": [branch.place.to_list() for branch in branches],
        "forms": [None if s is None else s.form for s in states],
        "empty": [s is None for s in states],
        "new": [branch.is_new for branch in branches],
        "watches": [{n: v for n, v in vars(b.watch).items() if n not in ("state", "held")} for b in branches],
        "about": about,
    }
    return pack_parts(tensors, header)


def unpack_branches(data: bytes, name: str) -> tuple[list[Branch], dict[str, Any]]:
    """Return the branches of such a file, and what else it keeps."""
    tensors, header = unpack_tensors(data, name)
    parts: list[dict[str, Any]] = [{} for _ in header["empty"]]
    for full, tensor in tensors.items():
        branch, rest = full.split("/", 1)
        parts[int(branch)][rest] = tensor
    forms = zip(header["forms"], header["empty"])
    states = [None if empty else State.from_flat(part, form) for part, (form, empty) in zip(parts, forms)]
    places = [Place.from_list(place) for place in header["places"]]
    best, held = states[len(places) : 2 * len(places)], states[2 * len(places) :]
    watches = [Watch(**about, state=a, held=b) for about, a, b in zip(header["watches"], best, held)]
    return [Branch(*parts) for parts in zip(places, states, header["new"], watches)], header["about"]


def failed_list(failed: dict[Place, str]) -> list[dict[str, Any]]:
    """Return branches that diverged as JSON types."""
    return [{"place": place.to_list(), "message": message} for place, message in failed.items()]


def failed_from(content: Iterable[dict[str, Any]]) -> dict[Place, str]:
    """Return what `failed_list` wrote."""
    return {Place.from_list(one["place"]): one["message"] for one in content}


_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.safetensors")


@dataclass
class Checkpoints:
    """The checkpoint folder of a run."""

    folder: Path
    changed: Callable[[], None] | None = None  # called after every change
    messages: list[str] = field(default_factory=list)
    _kept: list[Path] = field(default_factory=list)  # written, or read whole, by this process

    def _files(self) -> dict[int, Path]:
        """Return the checkpoint files by number, oldest first, without files of other names."""
        found = {int(m[1]): p for p in self.folder.glob("*") if (m := _CHECKPOINT.fullmatch(p.name))}
        return dict(sorted(found.items()))

    def __bool__(self) -> bool:
        return bool(self._files())

    def save(self, open_stacks: Sequence[Stack], now: Snapshot) -> None:
        """Write a checkpoint and remove all but the two newest."""
        branches = [branch for stack in open_stacks for branch in stack.branches]
        about = vars(now) | {"failed": failed_list(now.failed), "open": {}}
        path = self.folder / f"checkpoint-{max(self._files(), default=-1) + 1}.safetensors"
        write_bytes(path, pack_branches(branches, **about), within=self.folder.parent)
        self._kept = [*self._kept[-1:], path]
        self._forget_others()

    def _forget_others(self) -> None:
        for path in self._files().values():
            if path not in self._kept:
                path.unlink(missing_ok=True)
        if self.changed is not None:
            self.changed()

    def clear(self) -> None:
        """Remove all checkpoints: the run is complete."""
        self._kept = []
        self._forget_others()

    def latest(self) -> Snapshot | None:
        """Return the newest undamaged checkpoint; warn of damaged ones."""
        files = list(self._files().values())
        for path in reversed(files):
            try:
                branches, about = unpack_branches(path.read_bytes(), path.name)
            except RunError as error:
                self.messages.append(f"{error} Going back to the checkpoint before.")
                continue
            self._kept = [path]
            read = {"failed": failed_from(about["failed"]), "open": {branch.place: branch for branch in branches}}
            return Snapshot(**about | read)
        if files:
            self.messages.append("no whole checkpoint is left; starting from the beginning")
        return None


_NAME = re.compile(r"\d{5,}\.safetensors")


class MemberStore:
    """The networks that a plan collects, each under its number in plan order.

    Args:
        folder: folder of member files; None keeps members in memory.
        run: digest of their run, written into each file.
        numbers: the numbers that this store shows as its members 0, 1, ...; all if None.
    """

    def __init__(self, folder: Path | None = None, *, run: str | None = None, numbers: Sequence[int] | None = None):
        self.folder, self.run, self.numbers = folder, run, numbers
        self._held: dict[int, State] = {}

    def path(self, number: int) -> Path:
        """Return the file of a member."""
        assert self.folder is not None
        return self.folder / file_name(number)

    def put(self, number: int, state: State) -> None:
        """Store the parts of a state that prediction needs: parameters, buffers, form, mask and share."""
        slots = ({MASK: state.mask} if state.mask else {}) | {s: v for s, v in state.slots.items() if s == SHARE}
        kept = State(state.params, state.buffers, slots, {}, state.form)
        if self.folder is None:
            self._held[number] = kept
        else:
            data = encode_member(kept, number=number, run=self.run)
            write_bytes(self.path(number), data, within=self.folder.parent)

    def get(self, number: int) -> State:
        """Return a member's state; RunError if its file is missing, damaged or another's."""
        number = number if self.numbers is None else self.numbers[number]
        if self.folder is None:
            return self._held[number]
        path = self.path(number)
        try:
            data = path.read_bytes()
        except OSError as error:
            said = f"{path} cannot be read ({error.strerror})"
            raise RunError(f"{said}; load the folder again, or run the same command again to train it anew.") from error
        tensors, header = unpack_tensors(data, str(path))
        if header.get("number") != number or (self.run is not None and header.get("run") != self.run):
            said = f"{path} holds member {header.get('number')} of run {header.get('run')}, not member {number} of {self.run}"
            said = f"{said}: extended or overwritten since"
            raise RunError(f"{said}; load it again, choral.load('{self.folder.parent}').")
        return state_from(tensors, header.get("form"), str(path))

    def hold(self, states: dict[int, State]) -> None:
        """Replace the members in memory."""
        self._held = states

    def showing(self, numbers: Sequence[int]) -> "MemberStore":
        """Return a store of the same members that shows some of those this one shows, as its members 0, 1, ..."""
        which = list(numbers) if self.numbers is None else [self.numbers[i] for i in numbers]
        twin = MemberStore(self.folder, run=self.run, numbers=which)
        twin._held = self._held
        return twin

    def in_memory(self, count: int) -> "MemberStore":
        """Return a store of the first members that needs no files."""
        twin = MemberStore(run=self.run)
        for number in range(count):
            twin.put(number, self.get(number))
        return twin

    def missing(self, count: int) -> list[int]:
        """Return the numbers below `count` that are not here yet."""
        if self.folder is None:
            return [i for i in range(count) if i not in self._held]
        return [i for i in range(count) if not self.path(i).exists()]

    def lost(self, count: int) -> dict[int, str]:
        """Return the numbers below `count` that are missing or cannot be read, each with the reason."""
        found = dict.fromkeys(self.missing(count), "missing")
        for number in set(range(count)) - found.keys():
            try:
                self.get(number)
            except RunError as error:
                found[number] = str(error)
        return dict(sorted(found.items()))

    def keep_only(self, numbers: Sequence[int]) -> None:
        """Remove the files of all other members; copies under other names stay."""
        for path in list(self.files()):
            if int(path.stem) not in numbers:
                path.unlink(missing_ok=True)

    def files(self) -> Iterator[Path]:
        """Yield the member files of any number in the folder."""
        found = () if self.folder is None else self.folder.glob("*.safetensors")
        return (path for path in found if _NAME.fullmatch(path.name))


def file_name(number: int) -> str:
    """Return the name of a member's file."""
    return f"{number:05d}.safetensors"


def encode_member(state: State, *, number: int = 0, run: str | None = None) -> bytes:
    """Return a member as the bytes of a safetensors file, with its run and number."""
    return pack_tensors(member_tensors(state), {"form": state.form, "number": number, "run": run})


def member_tensors(state: State) -> dict[str, Tensor]:
    """Return the tensors that store a member; masked parameters as a bitmask and the kept values."""
    mask = state.mask
    tensors = {f"buffers/{n}": b for n, b in state.buffers.items()}
    tensors |= {f"params/{n}": p for n, p in state.params.items() if n not in mask}
    tensors |= {f"share/{n}": t for n, t in state.slots.get(SHARE, {}).items()}
    tensors |= {f"packed/{n}": t for n, t in pack({n: state.params[n] for n in mask}, mask).items()}
    return tensors


def state_from(tensors: dict[str, Tensor], form: Any, where: str) -> State:
    """Return the state whose `member_tensors` these are; errors name the file."""
    parts: dict[str, dict[str, Tensor]] = {"buffers": {}, "params": {}, "packed": {}, "share": {}}
    for full, tensor in tensors.items():
        part, _, name = full.partition("/")
        if part not in parts:
            raise RunError(f"{where} holds a tensor {full!r}, which no member has; copy it again.")
        parts[part][name] = tensor
    values, mask = unpack(parts["packed"])
    slots = ({MASK: mask} if mask else {}) | ({SHARE: parts["share"]} if parts["share"] else {})
    return State(parts["params"] | values, parts["buffers"], slots, {}, form)
