"""Call a network with other tensors, also where it has one layer or one weight under several names.

torch.func.functional_call exchanges a tensor once for each of its names. For a layer of two names both are the same place, and
the second exchange keeps the first one's tensor as what is to be put back. Here every place is exchanged once.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from choral.base.streams import under


def ties_of(network: nn.Module) -> dict[str, str]:
    """Return the further places of tensors that several layers hold: the name of each, and the name it is known by.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> other.weight = one.weight
    >>> ties_of(nn.Sequential(one, other, one))
    {'1.weight': '0.weight'}
    """
    known: dict[int, str] = {}
    ties: dict[str, str] = {}
    for prefix, module in network.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = f"{prefix}.{key}" if prefix else key
            if tensor is not None and known.setdefault(id(tensor), name) != name:
                ties[name] = known[id(tensor)]
    return ties


def call_with(network: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, ties: Mapping[str, str]) -> Any:
    """Return what a network returns with these tensors in the place of its own.

    Args:
        network: the network.
        tensors: by the names `named_parameters` and `named_buffers` give.
        inputs: what it reads.
        ties: what `ties_of` found in it.
    """
    further = {name: tensors[known] for name, known in ties.items() if known in tensors}
    given = {**tensors, **further}
    with under(holding=partial(_held, network, {**given})) if torch.is_grad_enabled() else nullcontext():
        outputs = functional_call(network, given, (inputs,), tie_weights=False)
    if network.training:
        _write_back(tensors, given)
    return outputs


class _Part(nn.Module):
    """A part of a network, as a module that holds the whole network."""

    def __init__(self, network: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.network = network
        self.function = (function,)  # in a tuple: a layer is not to be known by two names

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function[0](*args, **kwargs)


def _held(network: nn.Module, tensors: Mapping[str, Tensor], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a part that the backward pass computes again, with the tensors that the network held in the forward pass."""
    part, named = _Part(network, function), {f"network.{name}": tensor for name, tensor in tensors.items()}

    def call(*args: Any, **kwargs: Any) -> Any:
        return functional_call(part, named, args, kwargs, tie_weights=False)

    return call


def _write_back(tensors: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Write buffers that forward gave anew, which functional_call notes in its dict, into those that it was called with."""
    for name, tensor in tensors.items():
        if now[name] is tensor:
            continue
        if now[name].shape != tensor.shape:
            raise RuntimeError(f"buffer {name!r} was {tuple(tensor.shape)} and becomes {tuple(now[name].shape)}")
        with torch.no_grad():
            tensor.copy_(now[name].detach())
