"""MIMO: one network with M inputs and M outputs.

Reference: Havasi et al., "Training Independent Subnetworks for Robust Prediction", ICLR 2021, arXiv:2010.06610.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from choral.base import draws
from choral.base.batches import Batch
from choral.base.errors import ConversionError, InputError
from choral.base.order import first_layers
from choral.layers.convert import holds_frozen, tied_layers
from choral.layers.functional import CONVOLUTIONS, NORMS, own_kind
from choral.layers.packed.narrow import redrawn
from choral.layers.packed.networks import ends_of, named
from choral.structures.base import Structure

_ENDS = "_mimo_ends"


@dataclass(frozen=True, kw_only=True)
class Mimo(Structure):
    """The inputs of M members are concatenated on the channel axis, and M output layers read the last features.

    In training the members read different examples; at prediction they all read the same one.

    Args:
        members: M.
        repetition: the paper's rho, the probability that a row holds the same example for all members.
        batch_repetition: how often an example appears in a training batch for each member.
        first: pattern of the layer that reads the input, if not the one that a dry run finds.
        last: pattern of the layer that gives the output, if not the one that a dry run finds.

    Shapes: x (batch, channel, ...) -> (batch * batch_repetition, member * channel, ...) in training.

    Reference: Havasi et al., 2021, sections 2 and 3.
    """

    widens_input: ClassVar[bool] = True
    draws_anew: ClassVar[bool] = True

    members: int = 3
    repetition: float = 0.0
    batch_repetition: int = 1
    first: str = ""
    last: str = ""

    def __post_init__(self) -> None:
        if self.members < 1 or self.batch_repetition < 1 or not 0 <= self.repetition <= 1:
            raise InputError(
                f"Mimo: members={self.members}, batch_repetition={self.batch_repetition}, repetition={self.repetition}; "
                "give counts of at least 1, and a probability."
            )

    def _ends(self, network: nn.Module) -> tuple[str, str]:
        """Return the first and last layer of a plain network, or those that a joint one was made with."""
        kept: tuple[str, str] | None = getattr(network, _ENDS, None)
        if kept is not None:
            return kept
        layers = [name for name, _ in ends_of(network)]
        if not layers:
            raise ConversionError(f"Mimo found no linear map or convolution in {type(network).__name__}.")
        return tuple(  # type: ignore[return-value]  # two patterns, two names
            named(layers, (pattern,), what)[0] if pattern else found
            for what, pattern, found in (
                ("first", self.first, next(iter(first_layers(layers)), layers[0])),
                ("last", self.last, layers[-1]),
            )
        )

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network with a wider first and last layer; the others keep their weights."""
        joint = copy.deepcopy(network)
        (first, last), tied = self._ends(network), tied_layers(network)
        order = [name for name, _ in network.named_modules()]
        for name in order[: min(order.index(name) for name, _ in ends_of(network))]:
            if isinstance(network.get_submodule(name), NORMS):
                raise ConversionError(
                    f"layer {name!r} normalizes the inputs, of which MIMO has {self.members} side by side; standardize the "
                    "data instead and leave the layer out."
                )
        if self.members > 1:
            for name in (first, last):
                if holds_frozen(network.get_submodule(name)):
                    raise ConversionError(
                        f"layer {name!r} is frozen (requires_grad=False), but MIMO draws the first and the last layer anew, "
                        f"{self.members} times as wide; freeze layers between them only."
                    )
                if name in tied:
                    raise ConversionError(
                        f"layer {name!r} holds a weight together with {tied[name]!r} (they are tied), but MIMO draws the first and the "
                        f"last layer anew, {self.members} times as wide; untie them."
                    )
            _widen_inputs(first, joint.get_submodule(first), self.members, generator)
            _widen_outputs(last, joint.get_submodule(last), self.members, generator)
        setattr(joint, _ENDS, (first, last))  # what gives the output is not known any more when a member is asked for
        return joint

    @property
    def by_row(self) -> bool:
        """No: rows are mixed among members."""
        return False

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Put the inputs of all members side by side: different examples in training, the same one at prediction."""
        if not isinstance(x, Tensor):
            raise ConversionError(
                "MIMO puts the inputs of its members side by side on the channel axis of one tensor, so it cannot read several "
                "inputs (a dict, tuple or list); give one tensor, or use another method."
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
        """Split the outputs of the M output layers."""
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
        with torch.no_grad():
            _set(first, "weight", first.get_parameter("weight").unflatten(1, (self.members, -1)).sum(1))
            _shrink(first, 0, self.members)
            for name, p in list(last.named_parameters()):
                _set(last, name, p.unflatten(0, (self.members, -1))[index].clone())
            _shrink(last, 1, self.members)
        return alone


_SIZES: dict[type[nn.Module], tuple[str, str]] = {
    kind: ("in_features", "out_features") if kind is nn.Linear else ("in_channels", "out_channels")
    for kind in (nn.Linear, *CONVOLUTIONS)
}


def _shrink(layer: nn.Module, end: int, members: int) -> None:
    kind = own_kind(layer, tuple(_SIZES))
    assert kind is not None, "only layers that were widened are shrunk"
    setattr(layer, _SIZES[kind][end], getattr(layer, _SIZES[kind][end]) // members)


def _set(layer: nn.Module, name: str, value: Tensor) -> None:
    setattr(layer, name, nn.Parameter(value.detach()))


def _widened(name: str, layer: Any, end: int, members: int) -> None:
    kind = own_kind(layer, tuple(_SIZES))
    if kind is None or getattr(layer, "groups", 1) > 1:
        raise ConversionError(
            f"layer {name!r} ({type(layer).__name__}) reads the input or gives the output; MIMO can widen linear maps and "
            "convolutions without groups only."
        )
    size = _SIZES[kind][end]
    setattr(layer, size, getattr(layer, size) * members)


def _widen_inputs(name: str, layer: Any, members: int, generator: torch.Generator) -> None:
    _widened(name, layer, 0, members)
    weight = layer.weight
    shape = (weight.shape[0], weight.shape[1] * members, *weight.shape[2:])
    _set(layer, "weight", redrawn(weight, shape, members=1, spread=members**-0.5, generator=generator)[0])


def _widen_outputs(name: str, layer: Any, members: int, generator: torch.Generator) -> None:
    _widened(name, layer, 1, members)
    for key, p in list(layer.named_parameters()):
        shape = (p.shape[0] * members, *p.shape[1:])
        _set(layer, key, redrawn(p, shape, members=1, spread=1.0, generator=generator)[0])
