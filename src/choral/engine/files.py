"""Files: written atomically, sealed with their SHA-256, checked against a schema; safetensors and JSON only.

A JSON file has its seal under one key: the format and the digest of everything else. A file of tensors has its digest in its header, taken
over the whole file with zeros in the place of the digest.
"""

import contextlib
import glob
import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from choral.base.errors import RunError


def expect(content: Any, fields: Mapping[str, Any], where: str) -> Any:
    """Return a dict if it has these fields with these outer types ('?' marks optional ones); RunError names the first wrong one."""
    found = content if isinstance(content, dict) else {}
    for name, kind in fields.items():
        field = name.removesuffix("?")
        if field not in found and field != name:
            continue
        if field not in found or not isinstance(found[field], getattr(kind, "__origin__", kind)):
            held = repr(found[field])[:60] if field in found else "missing"
            raise RunError(f"{where} does not hold what it should: {field} is {held}; copy or make it again.")
    return content


FORMAT = 2
Part = bytes | memoryview
_SEAL = "sealed"
_BLANK = "0" * 64
_MARK = b'{\\"sha256\\": \\"'  # how the header opens inside the file; a quote in a value is escaped twice
_LONGEST = 1 << 28  # bytes of JSON
_PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")


def write_bytes(path: Path, data: bytes | Sequence[Part], *, within: Path | None = None) -> str:
    """Write a file atomically (temporary file, fsync, rename), not through links and not outside of `within`; return its SHA-256."""
    parts = [data] if isinstance(data, bytes) else data
    state = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if within is not None and not path.parent.resolve().is_relative_to(within.resolve()):
            raise RunError(f"{path.parent} is a link that leads out of {within}; replace it by a folder.")
        if path.exists() and not path.is_file():
            raise RunError(f"{path} is a device or a folder, not a file; give another name.")
        aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o666), "wb") as handle:
                for part in parts:
                    handle.write(part)
                    state.update(part)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _settle(path.parent)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise RunError(f"{path} cannot be written ({getattr(error, 'strerror', error)}); give another path.") from error
    return state.hexdigest()


_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def open_kept(path: Path, flags: int) -> int:
    """Return a descriptor of a file opened for appending, or created; a link raises an error."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW | flags, 0o666)
    except OSError as error:
        why = "it is a link, which could lead anywhere" if path.is_symlink() else error.strerror
        raise RunError(f"{path} cannot be written ({why}); remove it or use another run_dir.") from error


def _settle(folder: Path) -> None:
    """Force a folder's list of names to disk, so that a renamed file is still there after a loss of power."""
    with contextlib.suppress(OSError):  # some file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(folder: Path, name: str = "", *, seconds: float = 0.0) -> None:
    """Remove temporary files that killed writers left, of one file or of all; files younger than some seconds may still be in use."""
    for path in folder.glob(f".{glob.escape(name)}*.part"):
        with contextlib.suppress(OSError):  # another process was faster
            if _PART.fullmatch(path.name) and time.time() - path.stat().st_mtime >= seconds:
                path.unlink()


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of(content: Any) -> str:
    """Return the SHA-256 of plain content, whatever the order of its keys."""
    plain = json.loads(json.dumps(content))  # keys as a file gives them back
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, content: Any, *, within: Path | None = None) -> str:
    """Write JSON atomically; a dict is sealed."""
    if isinstance(content, dict):
        content = {k: v for k, v in content.items() if k != _SEAL}
        content[_SEAL] = {"format": FORMAT, "sha256": digest_of(content)}
    return write_bytes(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode(), within=within)


def read_json(path: Path, *, advice: str = "copy or make it again") -> dict[str, Any] | None:
    """Return the dict in a JSON file, without its seal; None if there is no file, RunError with advice if it is damaged."""
    try:
        if (size := path.stat().st_size) > _LONGEST:
            raise RunError(f"{path} holds {size} bytes of JSON; at most {_LONGEST} are read; {advice}.")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); {advice}.") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not whole JSON ({str(error)[:200]}); {advice}.") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} holds a {type(content).__name__} where a dict belongs; {advice}.")
    seal = content.pop(_SEAL, None)
    if not isinstance(seal, dict) or seal.get("sha256") != digest_of(content):
        raise RunError(f"{path} is damaged or was changed: its content does not have its checksum; {advice}.")
    if seal.get("format") != FORMAT:
        raise RunError(f"{path} has format {seal.get('format')}; this choral reads format {FORMAT}: use a newer one.")
    return content


def pack_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> bytes:
    """Return tensors and a JSON header as the bytes of a sealed safetensors file (equal input, equal bytes)."""
    return b"".join(pack_parts(tensors, header))


def pack_parts(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> list[Part]:
    """Return the same bytes in pieces, for `write_bytes`, without copying a large file."""
    from safetensors.torch import save

    ready: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        ready[name] = tensor.clone() if place in taken else tensor  # the format refuses tensors that share memory
        taken.add(place)
    text = json.dumps({"format": FORMAT} | dict(header or {}), sort_keys=True)
    # one key of metadata only: the writer does not keep the order of several
    data = save(ready, metadata={"choral": f'{{"sha256": "{_BLANK}", {text[1:]}'})
    start = data.index(_MARK) + len(_MARK)
    view = memoryview(data)
    return [view[:start], _sealed(data, start).encode(), view[start + 64 :]]


def _sealed(data: bytes, start: int) -> str:
    """Return the digest of a file of tensors whose own digest stands at `start`."""
    view = memoryview(data)
    state = hashlib.sha256(view[:start])
    state.update(_BLANK.encode())
    state.update(view[start + 64 :])
    return state.hexdigest()


def is_pickle(data: bytes) -> bool:
    """Return whether a file begins as a pickle or a zip of pickles; safetensors begin with 8 bytes of a length, then a brace."""
    return data[8:9] != b"{" and re.match(rb"PK\x03\x04|\x80[\x02-\x05]", data) is not None


def unpack_tensors(data: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and header of the bytes of a safetensors file; refuses damaged ones and anything else, above all pickle."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if is_pickle(data):
        raise RunError(f"{name} is a pickle, which can run any code and is never opened; save with Ensemble.save.")
    broken = RunError(f"{name} was cut short, damaged or is no file of choral's; copy or make it again.")
    try:
        (size,) = struct.unpack("<Q", data[:8])
        meta = json.loads(data[8 : 8 + size])["__metadata__"]
        header = dict(json.loads(meta["choral"]))
        digest = header.pop("sha256", None)
        tensors = load(data)
    except (SafetensorError, KeyError, TypeError, struct.error, ValueError, RecursionError) as error:
        raise broken from error
    start = data.find(_MARK, 8, 8 + size) + len(_MARK)
    if data[start : start + 64] != str(digest).encode() or _sealed(data, start) != digest:
        raise RunError(f"{name} was cut short, damaged or changed: its bytes do not have its checksum; copy it again.")
    if header.get("format") != FORMAT:
        raise RunError(f"{name} has format {header.get('format')}; this choral reads format {FORMAT}: use a newer one.")
    return tensors, header


def read_checked(path: Path, expected: str) -> bytes | None:
    """Return a file's bytes if they have the expected SHA-256, else None."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if sha256(data) == expected else None
