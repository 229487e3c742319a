"""Where a run's members go: files, or memory."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from choral.base.errors import RunError
from choral.engine.files import pack_tensors, unpack_tensors, write_bytes
from choral.plan.early_stopping import SHARE
from choral.plan.sparse import MASK
from choral.plan.state import State

_NAME = re.compile(r"\d{5,}\.safetensors")
_ADVICE = "run the same command again to train it anew"


class MemberStore:
    """The networks a plan collects, each under its number in plan order.

    Args:
        folder: where member files are; None keeps them in memory.
        run: the digest of the run they belong to, written into each file.
        numbers: which of them this store shows, as its members 0, 1, ...; all if None.
    """

    def __init__(self, folder: Path | None = None, *, run: str | None = None, numbers: Sequence[int] | None = None):
        self.folder, self.run, self.numbers = folder, run, numbers
        self._held: dict[int, State] = {}

    def path(self, number: int) -> Path:
        """Return the file of a member."""
        assert self.folder is not None
        return self.folder / file_name(number)

    def put(self, number: int, state: State) -> None:
        """Keep what prediction needs of a state: parameters, buffers, form, mask and share."""
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
            raise RunError(
                f"{path} cannot be read ({error.strerror}); load the folder again, choral.load('{self.folder.parent}'), or {_ADVICE}."
            ) from error
        tensors, header = unpack_tensors(data, str(path))
        if header.get("number") != number or (self.run is not None and header.get("run") != self.run):
            raise RunError(
                f"{path} holds member {header.get('number')} of run {header.get('run')}, not member {number} of {self.run}: the folder "
                f"was extended or overwritten since, or the file was copied. Load it again, choral.load('{self.folder.parent}'), or {_ADVICE}."
            )
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

    def missing(self, count: int) -> list[int]:
        """Return the numbers below `count` that are not here yet."""
        if self.folder is None:
            return [i for i in range(count) if i not in self._held]
        return [i for i in range(count) if not self.path(i).exists()]

    def lost(self, count: int) -> dict[int, str]:
        """Return the numbers below `count` that are missing or cannot be read, each with the reason."""
        found = dict.fromkeys(self.missing(count), "missing")
        for number in range(count) if self.folder is not None else ():
            try:
                if number not in found:
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
    """Return a member as the bytes of a safetensors file, which also says whose it is."""
    return pack_tensors(member_tensors(state), {"form": state.form, "number": number, "run": run})


def member_tensors(state: State) -> dict[str, Tensor]:
    """Return the tensors that store a member; masked parameters as a bitmask and the kept values."""
    from choral.masks.bitmask import pack

    mask = state.mask
    tensors = {f"buffers/{n}": b for n, b in state.buffers.items()}
    tensors |= {f"params/{n}": p for n, p in state.params.items() if n not in mask}
    tensors |= {f"share/{n}": t for n, t in state.slots.get(SHARE, {}).items()}
    tensors |= {f"packed/{n}": t for n, t in pack({n: state.params[n] for n in mask}, mask).items()}
    return tensors


def state_from(tensors: dict[str, Tensor], form: Any, where: str) -> State:
    """Return the state whose `member_tensors` these are; errors name the file."""
    from choral.masks.bitmask import unpack

    parts: dict[str, dict[str, Tensor]] = {"buffers": {}, "params": {}, "packed": {}, "share": {}}
    for full, tensor in tensors.items():
        part, _, name = full.partition("/")
        if part not in parts:
            raise RunError(
                f"{where} holds a tensor {full!r}; members have buffers/, params/, packed/ and share/: copy it again."
            )
        parts[part][name] = tensor
    values, mask = unpack(parts["packed"])
    slots = ({MASK: mask} if mask else {}) | ({SHARE: parts["share"]} if parts["share"] else {})
    return State(parts["params"] | values, parts["buffers"], slots, {}, form)
