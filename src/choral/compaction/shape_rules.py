"""Rules for functions that move, repeat, pool or join channels without mixing them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from choral.compaction.tracer import Call, Rule, Tracer
from choral.compaction.units import Channels


def reshaped(channels: Channels, before: Sequence[int], after: Sequence[int]) -> Channels | None:
    """Return the channels after a reshape, or None where it splits them over several axes.

    Channels lie `stride` elements apart. The result's axis that holds them spans a multiple of all of them: places
    merged into it from behind repeat each channel, places merged from before repeat the whole row of channels.

    >>> channels = Channels(1, torch.tensor([7, 8]), torch.zeros(2))
    >>> reshaped(channels, (5, 2, 3), (5, 6)).units.tolist()
    [7, 7, 7, 8, 8, 8]
    >>> reshaped(channels, (5, 2, 3), (10, 3)).units.tolist()
    [7, 8, 7, 8, 7, 8, 7, 8, 7, 8]
    """
    count = before[channels.axis]
    stride = torch.Size(before[channels.axis + 1 :]).numel()
    for axis, size in enumerate(after):
        inner = torch.Size(after[axis + 1 :]).numel()
        if size % count == 0 and size >= count > 1 and stride % inner == 0 and (inner * size) % (stride * count) == 0:
            repeats, rows = stride // inner, inner * size // (stride * count)
            units, constants = (v.repeat_interleave(repeats).repeat(rows) for v in (channels.units, channels.constants))
            return Channels(axis, units, constants)
    return None


def _reshape(tracer: Tracer, call: Call, input: Tensor, *sizes: Any, **options: Any) -> Any:
    if not isinstance(call.result, Tensor):
        return NotImplemented
    channels = tracer.channels(input)
    if channels is None:
        tracer.note_vector(call.result, input, unchanged=True)
        return None
    return reshaped(channels, input.shape, call.result.shape) or NotImplemented


def _same(tracer: Tracer, call: Call, input: Tensor, *args: Any, **options: Any) -> Any:
    """Copies and conversions."""
    tracer.note_vector(call.result, input, unchanged=True)
    return tracer.channels(input)


def _transpose(tracer: Tracer, call: Call, input: Tensor, dim0: int, dim1: int) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None if tracer.note_vector(call.result, input, unchanged=True) else NotImplemented
    one, other = dim0 % input.dim(), dim1 % input.dim()
    return channels.moved({one: other, other: one}.get(channels.axis, channels.axis))


def _permute(tracer: Tracer, call: Call, input: Tensor, *dims: Any) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None if tracer.note_vector(call.result, input, unchanged=True) else NotImplemented
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return channels.moved([d % input.dim() for d in order].index(channels.axis))


def _expand(tracer: Tracer, call: Call, input: Tensor, *sizes: Any) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None if tracer.note_vector(call.result, input, unchanged=True) else NotImplemented
    axis = channels.axis + call.result.dim() - input.dim()
    return channels.moved(axis) if call.result.shape[axis] == channels.units.numel() else NotImplemented


def _getitem(tracer: Tracer, call: Call, input: Tensor, index: Any) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None if tracer.note_vector(call.result, input, unchanged=True) else NotImplemented
    entries = list(index) if isinstance(index, tuple) else [index]
    if not all(entry is None or entry is Ellipsis or isinstance(entry, int | slice) for entry in entries):
        return NotImplemented
    taken = sum(entry is not None and entry is not Ellipsis for entry in entries)
    at = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    entries[at : at + 1] = [slice(None)] * (input.dim() - taken)
    source, target = 0, 0
    for entry in entries:
        if entry is None:
            target += 1
            continue
        if source == channels.axis:
            whole = isinstance(entry, slice) and range(*entry.indices(input.shape[source])) == range(
                input.shape[source]
            )
            return channels.moved(target) if whole else NotImplemented
        source += 1
        target += isinstance(entry, slice)
    return NotImplemented


def _pieces(tracer: Tracer, call: Call, input: Tensor, size: Any, dim: int = 0) -> Any:
    channels = tracer.channels(input)
    if channels is None or dim % input.dim() == channels.axis:
        return NotImplemented
    return channels


def _unbind(tracer: Tracer, call: Call, input: Tensor, dim: int = 0) -> Any:
    channels = tracer.channels(input)
    if channels is None or dim % input.dim() == channels.axis:
        return NotImplemented
    return channels.moved(channels.axis - (dim % input.dim() < channels.axis))


def _cat(tracer: Tracer, call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    known = [tracer.channels(t) for t in tensors]
    dim = dim % call.result.dim()
    axes = {channels.axis for channels in known if channels is not None}
    if len(axes) != 1:
        return NotImplemented
    axis = axes.pop()
    like = next(channels.constants for channels in known if channels is not None)
    if dim == axis:
        parts = [c or _fixed(tracer, t.shape[dim], like, torch.nan) for c, t in zip(known, tensors)]
        return Channels(axis, torch.cat([c.units for c in parts]), torch.cat([c.constants for c in parts]))
    if any(c is None for c in known):
        return NotImplemented
    first, *others = [c for c in known if c is not None]
    constants = first.constants
    for other in others:
        tracer.units.tie(first.units, other.units)
        constants = constants.where(constants == other.constants, torch.nan)
    return first.valued(constants)


def _fixed(tracer: Tracer, count: int, like: Tensor, value: float) -> Channels:
    """Return channels that come from no layer and have to stay."""
    units = tracer.units.fresh(count)
    tracer.units.lock(units, f"{tracer.place} joins it to channels that cannot be removed")
    return Channels(0, units, torch.full((count,), value, dtype=like.dtype))


def _pad(
    tracer: Tracer, call: Call, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return NotImplemented
    fill = float(value or 0.0)
    pairs = dict(zip(range(input.dim() - 1, -1, -1), zip(pad[::2], pad[1::2])))
    before, after = pairs.pop(channels.axis, (0, 0))
    if mode == "constant" and any(size > 0 for pair in pairs.values() for size in pair):
        channels = channels.valued(channels.constants.where(channels.constants == fill, torch.nan))
    if before == after == 0:
        return channels
    if before < 0 or after < 0 or mode != "constant":
        return NotImplemented
    first, last = (_fixed(tracer, count, channels.constants, fill) for count in (before, after))
    units = torch.cat([first.units, channels.units, last.units])
    return Channels(channels.axis, units, torch.cat([first.constants, channels.constants, last.constants]))


def _reduced(tracer: Tracer, call: Call, input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Means and extremes over other axes than that of the channels."""
    channels = tracer.channels(input)
    if channels is None or dim is None or not isinstance(call.result, Tensor):
        return NotImplemented
    dims = {d % input.dim() for d in ([dim] if isinstance(dim, int) else dim)}
    if channels.axis in dims:
        return NotImplemented
    return channels.moved(channels.axis - (0 if keepdim else sum(d < channels.axis for d in dims)))


