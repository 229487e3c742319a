"""Packed networks run with the members abreast on the channel axis.

Gain: a training step of LeNet-S (2, 4, 1), batch 32, is 2.4 times faster than mapped by vmap and 1.7 times faster than member by
member; of resnet_cifar(20) 1.2 and 1.3 times.

A convolution of all members is one grouped convolution over (batch, member * channel, ...), the first one a plain wide
convolution. From the first linear map on, members are folded into the batch instead. Which networks can be run like
this, and in which steps, is read from their forward code by `choral.layers.kernels.packed`.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from choral.layers.functional import CONVOLUTIONS, INSTANCE_NORMS, operate
from choral.layers.joint.weighted import fold
from choral.layers.kernels.packed import CHANNELS, FOLDED, SHARED, Step
from choral.layers.packed.layer import PackedLayer


def run_abreast(network: nn.Module, course: Sequence[Step], x: Tensor, members: int) -> Tensor:
    """Return the outputs of every member.

    Shapes: (batch, ...) -> (member, batch, ...).
    """
    last = {i: number for number, step in enumerate(course) for i in step.inputs if isinstance(i, int)}
    values: dict[int, Tensor] = {0: x}
    for number, step in enumerate(course):
        read = [values[i] if isinstance(i, int) else i[0] for i in step.inputs]
        for i in step.inputs:
            if isinstance(i, int) and last[i] == number:
                values.pop(i, None)
        if step.folds:
            read = [fold(v.unflatten(1, (members, -1)).transpose(0, 1)) for v in read]
        values[number + 1] = _take(step, network, read, members)
    y = values[len(course)]
    folded = course[-1].place == FOLDED
    return y.unflatten(0, (members, -1)) if folded else y.unflatten(1, (members, -1)).transpose(0, 1)


def _take(step: Step, network: nn.Module, read: list[Any], members: int) -> Tensor:
    """Return the value of one step."""
    if step.join is not None:
        return _joined(step, read, members)
    if isinstance(step.layer, str):
        layer = network.get_submodule(step.layer)
        assert isinstance(layer, PackedLayer)
        return layer(read[0]) if step.place == FOLDED else _on_channels(layer, read[0], members, step.place == SHARED)
    assert step.layer is not None
    return F.relu_(read[0]) if step.inplace is not None else step.layer(read[0])


def _joined(step: Step, read: list[Any], members: int) -> Tensor:
    one, other = read
    assert step.join is not None
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape == other.shape:
        return step.join(one, other) if step.inplace is None else read[step.inplace].add_(read[1 - step.inplace])
    if step.place != CHANNELS:
        return step.join(one, other)
    # channels that are broadcast are those of one member
    parts = [v.unflatten(1, (members, -1)) for v in read]
    return step.join(*parts).flatten(1, 2)


def _on_channels(layer: PackedLayer, x: Tensor, members: int, shared: bool) -> Tensor:
    """Apply a packed layer to members side by side on the channel axis."""
    plain = layer.settings
    if not shared and isinstance(plain, (*CONVOLUTIONS, *INSTANCE_NORMS, nn.GroupNorm)):
        plain = copy.copy(plain)
        if isinstance(plain, nn.GroupNorm):
            plain.num_groups *= members
        elif isinstance(plain, INSTANCE_NORMS):
            plain.num_features *= members
        else:
            plain.groups *= members
    tensors = {n: None if t is None else t.flatten(0, 1) if t.dim() > 1 else t for n, t in layer.tensors().items()}
    return operate(plain, x, tensors, training=layer.training)
