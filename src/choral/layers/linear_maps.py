"""Linear maps that are no `nn.Linear`: found by a dry run, exchanged for one before a network is converted, and put back in members.

transformers' `Conv1D` (GPT-2) is one: its weight is (input, output). Conversions, masks and posteriors know `nn.Linear` alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from choral.base import rng
from choral.layers.attention import linear
from choral.layers.convert import swap, tied_layers
from choral.layers.functional import emptied, filled

_HELD = "_linear_maps"


def as_linear(network: nn.Module) -> nn.Module:
    """Return the network with `nn.Linear` in the place of other layers that compute a linear map; itself if there are none."""
    found = {
        name: turned for name, layer in network.named_modules() if name and (turned := _is_turned(layer)) is not None
    }
    found = {name: turned for name, turned in found.items() if name not in tied_layers(network)}
    if not found:
        return network
    held = {name: (emptied(network.get_submodule(name)), turned) for name, turned in found.items()}

    def replace(name: str, layer: nn.Module) -> nn.Module | None:
        if name not in found:
            return None
        weight = layer.get_parameter("weight")
        return linear(weight.t() if found[name] else weight, layer._parameters.get("bias"))

    made = swap(network, replace)
    setattr(made, _HELD, held)
    return made


def put_back(network: nn.Module) -> nn.Module:
    """Return the network of one member with the layers that `as_linear` exchanged, holding the weights of those in their places."""
    held: dict[str, tuple[nn.Module, bool]] = getattr(network, _HELD, {})

    def replace(name: str, layer: nn.Module) -> nn.Module | None:
        if name not in held or not isinstance(layer, nn.Linear):
            return None
        empty, turned = held[name]
        weight = layer.weight.t().contiguous() if turned else layer.weight
        tensors = {"weight": nn.Parameter(weight.detach(), layer.weight.requires_grad), "bias": layer.bias}
        return filled(empty, {n: t for n, t in tensors.items() if n in empty._parameters})

    return swap(network, replace) if held else network


def _is_turned(layer: nn.Module) -> bool | None:
    """Return whether a layer computes a linear map with the weight (input, output), or (output, input); None if it does not.

    It may hold a weight and a bias alone, and is tried with numbers in them that tell their places apart.
    """
    own = {n: p for n, p in layer._parameters.items() if p is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if type(layer).__module__.startswith("torch.") or layer._modules or layer._buffers or isinstance(layer, nn.Linear):
        return None
    if weight is None or weight.dim() != 2 or weight.is_meta or len(own) != 1 + (bias is not None):
        return None
    for turned in (True, False):
        tried = {n: _numbers(p.shape, p) for n, p in own.items()}
        wanted = tried["weight"].t() if turned else tried["weight"]
        if bias is not None and bias.shape != wanted.shape[:1]:
            continue
        x = _numbers((2, 3, wanted.shape[1]), weight)
        try:
            with torch.no_grad(), rng.seeded(0, "look"):
                found = [
                    functional_call(layer.train(mode), tried, (x,)) for mode in (not layer.training, layer.training)
                ]
        except Exception:  # code of the user's may fail in any way
            continue
        right = F.linear(x, wanted, tried.get("bias"))
        if all(isinstance(y, Tensor) and y.shape == right.shape and torch.allclose(y, right, atol=1e-4) for y in found):
            return turned
    return None


def _numbers(shape: tuple[int, ...], like: Tensor) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1, dtype=like.dtype, device=like.device).sin().view(shape)
