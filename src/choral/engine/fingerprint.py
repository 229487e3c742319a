"""Fingerprint of a network: what it computes from its weights, so that another or an edited one is noticed.

`layers`: every module by name, with its class, its attributes and the shapes of its tensors. `code`: a digest of the source text of the
user's own classes, and of the functions and constants they name; a comment is part of it. `initial`: the SHA-256 of every parameter and
buffer of one seeded build, and which are frozen; a run that is resumed must repeat them, a loaded file brings its own values. Installed
packages count by the names of their classes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from choral.base.portrait import content_of, digest, own_attributes, portrait, shape_of

FINGERPRINT = {"layers": {str: [str]}, "code": str, "initial?": {str: str}}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_LONGEST = 50  # characters of one side of a difference


def fingerprint(*networks: nn.Module) -> dict[str, Any]:
    """Return the layers and the code of freshly built networks, as plain content."""
    layers: dict[str, list[str]] = {}
    for number, network in enumerate(networks):
        layers |= {f"{number}/{name}" if number else name: parts for name, parts in _layers(network)}
    classes = {type(m) for network in networks for m in network.modules()}
    return {"layers": layers, "code": digest("".join(sorted(map(portrait, classes))))}


def initial(network: nn.Module) -> dict[str, str]:
    """Return the content of every parameter and buffer of a network, and whether it is frozen."""
    frozen = {n: "" if p.requires_grad else ", frozen" for n, p in network.named_parameters()}
    tensors = (*network.named_parameters(), *network.named_buffers())
    return {n: content_of(t) + frozen.get(n, ", buffer") for n, t in tensors}


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
        yield "the code of the network's forward methods was changed"
    if "initial" in old and "initial" in new:
        yield from _values_apart(old["initial"], new["initial"])


def _values_apart(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    pairs = {n: (v.partition(", "), new.get(n, "").partition(", ")) for n, v in old.items() if new.get(n) != v}
    for name, (one, other) in pairs.items():
        if one[2] != other[2]:
            yield f"the network's parameter '{name}' was {one[2] or 'trained'}, now {other[2] or 'trained'}"
    for name in [n for n, (one, other) in pairs.items() if one[0] != other[0]][:1]:
        yield f"the first values of the network's '{name}' are others (its initialization was changed)"


def _apart(old: list[str], new: list[str]) -> tuple[str, str]:
    """Return what two layers, each its class and its settings, do not share, as short texts."""
    if old[0] == new[0]:
        old, new = [p for p in old if p not in new], [p for p in new if p not in old]
    texts = (", ".join(parts) or "without" for parts in (old, new))
    was, now = (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts)
    return was, now


def _layers(network: nn.Module) -> Iterator[tuple[str, list[str]]]:
    for name, module in network.named_modules(remove_duplicate=False):
        hooks = [hook for kind in _HOOKS for hook in vars(module).get(kind, {}).values() if not _is_ours(hook)]
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        parts = [f"{k}={portrait(v)}" for k, v in own_attributes(module).items()]
        parts += [f"{n}: {shape_of(t)}" for n, t in tensors] + [f"hook {portrait(h)}" for h in hooks]
        yield name, [type(module).__qualname__, *parts]


def attributes(network: nn.Module) -> dict[str, str]:
    """Return the numbers and words that a network's modules hold as attributes, also in lists and dicts, by full name."""
    found = {}
    for name, module in network.named_modules():
        for key, value in own_attributes(module).items():
            if _is_plain(value):
                found[f"{name}.{key}".lstrip(".")] = repr(value)
    return found


def held_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors that a network's modules hold as attributes, beside parameters and buffers, by full name."""
    found = {}
    for name, module in network.named_modules():
        for key, value in own_attributes(module).items():
            if isinstance(value, Tensor):
                found[f"{name}.{key}".lstrip(".")] = value.detach().clone()
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | int | float | bool)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).partition(".")[0] == "choral"
