"""What structures made of a `Joint` network have in common: the same batch for every member, outputs by member."""

from abc import ABC
from dataclasses import dataclass

from torch import Tensor, nn

from choral.base.batches import Batch
from choral.base.errors import InputError
from choral.layers.joint.network import KERNELS, Joint
from choral.structures.base import Structure


@dataclass(frozen=True, kw_only=True)
class JointStructure(Structure, ABC):
    """Members in one module tree, each reading the same batch; see `choral.layers.joint.network.Joint`.

    Args:
        members: how many members.
        kernel: how they are run: 'loop', 'grouped', 'matmul', 'auto' for what is usually fastest, or 'measured': `fit` tries all
            of them on its first batch and keeps the fastest for the whole run, resumed parts included.
    """

    members: int = 4
    kernel: str = "auto"

    def __post_init__(self) -> None:
        if self.members < 1:
            raise InputError(f"{type(self).__name__}: members={self.members}; give at least 1 member.")

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Give the batch to the joint network as it is; every member has the same targets."""
        return x, None if y is None else y.expand(self.members, *y.shape)

    def unfold(self, outputs: Tensor) -> Tensor:
        """Return the outputs as they are: the member axis is already first."""
        return outputs

    def shared(self, network: nn.Module) -> frozenset[str]:
        """Return the parameters without a member axis."""
        assert isinstance(network, Joint)
        return frozenset(n for n, _ in network.named_parameters() if n.removeprefix("network.") not in network.stacked)

    def kernels(self, network: nn.Module) -> tuple[str, ...]:
        """Return the kernels that can run this network, if they are to be measured."""
        assert isinstance(network, Joint)
        return tuple(k for k in KERNELS if not network.obstacle(k)) if self.kernel == "measured" else ()

    def run_by(self, network: nn.Module, kernel: str) -> None:
        """Set the kernel."""
        assert isinstance(network, Joint)
        network.kernel = network.checked(kernel)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return member `index` as a plain network of its own."""
        assert isinstance(network, Joint)
        return network.member(index)
