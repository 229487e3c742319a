"""Packed layers, which hold the tensors of several members; grouped linear maps.

`packed` stacks equal plain layers, one for each member, into one layer that reads all members folded into the batch: linear maps and 1x1
convolutions are one batched matrix product, normalizations share the pass over the data if possible, and every other kind runs member by
member. Inside `Joint`, which may slice the member axis away, the same layer is the plain layer of one member.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from choral.base.errors import InputError
from choral.base.values import typed
from choral.layers.frn import FilterResponseNorm
from choral.layers.functional import (
    BATCH_NORMS,
    INSTANCE_NORMS,
    NORMS,
    WEIGHTED,
    Converted,
    filled,
    operate,
    own_kind,
    spatial,
)  # fmt: skip
from choral.layers.joint.layers import Foldable, fold, unfold


class GroupedLinear(nn.Module):
    """A block-diagonal linear map: group g of the outputs reads group g of the inputs only.

    Args:
        in_features: inputs, a multiple of groups.
        out_features: outputs, a multiple of groups.
        groups: number of blocks on the diagonal.
        bias: whether to add a bias.

    Shapes: (..., in_features) -> (..., out_features); the weight is (out_features, in_features / groups).

    >>> layer = GroupedLinear(4, 2, groups=2, bias=False)
    >>> layer(torch.tensor([1.0, 1.0, 0.0, 0.0]))[1].item()
    0.0
    """

    bias: nn.Parameter | None

    @typed
    def __init__(self, in_features: int, out_features: int, *, groups: int, bias: bool = True):
        super().__init__()
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        self.weight = nn.Parameter(torch.empty(out_features, in_features // groups))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_features)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly within one over the root of the inputs each output reads."""
        bound = (self.in_features // self.groups) ** -0.5
        for p in self.parameters():
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        blocks = self.weight.unflatten(0, (self.groups, -1))  # (group, output of the group, input of the group)
        y = torch.einsum("...gi,goi->...go", x.unflatten(-1, (self.groups, -1)), blocks).flatten(-2)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, groups={self.groups}, bias={bias}"


PACKABLE = (*WEIGHTED, GroupedLinear, *NORMS, nn.Embedding, nn.PReLU, FilterResponseNorm)


class PackedLayer(Converted, Foldable):
    """Equal plain layers, one for each member, with their tensors stacked.

    Use `packed` to make one from plain layers.

    Args:
        layer: a plain layer whose tensors are already stacked; they are taken over.
        members: number of members in them.
        shared: names of tensors that all members share and that are not stacked.

    Shapes: (member * batch, ...) -> (member * batch, ...).
    """

    shown = ("members",)

    @typed
    def __init__(self, layer: nn.Module, *, members: int, shared: Sequence[str] = ()):
        super().__init__(layer, PACKABLE)
        self.members = members
        self.take_over(layer)
        self.own = tuple(n for n, t in self.tensors().items() if t is not None and n not in shared)
        self._axes = getattr(self, self.own[0]).dim() if self.own else 0
        self.dims = spatial(layer)

    def forward(self, x: Tensor) -> Tensor:
        tensors, layer = self.tensors(), self.settings
        if not self.own or getattr(self, self.own[0]).dim() < self._axes:
            return self.run(x, tensors)
        for kind in type(layer).__mro__:
            if kind in _TOGETHER:
                return fold(_TOGETHER[kind](layer, unfold(x, self.members), tensors))
        return self._one_by_one(x, tensors)

    def _one_by_one(self, x: Tensor, tensors: dict[str, Tensor | None]) -> Tensor:
        if _is_pointwise(self.settings):
            rows = unfold(x.movedim(1, -1), self.members)  # a view of the memory when channels are last
            weight = self.weight.flatten(2)
            return fold(_linear(self.settings, rows, {"weight": weight, "bias": tensors["bias"]})).movedim(-1, 1)
        outputs = []
        for i, part in enumerate(unfold(x, self.members).unbind()):
            own: dict[str, Tensor] = {n: getattr(self, n)[i] for n in self.own}
            # written back afterwards: under an outer vmap, BatchNorm does not write into a part of a tensor
            kept = {n: own[n].clone() for n in self.own if n in self._buffers}
            outputs.append(self.run(part, {**tensors, **own, **kept}))
            if self.training:
                for n, value in kept.items():
                    own[n].copy_(value)
        return torch.cat(outputs)

    def plain(self) -> nn.Module:
        return filled(self.settings, self.tensors())


def packed(layers: Sequence[nn.Module]) -> PackedLayer:
    """Return one layer for all members of equal plain layers, one for each member.

    >>> layer = packed([nn.Linear(3, 2) for _ in range(4)])
    >>> layer(torch.ones(4 * 5, 3)).shape, layer.weight.shape
    (torch.Size([20, 2]), torch.Size([4, 2, 3]))
    """
    if len({repr(layer) for layer in layers}) != 1 or not isinstance(layers[0], nn.Module):
        raise InputError(f"packed takes one layer or more, all of the same sizes; it was given {list(layers)[:4]}.")
    first = copy.deepcopy(layers[0])
    for name, tensor in {**first._parameters, **first._buffers}.items():
        if tensor is not None:
            stack = torch.stack([getattr(layer, name).detach() for layer in layers])
            setattr(first, name, nn.Parameter(stack, tensor.requires_grad) if name in first._parameters else stack)
    return PackedLayer(first, members=len(layers))


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def member_norm(layer: nn.Module, *, members: int, own_affine: bool = False) -> PackedLayer | None:
    """Return a normalization layer with separate statistics for each member; None for layers without statistics.

    Args:
        layer: any layer; not changed.
        members: number of members that share the network.
        own_affine: whether every member has its own scale and shift.

    >>> norm = member_norm(nn.BatchNorm1d(3), members=4)
    >>> norm.running_mean.shape, norm.weight.shape
    (torch.Size([4, 3]), torch.Size([3]))
    """
    if own_kind(layer, NORMS) is None:
        return None
    tracked = isinstance(layer, (*BATCH_NORMS, *INSTANCE_NORMS)) and layer.track_running_stats
    if not tracked and not (own_affine and layer._parameters.get("weight") is not None):
        return None
    layer = copy.deepcopy(layer)
    for name, tensor in {**layer._parameters, **layer._buffers}.items():
        if tensor is not None and (own_affine or name in STATISTICS):
            stack = tensor.detach().expand(members, *tensor.shape).clone()
            setattr(layer, name, nn.Parameter(stack, tensor.requires_grad) if name in layer._parameters else stack)
    return PackedLayer(layer, members=members, shared=() if own_affine else ("weight", "bias"))


def _is_pointwise(layer: Any) -> bool:
    return (
        isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        and layer.groups == 1
        and set(layer.kernel_size) == set(layer.stride) == {1}
        and layer.padding in ("valid", "same", (0,) * len(layer.kernel_size))
    )


def _linear(layer: Any, x: Tensor, t: dict[str, Any]) -> Tensor:
    rows = x.flatten(1, -2)  # (member, batch and further axes, input)
    y = torch.bmm(rows, t["weight"].mT)
    return (y if t["bias"] is None else y + t["bias"].unsqueeze(1)).unflatten(1, x.shape[1:-1])


def _grouped_linear(layer: Any, x: Tensor, t: dict[str, Any]) -> Tensor:
    blocks = t["weight"].unflatten(1, (layer.groups, -1))
    rows = x.flatten(1, -2).unflatten(-1, (layer.groups, -1))  # (member, row, group, input of the group)
    y = torch.einsum("mrgi,mgoi->mrgo", rows, blocks).flatten(-2)
    return (y if t["bias"] is None else y + t["bias"].unsqueeze(1)).unflatten(1, x.shape[1:-1])


def _affine(y: Tensor, t: dict[str, Any], after: int) -> Tensor:
    """Return y * weight + bias for y (member, batch, ...), where `after` axes follow those of the weight."""

    def shaped(tensor: Tensor) -> Tensor:
        between = (1,) * (y.dim() - tensor.dim() - after)
        return tensor.view(tensor.shape[:1] + between + tensor.shape[1:] + (1,) * after)

    if t["weight"] is None:
        return y
    if t.get("bias") is None:
        return y * shaped(t["weight"])
    return torch.addcmul(shaped(t["bias"]), y, shaped(t["weight"]))


def _normalized(layer: Any, x: Tensor, t: dict[str, Any]) -> Tensor:
    y = operate(layer, fold(x), {"weight": None, "bias": None}, training=True)
    return _affine(unfold(y, len(x)), t, x.dim() - 3 if isinstance(layer, nn.GroupNorm) else 0)


_TOGETHER: dict[type, Callable[[Any, Tensor, dict[str, Any]], Tensor]] = {
    nn.Linear: _linear,
    GroupedLinear: _grouped_linear,
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _normalized),
}
