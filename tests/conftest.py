"""Settings shared by all tests: one thread for each worker, and the rotation of the quick suite."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `full` what the quick suite leaves to `make test-all`.

    Of a test over several axes (methods x problems x executors) the quick suite runs a Latin square: every value of
    every axis, and of three axes every pair of the two longer ones, with the shortest axis rotating.
    """
    indices = {item: _indices(item) for item in items}
    lengths: dict[str, list[set[int]]] = {}
    for item, found in indices.items():
        seen = lengths.setdefault(_function(item), [set() for _ in found])
        for values, index in zip(seen, found, strict=True):
            values.add(index)
    for item, found in indices.items():
        counts = [len(values) for values in lengths[_function(item)] if len(values) > 1]
        if len(counts) > 1 and sum(found) % min(counts):
            item.add_marker("full")


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _indices(item: pytest.Item) -> tuple[int, ...]:
    """Return the position of a test on each of its axes."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ()
    names = (mark.args[0] for mark in item.iter_markers("parametrize"))
    first = (name.split(",")[0].strip() if isinstance(name, str) else name[0] for name in names)
    return tuple(callspec.indices[name] for name in first)
