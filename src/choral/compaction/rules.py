"""Rules of the tracer: what each layer or function does to channels, and which it reads.

Rules get the tracer, the call and the call's own arguments, and return the channels of the result (None where it has
none that could be removed), or NotImplemented, which locks all channels that the call reads.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.compaction.tracer import Call, Channels, Rule, Tracer, Use


def _outputs(tracer: Tracer, weight: Tensor, bias: Tensor | None, axis: int) -> Channels:
    """Return new output channels: constant, equal to the bias, where the row of the weight is zero."""
    name = tracer.own(weight)
    assert name is not None
    units = tracer.units.fresh(weight.shape[0])
    tracer.rows.setdefault(name, units)
    tracer.bind(name, 0, units)
    values = torch.zeros(weight.shape[0], dtype=weight.dtype) if bias is None else bias.detach().cpu()
    if bias is not None:
        bias_name = tracer.own(bias)
        assert bias_name is not None
        tracer.bind(bias_name, 0, units)
    return Channels(axis, units, values.where(tracer.dead_rows(name, weight.shape[0]), torch.nan))


def _known_layer(tracer: Tracer, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether weight and bias are parameters as they are, not computed ones."""
    return tracer.own(weight) is not None and (bias is None or tracer.own(bias) is not None)


def _reads(
    tracer: Tracer, channels: Channels | None, weight: Tensor, bias: Tensor | None, *, padded: bool = False
) -> None:
    name = tracer.own(weight)
    assert name is not None
    tracer.bind(name, 1, None if channels is None else channels.units)
    if channels is not None:
        bias_name = None if bias is None else tracer.own(bias)
        tracer.uses.append(Use(channels.units, channels.constants, name, bias_name, padded))


