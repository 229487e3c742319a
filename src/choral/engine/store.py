"""Where a run's results go: members as files or in memory, events as lines."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from choral.engine.files import pack_tensors, unpack_tensors, write_bytes
from choral.errors import RunError
from choral.plan.state import State

Listener = Callable[[dict[str, Any]], None]


class MemberStore:
    """The networks a plan collects, each under its number in plan order."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._held: dict[int, State] = {}

    def path(self, number: int) -> Path:
        """Return the file of a member."""
        assert self.folder is not None
        return self.folder / f"{number:05d}.safetensors"

    def put(self, number: int, state: State) -> None:
        """Keep what prediction needs of a state: parameters, buffers, form and mask."""
        slots = {"mask": state.slots["mask"]} if "mask" in state.slots else {}
        kept = State(state.params, state.buffers, slots, {}, state.form)
        if self.folder is None:
            self._held[number] = kept
        else:
            write_bytes(self.path(number), encode_member(kept))

    def get(self, number: int) -> State:
        """Return a member's state."""
        if self.folder is None:
            return self._held[number]
        path = self.path(number)
        if not path.exists():
            raise RunError(f"{path} is missing, so this run is not complete; run the same command again to finish it.")
        return decode_member(path.read_bytes(), str(path))

    def missing(self, count: int) -> list[int]:
        """Return the numbers below `count` that are not here yet."""
        if self.folder is None:
            return [i for i in range(count) if i not in self._held]
        return [i for i in range(count) if not self.path(i).exists()]


def encode_member(state: State) -> bytes:
    """Return a member as the bytes of a safetensors file."""
    return pack_tensors(member_tensors(state), {"form": state.form})


def member_tensors(state: State) -> dict[str, Tensor]:
    """Return the tensors that store a member; masked parameters as a bitmask and the kept values."""
    from choral.packing import pack

    mask = state.slots.get("mask", {})
    tensors = {f"buffers/{n}": b for n, b in state.buffers.items()}
    tensors |= {f"params/{n}": p for n, p in state.params.items() if n not in mask}
    tensors |= {f"packed/{n}": t for n, t in pack({n: state.params[n] for n in mask}, mask).items()}
    return tensors


def state_from(tensors: dict[str, Tensor], form: dict[str, Any] | None) -> State:
    """Return the state whose `member_tensors` these are."""
    from choral.packing import unpack

    parts: dict[str, dict[str, Tensor]] = {"buffers": {}, "params": {}, "packed": {}}
    for full, tensor in tensors.items():
        part, name = full.split("/", 1)
        parts[part][name] = tensor
    values, mask = unpack(parts["packed"])
    slots = {"mask": mask} if mask else {}
    return State(parts["params"] | values, parts["buffers"], slots, {}, form)


def decode_member(data: bytes, name: str) -> State:
    """Return the state of a member file."""
    tensors, header = unpack_tensors(data, name)
    return state_from(tensors, header.get("form"))


class Log:
    """Events as lines of JSON in a file, and to a listener (the progress display)."""

    def __init__(self, path: Path | None = None, listener: Listener | None = None):
        self.path, self.listener = path, listener
        self._handle = None if path is None else path.open("a", encoding="utf8")

    def event(self, **content: Any) -> None:
        """Write one event."""
        if self.listener is not None:
            self.listener(content)
        if self._handle is not None:
            self._handle.write(json.dumps({"time": round(time.time(), 3), **content}) + "\n")
            self._handle.flush()

    def sync(self) -> int:
        """Force the log to disk and return its size in bytes."""
        if self._handle is None:
            return 0
        self._handle.flush()
        os.fsync(self._handle.fileno())
        return self._handle.tell()

    def rewind(self, size: int) -> None:
        """Forget events after a checkpoint, so that a resumed run does not say them twice."""
        if self._handle is not None:
            self._handle.seek(0, os.SEEK_END)
            if self._handle.tell() > size:
                self._handle.truncate(size)
                self._handle.seek(size)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()
