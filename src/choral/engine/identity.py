"""Identity of a run: everything its members depend on, as plain content, and how two identities differ, in the user's words."""

import json
from collections.abc import Iterator
from typing import Any

from choral.base.portrait import content_of, digest
from choral.data.inputs import written
from choral.data.sources import Source
from choral.engine import fingerprint
from choral.engine.task import Task
from choral.recipes.recipe import Recipe

_TOTALS = ("epochs", "members", "draws")  # of a whole recipe, with the fields of plans they are sums of:
_PARTS = ("epochs", "times", "branches", "members", "draws")
_PLAIN = ("Recipe", "Train")  # kinds whose fields are what users call them


def identity_of(
    task: Task, source: Source, recipe: Recipe, *, seed: int, executor: str, watched: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return what every later call into the same folder must repeat.

    `watched` is what validation was asked for, None for none.
    """
    network = task.blueprint.fingerprint()
    identity = {
        "recipe": recipe.to_dict(),
        "totals": {name: recipe.describe()[name] for name in _TOTALS},
        "seed": seed,
        "data": source.digest(),
        "inputs": written(task.transforms),
        "interface": task.blueprint.interface.to_dict(),
        "likelihood": task.likelihood.to_dict(),
        "network": network | fingerprint.initial(task.blueprint.joint(0, "initial")),
        "executor": executor,
        "device": task.device.type,
        "precision": task.precision,
    }
    if source.sampling is not None:
        identity["sampling"] = source.sampling.digest
    if (parent := task.blueprint.parent) is not None:
        identity["given weights"] = digest(repr([*map(content_of, (*parent.parameters(), *parent.buffers()))]))
    identity |= watched or {}
    plain: dict[str, Any] = json.loads(json.dumps(identity))  # as a file gives it back
    return plain


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return in words how two identities differ; each difference once.

    >>> same = {"recipe": {"kind": "Recipe", "name": "single"}, "network": {"layers": {}, "code": ""}}
    >>> differences(same | {"seed": 0}, same | {"seed": 1})
    ['seed was 0, now 1']
    """
    networks = list(fingerprint.changes(old["network"], new["network"]))
    if old.get("data") != new.get("data"):  # which may well be why networks differ
        lines = [_SENTENCES["data"], *_of_recipes(old, new), *networks[:1]]
    else:
        lines = [*_of_recipes(old, new), *networks]
    said = ("recipe", "totals", "network")
    for name in [*new, *(n for n in old if n not in new)]:
        if name in _SENTENCES and old.get(name) != new.get(name):
            lines.append(_SENTENCES[name])
        elif name not in said:
            lines += _values(old.get(name), new.get(name), name, "Recipe")
    return list(dict.fromkeys(lines))


_SENTENCES = {
    "data": "the training data was changed",
    "sampling": "the sampler of the DataLoader was changed",
    "given weights": "the weights of the network handed over were changed",
}


def _of_recipes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    names = [side["recipe"].get("name") for side in (old, new)]
    if names[0] != names[1]:
        yield f"method was {names[0]}, now {names[1]}"
        return
    before, after = (side.get("totals", {}) for side in (old, new))
    totals = [f"{n} was {before.get(n)}, now {after.get(n)}" for n in after if before.get(n) != after.get(n)]
    yield from totals
    parts = _values(old["recipe"], new["recipe"], "recipe", "Recipe")
    yield from (p for p in parts if not totals or p.split(" ")[0] not in _PARTS)


def _values(old: Any, new: Any, field: str, kind: str) -> Iterator[str]:
    """Yield how two plain structures differ, places named by their field and the kind of value it belongs to."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("kind") == new.get("kind"):
        for name in [*new, *(n for n in old if n not in new)]:
            yield from _values(old.get(name), new.get(name), name, str(new.get("kind", kind)))
    elif _is_nested(old) and _is_nested(new) and len(old) == len(new):
        for a, b in zip(old, new):
            yield from _values(a, b, field, kind)
    elif old != new:
        yield f"{_word(field, kind)} was {_short(old)}, now {_short(new)}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, dict) for v in value)


def _word(field: str, kind: str) -> str:
    if field == "start":  # of a schedule
        return "lr"
    return field if kind in _PLAIN else f"{field} of {kind}"


def _short(value: Any) -> str:
    """Return a value as a user would write it, in one line."""
    if isinstance(value, dict) and "kind" in value:
        return str(value["kind"])
    if isinstance(value, list):
        text = f"({', '.join(map(_short, value))})"
    else:
        text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
