"""MC dropout and DropConnect: one network with dropout that stays on at prediction (`choral.layers.bayesian.dropout`)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.base.values import BelowOne, Count
from choral.layers.attention import open_attention
from choral.layers.bayesian.dropout import DROPOUTS, DropConnect, Dropped, DroppedOutput, find_rows
from choral.layers.convert import ends_of, holds, layers_of, swap
from choral.layers.functional import WEIGHTED, own_kind
from choral.structures.base import OneMember, Selective


@dataclass(frozen=True, kw_only=True)
class Stochastic(Selective, OneMember):
    """One network with dropout in training and in evaluation mode.

    The network's own dropout layers stay on at prediction, as does dropout inside attention. F.dropout in forward code, and dropout inside
    recurrent layers, follow the training mode and are off. With a rate, dropout is also inserted after every linear map and convolution
    but the output layer. Prediction averages `draws` passes. `member` returns the plain network without draws, which is not the same function
    as the average of the draws.

    Args:
        rate: dropout rate of inserted layers; None uses the network's own dropout layers only.
        connections: drop weights instead of outputs (DropConnect); needs a rate.
        draws: passes averaged at prediction.
    """

    draws: Count = 20
    rate: BelowOne | None = None
    connections: bool = False

    def __post_init__(self) -> None:
        if self.rate is None and self.connections:
            raise InputError("Stochastic: connections=True (DropConnect) needs a rate.")

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        tree = network if self.rate is None else self._put_in(network, self.rate)
        dropping = [name for name, m in layers_of(tree, (nn.MultiheadAttention,)) if m.dropout]
        if dropping:
            tree = open_attention(tree, include=dropping)
        tree = swap(tree, lambda _, m: Dropped(m) if isinstance(m, DROPOUTS) else None)
        if holds(tree, Dropped, DroppedOutput, DropConnect):
            return tree
        wanted = "linear map or convolution of torch's kinds before its output layer to put dropout behind"
        lack = "dropout layers, and rate is None" if self.rate is None else wanted
        raise ConversionError(f"{type(network).__name__} has no {lack}; give it nn.Dropout layers, or a rate=.")

    def _put_in(self, network: nn.Module, rate: float) -> nn.Module:
        output = None if self.include else next((name for name, _ in reversed(ends_of(network))), None)
        kind = DropConnect if self.connections else DroppedOutput

        def drop(name: str, layer: nn.Module) -> nn.Module | None:
            return None if name == output or own_kind(layer, WEIGHTED) is None else kind(layer, rate=rate)

        if self.connections:
            network = open_attention(network, include=self.include, exclude=self.exclude)
        return swap(network, drop, include=self.include, exclude=self.exclude)

    def learn(self, network: nn.Module, run: Callable[[int], object]) -> None:
        find_rows(network, run)
