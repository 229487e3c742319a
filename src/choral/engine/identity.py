"""Identity of a run: everything its members depend on, as plain content, and how two identities differ."""

import json
from collections.abc import Iterator
from typing import Any

from choral.data.inputs import written
from choral.data.sources import Source
from choral.engine.files import checksum, pack_tensors
from choral.engine.task import Task
from choral.recipes.recipe import Recipe


def identity_of(task: Task, source: Source, recipe: Recipe, *, seed: int, executor: str) -> dict[str, Any]:
    """Return what every later call into the same folder must repeat."""
    network = task.blueprint.network()
    shapes = [f"{n} {tuple(p.shape)}" for n, p in network.named_parameters()]
    identity = {
        "recipe": recipe.to_dict(),
        "seed": seed,
        "data": source.digest(),
        "inputs": written(task.transforms),
        "interface": task.blueprint.interface.to_dict(),
        "likelihood": task.likelihood.to_dict(),
        "network": checksum("\n".join(shapes).encode()),
        "executor": executor,
        "device": task.device.type,
        "precision": task.precision,
    }
    if task.blueprint.parent is not None:
        identity["given weights"] = checksum(pack_tensors(dict(task.blueprint.parent.state_dict())))
    plain: dict[str, Any] = json.loads(json.dumps(identity))  # as a file gives it back
    return plain


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield one line for each place where two plain structures differ, both values shown.

    >>> list(differences({"seed": 0, "plan": [1, 2]}, {"seed": 1, "plan": [1, 3]}))
    ['plan[1] was 2, now 3', 'seed was 0, now 1']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new)):
            yield from differences(a, b, f"{where}[{i}]")
    elif old != new:
        yield f"{where} was {_short(old)}, now {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
