"""The tracer: one forward pass on an example, recorded call by call, to find which channels depend on which.

Every call of a torch function goes through `Tracer`. For each tensor it knows the axis of the channels, their units, and which of them are
constants; the rule of a function gives the same for its result. A function without a rule locks the channels it reads. So a channel is
removable only if every function it passes through has a rule.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Channels:
    """What is known about the channels along one axis of a tensor.

    Args:
        axis: the axis, from 0.
        units: the unit of every channel, (channel,).
        constants: the constant value of a channel, at all places and for all inputs, (channel,); NaN if it varies.
    """

    axis: int
    units: Tensor
    constants: Tensor

    def valued(self, constants: Tensor) -> "Channels":
        """Return the same channels with other constants."""
        return Channels(self.axis, self.units, constants.to(self.constants))

    def zero_only(self) -> "Channels":
        """Return the channels with all constants but zero unknown."""
        return self.valued(self.constants.where(self.constants == 0, torch.nan))


class Units:
    """A growing set of units that can be tied to each other and locked (never to be removed)."""

    def __init__(self) -> None:
        self._count = 0
        self._ties = [torch.zeros(2, 0, dtype=torch.long)]
        self.locks: list[Tensor] = []

    def fresh(self, count: int) -> Tensor:
        """Return new units, each on its own."""
        self._count += count
        return torch.arange(self._count - count, self._count)

    def tie(self, one: Tensor, other: Tensor) -> None:
        """Tie units place by place."""
        self._ties.append(torch.stack([one, other]))

    def lock(self, units: Tensor) -> None:
        """Never remove these units."""
        self.locks.append(units.unique())

    def roots(self) -> Tensor:
        """Return for every unit the number of the group of units it is tied to, (unit,)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        ties = torch.cat(self._ties, 1)
        graph = coo_array((torch.ones(ties.shape[1]), tuple(ties.numpy())), shape=(self._count, self._count))
        return torch.from_numpy(connected_components(graph, directed=False)[1]).long()


Rule = Callable[..., Any]
Rules = Callable[["Tracer", "Call"], Any]

_MUTATING = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__", "__setitem__")


class Call(NamedTuple):
    """One call of a torch function and its result."""

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


@dataclass(frozen=True)
class Use:
    """Channels read by a layer that mixes them: removable only if they are constants that its bias can take over.

    Args:
        units: units of the input channels.
        constants: their constants, NaN if they vary.
        weight: name of the layer's weight.
        bias: name of its bias, or None.
        padded: whether zeros are padded around the input, so that only a zero constant is constant for the layer.
    """

    units: Tensor
    constants: Tensor
    weight: str
    bias: str | None
    padded: bool

    @property
    def takes_constants(self) -> bool:
        """Whether the layer's bias can take over the constants it reads."""
        return self.bias is not None and not self.padded

    @property
    def emitting(self) -> Tensor:
        """Which channels emit a constant other than zero, (channel,)."""
        return ~self.constants.isnan() & (self.constants != 0)


def tensors_in(item: Any) -> Iterator[Tensor]:
    """Return every tensor in nested lists, tuples and dicts."""
    match item:
        case Tensor():
            yield item
        case Mapping():
            yield from tensors_in(list(item.values()))
        case list() | tuple():
            for value in item:
                yield from tensors_in(value)


