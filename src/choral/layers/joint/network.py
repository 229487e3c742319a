"""Joint: one module tree with several members, which can be run in three ways.

Some tensors of the tree have a member axis in front (they are *stacked*), the others are shared by all members. The tree can be run

- `loop`: member after member, each pass with that member's slices - the plain layers, the plain kernels;
- `grouped`: all members side by side, under `torch.func.vmap` or, for most packed networks of convolutions, on the channel axis -
  convolutions become grouped convolutions, and what does not depend on the member (a shared trunk) is computed once;
- `matmul`: all members together with the members folded into the batch axis - matrix products become batched ones. Layers at the
  beginning of a plain chain that are the same for all members (flattening, embeddings) are computed once.

In the first two a layer has tensors without the member axis and is the plain layer. In the third it has the member axis, which `Foldable`
layers support. Results are the same up to rounding (with `matmul`, dropout draws other numbers), and `kernel` can be changed at any time.
"""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from choral.base import batches, devices, draws
from choral.base.batches import Batch
from choral.base.errors import ConversionError
from choral.layers.convert import call_with, holds, layers_of, plain_network, ties_of
from choral.layers.functional import BATCH_NORMS, spatial
from choral.layers.joint.layers import CutError, Foldable, fold, unfold

# vmap runs a few operations, such as pooling with channels last, member by member and warns of their speed in every network
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")

Kernel = Literal["auto", "loop", "grouped", "matmul"]
_FUSIBLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
# what vmap has no rule for, or only a slow one
_LOOPED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


