"""Check that the members of a joint network do not see each other.

One forward pass in training mode, and a backward pass from each of a few sets of members: no gradient may reach the tensors, or
the inputs, that belong to a member outside the set. Of 32 members it takes 7 passes, of 1000 it takes 13, and any two that are mixed
are found. It is meant to be run once before training, on a few rows of data; nothing in the network is changed.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import combinations, count, islice
from math import comb
from typing import NoReturn

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng
from choral.base.batches import Batch
from choral.base.errors import ConversionError
from choral.layers.joint.network import Joint
from choral.layers.packed.networks import PackedNetwork
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
    # a copy, since what backward computes again reads the module's own tensors, not those of a call
    copy = deepcopy(network)
    own = {n: p.requires_grad_() for n, p in copy.named_parameters() if n.removeprefix("network.") in network.stacked}
    sought = [*own.values(), *watched]
    if not sought:
        return
    order, outputs = _run(structure, copy, inputs)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
    weighed = (outputs * weights).flatten(1).sum(1)  # (member,)

    def reached(members: list[int], beside: list[int]) -> list[bool]:
        """Return which of the sought tensors the output of some members depends on, in what belongs to none of those beside."""
        found = torch.autograd.grad(weighed[members].sum(), sought, retain_graph=True, allow_unused=True)
        return [_foreign(gradient, beside) for gradient in found]

    def mixes(some: list[int], among: list[int]) -> bool:
        return any(reached(some, among))

    for members in _sets(network.members):
        if any(reached(members, members)):
            i = _culprit(members, partial(mixes, among=members))
            _refuse(network, i, reached([i], [i]), list(own), order)


def _sets(members: int) -> list[list[int]]:
    """Return few sets of members such that of any two, each is in one without the other.

    No set of passes in which a member takes part may hold another's: they are all as large as each other, and different
    (Sperner). Any mixing of two members is then found by some pass from a set to those outside it.

    >>> _sets(2), len(_sets(64)), len(_sets(1000))
    ([[0], [1]], 8, 13)
    """
    passes = next(n for n in count(2) if comb(n, n // 2) >= members)
    parts = list(islice(combinations(range(passes), passes // 2), members))
    return [held for p in range(passes) if (held := [i for i, part in enumerate(parts) if p in part])]


def _culprit(members: list[int], is_mixed: Callable[[list[int]], bool]) -> int:
    """Return a member that is mixed with others, of several of which one is."""
    while len(members) > 1:
        half = members[: len(members) // 2]
        members = half if is_mixed(half) else members[len(half) :]
    return members[0]


def _refuse(network: Joint, member: int, mixed: list[bool], own: list[str], order: list[str]) -> NoReturn:
    """Raise the error of a member that is mixed with others, in these of its own tensors and, behind them, of its inputs."""
    if any(mixed[len(own) :]):
        raise ConversionError(f"the output of member {member} depends on the inputs of another member.")
    layers = [name.rpartition(".")[0] for name, bad in zip(own, mixed) if bad]
    fault = max(layers, key=lambda layer: order.index(layer) if layer in order else -1)
    kind = type(network.get_submodule(fault)).__name__
    raise ConversionError(
        f"members are not independent: the output of member {member} depends on weights of other members, up to layer "
        f"{fault.removeprefix('network.')!r} ({kind}). They are mixed in that layer or right behind it, for example by "
        "an operation over the batch axis; change the operation, or use a method whose members are networks of their own."
    )


def _foreign(gradient: Tensor | None, members: list[int]) -> bool:
    """Return whether a gradient (member, ...) reaches any member but these."""
    if gradient is None:
        return False
    others = torch.ones(len(gradient), dtype=torch.bool, device=gradient.device)
    others[members] = False
    return bool((gradient[others] != 0).any())


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
                "the joint network cannot run: forward code draws by member (F.dropout, for example) before a normalization that all "
                "members share; make the dropout a layer of its own (nn.Dropout), or let the branches begin before it."
            ) from error
        report = f"\n{network.report()}" if isinstance(network, PackedNetwork) else ""
        raise ConversionError(
            f"the joint network cannot run on this data: {error}. If its forward code states a width as a number, or widths were "
            f"rounded up where tensors are added or concatenated, choose members so that they divide the widths.{report}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
