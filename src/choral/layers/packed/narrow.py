"""Layers of one member of a packed ensemble: the plain layer with its inner widths scaled, and its tensors redrawn.

A Packed-Ensemble PE-(alpha, M, gamma) is M independent networks of alpha / M times the width. So it is enough to resize every layer for one
member and to stack the members' tensors. A `Narrowing` has the settings, resizes layers and keeps a list of the results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from choral.base.errors import ConversionError
from choral.layers.convert import CELLS, ENDS
from choral.layers.frn import FilterResponseNorm
from choral.layers.functional import CONVOLUTIONS, NORMS, TRANSPOSED
from choral.layers.packed.layers import GroupedLinear

_CHANNELS = ("normalized_shape", "num_features", "num_channels", "channels", "num_parameters")


@dataclass(frozen=True)
class Width:
    """The result for one layer: its sizes in the plain network and in one member, its gamma, and a remark."""

    name: str
    kind: str
    plain: tuple[int, ...]
    member: tuple[int, ...]
    subgroups: int = 1
    remark: str = ""


class Place(NamedTuple):
    """The role of a layer: reads the input, gives the output, lies between them, starts a block."""

    first: bool
    last: bool
    inner: bool
    starts_block: bool


@dataclass(kw_only=True)
class Narrowing:
    """Resizes layers for one member and stacks redrawn tensors for all of them.

    Args:
        members: M.
        ratio: width of a member over width of the plain network, alpha / M.
        subgroups: gamma, groups within a member.
        minimum_channels: gamma is lowered if a group would have fewer input channels.
        generator: draws the new tensors.
        widths: the result for each layer.
        before: the plain width of the previous layer.
        hidden: plain widths of layers that do not give the output.
    """

    members: int
    ratio: Fraction
    subgroups: int
    minimum_channels: int
    generator: torch.Generator
    widths: list[Width] = field(default_factory=list)
    before: int = 0
    hidden: set[int] = field(default_factory=set)
    _stacked: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # plain tensor (kept alive), its successor

    def scaled(self, width: int) -> int:
        """Return a width of a member, rounded up."""
        return math.ceil(width * self.ratio)

    def resize(self, name: str, layer: nn.Module, place: Place) -> nn.Module | None:
        """Resize a layer in place (or return its replacement); None for kinds without widths."""
        rule = next((rule for kinds, rule in _RULES if isinstance(layer, kinds)), None)
        if rule is not None and parametrize.is_parametrized(layer):
            raise ConversionError(
                f"layer {name!r} ({type(layer).__name__}) has parametrized weights; use torch.nn.utils.parametrize.remove_parametrizations first."
            )
        made = None if rule is None else rule(self, name, layer, place)
        if made is not None and not place.last:
            self.hidden.add(self.widths[-1].plain[-1])
            self.before = self.widths[-1].plain[-1] if isinstance(layer, ENDS) else self.before
        return made

    def note(self, name: str, layer: nn.Module, plain: Sequence[int], member: Sequence[int], **more: Any) -> None:
        """Record the result for a layer."""
        remarks = [more.pop("remark", "")]
        for before, after in dict(zip(plain, member)).items():
            if after not in (before, before * self.ratio):
                remarks.append(f"{float(before * self.ratio):.2f} rounded up to {after}")
        kind = type(layer).__name__
        text = "; ".join(r for r in remarks if r)
        self.widths.append(Width(name, kind, tuple(plain), tuple(member), remark=text, **more))

    def put(self, layer: nn.Module, name: str, shape: Sequence[int], *, spread: float = 1.0) -> None:
        """Replace a tensor of a layer by the members' redrawn tensors of another shape."""
        plain = {**layer._buffers, **layer._parameters}.get(name)
        if plain is None:
            return
        if id(plain) not in self._stacked:
            stack = redrawn(plain, shape, members=self.members, spread=spread, generator=self.generator)
            own = nn.Parameter(stack, plain.requires_grad) if name in layer._parameters else stack
            self._stacked[id(plain)] = (plain, own)
        new = self._stacked[id(plain)][1]
        if new.shape[1:] != torch.Size(shape):
            raise ConversionError(
                f"{name!r} of {layer} is tied to a tensor of shape {tuple(new.shape[1:])} in a member, and would be {tuple(shape)}; untie the two."
            )
        setattr(layer, name, new)

    def stacked(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one of the stacked ones."""
        return any(new is tensor for _, new in self._stacked.values())

    def gamma(self, inputs: int, outputs: int, groups: int, place: Place) -> tuple[int, str]:
        """Return the effective gamma of a layer, and why it is lower than requested."""
        if self.subgroups == 1 or place.first or place.last:
            return 1, ""
        if place.starts_block:
            return 1, "first layer of a block: subgroups=1"
        for g in range(self.subgroups, 0, -1):
            whole = inputs % (groups * g) == 0 and outputs % (groups * g) == 0
            if g == 1 or (whole and inputs // (groups * g) >= self.minimum_channels):
                break
        if g == self.subgroups:
            return g, ""
        wanted = f"{inputs} channels in {groups * self.subgroups} groups"
        return g, f"subgroups lowered from {self.subgroups} to {g}: {wanted}"


def redrawn(plain: Tensor, shape: Sequence[int], *, members: int, spread: float, generator: torch.Generator) -> Tensor:
    """Return members' tensors (member, *shape) drawn from the values of a plain tensor.

    Values are drawn with replacement and multiplied by `spread`, so that the kind of initialization (constant, uniform, normal) is kept.
    Constant tensors stay constant, and if the shape has not changed the first member keeps the original values.
    """
    plain = plain.detach()
    shape = tuple(shape)
    if plain.is_meta:
        return torch.empty((members, *shape), dtype=plain.dtype, device=plain.device)
    values = plain.flatten()
    same = tuple(plain.shape) == shape
    if same and (members == 1 or not plain.is_floating_point()):
        return plain.expand(members, *shape).clone()
    if bool((values == values[0]).all()):
        return values[0].expand(members, *shape).clone()
    pick = torch.randint(len(values), (members, *shape), generator=generator).to(plain.device)
    drawn = values[pick] * spread
    if same:
        drawn[0] = plain
    return drawn


def _linear(n: Narrowing, name: str, layer: nn.Linear, place: Place) -> nn.Module:
    inputs, outputs = _ends(n, layer.in_features, layer.out_features, place)
    g, why = n.gamma(inputs, outputs, 1, place)
    n.note(name, layer, (layer.in_features, layer.out_features), (inputs, outputs), subgroups=g, remark=why)
    spread = (layer.in_features * g / inputs) ** 0.5
    made: nn.Linear | GroupedLinear = layer
    if g > 1:
        made = GroupedLinear(inputs, outputs, groups=g, bias=layer.bias is not None)
        for key, p in layer._parameters.items():
            made.register_parameter(key, p)
    made.in_features, made.out_features = inputs, outputs
    n.put(made, "weight", (outputs, inputs // g), spread=spread)
    n.put(made, "bias", (outputs,), spread=spread)
    return made


def _ends(n: Narrowing, inputs: int, outputs: int, place: Place) -> tuple[int, int]:
    """Return the inputs and outputs of one member; flattened images keep their pixels."""
    whole = n.before if n.before > 1 and inputs % n.before == 0 else inputs
    narrowed = inputs if place.first else n.scaled(whole) * (inputs // whole)
    return narrowed, outputs if place.last else n.scaled(outputs)


def _convolution(n: Narrowing, name: str, layer: Any, place: Place) -> nn.Module:
    plain = (layer.in_channels, layer.out_channels)
    inputs = plain[0] if place.first else n.scaled(plain[0])
    outputs = plain[1] if place.last else n.scaled(plain[1])
    depthwise = layer.groups > 1 and layer.groups == layer.in_channels
    groups = inputs if depthwise else layer.groups
    g, why = (1, "") if depthwise else n.gamma(inputs, outputs, groups, place)
    n.note(name, layer, plain, (inputs, outputs), subgroups=g, remark=why)
    old = layer.weight.shape[1]
    layer.in_channels, layer.out_channels, layer.groups = inputs, outputs, groups * g
    lead, rest = (inputs, outputs) if isinstance(layer, TRANSPOSED) else (outputs, inputs)
    new = rest // layer.groups
    spread = (old / new) ** 0.5
    n.put(layer, "weight", (lead, new, *layer.kernel_size), spread=spread)
    n.put(layer, "bias", (outputs,), spread=spread)
    return layer


def _by_channel(n: Narrowing, name: str, layer: Any, place: Place) -> nn.Module:
    """Normalization and PReLU: every tensor of the length of the channels has one number for each."""
    size = next(s for s in _CHANNELS if hasattr(layer, s))
    plain = getattr(layer, size)
    shape = tuple(plain) if size == "normalized_shape" else (plain,)
    narrow = place.inner and (size != "num_parameters" or plain > 1)  # PReLU may have one slope for all
    new = (n.scaled(shape[0]), *shape[1:]) if narrow else shape
    setattr(layer, size, new if size == "normalized_shape" else new[0])
    remark = ""
    if size == "num_channels":
        kept = Fraction(layer.num_groups) * new[0] / plain  # as many channels in a group as before, if possible
        groups = int(kept) if kept.denominator == 1 else math.gcd(layer.num_groups, new[0])
        remark = f"{layer.num_groups} groups, {groups} in a member"
        layer.num_groups = groups
    for key, tensor in (*layer._parameters.items(), *layer._buffers.items()):
        if tensor is not None:
            n.put(layer, key, new if tensor.shape == shape else tensor.shape)
    n.note(name, layer, shape[:1], new[:1], remark=remark)
    return layer


def _embedding(n: Narrowing, name: str, layer: Any, place: Place) -> nn.Module:
    plain = layer.embedding_dim
    layer.embedding_dim = plain if place.last else n.scaled(plain)
    padding = layer.padding_idx
    blank = padding is not None and not layer.weight.is_meta and not bool(layer.weight[padding].any())
    n.put(layer, "weight", (layer.num_embeddings, layer.embedding_dim))
    if blank:
        with torch.no_grad():
            layer.weight[:, padding] = 0
    n.note(name, layer, (plain,), (layer.embedding_dim,))
    return layer


def _attention(n: Narrowing, name: str, layer: Any, place: Place) -> nn.Module:
    if place.first or place.last:
        raise ConversionError(
            f"layer {name!r} (MultiheadAttention) reads the input or gives the output; put a linear map before and after it."
        )
    width, inner = layer.embed_dim, n.scaled(layer.embed_dim)
    heads = layer.num_heads * n.ratio
    wanted = int(heads) if heads.denominator == 1 and heads >= 1 else layer.num_heads
    count = max(h for h in range(1, wanted + 1) if inner % h == 0)
    n.note(name, layer, (width,), (inner,), remark=f"{layer.num_heads} heads, {count} in a member")
    sizes = {1: 1, **{size: n.scaled(size) for size in (layer.kdim, layer.vdim, width)}, 3 * width: 3 * inner}
    layer.embed_dim, layer.num_heads, layer.head_dim = inner, count, inner // count
    layer.kdim, layer.vdim = n.scaled(layer.kdim), n.scaled(layer.vdim)
    spread = (width / inner) ** 0.5
    for key, p in list(layer.named_parameters()):
        owner, _, part = key.rpartition(".")
        n.put(layer.get_submodule(owner), part, [sizes[size] for size in p.shape], spread=spread)
    layer.out_proj.in_features = layer.out_proj.out_features = inner
    return layer


def _recurrent(n: Narrowing, name: str, layer: Any, place: Place) -> nn.Module:
    plain = (layer.input_size, layer.hidden_size)
    inputs = plain[0] if place.first else n.scaled(plain[0])
    hidden = plain[1] if place.last else n.scaled(plain[1])
    with torch.device("meta"):
        if isinstance(layer, CELLS):
            model = type(layer)(inputs, hidden, layer.bias)
        else:
            options = {k: getattr(layer, k) for k in ("num_layers", "bias", "batch_first", "dropout", "bidirectional")}
            if layer.proj_size:
                options["proj_size"] = n.scaled(layer.proj_size)
            model = type(layer)(inputs, hidden, **options)
    spread = (plain[1] / hidden) ** 0.5
    for key, p in model.named_parameters():
        n.put(layer, key, p.shape, spread=spread)
    layer.input_size, layer.hidden_size = inputs, hidden
    if "proj_size" in vars(model):
        layer.proj_size = model.proj_size
    n.note(name, layer, plain, (inputs, hidden))
    return layer


def _unflatten(n: Narrowing, name: str, layer: Any, place: Place) -> nn.Module:
    channels, *rest = layer.unflattened_size
    layer.unflattened_size = (n.scaled(channels), *rest)
    n.note(name, layer, (channels,), (n.scaled(channels),))
    return layer


def _transformer(n: Narrowing, name: str, layer: Any, place: Place) -> None:
    """Resize the checked attributes of the container; its layers are resized separately."""
    layer.d_model = n.scaled(layer.d_model)


_RULES: tuple[tuple[Any, Callable[..., nn.Module | None]], ...] = (
    (nn.Linear, _linear),
    ((*CONVOLUTIONS, *TRANSPOSED), _convolution),
    ((*NORMS, FilterResponseNorm, nn.PReLU), _by_channel),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    (nn.MultiheadAttention, _attention),
    ((nn.LSTM, nn.GRU, nn.RNN, *CELLS), _recurrent),
    (nn.Unflatten, _unflatten),
    (nn.Transformer, _transformer),
)