def _linear(tracer: Tracer, call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    channels = tracer.channels(input)
    last = input.dim() - 1
    if not _known_layer(tracer, weight, bias) or weight.dim() != 2 or (channels and channels.axis != last):
        return NotImplemented
    _reads(tracer, channels, weight, bias)
    return _outputs(tracer, weight, bias, call.result.dim() - 1)


def _conv(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    channels = tracer.channels(input)
    axis = input.dim() - weight.dim() + 1
    if not _known_layer(tracer, weight, bias) or (channels and channels.axis != axis):
        return NotImplemented
    if isinstance(padding, str):
        padded = padding == "same" and any(size > 1 for size in weight.shape[2:])
    else:
        padded = any(padding) if isinstance(padding, list | tuple) else bool(padding)
    if groups == 1:
        _reads(tracer, channels, weight, bias, padded=padded)
        return _outputs(tracer, weight, bias, axis)
    return _grouped(tracer, channels, weight, bias, groups, axis, padded)


def _grouped(
    tracer: Tracer,
    channels: Channels | None,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    axis: int,
    padded: bool,
) -> Channels:
    """Grouped convolutions lose whole groups only: all inputs and outputs of a group are tied into one unit."""
    outputs = _outputs(tracer, weight, bias, axis)
    by_group = outputs.units.view(groups, -1)
    _tie_columns(tracer, by_group)
    if channels is None:
        tracer.units.lock(outputs.units, f"grouped {tracer.place} reads channels that cannot be removed")
        return outputs
    inputs = channels.zero_only() if padded else channels
    into = inputs.units.view(groups, -1)
    _tie_columns(tracer, into)
    tracer.units.tie(into[:, 0], by_group[:, 0])
    # an output is also constant where all inputs of its group are
    sums = weight.detach().cpu().flatten(2).sum(2).view(groups, -1, weight.shape[1])  # (group, output, input)
    values = (sums * inputs.constants.view(groups, 1, -1)).sum(2).flatten()
    values = values + (0 if bias is None else bias.detach().cpu())
    if tracer.silence(tracer.own(weight), values):
        tracer.silence(tracer.own(bias), values)
        values = values * 0
    return outputs.valued(outputs.constants.where(~outputs.constants.isnan(), values))


def _tie_columns(tracer: Tracer, units: Tensor) -> None:
    """Tie all units of each row of (group, channel)."""
    if units.shape[1] > 1:
        tracer.units.tie(units[:, :1].expand_as(units).flatten(), units.flatten())


def _batch_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None
    mine = [running_mean, running_var, weight, bias]
    if channels.axis != 1 or any(t is not None and tracer.own(t) is None for t in mine):
        return NotImplemented
    tracer.norms[tracer.module] = channels.units
    for statistic in (running_mean, running_var):
        if statistic is not None:
            tracer.bind(tracer.own(statistic) or "", 0, channels.units)
    scale, shift = (None if t is None else tracer.act(t, channels) for t in (weight, bias))
    if training or running_mean is None or running_var is None:
        # statistics of the batch itself: a constant is its own mean
        shifts = torch.zeros_like(channels.constants) if shift is None else shift.cpu()
        return channels.valued(shifts.where(~channels.constants.isnan(), torch.nan))
    values = F.batch_norm(channels.constants.to(input)[None], running_mean, running_var, scale, shift, False, 0.0, eps)
    return channels.valued(values[0].cpu())


def _group_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Statistics go over a group, so a group is removed as a whole or not at all."""
    channels = tracer.channels(input)
    if channels is None:
        return None
    if channels.axis != 1 or any(t is not None and tracer.own(t) is None for t in (weight, bias)):
        return NotImplemented
    _tie_columns(tracer, channels.units.view(num_groups, -1))
    tracer.norms[tracer.module] = channels.units
    whole = channels.constants.view(num_groups, -1).isnan().any(1, keepdim=True)
    whole = whole.expand(num_groups, channels.units.numel() // num_groups).flatten()
    inside = channels.valued(channels.constants.masked_fill(whole, torch.nan))
    scale, shift = (None if t is None else tracer.act(t, inside) for t in (weight, bias))
    places = inside.constants.to(input)[None, :, None].expand(1, -1, 2)  # the function refuses a single place
    return channels.valued(F.group_norm(places, num_groups, scale, shift, eps)[0, :, 0].cpu())


def _layer_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
) -> Any:
    """Statistics go over all channels, so each of them has to stay."""
    channels = tracer.channels(input)
    if channels is None:
        return None
    if channels.axis < input.dim() - len(normalized_shape):
        return NotImplemented
    tracer.units.lock(channels.units, f"{tracer.place} takes statistics over all channels")
    return None


def _prelu(tracer: Tracer, call: Call, input: Tensor, weight: Tensor) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None
    if weight.numel() == 1:
        slopes = weight.detach().cpu()
    else:
        acting = tracer.act(weight, channels) if channels.axis == 1 else None
        if acting is None:
            return NotImplemented
        slopes = acting.cpu()
    values = channels.constants
    return channels.valued(values.where(values.isnan() | (values > 0), values * slopes))


LAYER_RULES: dict[str, Rule] = {
    "linear": _linear,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "batch_norm": _batch_norm,
    "instance_norm": _batch_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "prelu": _prelu,
}


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


def _unary(tracer: Tracer, call: Call, input: Tensor, *args: Any, **options: Any) -> Any:
    """The constants go through the very same function; NaN (varying) stays NaN."""
    if any(isinstance(a, Tensor) for a in (*args, *options.values())):
        return NotImplemented
    channels = tracer.channels(input)
    if channels is None:
        return None if tracer.note_vector(call.result, input, unchanged=False) else NotImplemented
    values = call.function(channels.constants.to(input, copy=True), *args, **options)
    return channels.valued(values.cpu().where(~channels.constants.isnan(), torch.nan))


def _dropout(
    tracer: Tracer, call: Call, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return NotImplemented
    return channels.zero_only() if training else channels


def _binary(tracer: Tracer, call: Call, input: Any, other: Any, *, alpha: float = 1, rounding_mode: Any = None) -> Any:
    """Elementwise functions of two tensors tie their channels; parameters of matching length are bound to them."""
    operands = (input, other)
    known = [tracer.channels(t) if isinstance(t, Tensor) else None for t in operands]
    if not any(known) or not isinstance(call.result, Tensor):
        return NotImplemented
    rank = call.result.dim()
    axes = {c.axis - t.dim() for c, t in zip(known, operands) if c is not None}
    counts = {c.units.numel() for c in known if c is not None}
    if len(axes) != 1 or len(counts) != 1 or call.result.shape[(axis := axes.pop())] != (count := counts.pop()):
        return NotImplemented
    present = [c for c in known if c is not None]
    if len(present) == 2:
        tracer.units.tie(present[0].units, present[1].units)
    values = [
        item if channels is None and not isinstance(item, Tensor) else _values(tracer, item, channels, present[0], axis)
        for item, channels in zip(operands, known)
    ]
    if any(v is None for v in values):
        tracer.units.lock(present[0].units, f"{tracer.place} combines it with channels that cannot be removed")
        return None
    options = {key: call.kwargs[key] for key in ("alpha", "rounding_mode") if key in call.kwargs}
    result = call.function(*[v.clone() if isinstance(v, Tensor) else v for v in values], **options)
    if call.name.strip("_") in ("mul", "multiply", "rmul", "imul"):
        # zero times anything is zero, also where the other factor varies
        zero = torch.zeros(count, dtype=torch.bool)
        for v in values:
            zero |= v == 0 if isinstance(v, Tensor) else torch.tensor(v == 0)
        result = result.masked_fill(zero, 0)
    return Channels(rank + axis, present[0].units, result.to(present[0].constants))


def _values(tracer: Tracer, tensor: Tensor, channels: Channels | None, partner: Channels, axis: int) -> Tensor | None:
    """Return an operand's constants, (channel,): its own, a parameter's, NaN if unknown; None if it must lock."""
    if channels is not None:
        return channels.constants
    count = partner.units.numel()
    unknown = torch.full((count,), torch.nan, dtype=partner.constants.dtype)
    size = tensor.shape[axis] if tensor.dim() >= -axis else 1
    if size == 1 and count > 1:
        is_number = tensor.numel() == 1 and tracer.name(tensor) is not None
        return tensor.detach().cpu().flatten().to(unknown).expand(count) if is_number else unknown
    if tensor.numel() == size:
        acting = tracer.act(tensor, partner)
        if acting is not None:
            return acting.cpu().to(unknown)
    name = tracer.own(tensor)
    if name is None:
        return None
    tracer.bind(name, tensor.dim() + axis, partner.units)
    return unknown


_ACTIVATIONS = (
    "relu relu6 leaky_relu rrelu elu selu celu gelu silu mish sigmoid logsigmoid hardsigmoid hardswish hardtanh tanh "
    "softplus softsign tanhshrink hardshrink softshrink threshold"
)
_FUNCTIONS = "neg abs exp expm1 log log1p sqrt rsqrt square reciprocal sin cos erf clamp clip clamp_min clamp_max"
_PAIRS = "add sub subtract mul multiply div divide true_divide maximum minimum pow"
_OPERATORS = "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv div rdiv idiv pow rpow ipow"

POINTWISE_RULES: dict[str, Rule] = {
    **dict.fromkeys((_ACTIVATIONS + " " + _FUNCTIONS).split(), _unary),
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout
    ),
    **dict.fromkeys([*_PAIRS.split(), "max", "min"], _binary),
    **{f"__{name}__": _binary for name in _OPERATORS.split()},
}
