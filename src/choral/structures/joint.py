"""What structures made of a `Joint` network have in common: the same batch for every member, outputs by member."""

from abc import ABC
from dataclasses import dataclass

from torch import Tensor, nn

from choral.errors import InputError
from choral.layers.joint import Joint
from choral.structures.base import Structure


@dataclass(frozen=True, kw_only=True)
class JointStructure(Structure, ABC):
    """Members in one module tree, each reading the same batch; see `choral.layers.joint.Joint`.

    Args:
        members: how many members.
        kernel: how they are run: 'loop', 'grouped', 'matmul', or 'auto' for what is usually fastest.
    """

    members: int = 4
    kernel: str = "auto"

    def __post_init__(self) -> None:
        if self.members < 1 or self.draws != 1:
            raise InputError(
                f"{type(self).__name__}: members={self.members}, draws={self.draws}; give at least 1 member, and 1 draw: "
                "its passes do not differ."
            )

    def feed(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Give the batch to the joint network as it is; every member has the same targets."""
        return x, None if y is None else y.expand(self.members, *y.shape)

    def unfold(self, outputs: Tensor) -> Tensor:
        """Return the outputs as they are: the member axis is already first."""
        return outputs

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return member `index` as a plain network of its own."""
        assert isinstance(network, Joint)
        return network.member(index)
