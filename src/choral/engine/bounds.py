"""Bounds on what a file may ask for, checked before memory or time is spent on it.

They are generous: nothing that was ever fitted comes near them. What a caller asks for in Python has no bounds.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from choral import models
from choral.base.errors import RunError

_COUNTS: dict[str, tuple[float, float]] = {
    "batch_repetition": (1, 10_000),
    "branches": (1, 1_000_000),
    "components": (1, 10_000),
    "draws": (1, 100_000),
    "members": (1, 10_000),
    "minimum_channels": (0, 1_000_000),
    "repetition": (0, 1),
    "scale": (0, 1_000),
    "subgroups": (1, 10_000),
    "times": (0, 1_000_000),
    "width": (0, 1_000),
}
NETWORKS = 1_000_000
_ARGUMENT = 10_000_000  # any number a network is built from
_DEPTH = 2_000  # layers
_PARAMETERS = 100_000_000
_GROWTH = 1_000  # parameters built for each one that is stored


def check_counts(content: Any, where: str) -> None:
    """Raise RunError for a count in a recipe, as it stands in a file, that is out of bounds."""
    todo = [content]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            for name, value in item.items():
                if name in _COUNTS and isinstance(value, int | float):
                    check(name, value, *_COUNTS[name], where)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)


def check(name: str, value: float, least: float, most: float, where: str) -> None:
    """Raise RunError unless a number of a file lies between two bounds."""
    if not least <= value <= most:
        raise RunError(
            f"{where} asks for {name} = {value:,}, but {least:,} to {most:,} are read from a file; "
            "it is damaged or was not made by choral."
        )


class _Shapes(TorchFunctionMode):
    """Networks built inside have shapes alone, without memory; initializing them does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        changed = next((a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Tensor)), None)
        return changed if in_place and changed is not None else func(*args, **(kwargs or {}))


def check_network(spec: Mapping[str, Any], structure: Mapping[str, Any], stored: int, where: str) -> None:
    """Raise RunError if the network a file names is far larger than what the file stores of it.

    Args:
        spec: the network's name and arguments.
        structure: the structure as a dict, whose members and widths make the network larger.
        stored: numbers that the file stores for one network.
        where: the file's name.
    """
    for name, value in spec["arguments"].items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float):
                check(f"network.{name}", number, -_ARGUMENT, _ARGUMENT, where)
        layers = len(value) if isinstance(value, list) else value if name == "depth" else 0
        if isinstance(layers, int):
            check(f"network.{name}: layers", layers, 0, _DEPTH, where)
    with torch.device("meta"), _Shapes():
        plain = sum(p.numel() for p in models.rebuild(spec).parameters())
    grown = plain * structure.get("members", 1) * max(1.0, structure.get("width") or 2.0) ** 2
    mixture = structure.get("mixture")
    grown *= mixture.get("components", 1) if isinstance(mixture, Mapping) else 1
    most = max(_PARAMETERS, _GROWTH * stored)
    check("network: parameters", math.ceil(grown), 0, most, where)
