"""Fingerprint of a network: what it computes from its weights, as far as Python shows it, so that an edited one is noticed.

Three parts. `layers`: every module by name, with its class and settings - an activation, a rate of dropout, any attribute of its
own. `code`: the bytecode of the methods of the user's own classes, and of the functions and constants they name; it needs no
source file, so networks typed at a prompt have one, and comments and names of lines do not count. `initial`: a few sums over
freshly drawn weights, so that another initialization is noticed. Installed packages count by the names of their classes alone.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from choral.base.portrait import Portrait, own_attributes, shape_of

FINGERPRINT = {"layers": {str: [str]}, "code": str, "python": str, "initial?": [float]}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_SAMPLED = 4096  # values of a parameter that its sums are taken over
_CLOSE = 1e-4  # relative difference that another processor may make in drawn weights
_LONGEST = 50  # characters of one side of a difference


def fingerprint(*networks: nn.Module) -> dict[str, Any]:
    """Return the layers and the code of freshly built networks, as plain content."""
    layers: dict[str, list[str]] = {}
    for number, network in enumerate(networks):
        layers |= {f"{number}/{name}" if number else name: parts for name, parts in _layers(network)}
    classes = {type(m) for network in networks for m in network.modules()}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"  # another compiles to other bytecode
    return {"layers": layers, "code": Portrait(weights=False).of_classes(classes), "python": python}


def initial(network: nn.Module) -> list[float]:
    """Return sums that tell one drawing of weights from another, but not one processor from another."""
    sums = torch.zeros(3, dtype=torch.float64)
    for number, p in enumerate(network.parameters()):
        if not is_lazy(p) and p.dtype.is_floating_point:
            values = p.detach().flatten()[:_SAMPLED].double().cpu().nan_to_num()
            wave = torch.cos(torch.arange(len(values), dtype=torch.float64) * 0.7 + number)
            sums += torch.stack([values @ wave, values.abs().sum(), values.square().sum()])
    return [float(f"{s:.9g}") for s in sums]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words how two networks differ by their fingerprints."""
    before, after = old["layers"], new["layers"]
    for name in [*before, *(n for n in after if n not in before)]:
        if before.get(name) != after.get(name):
            was, now = _apart(before.get(name, ["absent"]), after.get(name, ["absent"]))
            yield f"the network's {_called(name)} was {was}, now {now}"
    if list(before.values()) == list(after.values()) and old["python"] == new["python"] and old["code"] != new["code"]:
        yield "the code of the network's forward methods was changed"
    pairs = list(zip(old.get("initial", ()), new.get("initial", ())))
    largest = max((abs(a) for a, _ in pairs), default=0.0)
    if before == after and not all(math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE * largest) for a, b in pairs):
        yield "the network's weights are drawn in another way (its initialization was changed)"


def _apart(old: list[str], new: list[str]) -> tuple[str, str]:
    """Return what two layers, each its class and its settings, do not share, as short texts."""
    if old[0] == new[0]:
        old, new = [p for p in old if p not in new], [p for p in new if p not in old]
    texts = [", ".join(parts) or "without" for parts in (old, new)]
    if min(map(len, texts)) > _LONGEST:  # what they share at the beginning would be all that is shown
        words = [text.split(", ") for text in texts]
        first = next((i for i, pair in enumerate(zip(*words)) if pair[0] != pair[1]), 0)
        texts = [("..., " if first else "") + ", ".join(some[first:]) for some in words]
    was, now = (text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..." for text in texts)
    return was, now


def _called(name: str) -> str:
    return f"layer '{name}'" if name else "outermost module"


def _layers(network: nn.Module) -> Iterator[tuple[str, list[str]]]:
    for name, module in network.named_modules(remove_duplicate=False):
        own = own_attributes(module)
        hooks = [_of(hook) for kind in _HOOKS for hook in vars(module).get(kind, {}).values() if not _is_ours(hook)]
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        parts = [f"{k}={_of(v)}" for k, v in sorted(own.items())]
        parts += [f"{n}: {shape_of(t)}" for n, t in tensors] + [f"hook {h}" for h in hooks]
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


def _of(value: Any) -> str:
    return Portrait(weights=False).of(value)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).partition(".")[0] == "choral"
