"""Arrays from an .npz file, looked at before they are read: nothing pickled, and no small file that unpacks to gigabytes."""

import math
import zipfile
from pathlib import Path

import numpy as np

from choral.base.errors import InputError

_BYTES = 1 << 30  # of one array, beyond which it may not be packed more tightly than this:
_RATIO = 100


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; InputError says what is wrong with any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                _check_size(archive, entry, path)
        with np.load(path, allow_pickle=False) as held:
            return {n: held[n] for n in held.files}
    except InputError:
        raise
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        pickled = "allow_pickle" in str(error)
        why = (
            "it holds Python objects, which choral never unpickles" if pickled else str(error).strip() or "it is empty"
        )
        raise InputError(
            f"{path} cannot be read as an .npz file of arrays: {why}; make it with numpy.savez."
        ) from error


def _check_size(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    """Raise InputError if an array is larger than it says, or far larger than the space it takes."""
    if entry.file_size > max(_BYTES, _RATIO * entry.compress_size):
        raise InputError(
            f"{path}: {entry.filename} unpacks from {entry.compress_size:,} to {entry.file_size:,} bytes; above "
            f"{_BYTES:,} bytes at most {_RATIO} times the packed size is read; save it with numpy.savez, unpacked."
        )
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        size = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and size > entry.file_size:
            raise InputError(
                f"{path}: {entry.filename} says it holds {size:,} bytes, but {entry.file_size:,} are there; make it again."
            )
