"""Identity of a run: everything its members depend on, as plain content, and the differences of two identities as text."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from choral.base.text import short
from choral.base.values import content_of, digest, own_attributes, portrait, shape_of
from choral.data.inputs import written

if TYPE_CHECKING:
    from choral.engine.job import Job

FINGERPRINT = {"layers": dict[str, list], "code": str, "initial?": dict[str, list], "frozen?": list[str]}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PART = 1 << 16  # values summed together
_CLOSE = 1e-5  # difference of sums that rounding makes, relative to the norm of the values
_LONGEST = 50  # characters of one side of a difference


def fingerprint(*networks: nn.Module) -> dict[str, Any]:
    """Return the layers (class, attributes, shapes) and the digest of the user's source code of new networks, to detect changes."""
    layers: dict[str, list[str]] = {}
    for number, network in enumerate(networks):
        layers |= {f"{number}/{name}" if number else name: parts for name, parts in _layers(network)}
    classes = {type(m) for network in networks for m in network.modules()}
    return {"layers": layers, "code": digest("".join(sorted(map(portrait, classes))))}


def initial(network: nn.Module) -> dict[str, Any]:
    """Return sums over every parameter and buffer of a network, equal up to another machine's rounding, and which are frozen."""
    tensors = (*network.named_parameters(), *network.named_buffers())
    frozen = [n for n, p in network.named_parameters() if not p.requires_grad]
    return {"initial": {n: _sums(t.detach()) for n, t in tensors}, "frozen": frozen}