def _summed(tracer: Tracer, call: Call, input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Sums grow with the number of places, so only zero stays a constant."""
    channels = _reduced(tracer, call, input, dim, keepdim)
    return channels if channels is NotImplemented else channels.zero_only()


def _pooled(tracer: Tracer, call: Call, input: Tensor, *args: Any, **options: Any) -> Any:
    """Pooling and resizing act on each channel by itself and leave constants alone."""
    channels = tracer.channels(input)
    if channels is None or channels.axis != 1 or not isinstance(call.result, Tensor) or input.dim() < 3:
        return NotImplemented
    return channels


def _average_pooled(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    channels = _pooled(tracer, call, input)
    padded = any(padding) if isinstance(padding, list | tuple) else bool(padding)
    if channels is not NotImplemented and ((padded and count_include_pad) or divisor_override):
        return channels.zero_only()
    return channels


SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"), _reshape
    ),
    **dict.fromkeys(
        ("clone", "contiguous", "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu"), _same
    ),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transpose),
    "permute": _permute,
    **dict.fromkeys(("expand", "expand_as"), _expand),
    "__getitem__": _getitem,
    **dict.fromkeys(("chunk", "split"), _pieces),
    "unbind": _unbind,
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "pad": _pad,
    **dict.fromkeys(("mean", "amax", "amin"), _reduced),
    "sum": _summed,
    **dict.fromkeys(
        [f"{kind}_pool{n}d" for kind in ("max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)], _pooled
    ),
    **dict.fromkeys(("interpolate", "upsample"), _pooled),
    **dict.fromkeys([f"avg_pool{n}d" for n in (1, 2, 3)], _average_pooled),
}
