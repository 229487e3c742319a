"""Pack a network: M narrower independent copies of it in one module tree.

Reference: Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", 2023, arXiv:2210.09184.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, fx, nn

from choral.base.batches import Batch
from choral.base.errors import ConversionError
from choral.base.text import fitting, text_table
from choral.base.values import Count, Positive
from choral.layers.convert import ends_of, first_layers, swap
from choral.layers.functional import WEIGHTED, own_kind
from choral.layers.joint.network import Joint, Kernel
from choral.layers.kernels.packed import course_of, run_abreast, surroundings
from choral.layers.packed.layers import PACKABLE, PackedLayer
from choral.layers.packed.narrow import Narrowing, Place, Width

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class PackedNetwork(Joint):
    """A packed network, with a list of the widths of its layers.

    If the network allows it (see `choral.layers.kernels.packed`), the grouped kernel runs members on the channel axis instead of by vmap.
    """

    widths: tuple[Width, ...] = ()
    _known: tuple[Any, fx.Graph | None] | None = None

    def course(self) -> fx.Graph | None:
        """Return the graph for running members side by side, traced again after changes of what forward code may read."""
        now = surroundings(self.network)
        if self._known is None or self._known[0] != now:
            self._known = now, course_of(self.network)
        return self._known[1]

    def is_faster_together(self) -> bool:
        return not self.own_inputs and self.course() is not None

    def together(self, x: Batch) -> Tensor:
        """Run all members side by side: on the channel axis if the network allows it, else mapped."""
        course = None if self.own_inputs else self.course()
        if course is None or not isinstance(x, Tensor):
            return super().together(x)
        return run_abreast(self.network, course, x, self.members)

    def report(self) -> str:
        """Return a table of every layer's widths, effective gamma and remarks."""
        rows: list[tuple[str, ...]] = [("layer", "kind", "plain", "member", "gamma", "remark")]
        for w in self.widths:
            sizes = [" -> ".join(map(str, size)) for size in (w.plain, w.member)]
            rows.append((w.name, w.kind, *sizes, str(w.subgroups), w.remark))
        return "\n".join(map(str.rstrip, text_table(rows)))


def pack(
    network: nn.Module,
    *,
    members: int,
    width: Positive = 2,
    subgroups: Count = 1,
    minimum_channels: int = 64,
    whole_block_starts: bool = True,
    kernel: Kernel = "auto",
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    own_inputs: bool = False,
    generator: torch.Generator | None = None,
) -> PackedNetwork:
    """Return M narrower copies of a network as one: a Packed-Ensemble PE-(alpha, M, gamma).

    Every member is the plain network with alpha / M times the inner widths, rounded up, and with its own weights. The forward code of the
    network runs unchanged for each member, so sums, concatenations, flattening, normalization and attention stay within a member. Weights are
    drawn from the values of the given network, tensor by tensor, scaled by the root of the change in fan-in, so that its kind of
    initialization is kept.

    Args:
        network: any nested network; not changed.
        members, width, subgroups, minimum_channels, whole_block_starts, kernel, first, last: as in `choral.structures.Packed`.
        own_inputs: whether every member reads its own inputs.
        generator: draws the weights; a new one with seed 0 by default.

    Reference: Laurent et al., 2023, section 3 and appendix B.

    Example:
        >>> plain = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> network = pack(plain, members=4)
        >>> network(torch.ones(5, 8)).shape
        torch.Size([4, 5, 3])
        >>> print(network.report())
        layer    kind    plain   member  gamma  remark
        0      Linear  8 -> 64  8 -> 32      1
        2      Linear  64 -> 3  32 -> 3      1
    """
    places = _places(network, first, last, _block_leads(network) if whole_block_starts else set())
    n = Narrowing(
        members=members,
        ratio=Fraction(width).limit_denominator(1000) / members,
        subgroups=subgroups,
        minimum_channels=minimum_channels,
        generator=generator or torch.Generator().manual_seed(0),
    )

    def replace(name: str, layer: nn.Module) -> nn.Module | None:
        made = n.resize(name, layer, places[name])
        if made is None:
            return None
        held = any(t is not None for t in (*made._parameters.values(), *made._buffers.values()))
        return PackedLayer(made, members=members) if held and own_kind(made, PACKABLE) else made

    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    if frozen:
        raise ConversionError(
            f"{', '.join(frozen)}: frozen, but packed members get weights of their own; train them too, or use batch_ensemble, masksembles or treenet."
        )
    tree = swap(network, replace)
    _stack_rest(tree, n)
    if subgroups > 1 and all(w.subgroups == 1 for w in n.widths):
        raise ConversionError(
            f"subgroups={subgroups} has no effect: no group has minimum_channels={minimum_channels} inputs; lower that, use subgroups=1 or a larger width."
        )
    names = [name for name, _ in (*tree.named_parameters(), *tree.named_buffers())]
    joint = PackedNetwork(tree, members=members, stacked=names, kernel=kernel, own_inputs=own_inputs)
    joint.widths = tuple(n.widths)
    return joint.train(network.training)


def _places(network: nn.Module, first: Sequence[str], last: Sequence[str], leads: set[str]) -> dict[str, Place]:
    layers = [name for name, _ in ends_of(network)]
    if not layers:
        raise ConversionError(f"{type(network).__name__} has no linear map, convolution or other layer with a width.")
    starts = fitting(layers, first, "first") or first_layers(layers)
    stops = fitting(layers, last, "last") or layers[-1:]
    order = {name: i for i, (name, _) in enumerate(network.named_modules())}
    begin, end = min((order[name] for name in starts), default=-1), max(order[name] for name in stops)
    declared = min(order[name] for name in layers) == begin  # in the order in which they run
    return {
        name: Place(
            first=name in starts,
            last=name in stops,
            inner=not declared or (begin < here and (here < end or end < begin)),
            starts_block=name in leads,
        )
        for name, here in order.items()
    }


def _block_leads(network: nn.Module) -> set[str]:
    """Return the first layer of every block: a module inside the network with several layers of its own."""
    leads = set()
    for name, module in network.named_modules():
        own = [f"{name}.{child}" for child, layer in module.named_children() if isinstance(layer, WEIGHTED)]
        if name and not isinstance(module, (*_CONTAINERS, nn.MultiheadAttention)) and len(own) > 1:
            leads.add(own[0])
    return leads


def _stack_rest(tree: nn.Module, n: Narrowing) -> None:
    """Stack the tensors of modules of other kinds, narrowing the last axis that is as long as a hidden width.

    Integer tensors, such as positions, are not narrowed.
    """
    for module in list(tree.modules()):
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or n.stacked(tensor):
                continue
            shape = list(tensor.shape)
            widths = [i for i, size in enumerate(shape) if size in n.hidden and size > 1]
            for i in widths[-1:] if tensor.is_floating_point() else ():
                shape[i] = n.scaled(shape[i])
            n.put(module, key, shape)
