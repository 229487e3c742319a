"""Check that the members of a joint network are independent, by the autograd graph of one pass in training mode.

For some sets of members, no gradient of their outputs may reach tensors or inputs of other members. 32 members take 10 backward passes,
1000 take 20, and any two members that are mixed are found.
"""

import torch
from torch import Tensor

from choral.base.errors import ConversionError
from choral.layers.joint.network import Joint
from choral.layers.packed.networks import PackedNetwork


def stacked_of(network: Joint) -> dict[str, Tensor]:
    """Return the parameters with a part for each member, and require their gradients."""
    return {
        n: p.requires_grad_() for n, p in network.named_parameters() if n.removeprefix("network.") in network.stacked
    }


def refuse_mixed(network: Joint, outputs: Tensor, inputs: list[Tensor], order: list[str]) -> None:
    """Raise ConversionError if a member's output depends on tensors of another member.

    Args:
        network: was run in training mode, with gradients for all its `stacked_of`.
        outputs: (member, batch, ...)
        inputs: inputs of members (member, batch, ...), if they have their own.
        order: names of the modules in order of execution.
    """
    own = stacked_of(network)
    sought = [*own.values(), *inputs]
    if not sought or network.members == 1:
        return
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
    weighed = (outputs * weights).flatten(1).sum(1)  # (member,)

    def mixed(members: list[int]) -> list[bool]:
        """Return which of these tensors the outputs of some members depend on in the parts of other members."""
        found = torch.autograd.grad(weighed[members].sum(), sought, retain_graph=True, allow_unused=True)
        others = torch.ones(network.members, dtype=torch.bool, device=outputs.device)
        others[members] = False
        return [gradient is not None and bool((gradient[others] != 0).any()) for gradient in found]

    for members in _sets(network.members):
        if any(mixed(members)):
            member, found = next((i, found) for i in members if any(found := mixed([i])))
            if any(found[len(own) :]):
                raise ConversionError(f"the output of member {member} depends on the inputs of another member.")
            layers = [name.rpartition(".")[0] for name, bad in zip(own, found) if bad]
            fault = max(layers, key=lambda layer: order.index(layer) if layer in order else -1)
            raise ConversionError(
                f"members are not independent: the output of member {member} depends on weights of other members, up to layer "
                f"{fault.removeprefix('network.')!r} ({type(network.get_submodule(fault)).__name__}). They are mixed in that layer or right "
                "behind it, for example by an operation over the batch axis; change the operation, or use a method whose members are "
                "networks of their own."
            )


def _sets(members: int) -> list[list[int]]:
    """Return a few sets of members such that each of any two is in a set without the other: equal binary digits.

    >>> _sets(2), len(_sets(64)), len(_sets(1000))
    ([[0], [1]], 12, 20)
    """
    digits = range((members - 1).bit_length())
    return [[i for i in range(members) if i >> digit & 1 == value] for digit in digits for value in (0, 1)]


def why_not_run(network: Joint, error: Exception) -> ConversionError:
    """Return the error to raise for an error of a joint network in training mode."""
    if "running_mean" in str(error):
        return ConversionError(
            "the joint network cannot run: forward code draws by member (F.dropout, for example) before a normalization that all "
            "members share; make the dropout a layer of its own (nn.Dropout), or let the branches begin before it."
        )
    report = f"\n{network.report()}" if isinstance(network, PackedNetwork) else ""
    return ConversionError(
        f"the joint network cannot run on this data: {error}. If its forward code states a width as a number, or widths were "
        f"rounded up where tensors are added or concatenated, choose members so that they divide the widths.{report}"
    )
