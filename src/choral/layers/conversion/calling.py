"""Call a network with other tensors, also where it has one layer or one weight under several names.

torch.func.functional_call exchanges a tensor once for each of its names. For a layer of two names both are the same place, and
the second exchange keeps the first one's tensor as what is to be put back. Here every place is exchanged once.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


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
    return functional_call(network, {**tensors, **further}, (inputs,), tie_weights=False)
