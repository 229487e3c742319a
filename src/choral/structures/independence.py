"""Check that the members of a joint network do not see each other.

One forward pass in training mode, and one backward pass from each member's output: no gradient may reach the tensors, or
the inputs, that belong to another member. It is meant to be run once before training, on a few rows of data; nothing in
the network is changed.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng
from choral.base.batches import Batch
from choral.base.errors import ConversionError
from choral.layers.joint.network import Joint
from choral.layers.packed.abreast import PackedNetwork
from choral.structures.base import Structure

ROWS = 4


def check_independence(structure: Structure, network: nn.Module, x: Batch) -> None:
    """Raise ConversionError if a member's output depends on what belongs to another member.

    Structures without tensors of their own for each member (`Mimo`, `Patched`, `Stochastic`, ...) have nothing to check.

    Args:
        structure: the structure that converted the network.
        network: the joint network.
        x: some rows of data as the plain network reads them; the first few are used.

    The message names the last layer, in the order in which layers run, whose tensors another member's output depends on:
    the members are mixed in it or right behind it.
    """
    if not isinstance(network, Joint) or network.members == 1:
        return
    inputs, _ = structure.feed(batches.part(x, slice(ROWS)), None)
    watched: list[Tensor] = []
    if network.own_inputs:
        inputs = batches.mapped(lambda t: t.clone().requires_grad_(t.is_floating_point()), inputs)
        watched = [leaf for leaf in batches.leaves(inputs) if leaf.requires_grad]
    copy = deepcopy(
        network
    )  # a call with other tensors would not do: parts that backward computes again read the module's own
    own = {n: p.requires_grad_() for n, p in copy.named_parameters() if n.removeprefix("network.") in network.stacked}
    sought = [*own.values(), *watched]
    if not sought:
        return
    order, outputs = _run(structure, copy, inputs)
    weights = torch.randn(outputs.shape[1:], generator=torch.Generator().manual_seed(0)).to(outputs)
    for i in range(network.members):
        found = torch.autograd.grad((outputs[i] * weights).sum(), sought, retain_graph=True, allow_unused=True)
        mixed = [_foreign(gradient, i) for gradient in found]
        if any(mixed[len(own) :]):
            raise ConversionError(f"the output of member {i} depends on the inputs of another member.")
        names = [name for name, bad in zip(own, mixed) if bad]
        if names:
            layers = [name.rpartition(".")[0] for name in names]
            fault = max(layers, key=lambda layer: order.index(layer) if layer in order else -1)
            kind = type(network.get_submodule(fault)).__name__
            raise ConversionError(
                f"members are not independent: the output of member {i} depends on weights of other members, up to layer "
                f"{fault.removeprefix('network.')!r} ({kind}). They are mixed in that layer or right behind it, for example by "
                "an operation over the batch axis; use kernel='loop', or change the operation."
            )


def _foreign(gradient: Tensor | None, member: int) -> bool:
    """Return whether a gradient (member, ...) reaches any member but this one."""
    if gradient is None:
        return False
    others = torch.cat((gradient[:member], gradient[member + 1 :]))
    return bool((others != 0).any())


def _run(structure: Structure, network: Joint, inputs: Batch) -> tuple[list[str], Tensor]:
    """Return the names of modules in the order in which they ran, and the outputs by member."""
    order: list[str] = []
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: None if name in order else order.append(name))
        for name, module in network.named_modules()
    ]
    network.train()
    try:
        with rng.seeded(0, "look"), draws.keyed(0), torch.enable_grad():
            return order, structure.unfold(network(inputs))
    except RuntimeError as error:
        if "running_mean" in str(error):
            raise ConversionError(
                "the joint network cannot run: forward code draws by member (F.dropout, for example) before a normalisation that all "
                "members share; make the dropout a layer of its own (nn.Dropout), or let the branches begin before it."
            ) from error
        report = f"\n{network.report()}" if isinstance(network, PackedNetwork) else ""
        raise ConversionError(
            f"the joint network cannot run on this data: {error}. If its forward code states a width as a number, or widths were "
            f"rounded up where tensors are added or concatenated, choose width and members so that they divide. "
            f"Forward code that torch.func.vmap cannot map runs with kernel='loop'.{report}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