class _Composite(TorchFunctionMode):
    """A context in which torch's attention layers do not take their fused path, which has no rule for vmap."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Joint(nn.Module):
    """Several members in one module tree.

    Args:
        network: the tree, not copied.
        members: number of members in the stacked tensors.
        stacked: names of the parameters and buffers with the member axis; by default those that its `Foldable` layers own.
        kernel: 'loop', 'grouped', 'matmul', or 'auto', the fastest in our measurements for the kinds of layers and the device (see
            `usual_kernel`).
        own_inputs: whether every member reads its own inputs.

    Shapes: (batch, ...) or, with own_inputs, (member, batch, ...) -> (member, batch, ...).
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        members: int,
        stacked: Iterable[str] | None = None,
        kernel: Kernel = "auto",
        own_inputs: bool = False,
    ):
        super().__init__()
        self.network = network
        self.members = members
        foldable: Iterator[tuple[str, Any]] = layers_of(network, (Foldable,))
        owned = [f"{name}.{key}".removeprefix(".") for name, layer in foldable for key in layer.own]
        self.stacked = frozenset(owned if stacked is None else stacked)
        self.own_inputs = own_inputs
        self._fusible = holds(network, *_FUSIBLE)
        self._ties = ties_of(network)
        self._trunk = 0 if own_inputs else _common(network, self.stacked)
        self._asked = kernel
        self._avoided: tuple[str, ...] = ()
        self._folded = set[torch.Size]()  # shapes of batches that were folded
        self._cuts = False  # whether forward code took a part of one
        self.choose_kernel()

    @property
    def is_open(self) -> bool:
        """Whether the kernel is left to choral."""
        return self._asked == "auto"

    def avoid(self, kernels: tuple[str, ...]) -> None:
        """Exclude kernels whose results differed from members alone in a dry run."""
        self._avoided = kernels
        if self.kernel in kernels:
            self.choose_kernel()

    def choose_kernel(self) -> None:
        """Use the requested kernel, or the usual one for the device of the network."""
        asked = "loop" if self._asked in self._avoided else self._asked
        self.kernel = usual_kernel(self) if self.is_open else asked
        obstacle = "" if self.is_open else self.obstacle(self.kernel)
        if obstacle:
            raise ConversionError(f"kernel={self.kernel!r} cannot run all layers: {obstacle}; share it, or use 'loop'.")

    def obstacle(self, kernel: str) -> str:
        """Return why a kernel cannot run this tree, or an empty string."""
        if kernel in self._avoided:
            return "a dry run gave something else than members alone"
        apart = self.own_inputs  # whether members differ by now, in the order in which layers were registered
        for name, module in self.network.named_modules():
            kind = type(module).__name__
            own = [n for n, _ in (*module.named_parameters(name, False), *module.named_buffers(name, False))]
            apart = apart or not self.stacked.isdisjoint(own)
            if kernel == "grouped" and apart and isinstance(module, nn.RNNBase):
                return f"torch.func.vmap has no rule for {kind} ({name!r})"
            if kernel == "matmul" and isinstance(module, BATCH_NORMS):
                return f"{kind} ({name!r}) would mix the statistics of members folded into one batch"
            if kernel == "matmul" and not isinstance(module, Foldable) and not self.stacked.isdisjoint(own):
                return f"{kind} ({name!r}) cannot read members folded into the batch"
        return ""

    def forward(self, x: Batch) -> Tensor:
        if self.members == 1:
            return self._loop(x)
        if self.kernel == "matmul" and not self._cuts:
            return self._matmul_or_loop(x)
        return self.together(x) if self.kernel == "grouped" else self._loop(x)

    def _matmul_or_loop(self, x: Batch) -> Tensor:
        """Fold members into the batch, or run them in a loop from now on if forward code takes parts of batches of so many rows."""
        rows, stream = batches.leaves(x)[0].shape, draws.now().stream
        before = [] if rows in self._folded else [(b, b.clone()) for b in self.network.buffers()]
        self._folded.add(rows)
        site = 0 if stream is None else stream.site
        try:
            return self._matmul(x)
        except CutError:
            self._cuts = True
        for buffer, value in before:
            buffer.copy_(value)
        if stream is not None:
            stream.site = site
        return self._loop(x)

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        params: dict[str, Tensor] = {n: p for n, p in self.network.named_parameters() if n in self.stacked}
        return params, {n: b for n, b in self.network.named_buffers() if n in self.stacked}

    def _call(self, own: dict[str, Tensor], x: Batch) -> Tensor:
        return call_with(self.network, own, x, self._ties)

    def _loop(self, x: Batch) -> Tensor:
        params, buffers = self._tensors()
        parts = {n: p.unbind() for n, p in params.items()}  # one unbind has one backward, which stacks the gradients
        streams, outputs = draws.Branch(), []
        for i in range(self.members):
            # written back afterwards: under an outer vmap, BatchNorm does not write into a part of a tensor
            own = {n: b[i].clone() for n, b in buffers.items()}
            with streams.member(i):
                given = batches.part(x, i) if self.own_inputs else x
                outputs.append(self._call({n: p[i] for n, p in parts.items()} | own, given))
            if self.training:
                for n, b in buffers.items():
                    b[i].copy_(own[n])
        return torch.stack(outputs)

    def apart(self) -> Iterator[nn.Module]:
        """Yield the modules that run separately for each member when members are folded into the batch."""
        common = {m for layer in list(self.network._modules.values())[: self._trunk] if layer for m in layer.modules()}
        return (m for m in self.network.modules() if m not in common)

    def is_faster_together(self) -> bool:
        """Return whether convolutions of all members at once are faster than one member after the other on a CPU."""
        return False

    def together(self, x: Batch) -> Tensor:
        """Run all members side by side, mapped by `torch.func.vmap`."""
        params, buffers = self._tensors()
        streams = draws.Branch()

        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], index: Tensor, x: Batch) -> Tensor:
            with streams.member(index):
                return self._call(params | buffers, x)

        mapped = vmap(one, in_dims=(0, 0, 0, 0 if self.own_inputs else None), randomness="different")
        index = torch.arange(self.members, dtype=torch.int32, device=batches.leaves(x)[0].device)
        with _Composite() if self._fusible else nullcontext():
            return mapped(params, buffers, index, x)

    def _matmul(self, x: Batch) -> Tensor:
        """Run members folded into the batch; raises CutError where forward code takes parts of it."""
        rows = batches.leaves(x)[0].shape[1 if self.own_inputs else 0]

        def folded(t: Tensor) -> Tensor:
            return fold(t if self.own_inputs else t.expand(self.members, *t.shape))

        with draws.under(folded=self.members, rows=rows):
            if not self._trunk:
                return unfold(self.network(batches.mapped(folded, x)), self.members)
            assert isinstance(x, Tensor), "a chain reads one tensor"
            now: Tensor = x
            for i, layer in enumerate(self.network._modules.values()):  # a layer that stands in two places runs twice
                assert layer is not None
                now = layer(now if i != self._trunk else folded(now))
            return unfold(now, self.members)

    def member(self, index: int) -> nn.Module:
        """Return member `index` as a plain network with tensors of its own, in the training mode of this one."""
        copied = copy.deepcopy(self.network)
        slices: dict[int, Tensor] = {}
        for name, t in (*copied.named_parameters(), *copied.named_buffers()):
            if name in self.stacked:
                own = t[index].detach().clone()
                slices[id(t)] = nn.Parameter(own, t.requires_grad) if isinstance(t, nn.Parameter) else own
        for module in list(copied.modules()):
            for name, held in {**module._parameters, **module._buffers}.items():
                if id(held) in slices:  # set as an attribute: recurrent layers keep a second list of their weights
                    setattr(module, name, slices[id(held)])
        return plain_network(copied)

    def extra_repr(self) -> str:
        return f"members={self.members}, kernel={self.kernel!r}"


