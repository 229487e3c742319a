"""Forms: which entries of every parameter and buffer a compacted network has, as plain JSON types.

    {"axes": {"fc1.weight": {"0": [0, 2, 5]}, ...}, "attributes": {"fc1": {"out_features": 3}, ...}}

`axes` lists the kept indices along the shortened axes; other tensors stay whole. `attributes` are sizes that layers have as attributes. A
form contains no values: a small network is rebuilt from a newly built one.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from choral.base.errors import InputError, did_you_mean
from choral.base.types import Params

Form = dict[str, Any]

SIZES = ("out_features", "out_channels", "num_features", "num_channels", "num_parameters", "channels")
"""Attributes in which layers state the number of their output channels."""
_KNOWN = {*SIZES, "in_features", "in_channels", "groups", "num_groups"}


def slice_params(params: Params, form: Form) -> Params:
    """Return the entries that a form keeps, of parameters, buffers or tensors of their names and shapes (momenta, masks).

    Other tensors are returned as they are.

    >>> slice_params({"fc.weight": torch.arange(6).view(3, 2)}, {"axes": {"fc.weight": {"0": [0, 2]}}})
    {'fc.weight': tensor([[0, 1],
            [4, 5]])}
    """
    axes = _axes(form)
    return {name: _slice(name, value, axes.get(name, {})) for name, value in params.items()}


def _axes(form: Form) -> Mapping[str, Mapping[str, list[int]]]:
    if not isinstance(form, Mapping) or not isinstance(form.get("axes"), Mapping):
        raise InputError(f"a form is a dict with 'axes' and 'attributes', as compact gives it; received {form!r}.")
    return form["axes"]


def _slice(name: str, value: Tensor, axes: Mapping[str, list[int]]) -> Tensor:
    for key, indices in axes.items():
        if not key.isdecimal():
            raise InputError(f"the form names the axis {key!r} of {name!r}; axes are written '0', '1', ...")
        axis = int(key)
        if axis >= value.dim() or (indices and not 0 <= min(indices) <= max(indices) < value.shape[axis]):
            raise InputError(
                f"the form keeps index {max(indices, default=0)} of axis {axis} of {name!r}, which has shape {tuple(value.shape)}; it is another network's."
            )
        value = value.index_select(axis, torch.tensor(indices, dtype=torch.long, device=value.device))
    return value


def shrink(network: nn.Module, form: Form) -> nn.Module:
    """Return a new network with the smaller layers of a form; needs no data, and does not change the given one.

    Kept values are those of the given network; load others with `load_state_dict`. Sizes of a converted layer are set in its `settings`.

    >>> form = {"axes": {"weight": {"0": [1]}, "bias": {"0": [1]}}, "attributes": {"": {"out_features": 1}}}
    >>> shrink(nn.Linear(3, 2), form)
    Linear(in_features=3, out_features=1, bias=True)
    """
    axes = _axes(form)
    small = copy.deepcopy(network)
    modules = dict(small.named_modules(remove_duplicate=False))
    tensors: Params = dict(small.named_parameters(remove_duplicate=False))
    tensors |= dict(small.named_buffers(remove_duplicate=False))
    done: dict[int, Tensor] = {}  # shared parameters stay shared
    for name, cut in axes.items():
        if name not in tensors:
            raise InputError(f"the form names {name!r}, which the network does not have.{did_you_mean(name, tensors)}")
        tensor = tensors[name]
        if id(tensor) not in done:
            smaller = _slice(name, tensor.detach(), cut)
            is_parameter = isinstance(tensor, nn.Parameter)
            done[id(tensor)] = nn.Parameter(smaller, tensor.requires_grad) if is_parameter else smaller
        owner, _, part = name.rpartition(".")
        setattr(modules[owner], part, done[id(tensor)])
    for owner, attributes in form.get("attributes", {}).items():
        for attribute, size in attributes.items():
            if owner not in modules or attribute not in _KNOWN or not isinstance(size, int):
                raise InputError(
                    f"the form sets {attribute}={size!r} of {owner!r}; only sizes of layers that the network has can be set."
                )
            setattr(getattr(modules[owner], "settings", modules[owner]), attribute, size)
    return small
