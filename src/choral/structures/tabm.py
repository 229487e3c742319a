"""TabM: members share the body of a network and have their own input factors, small adapters, and output layers.

Reference: Gorishniy, Kotelnikov & Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling", ICLR 2025,
arXiv:2410.24210, section 3.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from choral.base.errors import ConversionError
from choral.base.values import Count
from choral.layers.attention import open_attention
from choral.layers.convert import holds_frozen, layers_of, output_last, swap, tied_layers, within
from choral.layers.features import Apiece, Piecewise
from choral.layers.functional import WEIGHTED, own_kind
from choral.layers.joint.layers import RankOneLayer, ScaledInputs
from choral.layers.joint.network import Joint
from choral.layers.packed.layers import PackedLayer, member_norm
from choral.layers.packed.narrow import redrawn
from choral.structures.base import JointStructure

Adapters = Literal["all", "first"]
FirstFactors = Literal["auto", "signs", "normal"]


@dataclass(frozen=True, kw_only=True)
class TabM(JointStructure):
    """Adapters around shared weights, of which only the first starts at random, and an output layer for each member.

    The first layer after the features multiplies its inputs by factors of each member: random signs or, if features are embedded
    (`choral.models.tabular`), one number of N(0, 1) for all columns of a feature. All later factors start at 1. Output layers are drawn from
    the values of the given one, which the first member keeps. Embeddings, and layers with frozen or tied weights, are shared;
    normalization statistics are separate.

    Args:
        members: the paper's k.
        adapters: 'all' gives every hidden layer factors for its inputs and outputs and a bias for each member; 'first' gives factors
            to the inputs of the first layer only (the paper's TabM-mini).
        start: 'signs', 'normal', or 'auto': 'normal' after embedded features, else 'signs'.
        own_batches: train each member on its own batches.
        exclude: name patterns of layers that are shared completely.

    Every parameter gets the gradient of the mean loss over all members, as in the authors' code, and weight decay.

    Differs from the paper: any network can be converted, not only MLPs.
    """

    averages: ClassVar[bool] = True
    members: Count = 32
    adapters: Adapters = "all"
    start: FirstFactors = "auto"
    own_batches: bool = False
    exclude: tuple[str, ...] = ()

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        tree = open_attention(network, exclude=self.exclude)
        *body, last = self._trained(tree)

        def own(name: str, layer: nn.Module) -> nn.Module | None:
            if name == last:
                return _apart(layer, self.members, generator)
            if name in body[:1]:
                return self._first(layer, _widths(tree, name, layer), generator)
            if name in body and self.adapters == "all":
                return RankOneLayer(layer, members=self.members, start="ones")
            return None

        tree = swap(tree, own)
        tree = swap(tree, lambda _, m: member_norm(m, members=self.members))
        joint = Joint(tree, members=self.members, kernel=self.kernel, own_inputs=self.own_batches)
        return joint.train(network.training)

    def _trained(self, tree: nn.Module) -> list[str]:
        """Return the names of the layers that members adapt, and last of the one that they own."""
        tied = tied_layers(tree)
        kept = (*(name for name, _ in layers_of(tree, (Apiece,))), *self.exclude)
        free = [
            name
            for name, m in tree.named_modules()
            if own_kind(m, WEIGHTED) and name not in tied and not holds_frozen(m) and not within(name, kept)
        ]
        free = output_last(free)
        if not free:
            raise ConversionError(
                f"TabM found no linear map or convolution to be trained in {type(tree).__name__}; leave at least the first or the last layer free."
            )
        return free

    def _first(self, layer: nn.Module, widths: tuple[int, ...], generator: torch.Generator) -> nn.Module:
        """Return the first layer with random factors for its inputs, the same for all `widths` columns of a feature."""
        made = RankOneLayer(copy.deepcopy(layer), members=self.members, start="ones")
        if self.members == 1:
            return made
        normal = self.start == "normal" or (self.start == "auto" and bool(widths))
        each = widths or (1,) * made.inputs
        if normal:
            drawn = torch.randn(self.members, len(each), generator=generator)
        else:
            drawn = torch.randint(2, (self.members, len(each)), generator=generator) * 2.0 - 1.0
        factors = drawn.repeat_interleave(torch.tensor(each), 1)
        if self.adapters == "first":
            return ScaledInputs(layer, factors)
        made.s = nn.Parameter(factors.to(made.s))
        return made


def _apart(layer: nn.Module, members: int, generator: torch.Generator) -> PackedLayer:
    made = copy.deepcopy(layer)
    for name, p in layer.named_parameters():
        own = redrawn(p, p.shape, members=members, spread=1.0, generator=generator)
        setattr(made, name, nn.Parameter(own, p.requires_grad))
    return PackedLayer(made, members=members)


def _widths(tree: nn.Module, first: str, layer: nn.Module) -> tuple[int, ...]:
    """Return the number of columns of each feature before the first layer; () if features are not embedded."""
    found: tuple[int, ...] = ()
    for name, module in tree.named_modules():
        if name == first:
            break
        if isinstance(module, Piecewise | Apiece):
            found = module.widths
    return found if isinstance(layer, nn.Linear) and sum(found) == layer.in_features else ()
