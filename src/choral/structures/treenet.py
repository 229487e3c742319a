"""TreeNet: a shared trunk and a branch for each member.

Reference: Lee et al., "Why M Heads are Better than One: Training a Diverse Ensemble of Deep Networks", 2015,
arXiv:1511.06314, section 4.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from choral.base import draws
from choral.base.errors import ConversionError, InputError
from choral.base.text import fitting, matches
from choral.layers.bayesian.dropout import DROPOUTS
from choral.layers.convert import ends_of, swap, tied_layers
from choral.layers.joint.network import Foldable, Joint
from choral.layers.packed.narrow import redrawn
from choral.structures.base import JointStructure


class CommonDraws(Foldable):
    """A layer with the same random draws for all members, so that what they share is computed once.

    Args:
        layer: the random layer, not copied.
    """

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with draws.common():
            result: Tensor = self.layer(x)
        return result

    def __getattr__(self, name: str) -> Any:
        """Return a setting of the layer: forward code may read it (`dropout.p`)."""
        return getattr(super().__getattr__("layer"), name) if name != "layer" else super().__getattr__(name)

    def plain(self) -> nn.Module:
        return self.layer


@dataclass(frozen=True, kw_only=True)
class TreeNet(JointStructure):
    """The layers up to some depth are shared, the others exist for each member.

    The trunk and the branch of the first member keep the weights of the given network; other branches are drawn from their values. The trunk
    is computed once for all members, including its dropout layers.

    Args:
        start: name (pattern) of the first branch layer; everything registered after it is in the branches.
        branches: name patterns of all branch layers instead. By default the output layer.
        kernel: 'auto' or 'grouped', which computes the trunk once.
    """

    kernel: Literal["auto", "grouped"] = "auto"
    start: str = ""
    branches: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.start and self.branches:
            raise InputError(f"TreeNet: start={self.start!r} and branches={self.branches}; give one of the two.")

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        chosen = self._branch_layers(network)
        for name, other in tied_layers(network).items():
            if name in chosen:
                raise ConversionError(
                    f"branch layer {name!r} holds a weight together with {other!r} (they are tied); untie them, or give other branches=."
                )
        tree = swap(network, lambda n, m: CommonDraws(m) if n not in chosen and isinstance(m, DROPOUTS) else None)
        stacked: list[str] = []
        for name, module in list(tree.named_modules()):
            if name not in chosen:
                continue
            for key, tensor in {**module._parameters, **module._buffers}.items():
                if tensor is None or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad):
                    continue  # what is frozen is the same for all
                stacked.append(f"{name}.{key}" if name else key)
                if isinstance(tensor, nn.Parameter):
                    own = redrawn(tensor, tensor.shape, members=self.members, spread=1.0, generator=generator)
                    setattr(module, key, nn.Parameter(own, tensor.requires_grad))
                else:
                    module._buffers[key] = tensor.expand(self.members, *tensor.shape).clone()
        return Joint(tree, members=self.members, stacked=stacked, kernel="grouped").train(network.training)

    def _branch_layers(self, network: nn.Module) -> set[str]:
        names = [name for name, _ in network.named_modules()]
        if self.start:
            first = fitting([n for n in names if n], (self.start,), "start")[0]
            # everything from there on, but not the containers that also hold part of the trunk
            return set(names[names.index(first) :])
        ends = ends_of(network)
        if not self.branches and not ends:
            raise ConversionError(
                f"TreeNet found no layer that gives the output of {type(network).__name__}; name layers of the branches with start= or branches=."
            )
        patterns = self.branches or (ends[-1][0],)
        roots = fitting([n for n in names if n], patterns, "branches")
        return {
            n for n in names if any(n == root or n.startswith(root + ".") for root in roots) or matches(n, patterns)
        }
