"""Packed networks that are plain chains of layers, run with the members side by side on the channel axis.

A chain is a nest of `nn.Sequential` whose layers treat channels apart (activations, pooling, normalisation by channel) or are
packed. Then nothing between two layers can mix members, and a convolution of all members is one grouped convolution
over (batch, member * channel, ...), the first one a plain wide convolution. From the first linear map on, members are
folded into the batch instead. Networks with forward code of their own are no chains.
"""

import copy
import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from choral.layers.frn import FilterResponseNorm
from choral.layers.operations import BATCH_NORMS, CONVOLUTIONS, INSTANCE_NORMS, operate
from choral.layers.packed import PackedLayer
from choral.layers.weighted import fold

# every entry, or every channel, is treated by itself
_APART = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardswish,
    nn.Hardtanh,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.ZeroPad1d,
    nn.ZeroPad2d,
    nn.ZeroPad3d,
)
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_BY_CHANNEL = (*BATCH_NORMS, *INSTANCE_NORMS, nn.PReLU, FilterResponseNorm)


def chain_of(network: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a chain in order, or None if the network is no chain that starts with a convolution.

    >>> chain_of(nn.Sequential(nn.ReLU(), nn.Softmax(1))) is None
    True
    """
    layers: list[nn.Module] = []

    def visit(module: nn.Module) -> bool:
        if type(module) is nn.Sequential:
            return all(visit(child) for child in module)
        layers.append(module)
        if isinstance(module, PackedLayer):
            return _packable(module)
        flat = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
        return flat or type(module) in _APART

    if not visit(network):
        return None
    # max and ReLU commute, values and gradients alike: after the pooling there is less to rectify
    for i, (one, next_one) in enumerate(itertools.pairwise(layers)):
        if type(one) is nn.ReLU and isinstance(next_one, _MAX_POOLS):
            layers[i], layers[i + 1] = next_one, one
    first = next((m.settings for m in layers if isinstance(m, PackedLayer)), None)
    return layers if isinstance(first, CONVOLUTIONS) and first.groups == 1 else None


def _packable(layer: PackedLayer) -> bool:
    plain = layer.settings
    if isinstance(plain, BATCH_NORMS):
        return plain.momentum is not None
    if isinstance(plain, nn.PReLU):
        return plain.num_parameters > 1
    if isinstance(plain, FilterResponseNorm):
        return plain.extra_eps is None
    return isinstance(plain, (*CONVOLUTIONS, nn.Linear, nn.LayerNorm, nn.GroupNorm, *INSTANCE_NORMS))


def run_chain(layers: Sequence[nn.Module], x: Tensor, members: int) -> Tensor:
    """Return the outputs of every member of a chain.

    Shapes: (batch, ...) -> (member, batch, ...).
    """
    shared, folded = True, False  # whether members still have the same activations; whether they are in the batch axis
    for before, layer in itertools.pairwise([nn.Identity(), *layers]):
        if not shared and not folded and not _reads_channels(layer):
            x = fold(x.unflatten(1, (members, -1)).transpose(0, 1))
            folded = True
        if type(layer) is nn.ReLU and isinstance(before, (PackedLayer, *_MAX_POOLS)):
            x = F.relu_(x)  # in place: these layers do not need their output again
        elif folded or not isinstance(layer, PackedLayer):
            x = layer(x)
        else:
            x = _on_channels(layer, x, members, shared)
            shared = False
    return x.unflatten(0, (members, -1)) if folded else x.unflatten(1, (members, -1)).transpose(0, 1)


def _reads_channels(layer: nn.Module) -> bool:
    if isinstance(layer, PackedLayer):
        return isinstance(layer.settings, (*CONVOLUTIONS, *_BY_CHANNEL, nn.GroupNorm))
    return not isinstance(layer, nn.Flatten)


def _on_channels(layer: PackedLayer, x: Tensor, members: int, shared: bool) -> Tensor:
    """Apply a packed layer to members side by side on the channel axis."""
    plain = layer.settings
    if not shared and isinstance(plain, (*CONVOLUTIONS, nn.GroupNorm)):
        plain = copy.copy(plain)
        if isinstance(plain, nn.GroupNorm):
            plain.num_groups *= members
        else:
            plain.groups *= members
    tensors = {n: None if t is None else t.flatten(0, 1) if t.dim() > 1 else t for n, t in layer.tensors().items()}
    return operate(plain, x, tensors, training=layer.training)
