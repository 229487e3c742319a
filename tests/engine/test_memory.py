"""Freed memory stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from choral.engine.memory import keep_freed
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed() is (sys.argv[2] == "set")
def work():
    torch.ones(12 << 20)
for _ in range(15):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str, **environment: str) -> int:
    """Return the page faults of ten rounds of allocating and freeing 48 MiB, in a process of its own."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", FAULTS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | environment)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_steps_use_the_same_memory_again() -> None:
    """Without the setting every round faults its pages in anew."""
    assert faults("keep", "set") < 100
    assert faults("plain", "") > 1_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_a_choice_of_the_user_stands() -> None:
    """Whoever set the allocator by the environment keeps that setting."""
    assert faults("keep", "left", MALLOC_TRIM_THRESHOLD_="131072") > 1_000