class Tracer(TorchFunctionMode):
    """Observes one forward pass and collects what is known about channels.

    Args:
        network: the network to run; hooks for the names of its modules remain on it, so pass a copy.
        dead: zero rows, (output channel,) by weight name.
        rules: applies the rule of a function to a call; NotImplemented if there is none.
        silence: treat parameters that act on single channels (norm scales and shifts) as zero where the channel is a constant, and collect
            them in `silenced`.

    Attributes:
        units: the units.
        bound: units along an axis of a parameter or buffer, by (name, axis).
        rows: units of a layer's output channels, by the name of its weight.
        uses: all uses by layers that mix channels.
        elsewhere: parameters used by calls without a rule.
        norms: units of the channels that a normalization module reads, by module name.
        silenced: False where a parameter would be silenced, (channel,) by name.
    """

    def __init__(self, network: nn.Module, *, dead: Mapping[str, Tensor], rules: Rules, silence: bool = False):
        super().__init__()
        self.units = Units()
        self.bound: dict[tuple[str, int], Tensor] = {}
        self.rows: dict[str, Tensor] = {}
        self.uses: list[Use] = []
        self.elsewhere: set[str] = set()
        self.norms: dict[str, Tensor] = {}
        self.silenced: dict[str, Tensor] = {}
        self.dead = dead
        self._rules = rules
        self._silence = silence
        own = [*network.named_parameters(), *network.named_buffers()]
        self.names = {id(t): n for n, t in own}  # of parameters and buffers
        self._shapes = {n: t.shape for n, t in own}
        self._parameters = {n for n, _ in network.named_parameters()}
        self._modules: list[str] = [""]
        # every tensor seen stays referenced here, so that no id is used twice
        self._seen: dict[int, tuple[Tensor, Channels | None]] = {}
        self._vectors: dict[int, tuple[Tensor, str, bool]] = {}
        self._by_storage: dict[int, list[int]] = {}
        self._bound_now: set[str] = set()
        self._pinned: set[tuple[str, int]] = set()
        for name, module in network.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks, and what happens inside is not seen: the check of the result has to do
            module.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name))
            module.register_forward_hook(self._leave)

    def _leave(self, *_: Any) -> None:
        self._modules.pop()

    @property
    def module(self) -> str:
        """The name of the module whose forward is running."""
        return self._modules[-1]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call and record its effect on channels."""
        kwargs = kwargs or {}
        before = [(t, self.channels(t)) for t in tensors_in((args, kwargs))]
        call = Call(func, getattr(func, "__name__", "call"), args, kwargs, func(*args, **kwargs))
        read = [channels for _, channels in before if channels is not None]
        named = [self.name(t) for t, _ in before]
        if read or any(named):
            self._follow(call, read, [name for name in named if name is not None])
        return call.result

    def _follow(self, call: Call, read: list[Channels], named: list[str]) -> None:
        results = list(tensors_in(call.result))
        in_place = call.name in _MUTATING or (call.name.endswith("_") and call.name[:2] != "__")
        mutates = in_place or call.kwargs.get("inplace")
        mutated = next(tensors_in((call.args, call.kwargs)), None) if mutates else None
        if not results and mutated is None:
            if call.name in ("item", "tolist", "numpy", "__bool__", "__array__"):  # its value is read
                self._lock(read)
            return
        self._bound_now = set()
        known = self._rules(self, call)
        if known is NotImplemented:
            self._lock(read)
            known = None
        self.elsewhere.update(name for name in named if name not in self._bound_now)
        if mutated is not None:
            self._forget_aliases(mutated)
        for result in results:
            self._note(result, known)

    def _note(self, tensor: Tensor, channels: Channels | None) -> None:
        self._seen[id(tensor)] = (tensor, channels)
        self._by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(id(tensor))

    def _forget_aliases(self, tensor: Tensor) -> None:
        for other in self._by_storage.get(tensor.untyped_storage().data_ptr(), []):
            held, channels = self._seen[other]
            if held is not tensor and channels is not None:
                unknown = torch.full_like(channels.constants, torch.nan)
                self._seen[other] = (held, channels.valued(unknown))

    def _lock(self, read: list[Channels]) -> None:
        for channels in read:
            self.units.lock(channels.units)

    def channels(self, tensor: Any) -> Channels | None:
        """Return the channels of a tensor, None for other arguments."""
        return self._seen.get(id(tensor), (None, None))[1]

    def name(self, tensor: Any) -> str | None:
        """Return the name of a parameter or buffer, also of a reshaped one."""
        return self.names.get(id(tensor)) or self._vectors.get(id(tensor), (None, None, False))[1]

    def vector(self, tensor: Tensor) -> tuple[str, bool] | None:
        """Return the name of a parameter with one long axis in a tensor, and whether its values are unchanged."""
        if sum(size > 1 for size in tensor.shape) > 1:
            return None
        if id(tensor) in self.names:
            return self.names[id(tensor)], True
        held = self._vectors.get(id(tensor))
        return None if held is None else held[1:]

    def note_vector(self, tensor: Tensor, source: Tensor, *, unchanged: bool) -> bool:
        """Record that a tensor is a parameter with one long axis, reshaped or after an elementwise function."""
        held = self.vector(source)
        if held is None or tensor.numel() != source.numel():
            return False
        self._vectors[id(tensor)] = (tensor, held[0], held[1] and unchanged)
        self._bound_now.add(held[0])
        return True

    def bind(self, name: str, axis: int, units: Tensor | None) -> None:
        """Bind an axis of a parameter to units, or with None fix its length."""
        self._bound_now.add(name)
        if units is None:
            self._pinned.add((name, axis))
        elif (name, axis) in self.bound:
            self.units.tie(self.bound[name, axis], units)
        else:
            self.bound[name, axis] = units

    def act(self, tensor: Tensor, channels: Channels) -> Tensor | None:
        """Bind a parameter that acts on each channel separately and return its values, (channel,), or None.

        In a silencing pass its values are zero where the channel is a constant.
        """
        held = self.vector(tensor)
        if held is None or tensor.numel() != channels.units.numel():
            return None
        name, unchanged = held
        shape = self._shapes[name]
        self.bind(name, max(range(len(shape)), key=lambda axis: shape[axis]), channels.units)
        values = tensor.detach().flatten()
        if unchanged and self.silence(name, channels.constants):
            values = values * channels.constants.isnan().to(values.device)
        return values

    def silence(self, name: str | None, constants: Tensor) -> bool:
        """Record that a parameter acts only on constants at some channels; return whether to treat it as zero there."""
        if not self._silence or name not in self._parameters:
            return False
        varies = constants.isnan()
        self.silenced[name] = self.silenced.get(name, torch.zeros_like(varies)) | varies
        return True

    def finish(self, outputs: Any) -> None:
        """Lock the network's outputs, and all that is bound to parameters with unknown uses."""
        self._lock([c for c in map(self.channels, tensors_in(outputs)) if c is not None])
        for (name, axis), units in self.bound.items():
            if name in self.elsewhere or (name, axis) in self._pinned:
                self.units.lock(units)
