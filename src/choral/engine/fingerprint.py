"""Fingerprint of a network: what it computes from its weights, so that another or an edited one is noticed.

`layers`: every module by name, with its class, its attributes and the shapes of its tensors. `code`: a digest of the source text of the
user's own classes, and of the functions and constants they name; a comment is part of it. `initial`: sums over every parameter and
buffer of one seeded build, equal up to the rounding of another machine. `frozen`: the parameters that are not trained. A run that is
resumed must repeat the last two, a loaded file brings its own values. Installed packages count by the names of their classes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from choral.base.portrait import content_of, digest, own_attributes, portrait, shape_of

FINGERPRINT = {"layers": {str: [str]}, "code": str, "initial?": {str: [float]}, "frozen?": [str]}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PART = 1 << 16  # values summed together
_CLOSE = 1e-5  # difference of sums that rounding makes, relative to the norm of the values
_LONGEST = 50  # characters of one side of a difference


def fingerprint(*networks: nn.Module) -> dict[str, Any]:
    """Return the layers and the code of freshly built networks, as plain content."""
    layers: dict[str, list[str]] = {}
    for number, network in enumerate(networks):
        layers |= {f"{number}/{name}" if number else name: parts for name, parts in _layers(network)}
    classes = {type(m) for network in networks for m in network.modules()}
    return {"layers": layers, "code": digest("".join(sorted(map(portrait, classes))))}


def initial(network: nn.Module) -> dict[str, Any]:
    """Return sums over every parameter and buffer of a network, and the names of frozen parameters."""
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
        yield "the code of the network's forward methods was changed"
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
