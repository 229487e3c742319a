"""Settings shared by all tests: one thread for each worker, and the rotation of the quick suite."""

import gc
import zlib
from collections import defaultdict

import pytest
import torch

torch.set_num_threads(1)
CASES = 3
"""Cases of one test that the quick suite runs, about; one if it is marked `slow`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `full` the cases that the quick suite leaves to `make test-all`.

    Of a test over several axes (methods x problems x executors) it runs a Latin square: the shortest axis rotates
    along the others. Of the cases that are left it runs every k-th, from a position that differs from test to test.
    A test that marks cases as `full` itself is left as it is.
    """
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        if not any(case.get_closest_marker("full") for case in cases):
            kept = _latin_square(cases)
            step = -(-len(kept) // (1 if cases[0].get_closest_marker("slow") else CASES))
            quick = set(kept[zlib.crc32(name.encode()) % step :: step])
            for case in cases:
                if case not in quick:
                    case.add_marker("full")


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of later garbage collections: 5 to 8 % of the time of the suite."""
    gc.collect()
    gc.freeze()


def _latin_square(cases: list[pytest.Item]) -> list[pytest.Item]:
    indices = [_indices(case) for case in cases]
    lengths = [len(set(values)) for values in zip(*indices, strict=True)]
    axes = [length for length in lengths if length > 1]
    if len(axes) < 2:
        return cases
    return [case for case, index in zip(cases, indices, strict=True) if sum(index) % min(axes) == 0]


def _indices(case: pytest.Item) -> tuple[int, ...]:
    """Return the position of a case on each axis of its test."""
    callspec = getattr(case, "callspec", None)
    if callspec is None:
        return ()
    names = (mark.args[0] for mark in case.iter_markers("parametrize"))
    first = (name.split(",")[0].strip() if isinstance(name, str) else name[0] for name in names)
    return tuple(callspec.indices[name] for name in first)
