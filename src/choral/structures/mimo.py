"""MIMO: one network with M inputs and M outputs.

Reference: Havasi et al., "Training Independent Subnetworks for Robust Prediction", ICLR 2021, arXiv:2010.06610, sections 2 and 3.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from choral.base import draws
from choral.base.batches import Batch
from choral.base.errors import ConversionError
from choral.base.values import Count, Share
from choral.layers.convert import ends_of, first_layers, holds_frozen, tied_layers
from choral.layers.functional import CONVOLUTIONS, own_kind
from choral.layers.packed.narrow import redrawn
from choral.structures.base import Structure

_ENDS = "_mimo_ends"


@dataclass(frozen=True, kw_only=True)
class Mimo(Structure):
    """The inputs of M members are concatenated on the channel axis, and M output layers read the last features.

    In training the members read different examples; at prediction they all read the same one.

    Args:
        members: M.
        repetition: the paper's rho, the probability that a row has the same example for all members.
        batch_repetition: how often an example appears in a training batch for each member.

    Shapes: x (batch, channel, ...) -> (batch * batch_repetition, member * channel, ...) in training.
    """

    widens_input: ClassVar[bool] = True
    draws_anew: ClassVar[bool] = True

    members: Count = 3
    repetition: Share = 0.0
    batch_repetition: Count = 1

    def _ends(self, network: nn.Module) -> tuple[str, str]:
        kept: tuple[str, str] | None = getattr(network, _ENDS, None)
        if kept is not None:
            return kept
        layers = [name for name, _ in ends_of(network)]
        if not layers:
            raise ConversionError(f"Mimo found no linear map or convolution in {type(network).__name__}.")
        return next(iter(first_layers(layers)), layers[0]), layers[-1]

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        joint = copy.deepcopy(network)
        (first, last), tied = self._ends(network), tied_layers(network)
        for end, name in enumerate((first, last) if self.members > 1 else ()):
            if holds_frozen(network.get_submodule(name)) or name in tied:
                raise ConversionError(
                    f"layer {name!r} is frozen (requires_grad=False) or tied, but MIMO draws the first and the last layer anew, {self.members} times as wide."
                )
            _widen(name, joint.get_submodule(name), end, self.members, generator)
        setattr(joint, _ENDS, (first, last))  # what gives the output is not known any more when a member is asked for
        return joint

    @property
    def by_row(self) -> bool:
        """False: rows are mixed among members."""
        return False

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Concatenate the inputs of all members: different examples in training, the same one at prediction."""
        if not isinstance(x, Tensor):
            raise ConversionError(
                "MIMO puts the inputs of its members side by side in one tensor; give one tensor, not a dict, tuple or list, or use another method."
            )
        if y is None:
            return torch.cat([x] * self.members, 1), None
        rows = torch.arange(x.shape[0], device=x.device).repeat(self.batch_repetition)
        order = draws.uniform((self.members, len(rows)), like=torch.empty((), device=x.device)).argsort(1)
        mixed = rows[order]  # (member, row)
        if self.repetition:
            same = draws.uniform((len(rows),), like=torch.empty((), device=x.device)) < self.repetition
            mixed = torch.where(same, mixed[:1], mixed)
        return torch.cat([x[mixed[m]] for m in range(self.members)], 1), y[mixed]

    def unfold(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(1, (self.members, -1)).transpose(0, 1)

    def shared(self, network: nn.Module) -> frozenset[str]:
        """Return all but the weights that read one member's input and those that give one member's output."""
        first, last = self._ends(network)
        own = {n for n, _ in network.get_submodule(last).named_parameters(last)}
        own |= {n for n, _ in network.get_submodule(first).named_parameters(first) if n.split(".")[-1] == "weight"}
        return frozenset(n for n, _ in network.named_parameters() if n not in own)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return the plain network that reads one input and gives output `index`.

        At prediction all M inputs are the same, so the first layer's weights for them add up.
        """
        alone = copy.deepcopy(network)
        if self.members == 1:
            return alone
        first, last = (alone.get_submodule(name) for name in self._ends(network))
        _set(first, "weight", first.get_parameter("weight").unflatten(1, (self.members, -1)).sum(1))
        for name, p in list(last.named_parameters()):
            _set(last, name, p.unflatten(0, (self.members, -1))[index].clone())
        for end, layer in enumerate((first, last)):
            setattr(layer, _size(layer, end), getattr(layer, _size(layer, end)) // self.members)
        return alone


def _size(layer: nn.Module, end: int) -> str:
    """Return the attribute that states the inputs (end 0) or outputs (1) of a linear map or convolution; '' for other kinds."""
    kind = own_kind(layer, (nn.Linear, *CONVOLUTIONS))
    ends = ("in_features", "out_features") if kind is nn.Linear else ("in_channels", "out_channels")
    return "" if kind is None else ends[end]


def _set(layer: nn.Module, name: str, value: Tensor) -> None:
    setattr(layer, name, nn.Parameter(value.detach()))


def _widen(name: str, layer: Any, end: int, members: int, generator: torch.Generator) -> None:
    size = _size(layer, end)
    if not size or getattr(layer, "groups", 1) > 1:
        raise ConversionError(
            f"layer {name!r} ({type(layer).__name__}) cannot be widened; MIMO takes linear maps and convolutions without groups at both ends."
        )
    setattr(layer, size, getattr(layer, size) * members)
    axis, spread = (0, 1.0) if end else (1, members**-0.5)
    for key, p in list(layer.named_parameters()) if end else [("weight", layer.weight)]:
        shape = [n * members if i == axis else n for i, n in enumerate(p.shape)]
        _set(layer, key, redrawn(p, shape, members=1, spread=spread, generator=generator)[0])