def _sums(tensor: Tensor) -> list[float]:
    """Return the norm and a weighted sum of each part of a tensor's values; a number for the content of whole numbers."""
    if is_lazy(tensor) or tensor.is_meta:
        return []
    if not tensor.is_floating_point():
        return [float(int(digest(content_of(tensor)), 16))]
    weights = 1 + torch.arange(_PART, dtype=torch.float64) * 0.618 % 1
    sums = []
    for part in tensor.flatten().cpu().split(_PART):
        values = part.double().nan_to_num(5.0, 7.0, -7.0)
        sums += [float(values.norm()), float(values @ weights[: len(values)])]
    return sums


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words how two networks differ by their fingerprints."""
    before, after = old["layers"], new["layers"]
    for name in [n for n in before | after if before.get(n) != after.get(n)]:
        was, now = _apart(before.get(name, ["absent"]), after.get(name, ["absent"]))
        called = f"layer '{name}'" if name else "outermost module"
        yield f"the network's {called} was {was}, now {now}"
    if before != after:
        return
    if old["code"] != new["code"]:
        yield "the code of the network's forward methods was changed, or cannot be read here (typed at a prompt)"
    if "initial" not in old or "initial" not in new:
        return
    for name in sorted({*old["frozen"]} ^ {*new["frozen"]}):
        was, now = ("frozen" if name in side["frozen"] else "trained" for side in (old, new))
        yield f"the network's parameter '{name}' was {was}, now {now}"
    for name in [n for n, sums in old["initial"].items() if not _close(sums, new["initial"].get(n, []))][:1]:
        yield f"the first values of the network's '{name}' are others (its initialization was changed)"


def _close(old: list[float], new: list[float]) -> bool:
    pairs = [(old[i : i + 2], new[i : i + 2]) for i in range(0, len(old), 2)]
    close = (abs(a - b) <= _CLOSE * max(map(abs, one)) for one, other in pairs for a, b in zip(one, other))
    return len(old) == len(new) and all(close)


def _apart(old: list[str], new: list[str]) -> tuple[str, str]:
    """Return what two layers, each its class and its settings, do not share, as short texts."""
    if old[0] == new[0]:
        old, new = [p for p in old if p not in new], [p for p in new if p not in old]
    was, now = (short(", ".join(parts) or "without", _LONGEST) for parts in (old, new))
    return was, now


def _layers(network: nn.Module) -> Iterator[tuple[str, list[str]]]:
    for name, module in network.named_modules(remove_duplicate=False):
        hooks = [hook for kind in _HOOKS for hook in vars(module).get(kind, {}).values()]
        hooks = [h for h in hooks if not str(getattr(h, "__module__", type(h).__module__)).startswith("choral.")]
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        parts = [f"{k}={portrait(v)}" for k, v in own_attributes(module).items()]
        parts += [f"{n}: {shape_of(t)}" for n, t in tensors] + [f"hook {portrait(h)}" for h in hooks]
        yield name, [type(module).__qualname__, *parts]


_PLAIN = ("Recipe", "Train")  # kinds whose fields are what users call them


def identity_of(job: "Job") -> dict[str, Any]:
    """Return what every later call with the same folder must repeat."""
    task, source, recipe = job.task, job.source, job.recipe
    network = task.blueprint.fingerprint()
    identity = {
        "recipe": recipe.to_dict(),
        "seed": job.seed,
        "data": source.digest(),
        "inputs": written(task.transforms),
        "interface": task.blueprint.interface.to_dict(),
        "likelihood": task.likelihood.to_dict(),
        "network": network | initial(task.blueprint.joint(0, "initial")),
        "executor": job.compute.executor,
        "device": task.device.type,
        "precision": task.precision,
    }
    if source.sampling is not None:
        identity["sampling"] = source.sampling.digest
    if (parent := task.blueprint.parent) is not None:
        identity["given weights"] = digest(repr([*map(content_of, (*parent.parameters(), *parent.buffers()))]))
    identity |= job.watched
    plain: dict[str, Any] = json.loads(json.dumps(identity))  # as a file gives it back
    return plain


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return in words how two identities differ; each difference once.

    >>> same = {"recipe": {"kind": "Recipe", "name": "single"}, "network": {"layers": {}, "code": ""}}
    >>> differences(same | {"seed": 0}, same | {"seed": 1})
    ['seed was 0, now 1']
    """
    if old.get("seed") != new.get("seed"):  # it draws the held-out rows too
        return [*_of_recipes(old, new), *_in_words(old["seed"], new["seed"], "seed")]
    networks = list(changes(old["network"], new["network"]))
    if any(old.get(name) != new.get(name) for name in _HOLDING):  # so that other rows are trained on
        lines = [line for name in (*_HOLDING, "stop") for line in _in_words(old.get(name), new.get(name), name)]
        return [*lines, "the training rows were changed"]
    if old.get("data") != new.get("data"):  # which may well be why networks differ
        lines = [_SENTENCES["data"], *_of_recipes(old, new), *networks[:1]]
    else:
        lines = [*_of_recipes(old, new), *networks]
    for name in [*new, *(n for n in old if n not in new)]:
        if name in _SENTENCES and old.get(name) != new.get(name):
            lines.append(_SENTENCES[name])
        elif name not in ("recipe", "network"):
            lines += _in_words(old.get(name), new.get(name), name)
    return list(dict.fromkeys(lines))


_HOLDING = ("validation", "folds")
"""What decides which rows are held out, as `fit` takes it."""
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
    yield from _in_words(old["recipe"], new["recipe"], "recipe")


def _in_words(old: Any, new: Any, field: str) -> Iterator[str]:
    for name, kind, a, b in unequal(old, new, field):
        word = "lr" if name == "start" else name if kind in _PLAIN else f"{name} of {kind}"  # the start of a schedule
        yield f"{word} was {shown(a)}, now {shown(b)}"


def unequal(old: Any, new: Any, field: str, kind: str = "Recipe") -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the differences of two plain structures: the field, the kind of value it belongs to, and both values."""
    match old, new:
        case dict(), dict() if old.get("kind") == new.get("kind"):
            for name in [*new, *(n for n in old if n not in new)]:
                yield from unequal(old.get(name), new.get(name), name, str(new.get("kind", kind)))
        case [dict(), *_], [dict(), *_] if len(old) == len(new):
            for a, b in zip(old, new):
                yield from unequal(a, b, field, kind)
        case _ if old != new:
            yield field, kind, old, new


def shown(value: Any) -> str:
    """Return a value as a user would write it, in one line."""
    match value:
        case {"kind": kind}:
            return str(kind)
        case list():
            return short(f"({', '.join(map(shown, value))})", 80)
    return "none" if value is None else short(str(value), 80)
