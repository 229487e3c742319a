"""MC dropout and DropConnect: one network with dropout that stays on at prediction.

Reference: Gal & Ghahramani, "Dropout as a Bayesian Approximation", 2016, arXiv:1506.02142; Wan et al.,
"Regularization of Neural Networks using DropConnect", ICML 2013.
"""

from dataclasses import dataclass

import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.layers.bayesian.dropped import DROPOUTS, DropConnect, Dropped, DroppedOutput, checked_rate
from choral.layers.conversion.attention import OpenAttention, open_attention
from choral.layers.conversion.functions_of_layers import WEIGHTED, own_kind
from choral.layers.conversion.swapping import holds, layers_of, swap
from choral.layers.packed.abreast import ends_of
from choral.structures.base import OneMember


@dataclass(frozen=True, kw_only=True)
class Stochastic(OneMember):
    """One network whose passes differ by dropout, in training and in evaluation mode alike.

    The network's own dropout layers stay on at prediction; dropout that forward code calls as a function (F.dropout, that inside
    attention) follows the training mode and is off. With a rate, dropout is also put behind every linear map and
    convolution but the output layer. Prediction averages `draws` passes. `member` gives the plain network without draws
    (its dropout layers are off in evaluation), which is not the same function as the average of the draws.

    Args:
        rate: dropout rate of the layers to put in; None uses the network's own dropout layers only.
        connections: drop weights instead of outputs (DropConnect); needs a rate.
        draws: passes averaged at prediction.
        include: patterns of the layers to put dropout behind; all but the output layer when empty.
        exclude: patterns of layers without.
    """

    draws: int = 20
    rate: float | None = None
    connections: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise InputError(
                f"Stochastic: members={self.members}, draws={self.draws}; it is one member and has at least 1 draw."
            )
        if self.rate is not None:
            checked_rate(self.rate)
        elif self.connections:
            raise InputError("Stochastic: connections=True (DropConnect) needs a rate.")

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network with dropout that stays on; its weights are kept."""
        _refuse_hidden_dropout(network)
        tree = swap(network, lambda _, m: Dropped(m) if isinstance(m, DROPOUTS) else None)
        if self.rate is not None:
            tree = self._put_in(network, tree, self.rate)
        if holds(tree, Dropped, DroppedOutput, DropConnect):
            return tree
        if self.rate is None:
            raise ConversionError(
                f"{type(network).__name__} has no dropout layers and no rate was given, so every pass would be the same; give "
                "rate=, the probability of dropping a unit."
            )
        raise ConversionError(
            f"{type(network).__name__} has no dropout layers, and no linear map or convolution before its output layer to put them behind, "
            "so every pass would be the same; name layers with include, or give it nn.Dropout layers."
        )

    def _put_in(self, network: nn.Module, tree: nn.Module, rate: float) -> nn.Module:
        output = None if self.include else next((name for name, _ in reversed(ends_of(network))), None)
        kind = DropConnect if self.connections else DroppedOutput

        def drop(name: str, layer: nn.Module) -> nn.Module | None:
            return None if name == output or own_kind(layer, WEIGHTED) is None else kind(layer, rate=rate)

        if self.connections:
            tree = open_attention(tree, include=self.include, exclude=self.exclude)
        return swap(tree, drop, include=self.include, exclude=self.exclude)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return the plain network; in evaluation its dropout is off."""
        kinds = (Dropped, DroppedOutput, DropConnect)
        return swap(network, lambda _, module: module.plain() if isinstance(module, kinds) else None)


def _refuse_hidden_dropout(network: nn.Module) -> None:
    """Raise for layers whose dropout cannot be kept on, since it is a number inside them and no layer."""
    for name, layer in layers_of(network, (nn.RNNBase, nn.MultiheadAttention, OpenAttention)):
        if getattr(layer, "dropout", 0):
            raise ConversionError(
                f"layer {name!r} ({type(layer).__name__}) has dropout={layer.dropout} inside it, which evaluation mode turns "
                "off; build it with dropout=0 and put nn.Dropout layers around it."
            )
