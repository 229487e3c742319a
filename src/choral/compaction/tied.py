"""What neuron masks need to know of a network: layers that lose neurons together, parameters that go with a neuron."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from choral.compaction.solve import Example, Untraceable, checked, traced
from choral.masks import expand_neurons


def tied_groups(network: nn.Module, example_input: Example) -> list[list[str]]:
    """Return the layers that must lose the same neurons to lose any: their outputs are summed, multiplied, or feed a
    depthwise convolution one to one.

    Give them as `groups` to the functions of `choral.masks`. Layers that are tied only in part are not listed, nor any
    of a network that cannot be traced.

    Args:
        network: any network; it is not changed.
        example_input: as in `compact`.
    """
    try:
        tracer = traced(network, {}, example_input)
    except Untraceable:
        return []
    roots = tracer.units.roots()
    groups: dict[tuple[int, ...], list[str]] = {}
    for weight, units in tracer.rows.items():
        groups.setdefault(tuple(roots[units].tolist()), []).append(weight.removesuffix(".weight"))
    return [layers for layers in groups.values() if len(layers) > 1]


def neuron_param_mask(network: nn.Module, keep: Mapping[str, Tensor], example_input: Example) -> dict[str, Tensor]:
    """Return the masks of all parameters that belong to removed neurons: rows, biases, and what acts on them alone.

    The scale and shift of a BatchNorm behind a removed neuron (and any other parameter that only ever meets its
    constant: a PReLU slope, the row of a depthwise convolution) are masked with it. Then a removed neuron is silent
    all the way to the next layer, and compaction removes it with nothing to fold. In a network that cannot be traced
    only rows and biases are found.

    Args:
        network: any network; it is not changed.
        keep: True for the output channels that stay, by layer name.
        example_input: as in `compact`.
    """
    wanted = checked(network, keep)
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    masks = expand_neurons(shapes, wanted)
    try:
        acting = traced(network, wanted, example_input, silence=True).silenced
    except Untraceable:
        return masks
    for name, mask in acting.items():
        shape = shapes[name]
        rows = mask.view(shape) if mask.numel() == shape.numel() else mask.view(-1, *[1] * (len(shape) - 1))
        if not bool(mask.all()):
            masks[name] = rows.expand(shape) & masks.get(name, torch.ones(shape, dtype=torch.bool))
    return masks