def _common(network: nn.Module, stacked: frozenset[str]) -> int:
    """Return the number of layers at the beginning of a plain chain that are the same for every member."""
    if type(network) is not nn.Sequential:
        return 0
    for i, (name, layer) in enumerate(network._modules.items()):
        assert layer is not None
        draws_by_member = holds(layer, nn.modules.dropout._DropoutNd, Foldable)
        if draws_by_member or any(n.startswith(f"{name}.") for n in stacked):
            return i
    return 0


def channels_last(network: nn.Module) -> nn.Module:
    """Return the network with convolution weights in channels-last format, those of each member in stacked ones.

    Gain: a training step of 32 images is 1.3 times faster with LeNet-S, 1.2 times with resnet_cifar(20). Convolutions follow the format of
    their weights, so inputs need not be reordered. Other weights of five axes, such as components of a patched convolution, are not changed.
    """
    stacked = {f"network.{name}" for name in network.stacked} if isinstance(network, Joint) else set()
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if tensor.dim() - (name in stacked) == 4:
            laid = tensor.data.flatten(0, -4).contiguous(memory_format=torch.channels_last)  # members and outputs
            channels, height, width = tensor.shape[-3:]
            size = channels * height * width
            outer = [size * math.prod(tensor.shape[axis + 1 : -3]) for axis in range(tensor.dim() - 3)]
            # said outright: torch takes any strides of a single channel for both formats
            tensor.data = laid.as_strided(tensor.shape, (*outer, 1, width * channels, channels))
    return network


def usual_kernel(joint: Joint) -> str:
    """Return the kernel that was fastest for such networks in our measurements (benchmarks/shared_speed.py).

    On a CPU, networks of linear maps run fastest as batched matrix products, packed convolutions with members side by side on the channel
    axis, and other convolutional networks member by member. On other devices, where every launch costs, convolutions are always grouped.
    """
    modules = list(joint.apart())
    device = next((p.device for p in joint.network.parameters()), torch.device("cpu"))
    if any(isinstance(m, _LOOPED) for m in modules) or joint.obstacle("grouped"):
        return "loop"
    if any(m.dims if isinstance(m, Foldable) else spatial(m) for m in modules):
        return "loop" if devices.is_processor(device) and not joint.is_faster_together() else "grouped"
    return "grouped" if joint.obstacle("matmul") else "matmul"
