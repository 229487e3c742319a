"""Rank-1 Bayesian networks: members share every weight and own Gaussian rank-one factors.

Reference: Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", 2020, arXiv:2005.07186.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from choral.base import batches
from choral.base.batches import Batch
from choral.base.errors import ConversionError, InputError
from choral.layers.bayesian.rank_one_gaussian import RankOneGaussianLayer, rank_one_gaussian_twin
from choral.layers.bayesian.sampling import RHO_START
from choral.layers.convert import holds, swap, unless_held
from choral.layers.joint.member_norm import BATCH_NORMS, MemberBatchNorm
from choral.structures.base import Structure


@dataclass(frozen=True, kw_only=True)
class RankOneGaussian(Structure):
    """Members fold into the batch axis; every linear map and convolution is W * (s_m r_m^T) with Gaussian r_m, s_m.

    Weights (and trained ones too) are the network's own; only the factors are new, and they start at random signs.
    Every member has its own biases and BatchNorm. Prediction averages `draws` passes of each member; `member` gives
    member m at the means of its factors, a plain network.

    Args:
        members: how many members share the weights.
        draws: passes averaged at prediction.
        rho: where every rho starts; the standard deviation is softplus(rho).
        include: patterns of the layers that get factors; all linear maps and convolutions when empty.
        exclude: patterns of layers that stay wholly shared.

    Differs from the paper: BatchNorm statistics are kept by member, so that members do not train each other.

    The penalty is `choral.objectives.kl.GaussianKL(prior_mean=1.0, prior_std=0.1, anneal=0.8)`.
    """

    members: int = 4
    draws: int = 1
    undecayed: ClassVar[tuple[str, ...]] = ("*_mean", "*_rho")
    converts_all: ClassVar[bool] = True
    rho: float = RHO_START
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("members", "draws"):
            if getattr(self, name) < 1:
                raise InputError(f"RankOneGaussian: {name}={getattr(self, name)}; give 1 or more.")

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network with factors in all linear maps and convolutions but frozen and tied ones, and BatchNorm by member."""

        def factors(_: str, layer: nn.Module) -> nn.Module | None:
            return rank_one_gaussian_twin(layer, members=self.members, rho=self.rho, generator=generator)

        def by_member(_: str, layer: nn.Module) -> nn.Module | None:
            return MemberBatchNorm(layer, members=self.members) if type(layer) in BATCH_NORMS else None

        joint = swap(network, unless_held(network, factors), include=self.include, exclude=self.exclude)
        if not holds(joint, RankOneGaussianLayer):
            raise ConversionError(
                f"RankOneGaussian found no layer for factors in {type(network).__name__}; it takes torch's own linear "
                "and convolution layers, within include and exclude."
            )
        return swap(joint, by_member)

    folds_members = True

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Repeat the batch for every member, member by member."""
        repeated = batches.mapped(lambda t: t.repeat((self.members,) + (1,) * (t.dim() - 1)), x)
        return repeated, None if y is None else y.expand(self.members, *y.shape)

    def unfold(self, outputs: Tensor) -> Tensor:
        """Split the folded batch axis into (member, batch)."""
        return outputs.unflatten(0, (self.members, -1))

    def shared(self, network: nn.Module) -> frozenset[str]:
        """Return all but the factors and biases of rank-one layers and the members' normalization."""
        own: set[str] = set()
        for name, module in network.named_modules():
            if isinstance(module, (RankOneGaussianLayer, MemberBatchNorm)):
                own |= {n for n, p in module.named_parameters(name) if p is not getattr(module, "weight", None)}
        return frozenset(n for n, _ in network.named_parameters() if n not in own)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return member `index` as a plain network, at the means of its factors."""
        kinds = (RankOneGaussianLayer, MemberBatchNorm)
        return swap(network, lambda _, module: module.plain(index) if isinstance(module, kinds) else None)
