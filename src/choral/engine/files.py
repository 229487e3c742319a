"""Files written whole or not at all, with checksums; safetensors and JSON only."""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from choral.errors import RunError


def write_bytes(path: Path, data: bytes) -> str:
    """Write a file aside, force it to disk, then rename it into place; return its checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    with open(aside, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(aside, path)
    return checksum(data)


def write_json(path: Path, content: Any) -> str:
    """Write JSON whole or not at all."""
    return write_bytes(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def checksum(data: bytes) -> str:
    """Return a short checksum."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def pack_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> bytes:
    """Return tensors and a JSON header as the bytes of a safetensors file (equal input, equal bytes)."""
    from safetensors.torch import save

    ready: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        ready[name] = tensor.clone() if place in taken else tensor  # the format refuses tensors that share memory
        taken.add(place)
    return save(ready, metadata={"choral": json.dumps(header or {}, sort_keys=True)})


def unpack_tensors(data: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and header of a safetensors file; refuses anything else, above all pickle.

    Args:
        data: the file's bytes.
        name: what to call it in an error.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    pickled = len(data) > 1 and data[0] == 0x80 and data[1] in range(2, 6) and data[8:9] != b"{"
    if data[:2] == b"PK" or pickled:  # a zip of pickles, or a bare one; a safetensors header opens with a brace
        raise RunError(
            f"{name} is a pickle (such as torch.save makes), which choral never opens because loading one can run any "
            "code; save with Ensemble.save, or load the weights yourself and hand the network to choral.fit."
        )
    try:
        tensors = load(data)
        (size,) = struct.unpack("<Q", data[:8])
        meta = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        header = json.loads(meta["choral"])
    except (SafetensorError, KeyError, struct.error, UnicodeDecodeError, json.JSONDecodeError, ValueError) as error:
        raise RunError(
            f"{name} is not a whole choral file ({len(data)} bytes read): it was cut short, damaged or is of another kind; "
            "copy or make it again."
        ) from error
    return tensors, header


def read_checked(path: Path, expected: str) -> bytes | None:
    """Return a file's bytes if they have the expected checksum, else None."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if checksum(data) == expected else None


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes tensors take."""
    return sum(t.numel() * torch.empty((), dtype=t.dtype).element_size() for t in tensors.values())
