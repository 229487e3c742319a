"""Fingerprint of a network: what it computes from its weights, as far as Python shows it, so that an edited one is noticed.

Three parts. `layers`: every module by name, with its class and settings - an activation, a rate of dropout, any attribute of its
own. `code`: the bytecode of the methods of the user's own classes, and of the functions and constants they name; it needs no
source file, so networks typed at a prompt have one, and comments and names of lines do not count. `initial`: a few sums over
freshly drawn weights, so that another initialisation is noticed. Installed packages count by the names of their classes alone.
"""

import hashlib
import inspect
import math
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

FINGERPRINT = {"layers": {str: [str]}, "code": str, "python": str, "initial?": [float]}
_OWN = set(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PACKAGES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_HERE = __file__.rpartition("engine")[0]
_DOCUMENTED = getattr(inspect, "CO_HAS_DOCSTRING", None)
_DEEPEST = 3  # objects in objects
_MANY = 64  # items of a collection that are looked at
_SAMPLED = 4096  # values of a parameter that its sums are taken over
_CLOSE = 1e-4  # relative difference that another processor may make in drawn weights


def fingerprint(*networks: nn.Module) -> dict[str, Any]:
    """Return the layers and the code of freshly built networks, as plain content."""
    layers: dict[str, list[str]] = {}
    for number, network in enumerate(networks):
        layers |= {f"{number}/{name}" if number else name: parts for name, parts in _layers(network)}
    classes = {type(m) for network in networks for m in network.modules()}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"  # another compiles to other bytecode
    return {"layers": layers, "code": _Code().of_classes(classes), "python": python}


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
        yield "the network's weights are drawn in another way (its initialisation was changed)"


def _apart(old: list[str], new: list[str]) -> tuple[str, str]:
    """Return what two layers, each its class and its settings, do not share, as short texts."""
    if old[0] == new[0]:
        old, new = [p for p in old if p not in new], [p for p in new if p not in old]
    texts = [", ".join(parts) or "without" for parts in (old, new)]
    was, now = (text if len(text) <= 80 else text[:77] + "..." for text in texts)
    return was, now


def _called(name: str) -> str:
    return f"layer '{name}'" if name else "outermost module"


def _layers(network: nn.Module) -> Iterator[tuple[str, list[str]]]:
    for name, module in network.named_modules(remove_duplicate=False):
        own = _own(module)
        hooks = [_of(hook) for kind in _HOOKS for hook in vars(module).get(kind, {}).values() if not _is_ours(hook)]
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        parts = [f"{k}={_of(v)}" for k, v in sorted(own.items())]
        parts += [f"{n}: {_shape(t)}" for n, t in tensors] + [f"hook {h}" for h in hooks]
        yield name, [type(module).__qualname__, *parts]


def _own(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond torch's; not the private ones of packages (a trainer's), which come and go."""
    bases = (base for base in type(module).__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins"))
    packaged = any(_is_packaged(getattr(sys.modules.get(base.__module__), "__file__", None) or "") for base in bases)
    hidden = "_" if packaged else "\0"
    return {k: v for k, v in vars(module).items() if k not in _OWN and not k.startswith(hidden)}


def _shape(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "lazy"
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"


def attributes(network: nn.Module) -> dict[str, str]:
    """Return the numbers and words that a network's modules hold as attributes, also in lists and dicts, by full name."""
    found = {}
    for name, module in network.named_modules():
        for key, value in _own(module).items():
            if _is_plain(value):
                found[f"{name}.{key}".lstrip(".")] = repr(value)
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | int | float | bool)


