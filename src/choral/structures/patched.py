"""Ensemble model patching: some layers are drawn from components in every pass (`choral.layers.bayesian.patched`), the others are shared."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import nn

from choral.base import rng
from choral.base.errors import ConversionError
from choral.base.text import fitting, matches
from choral.base.values import Count
from choral.layers.attention import open_attention
from choral.layers.bayesian.patched import DrawnNorm, Mixture, PatchedLayer, PatchedNetwork, keeps_statistics
from choral.layers.convert import ends_of, holds_frozen, swap, tied_layers, within
from choral.layers.frn import FilterResponseNorm
from choral.layers.functional import NORMS, own_kind
from choral.layers.packed.layers import PACKABLE
from choral.structures.base import OneMember, Selective


@dataclass(frozen=True, kw_only=True)
class Patched(Selective, OneMember):
    """One network whose patched layers have K components each; every pass draws which of them are used.

    `mixture` chooses the method: `choral.layers.bayesian.patched.FAMILY` has EMP (one draw for a layer), ECMP (one for every scalar), the
    explicit ensemble, dropout and DropConnect. Prediction averages `draws` passes. `member` returns the plain network at the mean over
    components, which is not the same function as the average of the draws.

    Args:
        mixture: how patched layers are drawn.
        mixtures: other mixtures by name pattern, the first that matches; such as EMP for norms and ECMP, or dropout, for linear layers.
        draws: passes averaged at prediction, the paper's S.
        norms: whether normalization layers are patched.
        output: whether the output layer (the last one registered) is patched.
        include: name patterns of further layers to patch.
        jitter: initial spread of norm scales over components, relative to their value.
        keep_weights: start components near the network's own (trained) weights instead of drawing them; shared layers always keep theirs.
        statistics: 'draw' estimates BatchNorm statistics for each pass of prediction after training (`choral.plan.RecalibrateDraws`);
            'shared' uses the running ones, averages over draws that fit none of them.

    The penalty is `choral.objectives.penalties.L2`.

    Example:
        >>> network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> patched = Patched(mixture=Mixture(components=5)).convert(network, torch.Generator())
        >>> sum(p.numel() for p in patched.parameters()) - sum(p.numel() for p in network.parameters())
        136
    """

    draws: Count = 50
    undecayed: ClassVar[tuple[str, ...]] = ("*mixing",)
    mixture: Mixture = field(default_factory=Mixture)
    mixtures: tuple[tuple[str, Mixture], ...] = ()
    norms: bool = True
    output: bool = True
    jitter: float = 0.1
    keep_weights: bool = False
    statistics: Literal["draw", "shared"] = "shared"

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        network = open_attention(network, include=self.include, exclude=self.exclude) if self.include else network
        wanted = self._wanted(network)
        differing = any(m.components > 1 or m.zero > 0 for m in map(self._mixture_of, wanted))
        by_pass = differing and self.statistics == "draw" and any(map(keeps_statistics, network.modules()))
        passes = self.draws if by_pass else 0

        def patch(name: str, layer: nn.Module) -> nn.Module | None:
            if name not in wanted:
                return DrawnNorm(layer, passes=passes) if passes and keeps_statistics(layer) else None
            return PatchedLayer(
                layer,
                self._mixture_of(name),
                jitter=self.jitter,
                keep_weights=self.keep_weights,
                generator=generator,
                passes=passes,
                key=rng.key(0, "patched", name),
            )

        joint = swap(network, patch)
        if self.mixture.assignment == "network":
            key = rng.key(0, "patched") if passes else None
            joint = PatchedNetwork(joint, components=self.mixture.components, key=key).train(network.training)
        return joint

    def _mixture_of(self, name: str) -> Mixture:
        return next((mixture for pattern, mixture in self.mixtures if matches(name, (pattern,))), self.mixture)

    def _wanted(self, network: nn.Module) -> set[str]:
        ends, tied = ends_of(network), tied_layers(network)
        fitting([name for name, _ in network.named_modules()], self.include, "include")  # refuses what fits nothing
        wanted = set()
        for name, layer in network.named_modules():
            own = list(layer.named_parameters(recurse=False))
            norm = self.norms and isinstance(layer, (*NORMS, FilterResponseNorm)) and bool(own)
            last = self.output and bool(ends) and name == ends[-1][0]
            asked = matches(name, self.include) and bool(own)
            kept = holds_frozen(layer) or name in tied
            if within(name, self.exclude) or kept or not (norm or last or asked):
                continue
            if own_kind(layer, PACKABLE) is None:
                raise ConversionError(
                    f"layer {name!r} ({type(layer).__name__}) cannot be patched; leave it shared with exclude=({name!r},)."
                )
            wanted.add(name)
        if not wanted:
            raise ConversionError(
                f"Patched found nothing to patch in {type(network).__name__}; name layers with include (frozen or tied layers stay shared)."
            )
        return wanted
