"""Ask the C library to keep what a training step frees, since the next step wants it again.

glibc hands large freed blocks back to the system, so every step of a convolutional network pays for thousands of page
faults: a LeNet-S step of 128 images takes 1.27 times as long with one thread. Peak memory stays the same; memory that was
used once stays with the process until it ends.
"""

import ctypes
import os
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
_KEPT = 1 << 30  # blocks up to this size come from memory that is kept
_LIMIT = 32 << 20  # the largest threshold older versions take
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@cache
def keep_freed() -> bool:
    """Set this once for the process; returns whether it was set.

    Nothing changes where the library is not glibc, or where the user has settled the allocator by a variable of the
    environment (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES, LD_PRELOAD).
    """
    if platform.libc_ver()[0] != "glibc" or any(os.environ.get(name) for name in _CHOSEN_BY_USER):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mapped = mallopt(_MMAP_THRESHOLD, _KEPT) or mallopt(_MMAP_THRESHOLD, _LIMIT)
    return bool(mapped and mallopt(_TRIM_THRESHOLD, _KEPT))