def _of(value: Any, depth: int = _DEEPEST) -> str:
    """Return a text that is the same in the next process and changes with the value."""
    if value is None or isinstance(value, str | int | float | complex | bool | bytes | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, Tensor | np.ndarray):
        return _array(value)
    if isinstance(value, nn.Module | type):
        return value.__qualname__ if isinstance(value, type) else type(value).__qualname__
    if callable(value) and not depth:
        return _name(value)
    if isinstance(value, FunctionType | MethodType):
        return f"{_name(value)} {_Code().of_functions([value])[:8]}"
    if not depth:
        return type(value).__qualname__
    if isinstance(value, Mapping):
        items = sorted(f"{_of(k, 0)}: {_of(v, depth - 1)}" for k, v in list(value.items())[:_MANY])
        return f"{{{', '.join(items)}}} of {len(value)}" if len(value) > _MANY else f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_of(v, depth - 1) for v in list(value)[:_MANY]] if len(value) <= _MANY else [f"{len(value)} items"]
        return f"({', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)})"
    if callable(value) and not hasattr(value, "__dict__"):
        return _name(value)
    inside = dict(list(getattr(value, "__dict__", {}).items())[:_MANY])
    return f"{type(value).__qualname__}({', '.join(f'{k}={_of(v, depth - 1)}' for k, v in sorted(inside.items()))})"


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).partition(".")[0] == "choral"


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _array(value: Tensor | np.ndarray) -> str:
    tensor = torch.as_tensor(value).detach().cpu().contiguous()
    if tensor.numel() <= 4:
        return f"{tensor.tolist()}"
    data = tensor.flatten().view(torch.uint8).numpy().tobytes()
    return f"{_shape(tensor)} {hashlib.blake2b(data, digest_size=4).hexdigest()}"


class _Code:
    """Collects the bytecode of functions and of what they name, each once."""

    def __init__(self) -> None:
        self._state = hashlib.blake2b(digest_size=12)
        self._seen: set[int] = set()

    def of_classes(self, classes: set[type]) -> str:
        """Return the digest of the methods of the user's own classes; those that build are judged by what they built."""
        for kind in sorted(classes, key=lambda c: (c.__qualname__, c.__module__)):
            for base in kind.__mro__:
                methods = {n: _function(m) for n, m in vars(base).items() if n != "__init__"}
                for name in sorted(n for n, m in methods.items() if m is not None):
                    self._add(methods[name])
        return self._state.hexdigest()

    def of_functions(self, functions: list[Callable[..., Any]]) -> str:
        """Return the digest of some functions."""
        for function in functions:
            self._add(_function(function))
        return self._state.hexdigest()

    def _add(self, function: FunctionType | None) -> None:
        if function is None or id(function) in self._seen or _is_installed(function.__code__):
            return
        self._seen.add(id(function))
        self._state.update(
            f"{function.__qualname__}{_of(function.__defaults__)}{_of(function.__kwdefaults__)}".encode()
        )
        for cell in function.__closure__ or ():
            self._name(_enclosed(cell))
        for name in self._compiled(function.__code__):
            self._named(function.__globals__, name)

    def _compiled(self, code: CodeType) -> list[str]:
        """Take in what a function does, without its lines; return the names it uses, those of functions in it too."""
        names = list(code.co_names)
        self._state.update(code.co_code)
        for constant in code.co_consts[1:] if _is_documented(code) else code.co_consts:
            if isinstance(constant, CodeType):
                names += self._compiled(constant)
            else:
                self._state.update(_of(constant).encode())
        self._state.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
        return names

    def _named(self, around: dict[str, Any], name: str) -> None:
        """Take in a global that code names: a constant, a function, or a function of a module of the user's own."""
        if name not in around:
            for module in [m for m in around.values() if isinstance(m, ModuleType)]:
                found = _function(vars(module).get(name))
                if found is not None and found.__module__ == module.__name__:
                    self._add(found)
            return
        self._name(around[name])

    def _name(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._add(value)
        elif value is None or isinstance(value, str | int | float | bool | tuple | frozenset):
            self._state.update(_of(value).encode())


def _function(item: Any) -> FunctionType | None:
    """Return the plain function inside a method, property or decorated function."""
    for name in ("__func__", "fget", "__wrapped__"):
        item = getattr(item, name, item)
    return item if isinstance(item, FunctionType) else None


def _is_installed(code: CodeType) -> bool:
    """Return whether code belongs to Python, an installed package or choral itself."""
    return code.co_filename.startswith((_HERE, "<frozen")) or _is_packaged(code.co_filename)


def _is_packaged(file: str) -> bool:
    return file.startswith(_PACKAGES) or "-packages" in file


def _is_documented(code: CodeType) -> bool:
    """Return whether the first constant of a function is its docstring, where it stands in place of None before 3.13."""
    if _DOCUMENTED is not None:
        return bool(code.co_flags & _DOCUMENTED)
    return bool(code.co_consts) and isinstance(code.co_consts[0], str | None) and not code.co_name.startswith("<")


def _enclosed(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None
